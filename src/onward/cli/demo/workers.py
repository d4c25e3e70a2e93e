"""The worker processes of the demo."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from onward.cli.loading import this_program


class WorkerProcess:
    """`onward worker` in a process of its own, its words in a file."""

    def __init__(self, name: str, *, folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        command = [*this_program(), "worker", "onward.cli.demo.app:app"]
        options = ["--concurrency", "4", "--name", name, "--log-level", "warning"]
        # No ONWARD_* of the user's: this worker is the demo's.
        clean = {key: value for key, value in os.environ.items() if not key.startswith("ONWARD_")}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**clean, **environment},
                # Ctrl-C in the terminal is for the demo, which then ends its workers.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def state(self) -> str:
        """How it is, in a word."""
        code = self._process.poll()
        if code is None:
            return "working"
        return "stopped" if code == 0 else "killed" if code < 0 else f"ended with {code}"

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """As the operating system would: SIGKILL, nothing can be cleaned up."""
        self._process.kill()
        self._process.wait()

    def stop(self, *, within: float) -> int:
        """Ask it to drain; its exit code."""
        self._process.terminate()
        return self._process.wait(timeout=within)

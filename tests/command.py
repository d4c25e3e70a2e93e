"""The `onward` command as a real process, for tests."""

import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from onward import JobStatus, JobType, SyncOnward
from support import SOON

hold = JobType("hold", input=str, output=int)


def until(
    condition: Callable[[], bool], *, within: float = SOON.total_seconds(), or_else: Callable[[], str] = str
) -> None:
    """Look until it is so."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"still not so: {or_else()}"
        time.sleep(0.01)


class Command:
    """A running `onward` command and what it has said so far."""

    def __init__(self, *arguments: str, folder: Path, output: Path, environment: dict[str, str]) -> None:
        self._output = output / f"{secrets.token_hex(4)}.out"
        with self._output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "onward", *arguments],
                cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self._output.read_text()

    def says(self, words: str, *, times: int = 1, within: float = SOON.total_seconds()) -> None:
        """Wait until it has said so."""
        until(lambda: self.said.count(words) >= times, within=within, or_else=lambda: f"{words!r} in\n{self.said}")

    def signal(self, number: signal.Signals = signal.SIGINT) -> None:
        self.process.send_signal(number)

    @property
    def exit_code(self) -> int:
        return self.exits(within=SOON.total_seconds())

    def exits(self, *, within: float) -> int:
        """Wait until it has ended; its exit code."""
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running; it said\n{self.said}") from None


def both_hold(client: SyncOnward, folder: Path) -> Callable[[], set[JobStatus]]:
    """Occupy two slots until the folder has a file `go`; the statuses of the two jobs."""
    folder.mkdir()
    chains = client.start_many([hold.with_input(str(folder)) for _ in range(2)])
    until(lambda: len(list(folder.iterdir())) == 2)
    return lambda: {chain.get().status for chain in chains}

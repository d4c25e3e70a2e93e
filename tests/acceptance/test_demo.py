"""`onward demo`, from outside: without a terminal, as CI runs it, and in one."""

import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

CLAIMS = (
    "Every chain completed",
    "Every order was paid exactly once",
    "Every order was shipped exactly once",
    "An order rolled back left no job",
    "The report waited for its blockers",
    "The failing step was retried",
    "The killed worker's jobs were finished",
    "The other worker stopped cleanly",
)


@pytest.mark.timeout(180)
def test_the_demo_survives_its_killed_worker_and_says_so(tmp_path: Path) -> None:
    demo = subprocess.run(
        [sys.executable, "-m", "onward", "demo"],
        env={**os.environ, "COLUMNS": "120", "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert demo.returncode == 0, demo.stdout + demo.stderr
    verdicts = {claim: re.search(rf"{claim} .* (ok|NOT SO) ", demo.stdout) for claim in CLAIMS}
    assert {claim: found and found[1] for claim, found in verdicts.items()} == dict.fromkeys(CLAIMS, "ok")
    assert "killed with SIGKILL" in demo.stdout
    assert "onward demo --dashboard" in demo.stdout
    assert "\x1b" not in demo.stdout, "no cursor tricks without a terminal"
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


@pytest.mark.timeout(180)
def test_the_demo_is_drawn_live_on_a_terminal() -> None:
    master, slave = pty.openpty()
    with tempfile.TemporaryFile() as errors:
        demo = subprocess.Popen(
            [sys.executable, "-m", "onward", "demo"],
            env={**os.environ, "COLUMNS": "120", "TERM": "xterm"}, stdin=slave, stdout=slave, stderr=errors,
        )  # fmt: skip
        os.close(slave)
        drawn = _read_all(master)

        assert demo.wait(10) == 0, drawn
    assert "\x1b[1A" in drawn, "redrawn in place"
    assert "Every chain completed" in drawn


def _read_all(terminal: int) -> str:
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # Linux says so when the other side has closed
            part = b""
        if not part:
            os.close(terminal)
            return b"".join(parts).decode(errors="replace")
        parts.append(part)

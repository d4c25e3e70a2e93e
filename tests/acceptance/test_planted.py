"""What lies in the current directory is imported by the application or not at all: anybody may write to /tmp."""

import subprocess
import sys
from pathlib import Path

import pytest

from onward.cli.loading import this_program

PLANTED = ("json", "queue", "ctypes", "signal", "onward", "msgspec", "sqlite3", "selectors")
PROGRAM = """
import asyncio, sys
from datetime import timedelta
from onward import Attempt, Onward, job

@job("square", executor="process")
def square(attempt: Attempt[int]) -> int:
    return attempt.input ** 2

async def main() -> None:
    app = Onward(f"sqlite:///{sys.argv[1]}/jobs.db", jobs=[square])
    async with app, app.worker(guardian="process"):
        print(await (await app.start(square, 7)).wait(timeout=timedelta(seconds=30)))

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A directory with modules that leave a trace when they are imported."""
    folder = tmp_path / "planted"
    folder.mkdir()
    for name in PLANTED:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\n")
    return folder


def test_neither_process_handlers_nor_the_guardian_import_from_the_current_directory(
    planted: Path, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    ran = subprocess.run([sys.executable, program, tmp_path], cwd=planted, capture_output=True, text=True, timeout=60)

    assert (ran.stdout, ran.returncode) == ("49\n", 0), ran.stderr
    assert not (tmp_path / "ran").exists()


def test_an_application_that_imports_from_the_current_directory_does_so_in_processes_too(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "planted.py").write_text(PROGRAM.replace("** 2", "** 3"))
    start = "import asyncio, planted; asyncio.run(planted.main())"

    ran = subprocess.run(
        [sys.executable, "-c", start, tmp_path], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )

    assert (ran.stdout, ran.returncode) == ("343\n", 0), ran.stderr


def test_the_command_line_starts_itself_and_not_what_lies_there(planted: Path, tmp_path: Path) -> None:
    ran = subprocess.run([*this_program(), "--help"], cwd=planted, capture_output=True, text=True, timeout=60)

    assert (ran.returncode, "worker" in ran.stdout) == (0, True), ran.stderr
    assert not (tmp_path / "ran").exists()

"""Files that Onward makes: for their owner alone, and gone when nobody needs them any more."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from onward import Attempt, Onward, job
from onward.state.sqlite.private import make_folder, sweep


@job("greet")
async def greet(attempt: Attempt[int]) -> int:
    return attempt.input


def modes(folder: Path) -> dict[str, str]:
    return {file.name: oct(stat.S_IMODE(file.stat().st_mode)) for file in folder.iterdir()}


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    folder = tmp_path / "ours"
    folder.mkdir()
    return folder


async def test_a_new_file_and_what_lies_beside_it_are_for_their_owner_alone(ours: Path) -> None:
    async with Onward(f"sqlite:///{ours}/jobs.db", jobs=[greet]) as app:
        await app.start(greet, 1)

        assert modes(ours) == dict.fromkeys(("jobs.db", "jobs.db-wal", "jobs.db-shm"), "0o600")


async def test_the_same_where_a_link_leads(ours: Path, tmp_path: Path) -> None:
    link = tmp_path / "jobs.db"
    link.symlink_to(ours / "elsewhere.db")
    async with Onward(f"sqlite:///{link}", jobs=[greet]) as app:
        await app.start(greet, 1)

        assert set(modes(ours).values()) == {"0o600"}
    assert "elsewhere.db" in modes(ours)


async def test_the_same_by_an_engine(ours: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{ours}/jobs.db")
    async with Onward(engine, jobs=[greet]) as app:
        await app.start(greet, 1)
    await engine.dispose()

    assert set(modes(ours).values()) == {"0o600"}


async def test_a_file_that_exists_keeps_its_mode(ours: Path) -> None:
    file = ours / "jobs.db"
    file.touch()
    file.chmod(0o664)
    async with Onward(f"sqlite:///{file}", jobs=[greet]) as app:
        await app.start(greet, 1)

        assert set(modes(ours).values()) == {"0o664"}


def test_what_a_killed_process_left_in_memory_is_swept_by_the_next() -> None:
    program = "from onward.state.sqlite.private import make_folder; print(make_folder(), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().decode().strip())
        alive = Path(make_folder())
        assert left.is_dir()  # its owner lives
        process.send_signal(signal.SIGKILL)

    alive.rmdir()
    Path(make_folder()).rmdir()

    assert not left.exists()


def test_nothing_is_swept_that_may_be_somebody_elses(tmp_path: Path) -> None:
    space = os.stat("/proc/self/ns/pid").st_ino
    kept = [
        "onward-1", "onward-memory-", "onward-memory-1-999999999-5-abc", f"onward-memory-{space}-x-5-abc",
        f"onward-memory-{space}-{os.getpid()}-{began(os.getpid())}-abc",
    ]  # fmt: skip
    for name in kept:
        (tmp_path / name).mkdir()
    (tmp_path / f"onward-memory-{space}-999999999-5-file").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"onward-memory-{space}-999999999-5-link").symlink_to(tmp_path / "elsewhere")
    before = set(tmp_path.iterdir())
    (tmp_path / f"onward-memory-{space}-999999999-5-gone").mkdir()
    (tmp_path / f"onward-memory-{space}-{os.getpid()}-5-again").mkdir()  # another had the number before

    sweep(tmp_path)

    assert set(tmp_path.iterdir()) == before


def began(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]

"""The commits to a file are seen as they happen, by every process that watches, and nothing is left beside the file."""

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from onward import Attempt, Onward, job
from onward.state.sqlite import commits
from onward.state.sqlite.commits import FileCommits
from onward.state.sqlite.file import SqliteFile
from onward.state.sqlite.writes import Writes
from support import SOON

needs_the_system = pytest.mark.skipif(os.name != "posix", reason="this system does not tell of writes")
WAIT = 10.0


@job("greet")
async def greet(attempt: Attempt[int]) -> int:
    return attempt.input


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ours" / "jobs.db"
    path.parent.mkdir()
    with closing(SqliteFile(path).connect()) as connection:
        connection.raw.execute("CREATE TABLE t (x)")
    return path


@pytest.fixture
def told_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks unless the system tells of a write."""
    for name in ("_LOOK", "_LOOK_ANYWAY"):
        monkeypatch.setattr(commits, name, 3600.0)


@pytest.fixture
def never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, and where a user has used up what the system allows."""

    def refuse(path: str) -> Writes:
        raise OSError(24, "inotify_init1")

    monkeypatch.setattr(commits, "Writes", refuse)


class Watcher:
    """A thread that counts its looks, and the turns it is given."""

    def __init__(self, watched: FileCommits) -> None:
        self.commits, self.looks, self.turns = watched, 0, 0
        self.is_watching, self.turned = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        wait = self.commits._wait

        def say(*arguments: Any) -> bool:
            self.looks += 1
            self.is_watching.set()
            return wait(*arguments)

        self.commits._wait = say  # type: ignore[method-assign]
        for _ in self.commits.seen():
            self.turns += 1
            self.turned.set()

    def sees(self) -> bool:
        """Whether a commit is seen that has not been waited for yet."""
        seen = self.turned.wait(WAIT)
        self.turned.clear()
        return seen


@contextmanager
def watching(path: Path) -> Iterator[Watcher]:
    watcher = Watcher(SqliteFile(path).commits())
    watcher.thread.start()
    assert watcher.is_watching.wait(WAIT)
    try:
        yield watcher
    finally:
        watcher.commits.stop()
        watcher.thread.join(WAIT)
        assert not watcher.thread.is_alive()


def write(path: Path) -> None:
    """As a program does that knows nothing of us."""
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("INSERT INTO t VALUES (1)")


def write_elsewhere(path: Path) -> None:
    program = "import sqlite3, sys; raw = sqlite3.connect(sys.argv[1]); raw.execute('INSERT INTO t VALUES (1)')"
    subprocess.run([sys.executable, "-c", f"{program}; raw.commit()", str(path)], check=True, timeout=60)


@needs_the_system
@pytest.mark.usefixtures("told_only")
@pytest.mark.parametrize("writes", [write, write_elsewhere])
def test_a_commit_is_seen_because_the_system_tells_of_it(file: Path, writes: Callable[[Path], None]) -> None:
    with watching(file) as watcher:
        for _ in range(3):
            writes(file)
            assert watcher.sees()


@needs_the_system
@pytest.mark.usefixtures("told_only")
def test_everybody_who_watches_sees_it(file: Path) -> None:
    with watching(file) as one, watching(file) as two, watching(file) as three:
        write(file)

        assert [watcher.sees() for watcher in (one, two, three)] == [True] * 3


@needs_the_system
@pytest.mark.usefixtures("told_only")
def test_a_file_is_watched_where_a_link_leads(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(file)
    with watching(link) as watcher:
        write(file)

        assert watcher.sees()


@needs_the_system
@pytest.mark.usefixtures("told_only")
def test_what_is_written_and_not_committed_is_no_commit(file: Path) -> None:
    with watching(file) as watcher, closing(sqlite3.connect(file, isolation_level=None)) as raw:
        raw.execute("PRAGMA cache_size = 5")
        raw.execute("BEGIN IMMEDIATE")
        raw.executemany("INSERT INTO t VALUES (?)", [("x" * 1000,)] * 1000)  # more than it keeps in memory
        time.sleep(0.1)
        assert watcher.turns == 0

        raw.execute("COMMIT")

        assert watcher.sees()


@pytest.mark.usefixtures("never_told")
def test_where_the_system_does_not_tell_somebody_looks(file: Path) -> None:
    with watching(file) as watcher:
        for _ in range(3):
            write(file)
            assert watcher.sees()


def test_where_the_system_falls_silent_somebody_looks(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file system may of which another machine writes a part."""
    monkeypatch.setattr(Writes, "wait", lambda self, seconds: time.sleep(seconds) or False)
    with watching(file) as watcher:
        for _ in range(5):
            write(file)
            assert watcher.sees()
            time.sleep(0.05)

        monkeypatch.setattr(Writes, "wait", lambda self, seconds: time.sleep(3600))
        write(file)
        assert watcher.sees()  # it is not even asked any more


@needs_the_system
@pytest.mark.usefixtures("told_only")
def test_watching_ends_at_once_and_gives_back_what_it_had(file: Path) -> None:
    before = set(os.listdir("/dev/fd"))
    with watching(file) as watcher:
        began = time.monotonic()
        watcher.commits.stop()
        watcher.thread.join(WAIT)
        assert time.monotonic() - began < WAIT / 2
    watcher.commits.stop()  # once more, and nothing is there to be woken

    assert set(os.listdir("/dev/fd")) == before


def test_stopped_before_it_began_it_never_watches(file: Path) -> None:
    watched = SqliteFile(file).commits()
    watched.stop()

    assert list(watched.seen()) == []


@needs_the_system
@pytest.mark.usefixtures("told_only")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_ends_what_its_parent_watches_does_not_disturb_it(file: Path) -> None:
    with watching(file) as watcher:
        child = os.fork()
        if child == 0:
            watcher.commits.stop()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        looks = watcher.looks
        time.sleep(0.1)
        assert watcher.looks - looks <= 1  # it sleeps

        write(file)

        assert watcher.sees()


WORKER = """
import asyncio, sys
from onward import Onward
sys.path.insert(0, sys.argv[2])
from test_commits import greet
async def main():
    app = Onward(sys.argv[1], jobs=[greet])
    async with app, app.worker():
        print("working", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@needs_the_system
@pytest.mark.usefixtures("told_only")
async def test_nothing_is_left_beside_the_file_by_a_worker_that_is_killed(file: Path) -> None:
    address = f"sqlite:///{file}"
    app = Onward(address, jobs=[greet])
    async with app:
        arguments = [sys.executable, "-c", WORKER, address, str(Path(__file__).parent)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        other = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE, env=environment)
        try:
            assert other.stdout is not None
            async with asyncio.timeout(60):
                assert await other.stdout.readline() == b"working\n"
            chain = await app.start(greet, 2)
            assert await chain.wait(timeout=SOON) == 2  # the worker was told, and so are we
        finally:
            other.send_signal(signal.SIGKILL)
            await other.wait()

        assert {one.name for one in file.parent.iterdir()} == {"jobs.db", "jobs.db-wal", "jobs.db-shm"}
        async with app.worker():
            assert await (await app.start(greet, 3)).wait(timeout=SOON) == 3


@pytest.fixture
def read_only_folder() -> Iterator[Path]:
    """One in which neither we nor a child of ours that is nobody may make files, with a file that both may write to."""
    folder = Path(tempfile.mkdtemp())
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(folder / "jobs.db")], **PIPES) as holder:
        assert holder.stdin is not None and holder.stdout is not None  # noqa: PT018
        assert holder.stdout.readline() == b"open\n"
        for one in folder.iterdir():
            one.chmod(0o666)
        folder.chmod(0o555)
        yield folder
        holder.stdin.close()
    folder.chmod(0o755)
    shutil.rmtree(folder)


PIPES: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
HOLDER = """
import sqlite3, sys
raw = sqlite3.connect(sys.argv[1])  # whoever has it open keeps the log beside it
raw.executescript("PRAGMA journal_mode = WAL; CREATE TABLE t (x)")
print("open", flush=True)
sys.stdin.read()
"""


@needs_the_system
@pytest.mark.usefixtures("told_only")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_file_is_watched_in_a_directory_that_may_not_be_written_to(read_only_folder: Path) -> None:
    path = read_only_folder / "jobs.db"
    heard, tell = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            if os.geteuid() == 0:
                os.setgid(65_534)
                os.setuid(65_534)
            assert not os.access(read_only_folder, os.W_OK)
            with watching(path) as watcher:
                os.write(tell, b"watching\n")
                os.write(tell, b"seen\n" if watcher.sees() else b"missed\n")
        os._exit(0)
    os.close(tell)
    with open(heard, "rb") as said:
        assert said.readline() == b"watching\n"
        write_elsewhere(path)
        assert said.readline() == b"seen\n"
    os.waitpid(child, 0)
    assert {one.name for one in read_only_folder.iterdir()} == {"jobs.db", "jobs.db-wal", "jobs.db-shm"}

"""`onward worker --burst` and `--reload`, as real processes."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from command import Command, until
from onward import JobStatus, JobType, Onward, SyncOnward
from support import SOON

MODULE = """
import asyncio
import os
from pathlib import Path
from onward import Attempt, Onward, job

@job("speak")
async def speak(attempt: Attempt[str]) -> str:
    while attempt.input and not Path(attempt.input).exists():
        await asyncio.sleep(0.01)
    return "{words}"

app = Onward(os.environ["DATABASE"], jobs=[speak], migrate=True)
"""
speak = JobType("speak", input=str, output=str)


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.fixture
def client(database: str) -> Iterator[SyncOnward]:
    with Onward(database, jobs=[speak], migrate=True).sync as client:
        yield client


@pytest.fixture
def work(tmp_path: Path, database: str) -> Iterator[Callable[..., Command]]:
    """Starts a worker of the module in `source`; what still runs at the end is killed, by its own id."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("ONWARD_")}
    (tmp_path / "source").mkdir()
    with ExitStack() as stack:

        def start(*arguments: str, **variables: str) -> Command:
            command = Command(
                "worker", "shop:app", *arguments,
                folder=tmp_path / "source", output=tmp_path, environment={**own, "DATABASE": database, **variables},
            )  # fmt: skip
            stack.callback(command.process.wait)
            stack.callback(command.process.kill)
            return command

        yield start


def write(folder: Path, text: str) -> None:
    """As editors do: the old file is there until the new one is whole."""
    (folder / "new").write_text(text)
    (folder / "new").rename(folder / "source" / "shop.py")


def test_several_processes_end_when_nothing_is_left(
    work: Callable[..., Command], client: SyncOnward, tmp_path: Path
) -> None:
    write(tmp_path, MODULE.format(words="done"))
    chains = client.start_many([speak.with_input("") for _ in range(20)])
    later = client.start(speak, "", delay=SOON * 100)

    supervisor = work("--burst", "--processes", "2", "--concurrency", "5")

    assert supervisor.exit_code == 0, supervisor.said
    assert {chain.get().status for chain in chains} == {JobStatus.COMPLETED}
    assert later.get().status is JobStatus.PENDING
    assert "another starts" not in supervisor.said


@pytest.mark.slow
def test_a_burst_that_cannot_begin_ends(work: Callable[..., Command], tmp_path: Path) -> None:
    write(tmp_path, "1 / 0")

    supervisor = work("--burst", "--processes", "2")

    assert supervisor.exit_code == 1
    assert "cannot import 'shop'" in supervisor.said


def test_a_worker_starts_anew_when_its_source_changes(
    work: Callable[..., Command], client: SyncOnward, tmp_path: Path
) -> None:
    write(tmp_path, MODULE.format(words="the first"))
    worker = work(ONWARD_RELOAD="1")
    worker.says("takes jobs")
    running = client.start(speak, str(tmp_path / "go"))
    until(lambda: running.get().status is JobStatus.RUNNING)

    write(tmp_path, MODULE.format(words="the second, and longer"))
    worker.says("changed: shop.py")
    worker.says("those running have 30 s to finish")
    (tmp_path / "go").touch()
    assert running.wait(timeout=SOON) == "the first"
    worker.says("takes jobs", times=2)
    assert client.start(speak, "").wait(timeout=SOON) == "the second, and longer"

    write(tmp_path, "1 / 0")
    worker.says("cannot import 'shop': ZeroDivisionError")
    worker.says("it starts again when a file changes")
    write(tmp_path, MODULE.format(words="the third"))
    worker.says("takes jobs", times=3)
    held = client.start(speak, "never")
    until(lambda: held.get().status is JobStatus.RUNNING)

    worker.signal()
    assert worker.exit_code == 0
    assert held.get().status is JobStatus.PENDING
    assert "Traceback" not in worker.said

"""`onward worker --processes N`: real processes that die, hang and are stopped, on both databases."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from command import Command, both_hold, until
from onward import JobStatus, JobType, PendingJob, SyncOnward
from support import SOON

Launch = Callable[..., Command]
meet = JobType("meet", input=str, output=int)
stubborn = JobType("stubborn", input=type(None), output=type(None))


@pytest.fixture
def processes(work: Launch, client: SyncOnward, tmp_path: Path) -> Callable[[Command], set[int]]:
    """The ids of two worker processes, which work in parallel: each of two jobs waits for the other."""

    def find(command: Command) -> set[int]:
        folder = tmp_path / "meeting"
        folder.mkdir()
        chains = client.start_many([meet.with_input(str(folder)) for _ in range(2)])
        found = {chain.wait(timeout=SOON) for chain in chains}
        assert len(found) == 2
        assert command.process.pid not in found
        return found

    return find


Processes = Callable[[Command], set[int]]


def lives(pid: int) -> bool:
    """Whether it still does something; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_processes_work_in_parallel_and_drain_together(
    work: Launch, client: SyncOnward, processes: Processes, tmp_path: Path
) -> None:
    supervisor = work("--processes", "2", "--name", "red")
    workers = processes(supervisor)
    statuses = both_hold(client, tmp_path / "held")

    supervisor.signal(signal.SIGTERM)
    supervisor.says("the supervisor stops: no more jobs are taken", times=2)
    (tmp_path / "held" / "go").touch()

    assert supervisor.exit_code == 0
    assert statuses() == {JobStatus.COMPLETED}
    assert not any(map(lives, workers))
    for number in (1, 2):
        assert f"[{number}] worker red-{number}-" in supervisor.said
    assert "Traceback" not in supervisor.said


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_a_stop_that_reaches_every_process_is_one_stop(
    work: Launch, client: SyncOnward, processes: Processes, tmp_path: Path
) -> None:
    supervisor = work(ONWARD_PROCESSES="2")
    workers = processes(supervisor)
    statuses = both_hold(client, tmp_path / "held")

    for pid in [*workers, supervisor.process.pid]:
        os.kill(pid, signal.SIGTERM)
    supervisor.says("every worker drains")
    supervisor.says("no more jobs are taken", times=2)
    (tmp_path / "held" / "go").touch()

    assert supervisor.exit_code == 0
    assert statuses() == {JobStatus.COMPLETED}


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_the_second_signal_makes_every_process_give_back(work: Launch, client: SyncOnward, tmp_path: Path) -> None:
    supervisor = work("--processes", "2")
    statuses = both_hold(client, tmp_path / "held")

    supervisor.signal()
    supervisor.says("no more jobs are taken", times=2)
    supervisor.signal()

    assert supervisor.exit_code == 0
    assert statuses() == {JobStatus.PENDING}


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_the_third_signal_kills_every_process(work: Launch, client: SyncOnward, processes: Processes) -> None:
    supervisor = work("--processes", "2", "--jobs", "meet,block")
    workers = processes(supervisor)
    block = JobType("block", input=type(None), output=type(None))
    chains = client.start_many([block.with_input(None) for _ in range(2)])
    until(lambda: all(chain.get().status is JobStatus.RUNNING for chain in chains))

    for words in ("every worker drains", "every worker gives its jobs back", "every worker is killed"):
        supervisor.signal()
        supervisor.says(words)

    assert supervisor.exit_code == 130
    assert not any(map(lives, workers))


def test_a_process_that_is_killed_is_replaced(
    work: Launch, client: SyncOnward, processes: Processes, tmp_path: Path
) -> None:
    supervisor = work("--processes", "2")
    workers = processes(supervisor)
    statuses = both_hold(client, tmp_path / "held")

    victim = min(workers)
    os.kill(victim, signal.SIGKILL)
    supervisor.says(f"(process {victim}) was killed (SIGKILL")
    supervisor.says("another starts in 1 s")
    supervisor.says("takes jobs", times=3)
    (tmp_path / "held" / "go").touch()

    until(lambda: statuses() == {JobStatus.COMPLETED})
    supervisor.signal(signal.SIGTERM)
    assert supervisor.exit_code == 0


def test_processes_whose_supervisor_is_killed_drain(
    work: Launch, client: SyncOnward, processes: Processes, tmp_path: Path
) -> None:
    supervisor = work("--processes", "2")
    workers = processes(supervisor)
    statuses = both_hold(client, tmp_path / "held")

    supervisor.signal(signal.SIGKILL)
    supervisor.says("the supervisor is gone: no more jobs are taken", times=2)
    assert all(map(lives, workers))
    (tmp_path / "held" / "go").touch()

    until(lambda: not any(map(lives, workers)))
    assert statuses() == {JobStatus.COMPLETED}


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_an_app_that_cannot_be_imported_is_tried_again_ever_less_often(work: Launch) -> None:
    supervisor = work("--processes", "2", BROKEN="yes")

    supervisor.says("ended with exit code 1; another starts in 1 s", times=2)
    supervisor.says("ended with exit code 1; another starts in 2 s", times=2)
    supervisor.signal(signal.SIGTERM)

    assert supervisor.exit_code == 0
    assert "[1] onward: cannot import 'stoppable': RuntimeError: no luck today" in supervisor.said
    assert "[2] onward: cannot import" in supervisor.said


def test_a_process_with_a_handler_that_does_not_stop_is_replaced(
    work: Launch, client: SyncOnward, processes: Processes, tmp_path: Path
) -> None:
    supervisor = work("--processes", "2", "--grace", "1")
    supervisor.says("takes jobs", times=2)

    chain = client.start(stubborn, None)
    supervisor.says("a handler does not stop, so this process makes room for another")
    supervisor.says("made room because a handler did not stop (exit code 3); another starts in 1 s")
    supervisor.says("takes jobs", times=3)

    assert len(processes(supervisor)) == 2
    job = chain.get().current
    assert isinstance(job, PendingJob)
    assert (job.failures, job.attempt) == (1, 1)
    supervisor.signal(signal.SIGTERM)
    assert supervisor.exit_code == 0

"""Workers stopped at any moment: every job is settled or given back, whatever handlers and databases do."""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from command import Command, until
from onward import FailedJob, FailureReason, JobStatus, JobType, SyncOnward
from programs.three_steps import one
from support import SOON

Launch = Callable[..., Command]
hold = JobType("hold", input=str, output=int)
stubborn = JobType("stubborn", input=type(None), output=type(None))
block = JobType("block", input=type(None), output=type(None))
die = JobType("die", input=type(None), output=type(None))


def trace(client: SyncOnward) -> Counter[tuple[str, int]]:
    """How often each step of each chain has left its row."""
    with client.transaction() as tx:
        return Counter((row["chain"], row["step"]) for row in tx.fetch("SELECT chain, step FROM trace"))


def is_running(client: SyncOnward) -> bool:
    return bool(client.jobs(status=["running"], limit=1).items)


@pytest.mark.timeout(900)
def test_a_worker_stopped_at_a_random_moment_leaves_nothing_leased_lost_or_doubled(
    work: Launch, client: SyncOnward, scale: Callable[[int], int]
) -> None:
    chains = []
    for turn in range(scale(200)):
        chains += client.start_many([one.with_input(turn) for _ in range(40)])
        worker = work("--concurrency", "10")
        if turn % 4:
            worker.says("takes jobs")
        time.sleep(random.uniform(0.0, 0.3))

        worker.signal(signal.SIGTERM)

        # Python itself may not have begun to listen.
        assert worker.exit_code in (0, -signal.SIGTERM), worker.said
        assert not is_running(client), worker.said
        assert "Traceback" not in worker.said, worker.said

    worker = work("--concurrency", "10")
    for chain in chains:
        chain.wait(timeout=SOON * 6)
    assert trace(client) == Counter({(str(chain.id), step): 1 for chain in chains for step in (1, 2, 3)})
    assert {job.failures for job in client.jobs(limit=100).items} == {0}
    worker.says("takes jobs")  # the others may have left it nothing to do
    worker.signal(signal.SIGTERM)
    assert worker.exit_code == 0


def test_the_second_signal_gives_many_jobs_back_at_once(work: Launch, client: SyncOnward, tmp_path: Path) -> None:
    folder = tmp_path / "held"
    folder.mkdir()
    client.start_many([hold.with_input(str(folder)) for _ in range(50)])
    worker = work("--concurrency", "50")
    until(lambda: len(list(folder.iterdir())) == 50, or_else=lambda: worker.said)

    worker.signal(signal.SIGTERM)
    worker.says("no more jobs are taken")
    worker.signal(signal.SIGTERM)
    begun = time.monotonic()
    until(lambda: not is_running(client), or_else=lambda: worker.said)

    assert time.monotonic() - begun < 5, "2 s on a machine that is not busy"
    assert worker.exit_code == 0
    assert {(job.status, job.failures) for job in client.jobs(types=[hold]).items} == {(JobStatus.PENDING, 0)}


@pytest.mark.timeout(180)
def test_a_job_that_ends_its_process_fails_at_its_limit_and_others_go_on(work: Launch, client: SyncOnward) -> None:
    supervisor = work("--processes", "2", "--concurrency", "5")
    supervisor.says("takes jobs", times=2)

    poison = client.start(die, None)
    others = []
    while poison.get().status is not JobStatus.FAILED:
        others += client.start_many([one.with_input(0) for _ in range(5)])
        others[-1].wait(timeout=SOON * 6)
    for chain in others:
        chain.wait(timeout=SOON * 6)

    counts = trace(client)
    assert counts.pop((str(poison.id), 0)) == 3
    assert counts == Counter({(str(chain.id), step): 1 for chain in others for step in (1, 2, 3)})
    failed = poison.get().current
    assert isinstance(failed, FailedJob)
    assert (failed.reason, failed.failures) == (FailureReason.ATTEMPTS, 3)
    assert supervisor.said.count("ended with exit code 7") == 3
    supervisor.signal(signal.SIGTERM)
    assert supervisor.exit_code == 0


# -- what does not stop


def test_a_handler_that_ignores_cancellation_is_left_behind_and_its_job_given_back(
    work: Launch, client: SyncOnward
) -> None:
    chain = client.start(stubborn, None)
    worker = work("--grace", "0.1", "--log-level", "debug")
    worker.says("AttemptStarted")

    worker.signal(signal.SIGTERM)

    assert worker.exit_code == 3, worker.said
    assert "a handler does not stop (stubborn): ended without it" in worker.said
    assert (chain.get().status, chain.get().current.failures) == (JobStatus.PENDING, 0)


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_a_handler_that_blocks_the_event_loop_cannot_keep_its_process(work: Launch, client: SyncOnward) -> None:
    client.start(block, None)
    worker = work("--grace", "0.1", "--log-level", "debug")
    worker.says("AttemptStarted")

    worker.signal(signal.SIGTERM)

    assert worker.exits(within=20) == 3
    assert "a handler blocks the event loop" in worker.said
    assert "stoppable.py" in worker.said

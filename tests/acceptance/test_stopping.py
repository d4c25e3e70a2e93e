"""Workers stopped at any moment: every job is settled or given back, whatever handlers and databases do."""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from command import Command, until
from onward import FailedJob, FailureReason, JobStatus, JobType, RunningJob, SyncOnward
from programs.three_steps import one
from support import SOON

Launch = Callable[..., Command]
hold, hold_thread, hold_loop, linger = [
    JobType(name, input=str, output=int) for name in ("hold", "hold_thread", "hold_loop", "linger")
]
stubborn = JobType("stubborn", input=type(None), output=type(None))
block = JobType("block", input=type(None), output=type(None))
die = JobType("die", input=type(None), output=type(None))


def trace(client: SyncOnward) -> Counter[tuple[str, int]]:
    """How often each step of each chain has left its row."""
    with client.transaction() as tx:
        return Counter((row["chain"], row["step"]) for row in tx.fetch("SELECT chain, step FROM trace"))


def is_running(client: SyncOnward) -> bool:
    return bool(client.jobs(status=["running"], limit=1).items)


def is_leased(client: SyncOnward) -> bool:
    """Whether anybody holds a job; a lease that has run out is nobody's."""
    now = datetime.now(UTC)
    running = client.jobs(status=["running"]).items
    return any(isinstance(job, RunningJob) and job.leased_until > now for job in running)


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


@pytest.mark.parametrize(
    ("kind", "count", "exit_code", "failures"),
    [
        pytest.param(hold, 50, 0, 0, id="async"),
        pytest.param(hold_thread, 10, 3, 0, id="threads that do not stop"),
        # Only the guardian can do it then, to whom that is a crash.
        pytest.param(hold_loop, 1, 3, None, id="blocked loop"),
    ],
)
def test_the_second_signal_gives_every_job_back_within_two_seconds(
    work: Launch,
    client: SyncOnward,
    tmp_path: Path,
    kind: JobType[str, int],
    count: int,
    exit_code: int,
    failures: int | None,
) -> None:
    folder = tmp_path / "held"
    folder.mkdir()
    client.start_many([kind.with_input(str(folder)) for _ in range(count)])
    worker = work("--concurrency", str(count))
    until(lambda: len(list(folder.iterdir())) == count, or_else=lambda: worker.said)

    worker.signal(signal.SIGTERM)
    time.sleep(0.1)  # two at the same moment would be one
    worker.signal(signal.SIGTERM)
    begun = time.monotonic()
    until(lambda: not is_leased(client), or_else=lambda: worker.said)

    assert time.monotonic() - begun < 2
    assert worker.exit_code == exit_code, worker.said
    if failures is not None:
        assert {(job.status, job.failures) for job in client.jobs(types=[kind]).items} == {
            (JobStatus.PENDING, failures)
        }


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_a_thread_that_does_not_end_cannot_keep_a_process_whose_worker_has_stopped(
    work: Launch, client: SyncOnward, tmp_path: Path
) -> None:
    chain = client.start(linger, str(tmp_path))
    worker = work("--grace", "0.1")
    chain.wait(timeout=SOON)

    worker.signal(signal.SIGTERM)

    assert worker.exits(within=SOON.total_seconds() * 2) == 3, worker.said
    assert "another thread (see above) does not end" in worker.said


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

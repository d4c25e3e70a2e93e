"""The worker: retries, limits, stopping, losing jobs, and taking only what it can run."""

import asyncio
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from onward import (
    Attempt,
    Backoff,
    ChainFailed,
    FailedJob,
    JobStatus,
    LossReason,
    Onward,
    Permanent,
    Progress,
    RunningJob,
    SyncTransaction,
    job,
)
from onward.observe import events
from support import SOON, Recorder

QUICK = Backoff(initial=timedelta(milliseconds=20))
BRIEF = timedelta(seconds=1)


@job("double")
async def double(attempt: Attempt[int]) -> int:
    return attempt.input * 2


async def test_a_failing_handler_is_tried_again_and_sees_its_last_error(running: Any) -> None:
    @job("flaky", backoff=QUICK)
    async def flaky(attempt: Attempt[int]) -> str:
        if attempt.failures < 3:
            raise ValueError(f"no {attempt.failures}")
        assert attempt.last_error is not None
        return f"{attempt.number}: {attempt.last_error.type} {attempt.last_error.message}"

    app: Onward = await running(flaky)

    chain = await app.start(flaky, 1)

    assert await chain.wait(timeout=SOON) == "4: ValueError no 2"


async def test_max_attempts_fails_the_chain_with_the_error(running: Any) -> None:
    @job("hopeless", backoff=QUICK, max_attempts=3)
    async def hopeless(attempt: Attempt[int]) -> int:
        raise ValueError(f"attempt {attempt.number}")

    app: Onward = await running(hopeless)
    chain = await app.start(hopeless, 1)

    with pytest.raises(ChainFailed) as failed:
        await chain.wait(timeout=SOON)

    assert (failed.value.reason, failed.value.job_type) == ("attempts", "hopeless")
    assert failed.value.error is not None
    assert failed.value.error.message == "attempt 3"
    stored = (await chain.get()).current
    assert isinstance(stored, FailedJob)
    assert (stored.failures, stored.attempt) == (3, 3)


async def test_the_errors_of_the_last_attempts_are_kept(running: Any) -> None:
    @job("hopeless", backoff=QUICK, max_attempts=7)
    async def hopeless(attempt: Attempt[int]) -> int:
        raise ValueError(f"attempt {attempt.number}")

    app: Onward = await running(hopeless)
    chain = await app.start(hopeless, 1)

    with pytest.raises(ChainFailed):
        await chain.wait(timeout=SOON)

    errors = (await chain.get()).current.errors
    assert [(error.attempt, error.message) for error in errors] == [(n, f"attempt {n}") for n in (3, 4, 5, 6, 7)]
    assert all("raise ValueError" in error.traceback for error in errors)


async def test_progress_is_seen_while_the_handler_runs_and_stays_after_it(running: Any) -> None:
    go_on = asyncio.Event()

    @job("render")
    async def render(attempt: Attempt[int]) -> str:
        attempt.progress(0.4, "rendering")
        await go_on.wait()
        async with attempt.complete():
            attempt.progress(0.9)
            return "done"

    @job("render plainly")
    def render_plainly(attempt: Attempt[int]) -> str:
        attempt.progress(0.5, "half way")
        return "done"

    app: Onward = await running(render, render_plainly)
    chain, plain = await app.start(render, 1), await app.start(render_plainly, 1)

    async with asyncio.timeout(SOON.total_seconds()):
        while (await chain.get()).current.progress != Progress(0.4, "rendering"):
            await asyncio.sleep(0.01)
    go_on.set()
    assert [await chain.wait(timeout=SOON), await plain.wait(timeout=SOON)] == ["done", "done"]
    assert (await chain.get()).current.progress == Progress(0.9)
    assert (await plain.get()).current.progress == Progress(0.5, "half way")


async def test_a_permanent_error_fails_at_once(running: Any) -> None:
    @job("permanent")
    async def permanent(attempt: Attempt[int]) -> int:
        raise Permanent("card stolen")

    app: Onward = await running(permanent)
    chain = await app.start(permanent, 1)

    with pytest.raises(ChainFailed) as failed:
        await chain.wait(timeout=SOON)

    assert (failed.value.reason, (await chain.get()).current.attempt) == ("permanent", 1)


async def test_an_output_of_the_wrong_shape_is_a_failure_of_the_handler(running: Any) -> None:
    @job("liar", max_attempts=1)
    async def liar(attempt: Attempt[int]) -> int:
        return "not a number"  # type: ignore[return-value]

    app: Onward = await running(liar)
    chain = await app.start(liar, 1)

    with pytest.raises(ChainFailed) as failed:
        await chain.wait(timeout=SOON)

    assert failed.value.error is not None
    assert "output of job type 'liar'" in failed.value.error.message


async def test_a_stored_input_that_no_longer_fits_is_a_counted_failure(opened: Any, running: Any) -> None:
    @job("changing", max_attempts=1)
    async def before(attempt: Attempt[str]) -> str:
        return attempt.input

    @job("changing", max_attempts=1)
    async def after(attempt: Attempt[int]) -> int:
        return attempt.input

    old: Onward = await opened(before)
    chain = await old.start(before, "seven")

    await running(after)

    with pytest.raises(ChainFailed) as failed:
        await chain.wait(timeout=SOON)
    assert failed.value.error is not None
    assert "input of job type 'changing'" in failed.value.error.message


async def test_versions_a_worker_cannot_read_stay_untouched_and_upcasters_admit_older_ones(
    opened: Any, running: Any
) -> None:
    @dataclass
    class Old:
        name: str

    @dataclass
    class New:
        first: str
        last: str

    @job("greet")
    async def greet_1(attempt: Attempt[Old]) -> str:
        return attempt.input.name

    @job("greet", version=2)
    async def greet_2(attempt: Attempt[New]) -> str:
        return f"{attempt.input.last}, {attempt.input.first}"

    client_1: Onward = await opened(greet_1)
    client_2: Onward = await opened(greet_2)
    first = await client_1.start(greet_1, Old("Ada Lovelace"))
    second = await client_2.start(greet_2, New("Grace", "Hopper"))

    only_new = await running(greet_2, double)
    assert await second.wait(timeout=SOON) == "Hopper, Grace"
    await (await only_new.start(double, 1)).wait(timeout=SOON)
    assert (await first.get()).status is JobStatus.PENDING

    @job("greet", version=2)
    async def greet_both(attempt: Attempt[New]) -> str:
        return f"{attempt.input.last}, {attempt.input.first}"

    @greet_both.upcast(1)
    def split(plain: Any) -> Any:
        first, _, last = plain["name"].partition(" ")
        return {"first": first, "last": last}

    await running(greet_both)
    assert await first.wait(timeout=SOON) == "Lovelace, Ada"


async def test_a_higher_priority_goes_first_and_equals_keep_their_order(opened: Any) -> None:
    order: list[int] = []

    @job("note")
    async def note(attempt: Attempt[int]) -> None:
        order.append(attempt.input)

    app: Onward = await opened(note)
    chains = await app.start_many([note.with_input(n, priority=n // 3) for n in range(9)])

    async with app.worker(concurrency=1):
        for chain in chains:
            await chain.wait(timeout=SOON)

    assert order == [6, 7, 8, 3, 4, 5, 0, 1, 2]


async def test_with_ageing_low_priority_gets_its_turn_though_better_work_never_ends(running: Any) -> None:
    """Each urgent job starts the next two: without ageing there is always one that goes first."""

    @job("low")
    async def low(attempt: Attempt[None]) -> str:
        return "had its turn"

    @job("urgent")
    async def urgent(attempt: Attempt[None]) -> None:
        await app.start_many([urgent.with_input(None, priority=5)] * 2)

    app: Onward = await running(low, urgent, ageing=timedelta(milliseconds=20), worker={"concurrency": 1})
    await app.start_many([urgent.with_input(None, priority=5)] * 2)
    chain = await app.start(low, None)

    assert await chain.wait(timeout=SOON) == "had its turn"


async def test_a_paused_type_waits_until_it_is_resumed(running: Any) -> None:
    app: Onward = await running(double)
    await app.pause(double)
    chain = await app.start(double, 1)
    assert await app.paused() == ["double"]
    await asyncio.sleep(0.1)
    assert (await chain.get()).status is JobStatus.PENDING

    await app.resume(double)

    assert await chain.wait(timeout=SOON) == 2


async def test_a_scheduled_job_runs_when_due_and_not_before(running: Any) -> None:
    app: Onward = await running(double)

    soon = await app.start(double, 1, delay=timedelta(milliseconds=300))
    later = await app.start(double, 2, delay=timedelta(hours=1))

    assert await soon.wait(timeout=SOON) == 2
    stored = (await soon.get()).current
    assert stored.scheduled_at - stored.created_at == timedelta(milliseconds=300)
    assert (await later.get()).status is JobStatus.PENDING
    await app.trigger(later)
    assert await later.wait(timeout=SOON) == 4


async def test_a_scheduled_job_that_is_unblocked_before_it_is_due_runs_when_due(opened: Any) -> None:
    """Its workers need not look for themselves: they would do so once a minute."""

    @job("sum", blocked_by=[double])
    async def sum_of(attempt: Attempt[int]) -> int:
        return attempt.input + sum(attempt.outputs_of(double))

    app: Onward = await opened(double, sum_of)
    async with app.worker(lease=timedelta(minutes=10)):
        blocker = await app.start(double, 1)
        chain = await app.start(sum_of, 1, blockers=[blocker], delay=timedelta(seconds=1))

        assert await blocker.wait(timeout=SOON) == 2
        assert await chain.wait(timeout=SOON) == 3


async def test_stopping_lets_running_jobs_finish(opened: Any, recorder: Recorder) -> None:
    release = asyncio.Event()

    @job("slow")
    async def slow(attempt: Attempt[int]) -> str:
        await release.wait()
        return "finished"

    app: Onward = await opened(slow)
    async with app.worker(concurrency=2, grace=SOON) as worker:
        chain = await app.start(slow, 1)
        await recorder.next(events.AttemptStarted)
        worker.stop()
        late = await app.start(slow, 2)
        release.set()

    assert await chain.wait(timeout=SOON) == "finished"
    assert (await late.get()).status is JobStatus.PENDING
    assert recorder.of(events.WorkerStopped)


async def test_after_the_grace_period_jobs_are_given_back_at_once(opened: Any, recorder: Recorder) -> None:
    seen: list[LossReason | None] = []

    @job("endless")
    async def endless(attempt: Attempt[int]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(attempt.cancelled)

    app: Onward = await opened(endless)
    async with app.worker(grace=timedelta(0)):
        chain = await app.start(endless, 1)
        await recorder.next(events.AttemptStarted)

    stored = (await chain.get()).current
    assert (stored.status, stored.failures, stored.attempt) == (JobStatus.PENDING, 0, 1)
    assert seen == [LossReason.STOPPING]


async def test_a_handler_that_exceeds_its_timeout_is_cancelled_and_counted(running: Any) -> None:
    @job("sleepy", timeout=timedelta(milliseconds=50), max_attempts=1)
    async def sleepy(attempt: Attempt[int]) -> None:
        await asyncio.Event().wait()

    app: Onward = await running(sleepy)
    chain = await app.start(sleepy, 1)

    with pytest.raises(ChainFailed) as failed:
        await chain.wait(timeout=SOON)

    assert failed.value.error is not None
    assert (failed.value.reason, failed.value.error.type) == ("attempts", "TimeoutError")


async def test_cancelling_a_running_job_stops_its_handler_and_fails_it(running: Any, recorder: Recorder) -> None:
    reasons: list[LossReason | None] = []

    @job("endless")
    async def endless(attempt: Attempt[int]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            reasons.append(attempt.cancelled)

    app: Onward = await running(endless)
    chain = await app.start(endless, 1)
    await recorder.next(events.AttemptStarted)

    await app.cancel(chain)

    with pytest.raises(ChainFailed) as failed:
        await chain.wait(timeout=SOON)
    assert failed.value.reason == "cancelled"
    assert reasons == [LossReason.CANCELLED]


async def test_a_handler_whose_job_was_deleted_or_completed_elsewhere_is_told(running: Any, recorder: Recorder) -> None:
    reasons: dict[int, LossReason | None] = {}

    @job("endless")
    async def endless(attempt: Attempt[int]) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            reasons[attempt.input] = attempt.cancelled
        return "never"

    app: Onward = await running(endless)
    deleted, completed = await app.start(endless, 1), await app.start(endless, 2)
    await recorder.next(events.AttemptStarted, count=2)

    await app.delete(deleted)
    async with app.complete(completed) as completion:
        assert isinstance(completion.job, RunningJob)
        await completion.done("by hand")

    await recorder.next(events.LeaseLost, count=2)
    assert await completed.wait(timeout=SOON) == "by hand"
    await asyncio.sleep(0)
    assert reasons == {1: LossReason.NOT_FOUND, 2: LossReason.ALREADY_COMPLETED}


async def test_a_stale_attempt_cannot_complete_the_job(running: Any, recorder: Recorder) -> None:
    """The job is completed by hand while its handler goes on regardless of being cancelled."""
    proceed = threading.Event()

    @job("stubborn")
    def stubborn(attempt: Attempt[int, SyncTransaction]) -> str:
        proceed.wait(10)
        with attempt.complete() as tx:
            tx.execute("CREATE TABLE must_not_exist (id int)")
            return "too late"

    app: Onward = await running(stubborn)
    chain = await app.start(stubborn, 1)
    await recorder.next(events.AttemptStarted)
    async with app.complete(chain) as completion:
        await completion.done("by hand")

    proceed.set()

    await recorder.next(events.AlreadyCompleted)
    assert await chain.wait(timeout=SOON) == "by hand"
    async with app.transaction() as tx:
        assert app.state.dialect == "sqlite" or await tx.fetchval("SELECT to_regclass('must_not_exist')") is None


async def test_an_abandoned_job_is_reaped_and_counted_as_a_crash(opened: Any, recorder: Recorder) -> None:
    app: Onward = await opened(double)
    chain = await app.start(double, 21)
    await _take_and_vanish(app)

    async with app.worker(lease=BRIEF, poll=timedelta(seconds=60)):
        assert await chain.wait(timeout=SOON) == 42

    stored = (await chain.get()).current
    assert (stored.attempt, stored.failures) == (2, 1)
    assert [event.job_id for event in recorder.of(events.JobReaped)] == [chain.id]


async def test_a_job_that_keeps_killing_its_worker_fails_at_the_limit(opened: Any) -> None:
    @job("poison", max_attempts=1)
    async def poison(attempt: Attempt[int]) -> int:
        raise AssertionError("not reached")

    app: Onward = await opened(poison)
    chain = await app.start(poison, 1)
    await _take_and_vanish(app)

    async with app.worker(lease=BRIEF):
        with pytest.raises(ChainFailed) as failed:
            await chain.wait(timeout=SOON)

    assert failed.value.reason == "attempts"


async def test_a_handler_longer_than_its_lease_runs_once(running: Any) -> None:
    runs: list[int] = []

    @job("patient", lease=BRIEF)
    def patient(attempt: Attempt[int]) -> int:
        runs.append(attempt.number)
        # Really asleep, beyond the lease: the guardian's thread is what is tried here.
        threading.Event().wait(2.5)
        return attempt.number

    app: Onward = await running(patient)
    await running(patient)

    chain = await app.start(patient, 1)

    assert await chain.wait(timeout=SOON) == 1
    assert runs == [1]


async def test_two_workers_share_the_work_and_nothing_runs_twice(running: Any, scale: Any) -> None:
    ran: list[int] = []

    @job("count")
    async def count(attempt: Attempt[int]) -> int:
        ran.append(attempt.input)
        return attempt.input

    app: Onward = await running(count)
    await running(count)

    chains = await app.start_many([count.with_input(n) for n in range(scale(2000))])

    for n, chain in enumerate(chains):
        assert await chain.wait(timeout=SOON) == n
    assert sorted(ran) == list(range(scale(2000)))


async def _take_and_vanish(app: Onward) -> None:
    """What a worker leaves behind that dies right after the claim: a lease that will run out."""
    from onward.state.contract import TypeClaim

    claims = [TypeClaim(name, 1, 0.5) for name in app.registry]
    async with app.driver.connection() as connection:
        taken = await connection.run(app.state.take(types=claims, limit=1, worker="vanished"))
    assert len(taken) == 1

"""Who keeps the leases: a thread or a child process, what they tell handlers, and what happens when they fail."""

import asyncio
import logging
import os
import re
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from onward import Attempt, JobId, LossReason, Onward, job
from onward.notify.contract import Hint, HintKind
from onward.observe import events
from onward.state.contract import TypeClaim
from onward.state.driver import transaction
from onward.state.postgres.asyncpg import AsyncpgDriver
from onward.state.postgres.psycopg import PsycopgDriver
from onward.worker.guardian.blocked import Watch
from onward.worker.guardian.process import ProcessGuardian
from onward.worker.presence import Presence
from proxy import proxied
from support import SOON, Recorder, Run, intercept

BRIEF = timedelta(seconds=1)
CHILD = re.compile(r"a child process \(pid (\d+)\) renews the leases")


@pytest.fixture(params=["thread", "process"])
def guardian(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "onward.worker")
    return caplog


def child_pid(log: pytest.LogCaptureFixture) -> int:
    found = CHILD.search(log.text)
    assert found is not None, log.text
    return int(found[1])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON.total_seconds()):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def database_locked(app: Onward) -> AsyncIterator[None]:
    """Nobody else can write meanwhile, or on Postgres even read."""
    async with app.driver.connection() as connection:
        await connection.begin()
        if app.state.dialect == "postgres":
            await connection.script(f"LOCK TABLE {app.state.schema}.job IN ACCESS EXCLUSIVE MODE")  # type: ignore[attr-defined]
        try:
            yield
        finally:
            await connection.rollback()


@job("quick", lease=BRIEF)
async def quick(attempt: Attempt[int]) -> int:
    return attempt.input


class Endless:
    """A handler that goes on until it is told to stop, and notes why and when."""

    def __init__(self, **options: Any) -> None:
        self.told: list[LossReason | None] = []
        self.told_at = 0.0
        self.let_go = asyncio.Event()
        self.runs = 0

        @job("endless", **options)
        async def endless(attempt: Attempt[int]) -> int:
            self.runs += 1
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                self.told_at = time.monotonic()
                self.told.append(attempt.cancelled)
                raise
            return attempt.number

        self.job = endless


async def test_a_lease_is_renewed_for_as_long_as_the_handler_runs(
    running: Any, recorder: Recorder, guardian: str
) -> None:
    handler = Endless(lease=BRIEF)
    app: Onward = await running(handler.job, worker={"guardian": guardian})
    chain = await app.start(handler.job, 1)
    await until(lambda: handler.runs == 1)
    await running(handler.job)  # stands by

    await recorder.next(events.LeaseRenewed, count=9)
    handler.let_go.set()

    assert await chain.wait(timeout=SOON) == 1
    assert handler.runs == 1
    assert recorder.of(events.LeaseLost) == []


async def test_what_happened_to_a_job_reaches_its_handler_with_the_reason(
    running: Any, recorder: Recorder, guardian: str
) -> None:
    handler = Endless(lease=BRIEF)
    app: Onward = await running(handler.job, worker={"guardian": guardian})
    cancelled, deleted, taken, completed = [await app.start(handler.job, n) for n in range(4)]
    await until(lambda: handler.runs == 4)

    await app.cancel(cancelled)
    await until(lambda: len(handler.told) == 1)
    await app.delete(deleted)
    await until(lambda: len(handler.told) == 2)
    holder = (await app.find_job(taken.id)).leased_by  # type: ignore[union-attr]
    await _take_over(app, holder, held=[cancelled.id, completed.id])
    await until(lambda: len(handler.told) == 3)
    async with app.complete(completed) as completion:
        await completion.done(7)
    await until(lambda: len(handler.told) == 4)

    assert handler.told == ["cancelled", "not_found", "taken_by_another_worker", "already_completed"]
    assert await completed.wait(timeout=SOON) == 7
    lost = [event.job_id for event in recorder.of(events.LeaseLost)]
    assert lost == [deleted.id, taken.id, completed.id]


async def test_a_job_whose_settlement_is_being_answered_is_not_lost(
    running: Any, recorder: Recorder, guardian: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Onward = await running(quick, worker={"guardian": guardian})

    async def settle_and_answer_late(run: Run, *_: Any, **__: Any) -> Any:
        changes = await run()
        await asyncio.sleep(BRIEF.total_seconds())  # the guardian asks three times meanwhile, of a job that has ended
        return changes

    intercept(monkeypatch, app.state, "settle", settle_and_answer_late)
    await (await app.start(quick, 1)).wait(timeout=SOON)
    await until(lambda: bool(recorder.of(events.AttemptCompleted)))

    assert recorder.of(events.LeaseLost) == []


async def _take_over(app: Onward, holder: str, *, held: list[JobId]) -> None:
    """As another worker would do it when the lease has run out; the guardian may be renewing it at this moment."""
    async with asyncio.timeout(SOON.total_seconds()):
        while True:
            async with app.driver.connection() as connection, transaction(connection):
                await connection.run(app.state.expire(worker=holder))
                reaped = await connection.run(
                    app.state.reap(worker="another", type_names=["endless"], held_here=held, limit=1, lease=60.0)
                )
            if reaped.jobs:
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_a_handler_is_told_before_a_lease_runs_out_that_cannot_be_renewed(running: Any, guardian: str) -> None:
    lease = timedelta(seconds=2)
    handler = Endless(lease=lease)
    app: Onward = await running(handler.job, worker={"guardian": guardian})
    await app.start(handler.job, 1)
    await until(lambda: handler.runs == 1)

    async with database_locked(app):
        locked_at = time.monotonic()
        await until(lambda: bool(handler.told))

    assert handler.told == [LossReason.ERROR]
    assert handler.told_at - locked_at < lease.total_seconds()


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
async def test_a_lease_is_kept_while_nobody_can_write(running: Any, recorder: Recorder, guardian: str) -> None:
    """There is one lock for all: who cannot renew knows that nobody can take its job either."""
    handler = Endless(lease=BRIEF)
    app: Onward = await running(handler.job, worker={"guardian": guardian})
    await running(handler.job)  # stands by
    chain = await app.start(handler.job, 1)
    await recorder.next(events.LeaseRenewed)

    for _ in range(2):
        async with database_locked(app):
            await asyncio.sleep(2 * BRIEF.total_seconds())  # many renewals would have been due
        await recorder.next(events.LeaseRenewed, count=len(recorder.of(events.LeaseRenewed)) + 1)
    handler.let_go.set()

    assert await chain.wait(timeout=SOON) == 1
    assert (handler.runs, handler.told) == (1, [])
    assert recorder.of(events.JobReaped) == []


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
async def test_a_phase_may_hold_the_lock_for_longer_than_the_lease(
    running: Any, recorder: Recorder, guardian: str
) -> None:
    @job("long", lease=BRIEF, max_attempts=1)
    async def long(attempt: Attempt[int]) -> int:
        async with attempt.complete() as tx:
            await tx.execute("CREATE TABLE written (n)")
            await asyncio.sleep(2 * BRIEF.total_seconds())
            return attempt.number

    app: Onward = await running(long, worker={"guardian": guardian})
    await running(long)  # stands by

    assert await (await app.start(long, 1)).wait(timeout=SOON) == 1
    assert recorder.of(events.LeaseLost) == recorder.of(events.JobReaped) == []


async def test_when_the_child_is_killed_a_thread_takes_over_although_the_loop_is_blocked(
    running: Any, log: pytest.LogCaptureFixture
) -> None:
    runs: list[int] = []
    go = asyncio.Event()

    @job("stubborn", lease=BRIEF)
    async def stubborn(attempt: Attempt[int]) -> int:
        runs.append(attempt.number)
        await go.wait()
        os.kill(child_pid(log), signal.SIGKILL)
        time.sleep(3)  # noqa: ASYNC251 - three leases without a turn of the loop are what is tried here
        return attempt.number

    app: Onward = await running(stubborn, worker={"guardian": "process"})
    chain = await app.start(stubborn, 1)
    await until(lambda: bool(runs))
    await running(stubborn)  # stands by, on the same loop: it would reap as soon as it turns

    go.set()

    assert await chain.wait(timeout=SOON) == 1
    assert runs == [1]
    assert "the child process that renews the leases ended with code -9" in log.text
    assert "a thread of this process renews the leases: in place of the child process" in log.text


async def test_a_child_that_is_stuck_is_replaced_before_leases_run_out(
    running: Any, recorder: Recorder, log: pytest.LogCaptureFixture
) -> None:
    handler = Endless(lease=timedelta(seconds=6))
    app: Onward = await running(handler.job, worker={"guardian": "process"})
    chain = await app.start(handler.job, 1)
    await recorder.next(events.LeaseRenewed)
    await running(handler.job)  # stands by

    os.kill(child_pid(log), signal.SIGSTOP)
    await until(lambda: "in place of the child process" in log.text)
    handler.let_go.set()

    assert await chain.wait(timeout=SOON) == 1
    assert handler.runs == 1
    assert "is stuck" in log.text


async def test_a_child_that_died_is_replaced_by_another(running: Any, log: pytest.LogCaptureFixture) -> None:
    handler = Endless(lease=BRIEF)
    app: Onward = await running(handler.job, worker={"guardian": "process"})
    chain = await app.start(handler.job, 1)
    await until(lambda: handler.runs == 1)

    for number in (1, 2):
        os.kill(int(CHILD.findall(log.text)[-1]), signal.SIGKILL)
        await until(lambda number=number: len(CHILD.findall(log.text)) == number + 1)  # type: ignore[misc]
        await until(lambda: sum(thread.name.startswith("onward-guardian") for thread in threading.enumerate()) == 1)
    handler.let_go.set()

    assert await chain.wait(timeout=SOON) == 1
    assert (handler.runs, handler.told) == (1, [])
    assert log.text.count("ended with code -9") == 2
    assert log.text.count("in place of the child process") == 2


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
@pytest.mark.parametrize("driver", [AsyncpgDriver, PsycopgDriver])
async def test_a_child_whose_connection_falls_silent_makes_another_and_keeps_the_lease(
    opened: Any, recorder: Recorder, target: str, log: pytest.LogCaptureFixture, driver: Any
) -> None:
    handler, lost = Endless(), list[LossReason]()
    app: Onward = await opened(handler.job)
    chain = await app.start(handler.job, 1)
    async with app.driver.connection() as connection:
        await connection.run(app.state.take(types=[TypeClaim("endless", 1, 6.0)], limit=1, worker="w"))
    async with proxied(target) as (proxy, dsn):
        guardian = ProcessGuardian(
            app._store, "w", driver(dsn).address, app._notify,
            shortest=6.0, longest=6.0, concurrency=1, lost=lambda _job, _attempt, reason: lost.append(reason),
            watch=Watch("w", has_returned=lambda _job, _attempt: False, end=lambda: None),
            presence=Presence(app._store, "w", version=None, types={}, concurrency=1),
        )  # fmt: skip
        guardian.start()
        guardian.leases.hold(chain.id, 1, 6.0, time.monotonic())
        await recorder.next(events.LeaseRenewed)

        proxy.silence()
        await recorder.next(events.StateError)
        renewals = len(recorder.of(events.LeaseRenewed))
        await recorder.next(events.LeaseRenewed, count=renewals + 1)
        await guardian.stop()

    assert lost == []
    assert "in place of the child process" not in log.text


async def test_no_child_outlives_its_worker(make_app: Any, log: pytest.LogCaptureFixture) -> None:
    handler = Endless()
    async with make_app(handler.job) as app, app.worker(guardian="process"):
        pid = child_pid(log)
        os.kill(pid, 0)

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_the_address_is_not_where_others_can_read_it(
    running: Any, target: str, log: pytest.LogCaptureFixture
) -> None:
    await running(Endless().job, worker={"guardian": "process"})

    place = Path("/proc") / str(child_pid(log))
    if not place.exists():
        pytest.skip("no /proc here")
    assert target.encode() not in (place / "cmdline").read_bytes()
    assert target.encode() not in (place / "environ").read_bytes()


async def test_a_database_that_only_this_process_has_is_guarded_by_a_thread(log: pytest.LogCaptureFixture) -> None:
    handler = Endless()

    async with Onward("memory://", jobs=[handler.job]) as app, app.worker(guardian="process"):
        assert "a thread of this process renews the leases: a child process needs the address" in log.text


async def test_workers_look_at_once_when_leases_of_a_dead_worker_are_given_back(
    make_app: Any, recorder: Recorder
) -> None:
    handler = Endless()
    handler.let_go.set()
    async with make_app(handler.job) as app:
        chain = await app.start(handler.job, 1)
        async with app.driver.connection() as connection:
            await connection.run(app.state.take(types=[TypeClaim("endless", 1, 60.0)], limit=1, worker="dead"))
        async with app.worker():
            await recorder.next(events.WorkerStarted)
            async with app.driver.connection() as connection:
                await connection.run(app.state.expire(worker="dead"))
            await app._notify.announce([Hint(HintKind.EXPIRED, "")])

            assert await chain.wait(timeout=SOON) == 2


async def test_a_blocked_event_loop_is_reported_once_with_the_handler_and_its_stack(
    running: Any, log: pytest.LogCaptureFixture
) -> None:
    @job("blocking")
    async def blocking(attempt: Attempt[int]) -> int:
        time.sleep(1)  # noqa: ASYNC251 - blocking the loop is what is tried here
        return attempt.number

    app: Onward = await running(blocking, worker={"stall": timedelta(seconds=0.2)})
    chain = await app.start(blocking, 1)
    await chain.wait(timeout=SOON)
    await until(lambda: "turns again" in log.text)

    assert log.text.count("the event loop has not turned for 0.2 s") == 1
    assert f"kept by blocking (job {chain.id})" in log.text
    assert "time.sleep(1)" in log.text
    assert re.search(r"the event loop turns again after (0\.[789]|1\.\d) s", log.text)

"""Cancel, retry, trigger and delete through the client: all or none, how many, and what follows."""

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onward import Attempt, ChainFailed, Deduplication, JobStatus, JobType, Next, Onward, Permanent, job, new_id
from onward.errors import (
    BlockersDeleted,
    BlockerStillFailed,
    ChainNotFailed,
    ChainNotFound,
    ConfigurationError,
    KeyInUse,
    RetryRefused,
)
from onward.observe import events
from onward.state.contract import TypeClaim
from support import SOON, Recorder, Run, intercept

fetch = JobType("fetch", input=int, output=int)
report = JobType("report", input=int, output=int, blocked_by=[fetch])


@job("broken", max_attempts=1)
async def broken(attempt: Attempt[str]) -> int:
    if attempt.input == "for good":
        raise Permanent("it will never work")
    raise KeyError(attempt.input)


async def test_changes_say_how_many_chains_they_changed(opened: Any) -> None:
    app: Onward = await opened(fetch, report)
    blocker, other = await app.start(fetch, 1), await app.start(fetch, 2, delay=timedelta(hours=1))
    chain = await app.start(report, 1, blockers=[blocker])

    assert await app.trigger(other, chain) == 1
    assert await app.cancel(blocker) == 2
    assert await app.cancel(blocker) == 0
    assert await app.retry(blocker) == 2
    assert await app.cancel(chain, cascade=True) == 2
    assert await app.delete(blocker, chain, other) == 3
    assert await app.delete(blocker) == 0


@pytest.mark.parametrize("change", ["cancel", "retry", "trigger"])
async def test_with_a_chain_that_does_not_exist_nothing_is_changed(opened: Any, change: str) -> None:
    app: Onward = await opened(fetch)
    waiting, failed = await app.start(fetch, 1, delay=timedelta(hours=1)), await app.start(fetch, 2)
    await app.cancel(failed)
    given = failed if change == "retry" else waiting
    before = await given.get()

    with pytest.raises(ChainNotFound):
        await getattr(app, change)(given, new_id())
    async with app.transaction() as tx:
        with pytest.raises(ChainNotFound):
            await getattr(app, change)(given, new_id(), tx=tx)

    assert await given.get() == before


async def test_a_retry_is_refused_as_a_whole_and_says_why(opened: Any) -> None:
    app: Onward = await opened(fetch, report)
    key = Deduplication("k")
    failed, keyed = await app.start(fetch, 1), await app.start(fetch, 2, deduplication=key)
    waiting = await app.start(report, 1, blockers=[failed])
    await app.cancel(failed, keyed)
    live = await app.start(fetch, 3, deduplication=key)

    with pytest.raises(ChainNotFailed):
        await app.retry(failed, live)
    with pytest.raises(BlockerStillFailed, match=str(failed.id)):
        await app.retry(waiting)
    with pytest.raises(KeyInUse, match=str(live.id)) as taken:
        await app.retry(failed, keyed)

    assert isinstance(taken.value, RetryRefused)
    assert [(await chain.get()).status for chain in (failed, keyed, waiting)] == [JobStatus.FAILED] * 3
    await app.delete(failed)
    with pytest.raises(BlockersDeleted):
        await app.retry(waiting)


async def test_a_retry_whose_answer_was_lost_is_not_refused_the_second_time(
    make_app: Any, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_app(fetch, target=postgres_dsn) as app:
        chain = await app.start(fetch, 1)
        await app.cancel(chain)
        lost: list[Any] = []

        async def lose_the_answer(run: Run, *_: Any) -> Any:
            changes = await run()
            if not lost:
                lost.append(changes)
                raise ConnectionResetError
            return changes

        intercept(monkeypatch, app.state, "retry", lose_the_answer)

        assert await app.retry(chain) == 1
        assert lost
        assert (await chain.get()).status is JobStatus.PENDING
        with pytest.raises(ChainNotFailed):
            await app.retry(chain)


async def test_whoever_watches_is_told_why_a_job_failed(running: Any, recorder: Recorder) -> None:
    app: Onward = await running(broken, fetch, report)
    blocker = await app.start(fetch, 1)
    waiting = await app.start(report, 1, blockers=[blocker])
    await app.cancel(blocker)
    too_late = await app.start(report, 2, blockers=[blocker])
    attempts, permanent = await app.start(broken, "today"), await app.start(broken, "for good")
    for chain in (attempts, permanent):
        with pytest.raises(ChainFailed):
            await chain.wait(timeout=SOON)
    await recorder.next(events.JobFailed, count=5)

    told = {event.chain_id: event.reason for event in recorder.of(events.JobFailed)}
    assert told == {
        blocker.id: "cancelled",
        waiting.id: "blocker",
        too_late.id: "blocker",
        attempts.id: "attempts",
        permanent.id: "permanent",
    }


async def test_what_failed_is_found_by_why_by_its_error_and_by_when(running: Any) -> None:
    app: Onward = await running(broken, fetch)
    began = datetime.now(UTC) - timedelta(minutes=1)
    cancelled = await app.start(fetch, 1)
    await app.cancel(cancelled)
    chain = await app.start(broken, "today")
    with pytest.raises(ChainFailed):
        await chain.wait(timeout=SOON)

    async def ids(**filters: Any) -> set[Any]:
        jobs, chains = await app.jobs(**filters), await app.chains(**filters)
        assert [job.id for job in jobs.items] == [chain.id for chain in chains.items]
        return {job.id for job in jobs.items}

    assert await ids(reason="cancelled") == {cancelled.id}
    assert await ids(reason=["cancelled", "attempts"]) == {cancelled.id, chain.id}
    assert await ids(error_type="KeyError") == {chain.id}
    assert await ids(failed_from=began, types=[broken]) == {chain.id}
    assert await ids(failed_before=began) == set()
    with pytest.raises(ConfigurationError, match="use one of"):
        await app.jobs(reason="bad luck")


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_cancellation_by_another_process_reaches_a_running_handler_at_once(
    make_app: Callable[..., Onward], monkeypatch: pytest.MonkeyPatch, *, stubborn: bool
) -> None:
    """On a file nobody tells of it but the commit itself; and what is known is not asked for again and again."""
    inside, told, looks = asyncio.Event(), asyncio.Event(), 0

    @job("long", lease=timedelta(minutes=10))
    async def long(attempt: Attempt[int]) -> None:
        inside.set()
        try:
            await asyncio.sleep(3600)
        finally:
            told.set()
            if stubborn:
                await asyncio.sleep(0.5)

    async with make_app(long) as app, make_app(long) as other, app.worker(concurrency=1) as worker:
        check_now = worker._guardian.check_now

        def check() -> None:
            nonlocal looks
            looks += 1
            check_now()

        monkeypatch.setattr(worker._guardian, "check_now", check)
        chain = await app.start(long, 1)
        await inside.wait()

        await other.cancel(chain.id)
        async with asyncio.timeout(SOON.total_seconds()):
            await told.wait()
        for _ in range(3 * stubborn):
            await other.start(long, 2, delay=timedelta(hours=1))
            await asyncio.sleep(0.15)
        with pytest.raises(ChainFailed):
            await chain.wait(timeout=SOON)

    assert looks == 1


async def test_so_does_one_of_its_next_attempt(make_app: Callable[..., Onward]) -> None:
    """Right after it was brought back, while what is known of the attempt before is still remembered."""
    inside = asyncio.Queue[int]()

    @job("long", lease=timedelta(minutes=10))
    async def long(attempt: Attempt[int]) -> None:
        inside.put_nowait(attempt.number)
        await asyncio.sleep(3600)

    async with make_app(long) as app, make_app(long) as other, app.worker(concurrency=1):
        chain = await app.start(long, 1)
        for _ in range(3):
            async with asyncio.timeout(SOON.total_seconds()):
                await inside.get()
            await other.cancel(chain.id)
            with pytest.raises(ChainFailed):
                await chain.wait(timeout=SOON)
            await app.retry(chain)
        async with asyncio.timeout(SOON.total_seconds()):
            await inside.get()


@pytest.mark.parametrize("phase", [False, True])
async def test_a_step_that_was_to_be_cancelled_does_not_go_on(running: Any, phase: bool) -> None:
    begun, asked, ran = threading.Event(), threading.Event(), []

    @job("last", internal=True)
    async def last(attempt: Attempt[int]) -> int:
        ran.append(attempt.input)
        return attempt.input

    @job("first", continues_to=[last])
    def first(attempt: Attempt[int]) -> Next[int]:
        begun.set()
        asked.wait(10)
        if not phase:
            return attempt.continue_with(last, 1)
        with attempt.complete():
            return attempt.continue_with(last, 1)

    app: Onward = await running(first, last, fetch, report)
    chain = await app.start(first, 1)
    await asyncio.to_thread(begun.wait, 10)

    await app.cancel(chain)
    asked.set()

    with pytest.raises(ChainFailed, match="cancelled"):
        await chain.wait(timeout=SOON)
    assert ran == []
    assert len((await app.jobs(chains=[chain])).items) == 1


async def test_a_job_given_back_is_the_next_to_run(make_app: Any) -> None:
    order: list[int] = []
    begun = asyncio.Event()

    @job("work")
    async def work(attempt: Attempt[int]) -> int:
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        order.append(attempt.input)
        return attempt.input

    async with make_app(work) as app:
        chains = [await app.start(work, n) for n in range(4)]
        async with app.worker(grace=timedelta(0)):
            await begun.wait()

        async with app.worker():
            for chain in chains:
                await chain.wait(timeout=SOON)

    assert order == [0, 1, 2, 3]


async def test_so_is_one_whose_worker_died(make_app: Any) -> None:
    order: list[int] = []

    @job("work")
    async def work(attempt: Attempt[int]) -> int:
        order.append(attempt.input)
        return attempt.input

    async with make_app(work) as app:
        chains = [await app.start(work, n) for n in range(4)]
        async with app.driver.connection() as connection:
            await connection.run(app.state.take(types=[TypeClaim("work", 1, 60.0)], limit=1, worker="killed"))
            await connection.run(app.state.expire(worker="killed"))
            await connection.run(app.state.pause(["work"]))

        async with app.worker(concurrency=1):
            async with asyncio.timeout(SOON.total_seconds()):
                while (await chains[0].get()).status is not JobStatus.PENDING:
                    await asyncio.sleep(0.01)
            await app.resume(work)
            for chain in chains:
                await chain.wait(timeout=SOON)

    assert order == [0, 1, 2, 3]

"""The answer to a take, or of the reaper, is lost: the jobs are nobody's, and do not wait for their leases."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from onward import Attempt, ChainFailed, JobStatus, Onward, job
from onward.observe.events import JobReaped
from onward.state.contract import TypeClaim
from support import SOON, Recorder, Run, intercept


@job("once", max_attempts=1)
async def once(attempt: Attempt[None]) -> int:
    return attempt.number


async def test_jobs_whose_take_was_not_answered_are_taken_again_at_once(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Onward = await opened(once)
    lost = list[Any]()

    async def take_and_lose(run: Run, **_: Any) -> Any:
        taken = await run()
        if taken and not lost:
            lost.extend(taken)
            raise ConnectionResetError
        return taken

    intercept(monkeypatch, app.state, "take", take_and_lose)
    chains = await app.start_many([once.with_input(None) for _ in range(3)])

    async with app.worker(concurrency=3):
        numbers = [await chain.wait(timeout=SOON) for chain in chains]

    assert len(lost) == 3
    assert numbers == [2, 2, 2]
    assert {(await chain.get()).current.failures for chain in chains} == {0}


async def test_a_worker_that_is_cancelled_while_it_takes_gives_back_what_it_does_not_know_of(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Onward = await opened(once)
    has_taken = asyncio.Event()

    async def take_and_wait(run: Run, **_: Any) -> Any:
        await run()
        has_taken.set()
        await asyncio.Event().wait()

    intercept(monkeypatch, app.state, "take", take_and_wait)
    chain = await app.start(once, None)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(app.worker().run())
        await has_taken.wait()

        running.cancel()

    current = (await chain.get()).current
    assert (current.status, current.failures) == (JobStatus.PENDING, 0)


async def _leave_behind(app: Onward) -> None:
    """What the guardian of a worker that was killed leaves: a lease that has run out."""
    async with app.driver.connection() as connection:
        taken = await connection.run(app.state.take(types=[TypeClaim("once", 1, 60.0)], limit=1, worker="killed"))
        await connection.run(app.state.expire(worker="killed"))
    assert len(taken) == 1


async def test_jobs_whose_reaping_was_not_answered_are_settled_as_crashes_at_once(
    opened: Any, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Onward = await opened(once)
    lost = list[Any]()

    async def reap_and_lose(run: Run, **_: Any) -> Any:
        reaped = await run()
        if reaped.jobs and not lost:
            lost.extend(reaped.jobs)
            raise ConnectionResetError
        return reaped

    intercept(monkeypatch, app.state, "reap", reap_and_lose)
    chain = await app.start(once, None)
    await _leave_behind(app)

    async with app.worker():
        with pytest.raises(ChainFailed, match="WorkerCrashed"):
            await chain.wait(timeout=SOON)

    assert len(lost) == 1
    assert [event.job_id for event in recorder.of(JobReaped)] == [chain.id]


async def test_a_worker_that_has_no_room_remembers_that_its_reaping_was_not_answered(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, release, reaped_again, lost = asyncio.Event(), asyncio.Event(), asyncio.Event(), list[Any]()

    @job("long")
    async def long(attempt: Attempt[None]) -> None:
        begun.set()
        await release.wait()

    async def reap_and_lose_the_first(run: Run, **_: Any) -> Any:
        reaped = await run()
        if lost:
            reaped_again.set()
        elif reaped.jobs:
            lost.extend(reaped.jobs)
            raise ConnectionResetError
        return reaped

    app: Onward = await opened(once, long)
    intercept(monkeypatch, app.state, "reap", reap_and_lose_the_first)
    async with app.worker(concurrency=1, poll=timedelta(milliseconds=50)):
        await app.start(long, None)
        await begun.wait()
        chain = await app.start(once, None)
        await _leave_behind(app)
        await reaped_again.wait()

        release.set()

        with pytest.raises(ChainFailed, match="WorkerCrashed"):
            await chain.wait(timeout=SOON)


async def test_a_worker_that_is_cancelled_while_it_reaps_settles_what_it_does_not_know_of(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Onward = await opened(once)
    has_reaped = asyncio.Event()

    async def reap_and_wait(run: Run, **_: Any) -> Any:
        await run()
        has_reaped.set()
        await asyncio.Event().wait()

    intercept(monkeypatch, app.state, "reap", reap_and_wait)
    chain = await app.start(once, None)
    await _leave_behind(app)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(app.worker().run())
        await has_reaped.wait()

        running.cancel()

    current = (await chain.get()).current
    assert (current.status, current.failures) == (JobStatus.FAILED, 1)

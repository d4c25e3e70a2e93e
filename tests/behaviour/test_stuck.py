"""Handlers that do not stop when they are told to, and outcomes that wait while others are told to stop."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from onward import Attempt, Backoff, JobStatus, Onward, job
from onward.observe import events
from support import SOON, Recorder


async def test_a_handler_that_ignores_cancellation_is_named_in_the_log_and_others_go_on(
    opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    release = asyncio.Event()

    @job("stubborn", timeout=timedelta(milliseconds=10))
    async def stubborn(attempt: Attempt[None]) -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "at last"

    @job("other")
    async def other(attempt: Attempt[None]) -> str:
        return "done"

    app: Onward = await opened(stubborn, other)
    async with app.worker(concurrency=2, grace=timedelta(0)) as worker:
        late = await app.start(stubborn, None)
        async with asyncio.timeout(SOON.total_seconds()):
            await worker.stuck.wait()
        chain = await app.start(other, None)

        assert await chain.wait(timeout=SOON) == "done"
        assert f"the handler of stubborn (job {late.id}) was told to stop (timeout) and still runs" in caplog.text
        assert [record.levelno for record in caplog.records if "stubborn" in record.message] == [logging.ERROR]
        release.set()
        assert await late.wait(timeout=SOON) == "at last"


@pytest.mark.parametrize("workers", [1, 2])
async def test_the_job_of_a_stuck_handler_is_taken_back_by_a_worker_of_the_same_app(
    opened: Any, recorder: Recorder, workers: int
) -> None:
    release = asyncio.Event()

    @job("stubborn", timeout=timedelta(milliseconds=10), lease=timedelta(seconds=1))
    async def stubborn(attempt: Attempt[None]) -> int:
        while attempt.number == 1 and not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return attempt.number

    app: Onward = await opened(stubborn)
    async with AsyncExitStack() as stack:
        for _ in range(workers):
            await stack.enter_async_context(app.worker(concurrency=2 // workers, grace=timedelta(0)))
        stack.callback(release.set)
        chain = await app.start(stubborn, None)

        assert await chain.wait(timeout=SOON) == 2

    assert len(recorder.of(events.JobReaped)) == 1


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_an_error_that_waits_to_be_settled_is_not_lost_when_jobs_are_given_back(
    make_app: Callable[..., Onward], target: str, recorder: Recorder
) -> None:
    """Only there can one job's row be locked while others are taken."""
    go = asyncio.Event()

    @job("slow")
    async def slow(attempt: Attempt[None]) -> None:
        await go.wait()

    @job("broken", backoff=Backoff(initial=timedelta(hours=1)))
    async def broken(attempt: Attempt[None]) -> None:
        raise ValueError("no")

    app = make_app(slow, broken)
    async with app:
        first, second = await app.start(slow, None), await app.start(broken, None)
        async with await psycopg.AsyncConnection.connect(target) as locking, app.worker() as worker:
            await recorder.next(events.AttemptStarted)
            await locking.execute(f"SELECT id FROM {app.state.schema}.job WHERE id = %s FOR UPDATE", [first.id])
            go.set()
            await recorder.next(events.AttemptFailed)
            await asyncio.sleep(0)

            worker.stop()
            worker.give_back()
            await asyncio.sleep(0)
            await locking.rollback()

        job_after = (await second.get()).current
        assert (await first.get()).status is JobStatus.COMPLETED
        assert (job_after.status, job_after.failures) == (JobStatus.PENDING, 1)


async def test_a_worker_that_gives_its_jobs_back_takes_them_no_more(target: str, make_app: Any) -> None:
    """Also one that was not told to stop before."""
    runs: list[int] = []

    @job("given back")
    async def given_back(attempt: Attempt[None]) -> None:
        runs.append(attempt.number)
        worker.give_back()
        await asyncio.sleep(SOON.total_seconds())

    app: Onward = make_app(given_back)
    async with app:
        worker = app.worker()
        chain = await app.start(given_back, None)

        await asyncio.wait_for(worker.run(), SOON.total_seconds())

        after = (await chain.get()).current
    assert runs == [1]
    assert (after.status, after.failures) == (JobStatus.PENDING, 0)

"""The answer to a take is lost: its jobs are nobody's, and must neither wait for their leases nor count a failure."""

import asyncio
from typing import Any

import pytest

from onward import Attempt, JobStatus, Onward, job
from support import SOON


@job("once", max_attempts=1)
async def once(attempt: Attempt[None]) -> int:
    return attempt.number


async def test_jobs_whose_take_was_not_answered_are_taken_again_at_once(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Onward = await opened(once)
    take, lost = app.state.take, list[Any]()

    async def take_and_lose(connection: Any, **options: Any) -> Any:
        taken = await take(connection, **options)
        if taken and not lost:
            lost.extend(taken)
            raise ConnectionResetError
        return taken

    monkeypatch.setattr(app.state, "take", take_and_lose)
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
    take, has_taken = app.state.take, asyncio.Event()

    async def take_and_wait(connection: Any, **options: Any) -> Any:
        await take(connection, **options)
        has_taken.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(app.state, "take", take_and_wait)
    chain = await app.start(once, None)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(app.worker().run())
        await has_taken.wait()

        running.cancel()

    current = (await chain.get()).current
    assert (current.status, current.failures) == (JobStatus.PENDING, 0)

"""Tests of `expire`: a worker is known to be dead, so nobody has to wait for its leases to run out."""

import pytest

from onward.testing.state.session import OTHER_WORKER, WORKER, completing
from onward.testing.state.store import Store


@pytest.mark.asyncio
class TestExpiring:
    """The leases of one worker, and nothing else."""

    async def test_the_jobs_of_a_dead_worker_can_be_reaped_at_once(self, store: Store) -> None:
        async with store.reserve() as session:
            await session.start(store.job(), store.job())
            held = await session.take()

            expired = await store.state.expire(session.connection, worker=WORKER)

            assert (expired.count, expired.locked) == (2, 0)
            assert {job.id for job in (await session.reap()).jobs} == {job.id for job in held}

    async def test_other_workers_and_other_jobs_are_left_alone(self, store: Store) -> None:
        async with store.connect() as session:
            ended = await session.start_and_take(store.job())
            await session.settle(completing(ended))
            running = await session.start_and_take(store.job(), worker=OTHER_WORKER)
            waiting = store.job()
            await session.start(waiting)
            until = (await session.find(running.id)).leased_until

            expired = await store.state.expire(session.connection, worker=WORKER)

            assert (expired.count, expired.locked) == (0, 0)
            assert (await session.find(running.id)).leased_until == until
            assert await session.statuses(ended.id, waiting.id) == ["completed", "pending"]

    async def test_expiring_again_changes_nothing(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start_and_take(store.job())
            await store.state.expire(session.connection, worker=WORKER)

            assert (await store.state.expire(session.connection, worker=WORKER)).count == 0

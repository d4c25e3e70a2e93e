"""Tests of what travels with a job beside its input."""

from datetime import timedelta

import pytest

from onward.conformance.state.session import OTHER_WORKER, continuing, failing, hold, next_of
from onward.conformance.state.store import Store
from onward.model import Deduplication

META = '{"request":"r-1","null":null,"nested":{"ü":[1,2.5,true]}}'
PLAIN = {"request": "r-1", "null": None, "nested": {"ü": [1, 2.5, True]}}


@pytest.mark.asyncio
class TestMeta:
    """`NewJob.meta`."""

    @pytest.mark.parametrize("repeated", [False, True])
    async def test_it_is_stored_with_one_job_with_several_and_with_such_as_differ(
        self, store: Store, repeated: bool
    ) -> None:
        one, bare = store.job(meta=META), store.job()
        alike = [store.job("alike", meta=META) for _ in range(2)]
        mixed = [store.job("mixed", meta=META), store.job("mixed"), store.job("mixed", meta='{"b":1}')]
        async with store.connect() as session:
            for jobs in ([one], [bare], alike, mixed):
                await session.start(*jobs, repeated=repeated)

            found = [(await session.find(job.id)).meta for job in (one, bare, *alike, *mixed)]
        assert found == [PLAIN, {}, PLAIN, PLAIN, PLAIN, {}, {"b": 1}]

    async def test_it_is_stored_where_a_start_needs_a_look_first(self, store: Store) -> None:
        blocker = store.job("fetch", meta='{"of":"the blocker"}', parent=0)
        jobs = store.job(meta=META, blockers=(blocker.id,)), blocker, store.job(deduplication=Deduplication("key"))
        async with store.connect() as session:
            await session.start(*jobs)

            found = [(await session.find(job.id)).meta for job in jobs]
        assert found == [PLAIN, {"of": "the blocker"}, {}]

    async def test_whoever_has_the_job_has_it_too(self, store: Store) -> None:
        async with store.connect() as session:
            taken = await session.start_and_take(store.job(meta=META))
            (unanswered,) = await session.connection.run(store.state.unanswered_takes(worker="worker-1", held_here=[]))
            store.clock.advance(timedelta(minutes=5))
            (reaped,) = (await session.reap("work")).jobs
            await session.settle(failing(reaped, holder=OTHER_WORKER))
            await session.retry(reaped.chain_id)
            again = await session.take_one()

        assert {taken.meta, unanswered.meta, reaped.meta, again.meta} == {META}

    async def test_a_continuation_has_its_own(self, store: Store) -> None:
        async with store.connect() as session:
            first = await session.start_and_take(store.job(meta='{"of":"the first"}'))
            await session.settle(continuing(first, next_of(first, meta=META)))
            second = await session.take_one("next")
            await session.settle(continuing(second, next_of(second, "last")))
            third = await session.take_one("last")

        assert (second.meta, third.meta) == (META, None)

    async def test_a_continuation_of_an_attempt_that_is_held_has_its_own(self, store: Store) -> None:
        async with store.connect() as session:
            first = await session.start_and_take(store.job())
            async with session.transaction():
                assert await session.connection.run(hold(store, first))
                step = continuing(first, next_of(first, meta=META))
                await session.connection.run(store.state.settle([step], held=first))
            found = await session.take_one("next")

        assert found.meta == META

    async def test_a_continuation_that_waits_has_its_own_and_so_do_its_blockers(self, store: Store) -> None:
        async with store.connect() as session:
            first = await session.start_and_take(store.job())
            blocker = store.job("fetch", meta='{"of":"the blocker"}', parent=0)
            step = next_of(first, meta=META, blockers=(blocker.id,))
            await session.settle(continuing(first, step, blocker))

            found = [(await session.find(job.id)).meta for job in (step, blocker)]
        assert found == [PLAIN, {"of": "the blocker"}]

    async def test_the_wait_is_known_to_whoever_knows_the_lease(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(store.job())
            store.clock.advance(timedelta(seconds=7))
            taken = await session.take_one(lease=60.0)

        assert taken.held_until == pytest.approx(67.0)

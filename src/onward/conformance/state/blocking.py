"""Tests of jobs that wait for other chains."""

from datetime import timedelta

import pytest

from onward.conformance.state.session import completing, continuing, kinds, next_of
from onward.conformance.state.store import Store
from onward.errors import BlockerNotFound
from onward.model import BlockedJob, JobStatus, new_id
from onward.state.contract import Started


@pytest.mark.asyncio
class TestBlockers:
    """`start` with blockers, and what ending chains do to those who wait."""

    async def test_a_job_with_an_open_blocker_is_blocked(self, store: Store) -> None:
        blocker = store.job("fetch")
        job = store.job(blockers=(blocker.id,))
        async with store.connect() as session:
            await session.start(blocker)

            started = await session.start(job)

            found = await session.find(job.id)
            assert list(started) == [Started(job.id, JobStatus.BLOCKED, False)]
            assert isinstance(found, BlockedJob)
            assert found.open_blockers == 1
            assert list(await session.take("work")) == []

    async def test_the_last_blocker_to_complete_unblocks(self, store: Store) -> None:
        one, two = store.job("one"), store.job("two")
        job = store.job(blockers=(one.id, two.id))
        async with store.connect() as session:
            await session.start(one, two)
            await session.start(job)

            first = await session.finish("one")
            assert (await session.find(job.id)).open_blockers == 1
            last = await session.finish("two")

            assert kinds(first) == {(one.id, "settled")}
            assert kinds(last) == {(two.id, "settled"), (job.id, "unblocked")}
            assert [change.type_name for change in last if change.kind == "unblocked"] == ["work"]
            taken = await session.take_one("work")
            assert (taken.id, taken.blockers) == (job.id, 2)

    async def test_what_is_unblocked_before_its_time_has_come_is_told_apart(self, store: Store) -> None:
        one, two = store.job("one"), store.job("two")
        job = store.job(blockers=(one.id,), delay=60.0)
        anyway = store.job(blockers=(two.id,), delay=60.0, runs_anyway=True)
        async with store.connect() as session:
            await session.start(one, two)
            await session.start(job)
            await session.start(anyway)

            completed = await session.finish("one")
            cancelled = await session.cancel(two.id)

            assert (job.id, "scheduled") in kinds(completed)
            assert (anyway.id, "scheduled") in kinds(cancelled)
            assert [await session.status(id) for id in (job.id, anyway.id)] == ["pending", "pending"]

    async def test_blockers_that_complete_in_one_batch_unblock_once(self, store: Store) -> None:
        one, two = store.job("fetch"), store.job("fetch")
        job = store.job(blockers=(one.id, two.id))
        async with store.connect() as session:
            await session.start(one, two)
            await session.start(job)
            first, second = await session.take("fetch")

            changes = await session.settle(completing(first), completing(second))

            assert [change.job_id for change in changes if change.kind == "unblocked"] == [job.id]
            assert await session.status(job.id) == "pending"

    async def test_each_of_a_batch_is_counted_where_others_are_still_waited_for(self, store: Store) -> None:
        blockers = [store.job("fetch") for _ in range(3)]
        job = store.job(blockers=tuple(blocker.id for blocker in blockers))
        async with store.connect() as session:
            await session.start(*blockers)
            await session.start(job)
            first, second, third = await session.take("fetch", limit=3)

            await session.settle(completing(first), completing(second))
            assert (await session.find(job.id)).open_blockers == 1
            await session.settle(completing(third))

            assert await session.status(job.id) == "pending"

    async def test_unblocking_is_part_of_the_transaction_that_completes(self, store: Store) -> None:
        blocker = store.job("fetch")
        job = store.job(blockers=(blocker.id,))
        async with store.connect() as session:
            await session.start(blocker)
            await session.start(job)
            running = await session.take_one("fetch")
            async with session.rolled_back():
                await session.settle(completing(running))
                assert await session.status(job.id) == "pending"

            assert await session.status(job.id) == "blocked"

    async def test_a_blocker_that_goes_on_does_not_unblock_before_its_chain_ends(self, store: Store) -> None:
        blocker = store.job("fetch")
        job = store.job(blockers=(blocker.id,))
        async with store.connect() as session:
            await session.start(blocker)
            await session.start(job)
            running = await session.take_one("fetch")

            await session.settle(continuing(running, next_of(running)))
            assert await session.status(job.id) == "blocked"
            await session.finish("next", output='"done"')

            assert await session.status(job.id) == "pending"
            (seen,) = (await session.connection.run(store.state.blockers_of([job.id])))[job.id]
            assert (seen.type_name, seen.current_type_name, seen.output) == ("fetch", "next", '"done"')

    async def test_many_jobs_may_wait_for_one_chain(self, store: Store) -> None:
        blocker = store.job("fetch")
        jobs = [store.job(blockers=(blocker.id,)) for _ in range(10)]
        async with store.connect() as session:
            await session.start(blocker)
            await session.start(*jobs)

            changes = await session.finish("fetch")

            assert kinds(changes) == {(blocker.id, "settled")} | {(job.id, "unblocked") for job in jobs}
            assert [taken.id for taken in await session.take("work")] == [job.id for job in jobs]

    async def test_a_blocker_that_has_completed_holds_nothing_up(self, store: Store) -> None:
        blocker = store.job("fetch")
        job = store.job(blockers=(blocker.id,))
        async with store.connect() as session:
            await session.start(blocker)
            await session.finish("fetch")

            started = await session.start(job)

            assert [answer.status for answer in started] == ["pending"]
            assert (await session.take_one("work")).blockers == 1

    async def test_one_chain_given_twice_is_waited_for_once(self, store: Store) -> None:
        blocker = store.job("fetch")
        job = store.job(blockers=(blocker.id, blocker.id))
        async with store.connect() as session:
            await session.start(blocker)
            await session.start(job)

            changes = await session.finish("fetch", output="7")

            assert kinds(changes) == {(blocker.id, "settled"), (job.id, "unblocked")}
            blockers = (await session.connection.run(store.state.blockers_of([job.id])))[job.id]
            assert [seen.output for seen in blockers] == ["7", "7"]

    async def test_blockers_started_in_the_same_call_are_waited_for(self, store: Store) -> None:
        parent, inner, leaf = new_id(), new_id(), new_id()
        jobs = [
            store.job("parent", id=parent, blockers=(inner,)),
            store.job("inner", id=inner, parent=0, root_id=parent, blockers=(leaf,)),
            store.job("leaf", id=leaf, parent=1, root_id=parent),
        ]
        async with store.connect() as session:
            started = await session.start(*jobs)

            assert [answer.status for answer in started] == ["blocked", "blocked", "pending"]
            assert {(await session.find(job.id)).root_id for job in jobs} == {parent}
            assert kinds(await session.finish("leaf")) == {(leaf, "settled"), (inner, "unblocked")}
            assert kinds(await session.finish("inner")) == {(inner, "settled"), (parent, "unblocked")}

    async def test_an_unblocked_job_keeps_its_later_time(self, store: Store) -> None:
        blocker = store.job("fetch")
        job = store.job(blockers=(blocker.id,), delay=60.0)
        async with store.connect() as session:
            await session.start(blocker)
            await session.start(job)

            await session.finish("fetch")

            assert await session.status(job.id) == "pending"
            assert list(await session.take("work")) == []
            store.clock.advance(timedelta(seconds=60))
            await session.connection.run(store.state.promote(type_names=["work"], limit=10))
            assert (await session.take_one("work")).id == job.id

    async def test_an_unblocked_job_queues_behind_what_was_due_before(self, store: Store) -> None:
        blocker = store.job("fetch")
        job, rival = store.job(blockers=(blocker.id,)), store.job()
        async with store.connect() as session:
            await session.start(blocker)
            await session.start(job)
            store.clock.advance(timedelta(seconds=1))
            await session.start(rival)
            store.clock.advance(timedelta(seconds=1))

            await session.finish("fetch")

            assert [taken.id for taken in await session.take("work")] == [rival.id, job.id]

    async def test_a_missing_blocker_refuses_everything(self, store: Store) -> None:
        existing, missing = store.job("fetch"), new_id()
        async with store.connect() as session:
            await session.start(existing)

            with pytest.raises(BlockerNotFound) as refusal:
                await session.start(store.job("plain"), store.job("report", blockers=(existing.id, missing)))

            assert (refusal.value.job_type, refusal.value.chain_ids) == ("report", (missing,))
            assert [job.id for job in await session.everything()] == [existing.id]
            assert list(await session.connection.run(store.state.list_blocked(existing.id, after=None, limit=9))) == []

    async def test_a_deleted_chain_cannot_be_a_blocker(self, store: Store) -> None:
        deleted = store.job("fetch")
        async with store.connect() as session:
            await session.start(deleted)
            await session.delete(deleted.id)

            with pytest.raises(BlockerNotFound):
                await session.start(store.job(blockers=(deleted.id,)))

    async def test_a_job_further_on_in_a_chain_is_no_chain(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            step = next_of(running)
            await session.settle(continuing(running, step))

            with pytest.raises(BlockerNotFound):
                await session.start(store.job(blockers=(step.id,)))

    async def test_after_a_missing_blocker_the_transaction_goes_on(self, store: Store) -> None:
        before, after = store.job(), store.job()
        async with store.connect() as session:
            async with session.transaction():
                await session.start(before)
                with pytest.raises(BlockerNotFound):
                    await session.start(store.job(blockers=(new_id(),)))
                await session.start(after)

            assert {job.id for job in await session.everything()} == {before.id, after.id}

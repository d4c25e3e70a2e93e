"""Tests of the numbers of a type, and of its failed jobs."""

from datetime import timedelta

import pytest

from onward.conformance.state.session import LEASE, Session, completing, failing, retrying
from onward.conformance.state.store import Store
from onward.state.contract import JobCounts, LimitRule, TypeClaim


@pytest.mark.asyncio
class TestCounting:
    """`count_jobs`."""

    async def test_jobs_are_counted_by_type_and_by_where_they_are(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(*(store.job("mail") for _ in range(7)), store.job("mail", delay=60.0))
            await session.start(store.job("other"), store.job("stranger"))
            done, broken, *_ = await session.take("mail", limit=4)
            await session.settle(completing(done), failing(broken))

            counts = await session.connection.run(store.state.count_jobs(["mail", "other", "nobody"]))

        assert counts == {
            "mail": JobCounts(pending=3, scheduled=1, running=2, failed=1),
            "other": JobCounts(pending=1),
            "nobody": JobCounts(),
        }

    async def test_what_comes_due_is_pending_once_it_is_promoted(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(store.job("mail", delay=60.0))
            store.clock.advance(timedelta(minutes=2))
            await session.connection.run(store.state.promote(type_names=["mail"], limit=10))

            counts = await session.connection.run(store.state.count_jobs(["mail"]))

        assert counts == {"mail": JobCounts(pending=1)}

    async def test_the_oldest_is_found_whatever_its_version_and_priority(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(store.job("mail", payload_version=2, priority=-3), store.job("other"))
            store.clock.advance(timedelta(seconds=10))
            await session.start(
                *(store.job("mail", payload_version=v, priority=p) for v in (1, 2, 3) for p in (-5, 0, 5)),
                store.job("late", delay=60.0),
            )
            store.clock.advance(timedelta(seconds=5))
            oldest = await session.connection.run(store.state.oldest_due(["mail", "other", "late", "nobody"]))

        assert oldest == {"mail": pytest.approx(15.0), "other": pytest.approx(15.0)}


@pytest.mark.asyncio
class TestWorkLeft:
    """`work_left`."""

    async def left(self, store: Store, session: Session) -> bool:
        return await session.connection.run(store.state.work_left(types=[TypeClaim("work", 1, LEASE)]))

    async def test_what_is_due_and_what_runs_is_left(self, store: Store) -> None:
        async with store.connect() as session:
            assert not await self.left(store, session)
            await session.start(store.job())
            assert await self.left(store, session)
            job = await session.take_one()
            assert await self.left(store, session)
            await session.settle(retrying(job, delay=60.0))
            assert not await self.left(store, session)
            store.clock.advance(timedelta(seconds=61))  # and nobody has promoted it
            assert await self.left(store, session)

    async def test_what_waits_for_a_place_is_left_but_not_what_nobody_could_take(self, store: Store) -> None:
        async with store.connect() as session:
            blocker = store.job("other")
            await session.start(blocker, store.job(payload_version=2))
            await session.start(store.job(blockers=(blocker.id,)))
            assert not await self.left(store, session)
            await session.connection.run(store.state.set_limits([LimitRule("shared", places=1)], declared=True))
            await session.start(store.job("other", limit_key="shared/"), store.job(limit_key="shared/"))
            assert await self.left(store, session)
            await session.connection.run(store.state.pause(["work"]))
            assert not await self.left(store, session)


@pytest.mark.asyncio
class TestFailed:
    """`list_failed`."""

    async def test_the_last_to_fail_comes_first(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(*(store.job("mail") for _ in range(4)), store.job("other"))
            taken = [*await session.take("mail"), await session.take_one("other")]
            order = [taken[n] for n in (2, 0, 4, 3)]
            for job in order:
                await session.settle(failing(job))
                store.clock.advance(timedelta(seconds=1))

            failed = await session.connection.run(store.state.list_failed("mail", limit=10))
            last = await session.connection.run(store.state.list_failed("mail", limit=1))

        assert [job.id for job in failed] == [taken[3].id, taken[0].id, taken[2].id]
        assert [job.id for job in last] == [taken[3].id]

    async def test_a_job_that_is_retried_is_no_longer_among_them(self, store: Store) -> None:
        async with store.connect() as session:
            job = await session.start_and_take(store.job("mail"))
            await session.settle(failing(job))
            await session.retry(job.chain_id)

            assert list(await session.connection.run(store.state.list_failed("mail", limit=10))) == []

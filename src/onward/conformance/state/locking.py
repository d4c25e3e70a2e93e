"""Tests for databases in which several transactions write at a time: a locked row holds nobody up.

To be imported with `from onward.conformance.state.locking import *`, beside the suite.
"""

from datetime import timedelta

import pytest

from onward.conformance.state.session import LEASE, WORKER, completing
from onward.conformance.state.store import Store
from onward.state.contract import HeldAttempt, LimitRule, TypeClaim

__all__ = ["TestRowLocks"]


@pytest.mark.asyncio
class TestRowLocks:
    """A job that its holder is completing at this moment is alive, and the others do not wait for it."""

    async def test_a_report_does_not_wait_for_a_job_that_is_being_completed(self, store: Store) -> None:
        async with store.connect() as holder, store.reserve() as other:
            running = await holder.start_and_take(store.job())
            async with holder.transaction():
                await holder.lock(running)

                async with store.promptly():
                    await other.report(running, 0.5, None)

    async def test_a_held_job_that_somebody_has_locked_is_passed_over_and_looked_at_again(self, store: Store) -> None:
        first, second = (store.job(limit_key="tenant/a") for _ in range(2))
        async with store.connect() as other, store.reserve() as session:
            await session.connection.run(store.state.set_limits([LimitRule("tenant", places=2)], declared=True))
            await session.start(first, second)
            async with other.rolled_back():
                await other.cancel(first.id)
                async with store.promptly():
                    beside = await session.connection.run(store.state.admit())
                    taken = await session.take()
            await session.connection.run(store.state.admit())

            assert [job.id for job in taken] == [second.id]
            assert beside.next_in is not None
            assert [job.id for job in await session.take()] == [first.id]

    async def test_a_job_that_is_started_while_its_type_is_resumed_is_let_in(self, store: Store) -> None:
        job = store.job(limit_key="tenant/a")
        async with store.connect() as client, store.connect() as operator, store.reserve() as worker:
            await worker.connection.run(store.state.set_limits([LimitRule("tenant", places=1)], declared=True))
            await operator.connection.run(store.state.pause([job.type_name]))
            async with operator.transaction():
                async with client.transaction():
                    await client.start(job)
                    await operator.connection.run(store.state.resume([job.type_name]))
                await worker.connection.run(store.state.admit())  # it is there, and still paused
            await worker.connection.run(store.state.admit())

            assert [taken.id for taken in await worker.take()] == [job.id]

    async def test_a_key_that_somebody_has_locked_keeps_the_jobs_of_no_other_out(self, store: Store) -> None:
        first, second, third, beside = (store.job(limit_key=f"tenant/{name}") for name in "aaab")
        async with store.connect() as other, store.reserve() as session:
            await session.connection.run(store.state.set_limits([LimitRule("tenant", places=2)], declared=True))
            await session.start(first)
            await session.connection.run(store.state.admit())
            await session.settle(completing((await session.take())[0]))
            await session.start(second)
            async with other.rolled_back():
                await other.connection.run(store.state.admit())
                await session.start(third, beside)
                async with store.promptly():
                    await session.connection.run(store.state.admit(past_locks=True))
                taken = await session.take(limit=10)
            await session.connection.run(store.state.admit())

            assert [job.id for job in taken] == [beside.id]
            assert [job.id for job in await session.take(limit=10)] == [second.id, third.id]

    async def test_who_declares_what_is_known_and_who_admits_do_not_wait_for_each_other(self, store: Store) -> None:
        rules = [LimitRule("tenant", places=2)]
        async with store.connect() as other, store.reserve() as session:
            await session.connection.run(store.state.set_limits(rules, declared=True))
            async with other.rolled_back():
                await other.connection.run(store.state.admit())
                async with store.promptly():
                    outcomes = await session.connection.run(store.state.set_limits(rules, declared=True))

        assert list(outcomes) == ["kept"]

    async def test_a_locked_job_is_neither_lost_nor_reaped(self, store: Store) -> None:
        async with store.connect() as holder, store.reserve() as other:
            running = await holder.start_and_take(store.job())
            async with holder.transaction():
                await holder.lock(running)
                store.clock.advance(timedelta(seconds=61))

                async with store.promptly():
                    assert await other.renew(running) is None
                    assert list((await other.reap()).jobs) == []
                await holder.settle(completing(running))

            assert await other.status(running.id) == "completed"

    async def test_a_locked_job_whose_lease_has_run_out_is_looked_at_again_after_a_while(self, store: Store) -> None:
        async with store.connect() as holder, store.reserve() as other:
            running = await holder.start_and_take(store.job())
            async with holder.transaction():
                await holder.lock(running)
                store.clock.advance(timedelta(seconds=61))

                assert (await other.reap(lease=20.0)).next_in == pytest.approx(5.0)

    async def test_one_locked_job_does_not_hold_up_the_others(self, store: Store) -> None:
        async with store.connect() as holder, store.reserve() as other:
            await holder.start(store.job(), store.job(), store.job())
            locked, renewed, reaped = await holder.take()
            async with holder.transaction():
                await holder.lock(locked)
                store.clock.advance(timedelta(seconds=50))
                held = [HeldAttempt(job.id, job.attempt, LEASE) for job in (locked, renewed)]
                async with store.promptly():
                    renewals = await other.connection.run(store.state.renew(worker=WORKER, held=held))
                    store.clock.advance(timedelta(seconds=20))
                    taken_over = (await other.reap()).jobs

                assert [renewal.lost for renewal in renewals] == [None, None]
                assert [job.id for job in taken_over] == [reaped.id]

    async def test_a_locked_job_of_a_dead_worker_is_counted_and_skipped(self, store: Store) -> None:
        async with store.connect() as holder, store.reserve() as other:
            await holder.start(store.job(), store.job())
            locked, _ = await holder.take()
            async with holder.transaction():
                await holder.lock(locked)

                async with store.promptly():
                    expired = await other.connection.run(store.state.expire(worker=WORKER))

                assert (expired.count, expired.locked) == (1, 1)
            assert (await other.connection.run(store.state.expire(worker=WORKER))).count == 1

    async def test_a_pending_job_that_is_locked_is_passed_over(self, store: Store) -> None:
        locked, free = store.job(), store.job()
        async with store.connect() as client, store.reserve() as worker:
            await client.start(locked, free)
            async with client.transaction():
                await client.connection.run(store.state.lock_current(locked.id))

                async with store.promptly():
                    assert [job.id for job in await worker.take()] == [free.id]
            assert [job.id for job in await worker.take()] == [locked.id]

    @pytest.mark.parametrize("ageing", [None, timedelta(seconds=1)], ids=["by-rank", "aged"])
    async def test_of_many_types_those_behind_many_that_are_locked_are_found(
        self, store: Store, ageing: timedelta | None
    ) -> None:
        locked, free = [store.job("type-1") for _ in range(200)], store.job("type-1")
        async with store.connect() as client, store.reserve() as worker:
            await client.start(*locked, free)
            async with client.transaction():
                await client.connection.run(store.state.cancel([job.id for job in locked]))

                async with store.promptly():
                    taken = await worker.take(*(f"type-{n}" for n in range(12)), limit=1, ageing=ageing)

        assert [job.id for job in taken] == [free.id]

    async def test_that_a_locked_job_was_passed_over_can_be_asked(self, store: Store) -> None:
        job = store.job()
        claims = [TypeClaim(job.type_name, job.payload_version, LEASE)]
        async with store.connect() as client, store.reserve() as worker:
            await client.start(job)
            async with client.transaction():
                await client.connection.run(store.state.lock_current(job.id))
                assert list(await worker.take()) == []

                async with store.promptly():
                    assert await worker.connection.run(store.state.left_behind(types=claims))
                await worker.connection.run(store.state.pause([job.type_name]))
                assert not await worker.connection.run(store.state.left_behind(types=claims))
                await worker.connection.run(store.state.resume([job.type_name]))

            await worker.take()
            assert not await worker.connection.run(store.state.left_behind(types=claims))

    async def test_a_due_job_that_is_locked_is_said_to_be_overdue(self, store: Store) -> None:
        job = store.job(delay=1.0)
        async with store.connect() as client, store.reserve() as worker:
            await client.start(job)
            async with client.transaction():
                await client.connection.run(store.state.lock_current(job.id))
                store.clock.advance(timedelta(seconds=2))

                async with store.promptly():
                    promoted = await worker.connection.run(store.state.promote(type_names=[job.type_name], limit=10))

            assert (promoted.count, promoted.next_in) == (0, -1.0)

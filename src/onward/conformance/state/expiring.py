"""Tests of `expire`, `time_out` and `give_back`: nobody has to wait for leases to run out that nobody will renew."""

import pytest

from onward.conformance.state.session import OTHER_WORKER, WORKER, completing, retrying
from onward.conformance.state.store import Store
from onward.model import JobError
from onward.state.contract import TimedOut
from onward.state.rows import read_errors


@pytest.mark.asyncio
class TestExpiring:
    """The leases of one worker, and nothing else."""

    async def test_the_jobs_of_a_dead_worker_can_be_reaped_at_once(self, store: Store) -> None:
        async with store.reserve() as session:
            await session.start(store.job(), store.job())
            held = await session.take()

            expired = await session.connection.run(store.state.expire(worker=WORKER))

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

            expired = await session.connection.run(store.state.expire(worker=WORKER))

            assert (expired.count, expired.locked) == (0, 0)
            assert (await session.find(running.id)).leased_until == until
            assert await session.statuses(ended.id, waiting.id) == ["completed", "pending"]

    async def test_expiring_again_changes_nothing(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start_and_take(store.job())
            await session.connection.run(store.state.expire(worker=WORKER))

            assert (await session.connection.run(store.state.expire(worker=WORKER))).count == 0


@pytest.mark.asyncio
class TestTimingOut:
    """`time_out`: what the guardian of a stuck worker says in its place."""

    async def test_an_attempt_that_was_let_go_of_is_reaped_at_once_with_the_reason(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            await session.settle(retrying(running, failures=1))
            again = await session.take_one()
            error = JobError(type="TimeoutError", message='late "\u2026"', traceback="here\nand there", attempt=2)

            let_go = await session.connection.run(
                store.state.time_out(worker=WORKER, overdue=[TimedOut(again.id, again.attempt, error)])
            )
            (reaped,) = (await session.reap()).jobs

        assert list(let_go) == [running.id]
        assert [kept.message for kept in read_errors(reaped.errors)] == ["it broke", 'late "\u2026"']
        assert read_errors(reaped.errors)[-1] == error
        assert (reaped.attempt, reaped.failures) == (2, 1)

    async def test_letting_go_twice_says_it_once(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            overdue = [TimedOut(running.id, 1, JobError(type="TimeoutError", message="late", attempt=1))]

            answers = [
                await session.connection.run(store.state.time_out(worker=WORKER, overdue=overdue)) for _ in range(2)
            ]
            (reaped,) = (await session.reap()).jobs

        assert [len(answer) for answer in answers] == [1, 0]
        assert len(read_errors(reaped.errors)) == 1

    async def test_only_the_attempt_of_that_worker_is_let_go_of(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            error = JobError(type="TimeoutError", message="late")
            for worker, attempt in ((OTHER_WORKER, 1), (WORKER, 2)):
                overdue = [TimedOut(running.id, attempt, error)]
                assert not await session.connection.run(store.state.time_out(worker=worker, overdue=overdue))

            assert list((await session.reap()).jobs) == []


@pytest.mark.asyncio
class TestGivingBack:
    """`give_back`: jobs of a worker that was ended through no fault of theirs."""

    async def test_they_can_be_taken_at_once_and_nothing_is_counted(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(store.job(), store.job(), store.job())
            mine, other = await session.take(limit=2), await session.take(limit=1, worker=OTHER_WORKER)

            given = await session.connection.run(store.state.give_back(worker=WORKER))
            again = await session.take(worker=OTHER_WORKER)

        assert (given.count, given.locked) == (2, 0)
        assert {job.id for job in again} == {job.id for job in mine}
        assert {(job.attempt, job.failures, job.crashes) for job in again} == {(2, 0, 0)}
        assert len(other) == 1

    async def test_not_what_was_let_go_of_or_is_to_be_cancelled(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(store.job(), store.job())
            late, cancelled = await session.take()
            await session.connection.run(
                store.state.time_out(
                    worker=WORKER,
                    overdue=[TimedOut(late.id, 1, JobError(type="TimeoutError", message="late"))],
                )
            )
            await session.cancel(cancelled.chain_id)

            assert (await session.connection.run(store.state.give_back(worker=WORKER))).count == 0
            assert await session.statuses(late.id, cancelled.id) == ["running", "running"]

"""Tests of how attempts end."""

from datetime import timedelta

import msgspec
import pytest

from onward.conformance.state.session import (
    OTHER_WORKER,
    WORKER,
    completing,
    continuing,
    failing,
    hold,
    kinds,
    next_of,
    retrying,
)
from onward.conformance.state.store import Store
from onward.errors import JobAlreadyCompleted, JobNotFound, JobTakenByAnotherWorker
from onward.model import CompletedJob, FailedJob, FailureReason, JobId, JobStatus, new_id
from onward.state.contract import Change, Settlement


@pytest.mark.asyncio
class TestSettling:
    """`settle`: complete, retry and fail."""

    async def test_completing_stores_the_output_and_ends_the_chain(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            store.clock.advance(timedelta(seconds=5))

            changes = await session.settle(completing(running, output='{"sum": 7}'))

            found = await session.find(running.id)
            assert list(changes) == [Change(running.id, running.id, "work", "settled", JobStatus.COMPLETED)]
            assert isinstance(found, CompletedJob)
            assert (found.output, found.completed_by, found.completed_at) == ({"sum": 7}, WORKER, store.clock.now)
            assert await session.has_ended(running.chain_id)

    async def test_an_output_has_the_version_of_the_code_that_made_it(self, store: Store) -> None:
        async with store.connect() as session:
            jobs = [await session.start_and_take(store.job()) for _ in range(3)]
            waiting = store.job("after", blockers=(jobs[0].id, jobs[1].id))
            await session.start(waiting)

            brought_up = msgspec.structs.replace(completing(jobs[0], output="1"), payload_version=2)
            await session.settle(brought_up, completing(jobs[1], output="2"))
            await session.settle(retrying(jobs[2]))

            assert [(await session.find(job.id)).payload_version for job in jobs] == [2, 1, 1]
            seen = (await session.connection.run(store.state.blockers_of([waiting.id])))[waiting.id]
            assert [(blocker.payload_version, blocker.output) for blocker in seen] == [(2, "1"), (1, "2")]

    async def test_so_has_that_of_an_attempt_that_is_held(self, store: Store) -> None:
        async with store.connect() as session:
            job = await session.start_and_take(store.job())
            brought_up = msgspec.structs.replace(completing(job, output="1"), payload_version=2)

            assert await session.connection.run(hold(store, job), begin=True)
            changes = await session.connection.run(store.state.settle([brought_up], held=job), commit=True)

            assert kinds(changes) == {(job.id, "settled")}
            assert (await session.find(job.id)).payload_version == 2

    async def test_a_held_attempt_settles_with_the_commit(self, store: Store) -> None:
        async with store.connect() as session:
            job = await session.start_and_take(store.job())

            assert await session.connection.run(hold(store, job), begin=True)
            changes = await session.connection.run(store.state.settle([completing(job)], held=job), commit=True)

            assert not session.connection.in_transaction
            assert kinds(changes) == {(job.id, "settled")}
            assert await session.status(job.id) == "completed"

    async def test_what_a_look_at_the_answer_raises_undoes_the_transaction(self, store: Store) -> None:
        def refuse(changes: object) -> None:
            raise LookupError("not as expected")

        async with store.connect() as session:
            job = await session.start_and_take(store.job())
            await session.connection.begin()
            with pytest.raises(LookupError):
                await session.connection.run(store.state.settle([completing(job)]).then(refuse), commit=True)

            assert not session.connection.in_transaction
            assert await session.status(job.id) == "running"

    async def test_a_retry_is_pending_again_and_counts_what_it_is_told_to(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())

            changes = await session.settle(retrying(running, failures=1, transients=3, crashes=2))

            again = await session.take_one()
            assert kinds(changes) == {(running.id, "settled")}
            assert (again.attempt, again.failures, again.transients, again.crashes) == (2, 1, 3, 2)
            assert not await session.has_ended(running.chain_id)

    async def test_failures_add_up_while_other_counts_are_replaced(self, store: Store) -> None:
        async with store.connect() as session:
            await session.settle(retrying(await session.start_and_take(store.job()), failures=1, crashes=4))
            await session.settle(retrying(await session.take_one(), failures=1, crashes=0))

            again = await session.take_one()

        assert (again.failures, again.crashes) == (2, 0)

    async def test_giving_back_counts_no_failure_and_keeps_the_last_error(self, store: Store) -> None:
        async with store.connect() as session:
            await session.settle(retrying(await session.start_and_take(store.job())))
            taken = await session.take_one()

            await session.settle(
                Settlement(job_id=taken.id, attempt=taken.attempt, holder=WORKER, kind="requeue"),
            )

            found = await session.find(taken.id)
        assert (found.status, found.failures, found.last_error.message) == ("pending", 1, "it broke")

    async def test_a_retry_can_be_for_later(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(store.job("delayed"), store.job("timed"))
            delayed, timed = await session.take("delayed", "timed")

            await session.settle(
                retrying(delayed, delay=10.0), retrying(timed, at=store.clock.now + timedelta(seconds=20))
            )

            assert list(await session.take("delayed", "timed")) == []
            promoted = await session.connection.run(store.state.promote(type_names=["delayed", "timed"], limit=10))
            assert promoted.count == 0
            assert promoted.next_in == pytest.approx(10.0)
            store.clock.advance(timedelta(seconds=20))
            await session.connection.run(store.state.promote(type_names=["delayed", "timed"], limit=10))
            assert [job.id for job in await session.take("delayed", "timed")] == [delayed.id, timed.id]

    async def test_a_job_that_keeps_its_place_is_taken_before_those_behind_it(self, store: Store) -> None:
        first, second = store.job(), store.job()
        async with store.connect() as session:
            await session.start(first, second)
            running = await session.take_one()
            store.clock.advance(timedelta(seconds=1))

            await session.settle(retrying(running, keep_place=True))

            assert [job.id for job in await session.take()] == [first.id, second.id]

    async def test_a_job_that_comes_back_otherwise_goes_to_the_end_of_the_line(self, store: Store) -> None:
        first, second = store.job(), store.job()
        async with store.connect() as session:
            await session.start(first, second)
            running = await session.take_one()
            store.clock.advance(timedelta(seconds=1))

            await session.settle(retrying(running))

            assert [job.id for job in await session.take()] == [second.id, first.id]

    async def test_a_delay_counts_also_for_a_job_that_would_keep_its_place(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())

            await session.settle(retrying(running, keep_place=True, delay=10.0))

            assert list(await session.take()) == []
            assert (await session.find(running.id)).scheduled_at == store.clock.now + timedelta(seconds=10)

    async def test_failing_says_why_and_ends_the_chain(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())

            changes = await session.settle(failing(running, reason=FailureReason.ATTEMPTS))

            found = await session.find(running.id)
            assert list(changes) == [
                Change(running.id, running.id, "work", "settled", JobStatus.FAILED, FailureReason.ATTEMPTS)
            ]
            assert isinstance(found, FailedJob)
            assert (found.reason, found.failed_at, found.failures) == ("attempts", store.clock.now, 1)
            assert found.last_error is not None
            assert await session.has_ended(running.chain_id)

    async def test_many_end_together_each_in_its_own_way(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(*[store.job() for _ in range(3)])
            first, second, third = await session.take()

            changes = await session.settle(failing(third), completing(first, output="1"), retrying(second))

            assert {change.job_id: change.status for change in changes} == {
                first.id: "completed",
                second.id: "pending",
                third.id: "failed",
            }
            assert await session.statuses(first.id, second.id, third.id) == ["completed", "pending", "failed"]

    async def test_no_settlements_are_no_changes(self, store: Store) -> None:
        async with store.connect() as session:
            assert list(await session.settle()) == []

    async def test_a_settlement_that_is_rolled_back_leaves_the_job_running(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            async with session.rolled_back():
                await session.settle(completing(running))

            assert await session.status(running.id) == "running"
            assert not await session.has_ended(running.chain_id)
            assert kinds(await session.settle(completing(running))) == {(running.id, "settled")}


@pytest.mark.asyncio
class TestRemoving:
    """`settle` with `remove`."""

    async def test_a_chain_that_has_ended_is_gone_and_one_that_goes_on_stays(self, store: Store) -> None:
        names = ("done", "failed", "again", "on", "kept")
        async with store.connect() as session:
            done, failed, again, on, kept = [await session.start_and_take(store.job(name)) for name in names]
            settlements = [completing(done), failing(failed), retrying(again), continuing(on, next_of(on))]
            removing = [msgspec.structs.replace(settlement, remove=True) for settlement in settlements]

            changes = await session.settle(*removing, completing(kept))

            ids = [job.id for job in (done, failed, again, on, kept)]
            assert await session.statuses(*ids) == [None, None, "pending", "completed", "completed"]
            assert {change.job_id for change in changes if change.kind == "settled"} == set(ids)

    async def test_a_stale_attempt_removes_nothing(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())

            stale = msgspec.structs.replace(completing(running, holder=OTHER_WORKER), remove=True)

            assert list(await session.settle(stale)) == []
            assert await session.status(running.id) == "running"


@pytest.mark.asyncio
class TestTheFence:
    """(job id, attempt, holder): whoever lost a job cannot change it."""

    async def test_an_older_attempt_cannot_settle_even_of_the_same_worker(self, store: Store) -> None:
        async with store.connect() as session:
            stale = await session.start_and_take(store.job())
            await session.settle(retrying(stale))
            current = await session.take_one()

            for settlement in (completing(stale), failing(stale), retrying(stale)):
                assert list(await session.settle(settlement)) == []

            found = await session.find(stale.id)
            assert (found.status, found.attempt, found.failures) == ("running", current.attempt, 1)

    async def test_another_holder_cannot_settle(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())

            changes = await session.settle(completing(running, holder=OTHER_WORKER))

            assert list(changes) == []
            assert await session.status(running.id) == "running"

    async def test_a_reaped_attempt_cannot_settle(self, store: Store) -> None:
        async with store.connect() as session:
            stale = await session.start_and_take(store.job())
            store.clock.advance(timedelta(seconds=61))
            (reaped,) = (await session.reap()).jobs

            assert list(await session.settle(completing(stale))) == []
            assert kinds(await session.settle(retrying(reaped, holder=OTHER_WORKER))) == {(stale.id, "settled")}
            assert list(await session.settle(completing(stale))) == []
            assert await session.status(stale.id) == "pending"

    async def test_a_job_is_completed_once(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            await session.settle(completing(running, output="1"))

            assert list(await session.settle(completing(running, output="2"))) == []
            assert list(await session.settle(failing(running))) == []
            assert (await session.find(running.id)).output == 1

    async def test_a_deleted_job_cannot_be_settled(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            await session.delete(running.chain_id)

            assert list(await session.settle(completing(running))) == []
            assert await session.status(running.id) is None

    async def test_one_stale_settlement_does_not_spoil_the_others(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(*[store.job() for _ in range(3)])
            first, stale, third = await session.take()
            await session.settle(retrying(stale))
            await session.take_one()

            changes = await session.settle(completing(first), completing(stale), completing(third))

            assert kinds(changes) == {(first.id, "settled"), (third.id, "settled")}
            assert await session.statuses(first.id, stale.id, third.id) == ["completed", "running", "completed"]

    async def test_after_a_stale_settlement_the_transaction_goes_on(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job("first"))

            async with session.transaction():
                assert list(await session.settle(completing(running, holder=OTHER_WORKER))) == []
                await session.start(after := store.job())

            assert await session.statuses(running.id, after.id) == ["running", "pending"]

    async def test_locking_lets_the_holder_go_on(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())

            async with session.transaction():
                await session.lock(running)
                await session.settle(completing(running))

            assert await session.status(running.id) == "completed"

    async def test_locking_tells_who_lost_the_job_to_another(self, store: Store) -> None:
        async with store.connect() as session:
            stale = await session.start_and_take(store.job())
            await session.settle(retrying(stale))
            await session.take_one()

            async with session.transaction():
                with pytest.raises(JobTakenByAnotherWorker) as lost:
                    await session.lock(stale)
                with pytest.raises(JobTakenByAnotherWorker):
                    await session.lock(stale, holder=OTHER_WORKER)
                await session.start(after := store.job())

            assert (lost.value.job_id, lost.value.attempt) == (stale.id, 1)
            assert await session.status(after.id) == "pending"

    async def test_locking_tells_that_the_job_has_ended(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            await session.settle(completing(running))

            async with session.transaction():
                with pytest.raises(JobAlreadyCompleted):
                    await session.lock(running)
                await session.start(after := store.job())

            assert await session.status(after.id) == "pending"

    async def test_locking_tells_that_the_job_is_gone(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            await session.delete(running.chain_id)

            async with session.transaction():
                with pytest.raises(JobNotFound):
                    await session.lock(running)
                await session.start(after := store.job())

            assert await session.status(after.id) == "pending"


@pytest.mark.asyncio
class TestCompletingWithoutAWorker:
    """`lock_current`, and settlements without a holder."""

    async def test_the_current_job_of_a_chain_is_locked(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            step = next_of(running)
            await session.settle(continuing(running, step))

            async with session.transaction():
                current = await session.connection.run(store.state.lock_current(running.chain_id))

        assert current is not None
        assert (current.id, current.status, current.chain_index) == (step.id, "pending", 1)

    async def test_a_chain_that_is_missing_has_no_current_job(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            step = next_of(running)
            await session.settle(continuing(running, step))

            async with session.transaction():
                assert await session.connection.run(store.state.lock_current(new_id())) is None
                assert await session.connection.run(store.state.lock_current(step.id)) is None
                await session.start(after := store.job())

            assert await session.status(after.id) == "pending"

    async def test_a_pending_job_can_be_completed_without_a_worker(self, store: Store) -> None:
        job = store.job()
        async with store.connect() as session:
            await session.start(job)

            async with session.transaction():
                current = await session.connection.run(store.state.lock_current(job.id))
                assert current is not None
                await session.settle(_without_a_worker(current.id, current.attempt, output="7"))

            found = await session.find(job.id)
            assert (found.status, found.output, found.completed_by) == ("completed", 7, None)
            assert await session.has_ended(job.id)
            assert list(await session.take()) == []

    async def test_a_blocked_job_can_be_completed_without_a_worker(self, store: Store) -> None:
        blocker = store.job("fetch")
        job = store.job(blockers=(blocker.id,))
        waiting = store.job("waiting", blockers=(job.id,))
        async with store.connect() as session:
            await session.start(blocker)
            await session.start(job)
            await session.start(waiting)

            changes = await session.settle(_without_a_worker(job.id, 0))

            assert kinds(changes) == {(job.id, "settled"), (waiting.id, "unblocked")}
            assert kinds(await session.finish("fetch")) == {(blocker.id, "settled")}
            assert await session.statuses(job.id, waiting.id) == ["completed", "pending"]

    async def test_a_running_job_is_taken_from_its_worker(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())

            assert list(await session.settle(_without_a_worker(running.id, running.attempt))) == []
            changes = await session.settle(
                Settlement(job_id=running.id, attempt=running.attempt, holder=WORKER, kind="complete", output="7")
            )

            assert kinds(changes) == {(running.id, "settled")}
            assert list(await session.settle(completing(running))) == []
            found = await session.find(running.id)
            assert (found.output, found.completed_by) == (7, None)

    async def test_a_job_that_has_ended_cannot_be_completed_without_a_worker(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            await session.settle(completing(running, output="1"))

            changes = await session.settle(_without_a_worker(running.id, running.attempt, output="2"))

            assert list(changes) == []
            found = await session.find(running.id)
            assert (found.output, found.completed_by) == (1, WORKER)


def _without_a_worker(job_id: JobId, attempt: int, *, output: str = "null") -> Settlement:
    return Settlement(job_id=job_id, attempt=attempt, holder=None, kind="complete", output=output)

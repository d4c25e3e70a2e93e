"""Tests of cancelling and deleting chains."""

from datetime import timedelta
from uuid import uuid4

import pytest

from onward.conformance.state.session import (
    completing,
    continuing,
    failing,
    hold,
    kinds,
    next_of,
    retrying,
)
from onward.conformance.state.store import Store
from onward.errors import ChainNotFound, ChainReferenced
from onward.model import FailureReason, new_id


@pytest.mark.asyncio
class TestCancelling:
    """`cancel`: what waits fails at once, what runs is asked to stop."""

    async def test_a_pending_chain_fails_at_once(self, store: Store) -> None:
        job = store.job()
        async with store.connect() as session:
            await session.start(job)

            changes = await session.cancel(job.id)

            found = await session.find(job.id)
            assert [(change.job_id, change.chain_id, change.type_name, change.kind) for change in changes] == [
                (job.id, job.id, "work", "failed")
            ]
            assert (found.status, found.reason, found.failed_at) == ("failed", "cancelled", store.clock.now)
            assert await session.has_ended(job.id)
            assert list(await session.take()) == []

    async def test_a_chain_for_later_fails_at_once_and_never_becomes_due(self, store: Store) -> None:
        job = store.job(delay=60.0)
        async with store.connect() as session:
            await session.start(job)

            await session.cancel(job.id)

            store.clock.advance(timedelta(seconds=61))
            promoted = await session.connection.run(store.state.promote(type_names=["work"], limit=10))
            assert (promoted.count, promoted.next_in) == (0, None)

    async def test_a_blocked_chain_fails_at_once_and_is_not_unblocked(self, store: Store) -> None:
        blocker = store.job("fetch")
        job = store.job(blockers=(blocker.id,))
        async with store.connect() as session:
            await session.start(blocker)
            await session.start(job)

            assert kinds(await session.cancel(job.id)) == {(job.id, "failed")}
            assert kinds(await session.finish("fetch")) == {(blocker.id, "settled")}
            assert (await session.find(job.id)).reason == "cancelled"

    async def test_cancelling_fails_those_who_wait(self, store: Store) -> None:
        blocker = store.job("fetch")
        middle = store.job("middle", blockers=(blocker.id,))
        last = store.job("last", blockers=(middle.id,))
        async with store.connect() as session:
            await session.start(blocker)
            await session.start(middle)
            await session.start(last)

            changes = await session.cancel(blocker.id)

            assert kinds(changes) == {(blocker.id, "failed"), (middle.id, "failed"), (last.id, "failed")}
            assert (await session.find(last.id)).reason == "blocker"

    async def test_the_current_job_of_a_chain_is_what_is_cancelled(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            step = next_of(running)
            await session.settle(continuing(running, step))
            await session.start(waiting := store.job("waiting", blockers=(running.chain_id,)))

            changes = await session.cancel(running.chain_id)

            assert kinds(changes) == {(step.id, "failed"), (waiting.id, "failed")}
            assert await session.has_ended(running.chain_id)

    async def test_a_running_job_is_asked_to_stop(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())

            changes = await session.cancel(running.chain_id)

            found = await session.find(running.id)
            assert kinds(changes) == {(running.id, "cancel_requested")}
            assert (found.status, found.cancel_requested) == ("running", True)
            assert not await session.has_ended(running.chain_id)

    async def test_an_output_wins(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            await session.cancel(running.chain_id)

            await session.settle(completing(running))

            assert await session.status(running.id) == "completed"

    async def test_an_attempt_that_fails_anyway_says_why_itself(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            await session.cancel(running.chain_id)

            await session.settle(failing(running, reason=FailureReason.PERMANENT))

            assert (await session.find(running.id)).reason == "permanent"

    @pytest.mark.parametrize("needs_a_look", [False, True])
    @pytest.mark.parametrize("index", [0, 1])
    async def test_a_chain_that_was_to_be_cancelled_does_not_go_on(
        self, store: Store, index: int, needs_a_look: bool
    ) -> None:
        async with store.connect() as session:
            await session.start(other := store.job("other"))
            running = await session.start_and_take(store.job())
            for _ in range(index):
                await session.settle(continuing(running, next_of(running, "work")))
                running = await session.take_one("work")
            await session.start(waiting := store.job("waiting", blockers=(running.chain_id,)))
            await session.cancel(running.chain_id)
            step = next_of(running, blockers=(other.id,) if needs_a_look else ())

            changes = await session.settle(continuing(running, step))

            found = await session.find(running.id)
            assert {change.job_id: (change.kind, change.status, change.reason) for change in changes} == {
                running.id: ("settled", "failed", "cancelled"),
                waiting.id: ("failed", None, "blocker"),
            }
            assert (found.status, found.reason, found.failed_at) == ("failed", "cancelled", store.clock.now)
            assert await session.statuses(step.id, waiting.id, other.id) == [None, "failed", "pending"]
            assert await session.has_ended(running.chain_id)

    async def test_which_of_those_that_run_are_to_be_cancelled_is_told(self, store: Store) -> None:
        async with store.connect() as session:
            jobs = [store.job() for _ in range(3)]
            await session.start(*jobs)
            await session.take()
            await session.cancel(jobs[0].id, jobs[2].id)

            asked = [jobs[1].id, jobs[2].id, uuid4()]
            assert await session.connection.run(store.state.cancel_requests(asked)) == {jobs[2].id}

    async def test_an_attempt_that_is_to_be_cancelled_is_not_for_the_short_way(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            assert await session.connection.run(hold(store, running))
            await session.cancel(running.chain_id)

            if store.state.locks_rows:  # else there is no short way
                assert not await session.connection.run(hold(store, running))

    async def test_an_attempt_that_was_to_be_cancelled_does_not_come_back(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            await session.start(waiting := store.job("waiting", blockers=(running.chain_id,)))
            await session.cancel(running.chain_id)

            changes = await session.settle(retrying(running))

            found = await session.find(running.id)
            assert {change.job_id: (change.kind, change.status) for change in changes} == {
                running.id: ("settled", "failed"),
                waiting.id: ("failed", None),
            }
            assert (found.status, found.reason, found.failed_at) == ("failed", "cancelled", store.clock.now)
            assert await session.has_ended(running.chain_id)

    async def test_a_crash_of_a_job_that_was_to_be_cancelled_fails_it(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            await session.settle(continuing(running, next_of(running)))
            step = await session.take_one("next")
            await session.cancel(running.chain_id)
            store.clock.advance(timedelta(seconds=61))
            (reaped,) = (await session.reap("next")).jobs

            await session.settle(retrying(reaped, holder="worker-2"))

            assert (await session.find(step.id)).reason == "cancelled"
            assert await session.has_ended(running.chain_id)

    async def test_what_has_ended_is_left_alone(self, store: Store) -> None:
        async with store.connect() as session:
            completed = await session.start_and_take(store.job())
            await session.settle(completing(completed))
            failed = await session.start_and_take(store.job())
            await session.settle(failing(failed))

            changes = await session.cancel(completed.id, failed.id)

            assert list(changes) == []
            assert await session.status(completed.id) == "completed"
            assert (await session.find(failed.id)).reason == "permanent"

    async def test_with_a_chain_that_is_missing_none_is_cancelled(self, store: Store) -> None:
        job, missing = store.job(), new_id()
        async with store.connect() as session, session.transaction():
            await session.start(job)

            with pytest.raises(ChainNotFound) as refusal:
                await session.cancel(job.id, missing)

            assert refusal.value.chain_ids == (missing,)
            assert await session.status(job.id) == "pending"

    async def test_cascade_reaches_what_only_serves_the_cancelled(self, store: Store) -> None:
        leaf, shared, ended = store.job("leaf"), store.job("shared"), store.job("ended")
        inner = store.job("inner", blockers=(leaf.id, shared.id))
        outer = store.job("outer", blockers=(inner.id, ended.id))
        other = store.job("other", blockers=(shared.id,))
        async with store.connect() as session:
            await session.start(leaf, shared, ended)
            await session.start(inner)
            await session.start(outer, other)
            await session.finish("ended")
            running = await session.take_one("leaf")

            changes = await session.cancel(outer.id, cascade=True)

            assert {change.job_id: (change.kind, change.reason) for change in changes} == {
                outer.id: ("failed", "cancelled"),
                inner.id: ("failed", "cancelled"),
                leaf.id: ("cancel_requested", None),
            }
            assert await session.renew(running) == "cancelled"
            assert await session.statuses(shared.id, other.id, ended.id) == ["pending", "blocked", "completed"]

    async def test_without_cascade_the_blockers_go_on(self, store: Store) -> None:
        blocker = store.job("fetch")
        job = store.job(blockers=(blocker.id,))
        async with store.connect() as session:
            await session.start(blocker)
            await session.start(job)

            await session.cancel(job.id)

            assert await session.statuses(job.id, blocker.id) == ["failed", "pending"]

    async def test_cascade_fails_what_waits_for_a_blocker_that_is_cancelled_too(self, store: Store) -> None:
        leaf = store.job("leaf")
        one, two = store.job("one", blockers=(leaf.id,)), store.job("two", blockers=(leaf.id,))
        async with store.connect() as session:
            await session.start(leaf)
            await session.start(one, two)

            changes = await session.cancel(one.id, two.id, cascade=True)

            assert {change.job_id: change.reason for change in changes} == {
                job.id: FailureReason.CANCELLED for job in (leaf, one, two)
            }

    async def test_a_job_further_on_in_a_chain_is_no_chain(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            step = next_of(running)
            await session.settle(continuing(running, step))

            with pytest.raises(ChainNotFound):
                await session.cancel(step.id)
            assert await session.status(step.id) == "pending"


@pytest.mark.asyncio
class TestDeleting:
    """`delete`: whole chains, unless someone needs them."""

    async def test_a_chain_is_deleted_with_all_its_jobs(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            step = next_of(running)
            await session.settle(continuing(running, step))
            await session.start(other := store.job())

            changes = await session.delete(running.chain_id)

            assert {(change.job_id, change.chain_id, change.kind) for change in changes} == {
                (running.id, running.chain_id, "deleted"),
                (step.id, running.chain_id, "deleted"),
            }
            assert [job.id for job in await session.everything()] == [other.id]
            assert await session.connection.run(store.state.ended_chains([running.chain_id])) == {}

    async def test_a_chain_that_is_missing_is_no_change(self, store: Store) -> None:
        async with store.connect() as session:
            assert list(await session.delete(new_id())) == []

    async def test_a_job_further_on_in_a_chain_is_no_chain(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            step = next_of(running)
            await session.settle(continuing(running, step))

            assert list(await session.delete(step.id)) == []
            assert await session.status(step.id) == "pending"

    async def test_a_running_job_can_be_deleted(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())

            assert kinds(await session.delete(running.chain_id)) == {(running.id, "deleted")}
            assert await session.renew(running) == "not_found"

    async def test_what_an_unfinished_job_waits_for_is_not_deleted(self, store: Store) -> None:
        needed, free = store.job("fetch"), store.job("fetch")
        jobs = [store.job(blockers=(needed.id,)) for _ in range(2)]
        async with store.connect() as session:
            await session.start(needed, free)
            await session.start(*jobs)

            async with session.transaction():
                with pytest.raises(ChainReferenced) as refusal:
                    await session.delete(needed.id, free.id)
                await session.start(after := store.job())

            assert set(refusal.value.references) == {(needed.id, job.id) for job in jobs}
            assert await session.statuses(needed.id, free.id, after.id) == ["pending"] * 3

    async def test_what_an_unfinished_job_has_waited_for_is_not_deleted(self, store: Store) -> None:
        blocker = store.job("fetch")
        job = store.job(blockers=(blocker.id,))
        async with store.connect() as session:
            await session.start(blocker)
            await session.start(job)
            await session.finish("fetch", output="7")

            with pytest.raises(ChainReferenced):
                await session.delete(blocker.id)

            (seen,) = (await session.connection.run(store.state.blockers_of([job.id])))[job.id]
            assert seen.output == "7"

    async def test_what_only_finished_jobs_waited_for_can_be_deleted(self, store: Store) -> None:
        blocker = store.job("fetch")
        job = store.job(blockers=(blocker.id,))
        async with store.connect() as session:
            await session.start(blocker)
            await session.start(job)
            await session.finish("fetch")
            await session.finish("work")

            assert kinds(await session.delete(blocker.id)) == {(blocker.id, "deleted")}
            assert await session.status(job.id) == "completed"
            assert (await session.connection.run(store.state.blockers_of([job.id]))).get(job.id, []) == []

    async def test_a_chain_goes_together_with_those_who_wait_for_it(self, store: Store) -> None:
        blocker = store.job("fetch")
        job = store.job(blockers=(blocker.id,))
        async with store.connect() as session:
            await session.start(blocker)
            await session.start(job)

            changes = await session.delete(blocker.id, job.id)

            assert kinds(changes) == {(blocker.id, "deleted"), (job.id, "deleted")}

    async def test_without_cascade_the_blockers_stay(self, store: Store) -> None:
        blocker = store.job("fetch")
        job = store.job(blockers=(blocker.id,))
        async with store.connect() as session:
            await session.start(blocker)
            await session.start(job)

            await session.delete(job.id)

            assert await session.statuses(blocker.id, job.id) == ["pending", None]
            assert kinds(await session.finish("fetch")) == {(blocker.id, "settled")}
            assert kinds(await session.delete(blocker.id)) == {(blocker.id, "deleted")}

    async def test_cascade_deletes_what_a_chain_depends_on_all_the_way_down(self, store: Store) -> None:
        leaf = store.job("leaf")
        inner = store.job("inner", blockers=(leaf.id,))
        outer = store.job("outer", blockers=(inner.id,))
        async with store.connect() as session:
            await session.start(leaf)
            await session.start(inner)
            await session.start(outer)

            changes = await session.delete(outer.id, cascade=True)

            assert kinds(changes) == {(job.id, "deleted") for job in (outer, inner, leaf)}
            assert list(await session.everything()) == []

    async def test_cascade_deletes_what_jobs_further_on_depend_on(self, store: Store) -> None:
        blocker = store.job("fetch")
        async with store.connect() as session:
            await session.start(blocker)
            running = await session.start_and_take(store.job())
            await session.settle(continuing(running, next_of(running, blockers=(blocker.id,))))

            await session.delete(running.chain_id, cascade=True)

            assert list(await session.everything()) == []

    async def test_cascade_never_deletes_dependents(self, store: Store) -> None:
        shared = store.job("shared")
        doomed, other = store.job("doomed", blockers=(shared.id,)), store.job("other", blockers=(shared.id,))
        async with store.connect() as session:
            await session.start(shared)
            await session.start(doomed, other)

            with pytest.raises(ChainReferenced) as refusal:
                await session.delete(doomed.id, cascade=True)

            assert refusal.value.references == ((shared.id, other.id),)
            assert await session.statuses(shared.id, doomed.id, other.id) == ["pending", "blocked", "blocked"]

    async def test_a_deletion_that_is_rolled_back_deletes_nothing(self, store: Store) -> None:
        job = store.job()
        async with store.connect() as session:
            await session.start(job)
            async with session.rolled_back():
                await session.delete(job.id)

            assert await session.status(job.id) == "pending"

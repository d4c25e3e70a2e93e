"""Tests of chains that fail, of those who wait for them, and of bringing them back."""

import pytest

from onward.conformance.state.session import completing, continuing, failing, kinds, next_of
from onward.conformance.state.store import Store
from onward.errors import BlockersDeleted, BlockerStillFailed, ChainNotFailed, ChainNotFound, KeyInUse
from onward.model import Deduplication, FailedJob, new_id


@pytest.mark.asyncio
class TestFailingBlockers:
    """A chain that fails, fails those who wait for it; retrying it brings them back."""

    async def test_a_failing_chain_fails_those_who_wait_and_those_who_wait_for_them(self, store: Store) -> None:
        root = store.job("fetch")
        middle = store.job("middle", blockers=(root.id,))
        leaves = [store.job("leaf", blockers=(middle.id,)) for _ in range(2)]
        async with store.connect() as session:
            await session.start(root)
            await session.start(middle)
            await session.start(*leaves)

            changes = await session.break_("fetch")

            failed = {(job.id, "failed") for job in (middle, *leaves)}
            assert kinds(changes) == {(root.id, "settled")} | failed
            for job in (middle, *leaves):
                found = await session.find(job.id)
                assert isinstance(found, FailedJob)
                assert (found.reason, found.failed_at) == ("blocker", store.clock.now)
                assert await session.has_ended(job.id)

    async def test_failing_spreads_from_and_to_jobs_further_on_in_their_chains(self, store: Store) -> None:
        async with store.connect() as session:
            first = await session.start_and_take(store.job("first"))
            second = await session.start_and_take(store.job("second"))
            await session.settle(continuing(first, next_of(first, "first-next")))
            waiting = next_of(second, "second-next", blockers=(first.chain_id,))
            await session.settle(continuing(second, waiting))
            await session.start(last := store.job("last", blockers=(second.chain_id,)))

            changes = await session.break_("first-next")

            assert kinds(changes) >= {(waiting.id, "failed"), (last.id, "failed")}
            assert await session.statuses(waiting.id, last.id) == ["failed", "failed"]
            assert await session.has_ended(second.chain_id)

    async def test_a_job_fails_once_however_many_of_its_blockers_fail(self, store: Store) -> None:
        one, two = store.job("one"), store.job("two")
        job = store.job(blockers=(one.id, two.id))
        async with store.connect() as session:
            await session.start(one, two)
            await session.start(job)

            assert (job.id, "failed") in kinds(await session.break_("one"))
            assert kinds(await session.break_("two")) == {(two.id, "settled")}

    async def test_a_blocker_completing_after_another_failed_changes_nothing(self, store: Store) -> None:
        one, two = store.job("one"), store.job("two")
        job = store.job(blockers=(one.id, two.id))
        async with store.connect() as session:
            await session.start(one, two)
            await session.start(job)
            await session.break_("one")

            assert kinds(await session.finish("two")) == {(two.id, "settled")}
            assert await session.status(job.id) == "failed"

    async def test_completed_and_failed_in_one_batch_fail_the_job(self, store: Store) -> None:
        one, two = store.job("fetch"), store.job("fetch")
        job = store.job(blockers=(one.id, two.id))
        async with store.connect() as session:
            await session.start(one, two)
            await session.start(job)
            first, second = await session.take("fetch")

            await session.settle(completing(first), failing(second))

            assert await session.status(job.id) == "failed"

    async def test_a_job_started_behind_a_failed_blocker_fails_at_once(self, store: Store) -> None:
        blocker = store.job("fetch")
        outer, inner = new_id(), new_id()
        async with store.connect() as session:
            await session.start(blocker)
            await session.break_("fetch")

            started = await session.start(
                store.job("outer", id=outer, blockers=(inner,)),
                store.job("inner", id=inner, parent=0, blockers=(blocker.id,)),
            )

            assert [answer.status for answer in started] == ["failed", "failed"]
            assert (await session.find(outer)).reason == "blocker"
            assert await session.has_ended(outer)

    async def test_a_job_that_runs_anyway_waits_for_all_blockers_to_end(self, store: Store) -> None:
        one, two = store.job("one"), store.job("two")
        job = store.job(blockers=(one.id, two.id), runs_anyway=True)
        async with store.connect() as session:
            await session.start(one, two)
            await session.start(job)

            await session.break_("one")
            assert await session.status(job.id) == "blocked"
            changes = await session.finish("two", output="2")

            assert (job.id, "unblocked") in kinds(changes)
            blockers = (await session.connection.run(store.state.blockers_of([job.id])))[job.id]
            assert [(seen.status, seen.output) for seen in blockers] == [("failed", None), ("completed", "2")]

    async def test_a_job_that_runs_anyway_starts_behind_a_failed_blocker(self, store: Store) -> None:
        blocker = store.job("fetch")
        async with store.connect() as session:
            await session.start(blocker)
            await session.break_("fetch")

            started = await session.start(store.job(blockers=(blocker.id,), runs_anyway=True))

        assert [answer.status for answer in started] == ["pending"]

    async def test_retrying_brings_back_what_failed_only_through_it(self, store: Store) -> None:
        root = store.job("fetch")
        middle = store.job("middle", blockers=(root.id,))
        leaf = store.job("leaf", blockers=(middle.id,))
        async with store.connect() as session:
            await session.start(root)
            await session.start(middle)
            await session.start(leaf)
            await session.break_("fetch")

            changes = await session.retry(root.id)

            assert kinds(changes) == {(root.id, "retried"), (middle.id, "blocked"), (leaf.id, "blocked")}
            assert await session.statuses(root.id, middle.id, leaf.id) == ["pending", "blocked", "blocked"]
            assert not await session.has_ended(leaf.id)
            await session.finish("fetch")
            await session.finish("middle")
            assert (await session.take_one("leaf")).id == leaf.id

    async def test_retrying_brings_back_jobs_further_on_in_their_chains(self, store: Store) -> None:
        async with store.connect() as session:
            first = await session.start_and_take(store.job("first"))
            second = await session.start_and_take(store.job("second"))
            await session.settle(continuing(first, next_of(first, "first-next")))
            waiting = next_of(second, "second-next", blockers=(first.chain_id,))
            await session.settle(continuing(second, waiting))
            await session.start(last := store.job("last", blockers=(second.chain_id,)))
            await session.break_("first-next")

            await session.retry(first.chain_id)

            assert await session.statuses(first.id, waiting.id, last.id) == ["completed", "blocked", "blocked"]
            await session.finish("first-next")
            await session.finish("second-next")
            assert await session.status(last.id) == "pending"

    async def test_retrying_one_of_two_failed_blockers_is_not_enough(self, store: Store) -> None:
        one, two = store.job("one"), store.job("two")
        job = store.job(blockers=(one.id, two.id))
        async with store.connect() as session:
            await session.start(one, two)
            await session.start(job)
            await session.break_("one")
            await session.break_("two")

            assert kinds(await session.retry(one.id)) == {(one.id, "retried")}
            assert await session.status(job.id) == "failed"
            assert kinds(await session.retry(two.id)) == {(two.id, "retried"), (job.id, "blocked")}
            assert (await session.find(job.id)).open_blockers == 2

    async def test_retrying_what_failed_through_a_blocker_needs_the_blocker_retried(self, store: Store) -> None:
        blocker = store.job("fetch")
        job = store.job(blockers=(blocker.id,))
        async with store.connect() as session:
            await session.start(blocker)
            await session.start(job)
            await session.break_("fetch")

            with pytest.raises(BlockerStillFailed) as refusal:
                await session.retry(job.id)
            assert (refusal.value.chain_id, refusal.value.blockers) == (job.id, (blocker.id,))
            assert await session.status(job.id) == "failed"
            assert kinds(await session.retry(job.id, blocker.id)) == {(blocker.id, "retried"), (job.id, "blocked")}

    async def test_a_job_that_runs_anyway_waits_again_for_a_retried_blocker(self, store: Store) -> None:
        one, two = store.job("one"), store.job("two")
        job = store.job(blockers=(one.id, two.id), runs_anyway=True)
        async with store.connect() as session:
            await session.start(one, two)
            await session.start(job)
            await session.break_("one")

            await session.retry(one.id)

            await session.finish("two")
            assert await session.status(job.id) == "blocked"
            await session.finish("one")
            assert await session.status(job.id) == "pending"

    async def test_retrying_leaves_those_who_were_cancelled_while_waiting(self, store: Store) -> None:
        blocker = store.job("fetch")
        job = store.job(blockers=(blocker.id,))
        async with store.connect() as session:
            await session.start(blocker)
            await session.start(job)
            await session.cancel(job.id)
            await session.break_("fetch")

            await session.retry(blocker.id)

            assert (await session.find(job.id)).reason == "cancelled"


@pytest.mark.asyncio
class TestRetrying:
    """`retry`: failed chains come back."""

    async def test_a_retried_job_is_pending_with_no_failures(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            await session.settle(failing(running))

            changes = await session.retry(running.chain_id)

            again = await session.take_one()
            assert [(change.job_id, change.type_name, change.kind) for change in changes] == [
                (running.id, "work", "retried")
            ]
            assert (again.failures, again.attempt, again.crashes) == (0, 2, 0)
            assert not await session.has_ended(running.chain_id)

    async def test_the_job_that_failed_is_retried_not_the_chain_from_its_beginning(self, store: Store) -> None:
        async with store.connect() as session:
            first = await session.start_and_take(store.job())
            step = next_of(first)
            await session.settle(continuing(first, step))
            await session.break_("next")

            assert kinds(await session.retry(first.chain_id)) == {(step.id, "retried")}
            assert await session.status(first.id) == "completed"
            assert not await session.has_ended(first.chain_id)

    async def test_with_a_chain_that_has_not_failed_none_is_retried(self, store: Store) -> None:
        async with store.connect() as session, session.transaction():
            running = await session.start_and_take(store.job("running"))
            completed = await session.start_and_take(store.job("completed"))
            await session.settle(completing(completed))
            await session.start(failed := store.job("failed"))
            await session.break_("failed")

            with pytest.raises(ChainNotFailed) as refusal:
                await session.retry(failed.id, running.id, completed.id)

            assert set(refusal.value.chain_ids) == {running.id, completed.id}
            assert await session.statuses(running.id, completed.id, failed.id) == ["running", "completed", "failed"]

    async def test_with_a_chain_that_is_missing_none_is_retried(self, store: Store) -> None:
        missing = new_id()
        async with store.connect() as session:
            await session.start(failed := store.job())
            await session.break_("work")

            with pytest.raises(ChainNotFound) as refusal:
                await session.retry(failed.id, missing)

            assert refusal.value.chain_ids == (missing,)
            assert await session.status(failed.id) == "failed"

    async def test_a_chain_does_not_come_back_beside_a_live_one_with_its_key(self, store: Store) -> None:
        key = Deduplication("user-7")
        async with store.connect() as session:
            await session.start(failed := store.job(deduplication=key))
            await session.break_("work")
            await session.start(live := store.job(deduplication=key), store.job("other", deduplication=key))

            with pytest.raises(KeyInUse) as refusal:
                await session.retry(failed.id)

            assert (refusal.value.chain_id, refusal.value.live) == (failed.id, live.id)
            assert await session.status(failed.id) == "failed"
            await session.finish("work")
            assert kinds(await session.retry(failed.id)) == {(failed.id, "retried")}

    async def test_of_two_chains_with_one_key_only_one_can_be_retried(self, store: Store) -> None:
        key = Deduplication("user-7")
        async with store.connect() as session:
            for job in (first := store.job(deduplication=key), second := store.job(deduplication=key)):
                await session.start(job)
                await session.break_("work")

            with pytest.raises(KeyInUse) as refusal:
                await session.retry(first.id, second.id)

            assert (refusal.value.chain_id, refusal.value.live) == (first.id, second.id)
            assert await session.statuses(first.id, second.id) == ["failed", "failed"]

    async def test_of_those_with_one_key_that_failed_through_a_chain_the_newest_comes_back(self, store: Store) -> None:
        key = Deduplication("report-7")
        blocker = store.job("fetch")
        old, new = (store.job("report", deduplication=key, blockers=(blocker.id,)) for _ in range(2))
        async with store.connect() as session:
            await session.start(blocker)
            await session.start(old)
            await session.break_("fetch")
            await session.start(new)

            assert kinds(await session.retry(blocker.id)) == {(blocker.id, "retried"), (new.id, "blocked")}
            assert await session.status(old.id) == "failed"

    async def test_what_was_replaced_by_a_live_chain_with_its_key_stays_failed(self, store: Store) -> None:
        key = Deduplication("report-7")
        blocker = store.job("fetch")
        async with store.connect() as session:
            await session.start(blocker)
            await session.start(failed := store.job("report", deduplication=key, blockers=(blocker.id,)))
            await session.break_("fetch")
            await session.start(store.job("report", deduplication=key))

            assert kinds(await session.retry(blocker.id)) == {(blocker.id, "retried")}
            assert await session.status(failed.id) == "failed"

    async def test_a_job_whose_blocker_was_deleted_cannot_be_retried(self, store: Store) -> None:
        gone, there = store.job("gone"), store.job("there")
        async with store.connect() as session:
            await session.start(gone, there)
            await session.start(job := store.job(blockers=(gone.id, there.id)))
            await session.break_("there")
            await session.delete(gone.id)

            assert kinds(await session.retry(there.id)) == {(there.id, "retried")}
            with pytest.raises(BlockersDeleted) as refusal:
                await session.retry(job.id)

            assert refusal.value.chain_ids == (job.id,)
            assert await session.status(job.id) == "failed"

    async def test_a_job_that_runs_anyway_is_retried_without_the_blockers_that_were_deleted(self, store: Store) -> None:
        blocker = store.job("fetch")
        async with store.connect() as session:
            await session.start(blocker)
            await session.start(job := store.job(blockers=(blocker.id,), runs_anyway=True))
            await session.break_("fetch")
            await session.break_("work")
            await session.delete(blocker.id)

            assert kinds(await session.retry(job.id)) == {(job.id, "retried")}

    async def test_what_was_cancelled_while_waiting_cannot_come_back_once_its_blocker_has_failed(
        self, store: Store
    ) -> None:
        blocker = store.job("fetch")
        async with store.connect() as session:
            await session.start(blocker)
            await session.start(job := store.job(blockers=(blocker.id,)))
            await session.cancel(job.id)
            await session.break_("fetch")

            with pytest.raises(BlockerStillFailed):
                await session.retry(job.id)
            assert kinds(await session.retry(job.id, blocker.id)) == {(blocker.id, "retried"), (job.id, "blocked")}

    async def test_a_retried_job_that_was_to_be_cancelled_is_not_cancelled_again(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            await session.cancel(running.chain_id)
            await session.settle(failing(running))

            await session.retry(running.chain_id)

            assert not (await session.find((await session.take_one()).id)).cancel_requested

    async def test_a_job_further_on_in_a_chain_is_no_chain(self, store: Store) -> None:
        async with store.connect() as session:
            first = await session.start_and_take(store.job())
            step = next_of(first)
            await session.settle(continuing(first, step))
            await session.break_("next")

            with pytest.raises(ChainNotFound):
                await session.retry(step.id)
            assert await session.status(step.id) == "failed"

"""Tests of chains that go on."""

from datetime import timedelta

import pytest

from onward.conformance.state.session import OTHER_WORKER, completing, continuing, failing, kinds, next_of
from onward.conformance.state.store import Store
from onward.errors import BlockerNotFound
from onward.model import FailedJob, new_id


@pytest.mark.asyncio
class TestContinuing:
    """`settle` with a continuation."""

    async def test_the_next_job_belongs_to_the_chain(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            step = next_of(running, "next", input='{"a":1}', priority=4, limit_key="tenant-1")

            changes = await session.settle(continuing(running, step))

            found = await session.find(step.id)
            assert kinds(changes) == {(running.id, "settled")}
            assert (found.status, found.chain_id, found.chain_index) == ("pending", running.chain_id, 1)
            assert (found.origin_id, found.root_id) == (running.id, running.root_id)
            assert (found.type_name, found.input, found.priority) == ("next", {"a": 1}, 4)
            assert found.limit_key == "tenant-1"

    async def test_a_chain_that_goes_on_has_not_ended(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())

            await session.settle(continuing(running, next_of(running)))

            found = await session.find(running.id)
            assert (found.status, found.output) == ("completed", None)
            assert not await session.has_ended(running.chain_id)

    async def test_the_status_of_a_chain_is_that_of_its_current_job(self, store: Store) -> None:
        seen = []
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            for type_name in ("second", "third"):
                await session.settle(continuing(running, next_of(running, type_name)))
                running = await session.take_one(type_name)
                (chain,) = await session.connection.run(store.state.find_chains([running.chain_id]))
                seen.append((chain.status, chain.current.type_name, chain.type_name, chain.ended_at))
            await session.settle(completing(running, output="7"))

            (chain,) = await session.connection.run(store.state.find_chains([running.chain_id]))
        assert seen == [("running", "second", "work", None), ("running", "third", "work", None)]
        assert (chain.status, chain.current.id, chain.ended_at) == ("completed", running.id, store.clock.now)

    async def test_a_chain_that_fails_further_on_has_failed(self, store: Store) -> None:
        async with store.connect() as session:
            first = await session.start_and_take(store.job())
            await session.settle(continuing(first, next_of(first)))

            await session.settle(failing(await session.take_one("next")))

            (chain,) = await session.connection.run(store.state.find_chains([first.id]))
            assert (chain.status, chain.ended_at) == ("failed", store.clock.now)
            assert await session.has_ended(first.id)
            assert await session.status(first.id) == "completed"

    async def test_a_type_may_continue_to_itself(self, store: Store) -> None:
        indexes = []
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            for _ in range(5):
                await session.settle(continuing(running, next_of(running, "work")))
                running = await session.take_one("work")
                indexes.append(running.chain_index)

        assert indexes == [1, 2, 3, 4, 5]

    async def test_a_continuation_can_be_for_later(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(store.job("one"), store.job("two"))
            one, two = await session.take("one", "two")

            await session.settle(
                continuing(one, next_of(one, delay=5.0)),
                continuing(two, next_of(two, at=store.clock.now + timedelta(seconds=9))),
            )

            promoted = await session.connection.run(store.state.promote(type_names=["next"], limit=10))
            assert list(await session.take("next")) == []
            assert promoted.count == 0
            assert promoted.next_in == pytest.approx(5.0)

    async def test_a_stale_attempt_does_not_continue(self, store: Store) -> None:
        blocker = store.job("fetch")
        async with store.connect() as session:
            await session.start(blocker)
            running = await session.start_and_take(store.job())
            plain, with_blockers = next_of(running), next_of(running, blockers=(blocker.id,))

            changes = await session.settle(
                continuing(running, plain, holder=OTHER_WORKER), continuing(running, with_blockers, holder=OTHER_WORKER)
            )

            assert list(changes) == []
            assert await session.statuses(running.id, plain.id, with_blockers.id) == ["running", None, None]

    async def test_a_continuation_that_is_rolled_back_never_was(self, store: Store) -> None:
        blocker = store.job("fetch")
        async with store.connect() as session:
            await session.start(blocker)
            running = await session.start_and_take(store.job())
            step = next_of(running, blockers=(blocker.id,))
            async with session.rolled_back():
                await session.settle(continuing(running, step))

            assert await session.statuses(running.id, step.id) == ["running", None]

    async def test_a_continuation_waits_for_its_blockers(self, store: Store) -> None:
        existing = store.job("existing")
        async with store.connect() as session:
            await session.start(existing)
            running = await session.start_and_take(store.job())
            fetch = store.job("fetch", parent=0, origin_id=running.id, root_id=running.root_id)
            step = next_of(running, blockers=(existing.id, fetch.id))

            changes = await session.settle(continuing(running, step, fetch))

            assert (running.id, "settled") in kinds(changes)
            assert await session.statuses(running.id, step.id, fetch.id) == ["completed", "blocked", "pending"]
            assert (await session.find(fetch.id)).root_id == running.root_id
            assert not await session.has_ended(running.chain_id)
            assert kinds(await session.finish("existing")) == {(existing.id, "settled")}
            assert (step.id, "unblocked") in kinds(await session.finish("fetch"))
            assert (await session.take_one("next")).blockers == 2

    async def test_blockers_that_have_completed_hold_nothing_up(self, store: Store) -> None:
        blocker = store.job("fetch")
        async with store.connect() as session:
            await session.start(blocker)
            await session.finish("fetch", output="7")
            running = await session.start_and_take(store.job())
            step = next_of(running, blockers=(blocker.id,))

            await session.settle(continuing(running, step))

            assert (await session.take_one("next")).id == step.id
            (seen,) = (await session.connection.run(store.state.blockers_of([step.id])))[step.id]
            assert (seen.chain_id, seen.output) == (blocker.id, "7")

    async def test_a_blocker_that_has_failed_fails_the_chain_and_what_waits_for_it(self, store: Store) -> None:
        blocker, waiting = store.job("fetch"), store.job("waiting")
        async with store.connect() as session:
            await session.start(blocker)
            await session.break_("fetch")
            running = await session.start_and_take(store.job())
            await session.start(store.job("waiting", id=waiting.id, blockers=(running.chain_id,)))
            step = next_of(running, blockers=(blocker.id,))

            changes = await session.settle(continuing(running, step))

            assert kinds(changes) == {(running.id, "settled"), (step.id, "failed"), (waiting.id, "failed")}
            found = await session.find(step.id)
            assert isinstance(found, FailedJob)
            assert found.reason == "blocker"
            assert await session.status(waiting.id) == "failed"
            assert await session.has_ended(running.chain_id)

    async def test_a_continuation_that_runs_anyway_does_not_mind_failed_blockers(self, store: Store) -> None:
        blocker = store.job("fetch")
        async with store.connect() as session:
            await session.start(blocker)
            await session.break_("fetch")
            running = await session.start_and_take(store.job())
            step = next_of(running, blockers=(blocker.id,), runs_anyway=True)

            await session.settle(continuing(running, step))

            assert (await session.take_one("next")).id == step.id

    async def test_a_missing_blocker_refuses_the_whole_settlement(self, store: Store) -> None:
        missing = new_id()
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            step = next_of(running, blockers=(missing,))

            with pytest.raises(BlockerNotFound) as refusal:
                await session.settle(continuing(running, step))

            assert (refusal.value.job_type, refusal.value.chain_ids) == ("next", (missing,))
            assert await session.statuses(running.id, step.id) == ["running", None]
            assert kinds(await session.settle(completing(running))) == {(running.id, "settled")}

    async def test_after_a_missing_blocker_the_transaction_goes_on_with_nothing_settled(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())

            async with session.transaction():
                with pytest.raises(BlockerNotFound):
                    await session.settle(continuing(running, next_of(running, blockers=(new_id(),))))
                await session.start(after := store.job("after"))

            assert await session.statuses(running.id, after.id) == ["running", "pending"]

    async def test_a_batch_in_which_one_is_refused_settles_none(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(store.job(), store.job())
            one, two = await session.take()

            with pytest.raises(BlockerNotFound):
                await session.settle(completing(one), continuing(two, next_of(two, blockers=(new_id(),))))

            assert await session.statuses(one.id, two.id) == ["running", "running"]
            assert kinds(await session.settle(completing(one))) == {(one.id, "settled")}

    async def test_a_batch_may_hold_continuations_with_and_without_blockers(self, store: Store) -> None:
        blocker = store.job("fetch")
        async with store.connect() as session:
            await session.start(blocker, store.job(), store.job(), store.job())
            one, two, three = await session.take()
            plain, waiting = next_of(one), next_of(two, blockers=(blocker.id,))

            changes = await session.settle(continuing(two, waiting), completing(three), continuing(one, plain))

            assert kinds(changes) >= {(one.id, "settled"), (two.id, "settled"), (three.id, "settled")}
            assert await session.statuses(plain.id, waiting.id) == ["pending", "blocked"]

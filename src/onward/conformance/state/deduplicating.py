"""Tests of deduplication keys."""

from datetime import timedelta

import pytest

from onward.conformance.state.session import completing, continuing, failing, next_of
from onward.conformance.state.store import Store
from onward.model import Deduplication, JobStatus, new_id
from onward.state.contract import Started


@pytest.mark.asyncio
class TestDeduplication:
    """`start` with a key."""

    async def test_a_second_chain_with_the_key_is_a_duplicate_of_the_first(self, store: Store) -> None:
        first, second = (store.job(deduplication=Deduplication("user-7")) for _ in range(2))
        async with store.connect() as session:
            await session.start(first)

            started = await session.start(second)

            assert list(started) == [Started(first.id, None, True)]
            assert await session.status(second.id) is None
            assert (await session.find(first.id)).deduplication_key == "user-7"

    async def test_another_key_is_no_duplicate(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(store.job(deduplication=Deduplication("user-7")))

            started = await session.start(other := store.job(deduplication=Deduplication("user-8")))

        assert list(started) == [Started(other.id, JobStatus.PENDING, False)]

    async def test_a_key_belongs_to_its_type(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(store.job("sync", deduplication=Deduplication("user-7")))

            started = await session.start(store.job("mail", deduplication=Deduplication("user-7")))

        assert [answer.duplicate for answer in started] == [False]

    async def test_chains_that_are_under_way_count(self, store: Store) -> None:
        key = Deduplication("user-7")
        async with store.connect() as session:
            running = await session.start_and_take(store.job(deduplication=key))
            assert (await session.start(store.job(deduplication=key)))[0].duplicate
            await session.settle(continuing(running, next_of(running)))

            (answer,) = await session.start(store.job(deduplication=key))

        assert answer == Started(running.chain_id, None, True)

    @pytest.mark.parametrize("outcome", [completing, failing])
    async def test_chains_that_have_ended_count_only_in_scope_any(self, store: Store, outcome: type) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job(deduplication=Deduplication("user-7")))
            await session.settle(outcome(running))

            any_ = await session.start(store.job(deduplication=Deduplication("user-7", scope="any")))
            incomplete = await session.start(store.job(deduplication=Deduplication("user-7")))

        assert [(answer.id, answer.duplicate) for answer in any_] == [(running.id, True)]
        assert [answer.duplicate for answer in incomplete] == [False]

    async def test_a_chain_that_ended_further_on_has_ended(self, store: Store) -> None:
        key = Deduplication("user-7")
        async with store.connect() as session:
            running = await session.start_and_take(store.job(deduplication=key))
            await session.settle(continuing(running, next_of(running)))
            await session.finish("next")

            (answer,) = await session.start(store.job(deduplication=key))

        assert not answer.duplicate

    async def test_a_retried_chain_counts_again(self, store: Store) -> None:
        key = Deduplication("user-7")
        async with store.connect() as session:
            running = await session.start_and_take(store.job(deduplication=key))
            await session.settle(failing(running))
            await session.retry(running.chain_id)

            (answer,) = await session.start(store.job(deduplication=key))

        assert answer == Started(running.id, None, True)

    async def test_only_chains_within_the_window_count(self, store: Store) -> None:
        key = Deduplication("user-7", window=timedelta(minutes=10))
        async with store.connect() as session:
            await session.start(first := store.job(deduplication=key))
            store.clock.advance(timedelta(minutes=9))
            within = await session.start(store.job(deduplication=key))
            store.clock.advance(timedelta(minutes=2))

            outside = await session.start(second := store.job(deduplication=key))

        assert list(within) == [Started(first.id, None, True)]
        assert list(outside) == [Started(second.id, JobStatus.PENDING, False)]

    async def test_scope_any_and_a_window_go_together(self, store: Store) -> None:
        key = Deduplication("user-7", scope="any", window=timedelta(minutes=10))
        async with store.connect() as session:
            running = await session.start_and_take(store.job(deduplication=key))
            await session.settle(completing(running))
            (within,) = await session.start(store.job(deduplication=key))
            store.clock.advance(timedelta(minutes=11))

            (outside,) = await session.start(store.job(deduplication=key))

        assert (within.duplicate, outside.duplicate) == (True, False)

    async def test_excluded_chains_do_not_count(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(first := store.job(deduplication=Deduplication("user-7")))

            (allowed,) = await session.start(
                second := store.job(deduplication=Deduplication("user-7", exclude=[first.id, new_id()]))
            )
            (refused,) = await session.start(
                store.job(deduplication=Deduplication("user-7", exclude=[first.id])),
            )

        assert allowed == Started(second.id, JobStatus.PENDING, False)
        assert refused == Started(second.id, None, True)

    async def test_within_one_start_the_first_with_a_key_creates(self, store: Store) -> None:
        key, other = Deduplication("user-7"), Deduplication("user-8")
        first, second, third = store.job(deduplication=key), store.job(deduplication=other), store.job()
        async with store.connect() as session:
            started = await session.start(
                first, second, third, store.job(deduplication=key), store.job("mail", deduplication=key)
            )

            assert [answer.duplicate for answer in started] == [False, False, False, True, False]
            assert started[3].id == first.id
            assert len(await session.everything()) == 4

    async def test_a_duplicate_does_not_start_its_blockers(self, store: Store) -> None:
        key = Deduplication("report-1")
        parent, inner, leaf = (store.job(name) for name in ("report", "inner", "leaf"))
        async with store.connect() as session:
            await session.start(first := store.job("report", deduplication=key))

            started = await session.start(
                store.job("report", id=parent.id, deduplication=key, blockers=(inner.id,)),
                store.job("inner", id=inner.id, parent=0, blockers=(leaf.id,)),
                store.job("leaf", id=leaf.id, parent=1),
                after := store.job("after"),
            )

            assert list(started) == [
                Started(first.id, None, True),
                Started(inner.id, None, False),
                Started(leaf.id, None, False),
                Started(after.id, JobStatus.PENDING, False),
            ]
            assert {job.id for job in await session.everything()} == {first.id, after.id}

    async def test_a_blocker_that_is_a_duplicate_is_the_chain_that_is_there(self, store: Store) -> None:
        key = Deduplication("page-1")
        fetch = store.job("fetch", deduplication=key, parent=0)
        report = store.job("report", blockers=(fetch.id,))
        async with store.connect() as session:
            await session.start(existing := store.job("fetch", deduplication=key))

            started = await session.start(report, fetch)

            assert list(started) == [Started(report.id, JobStatus.BLOCKED, False), Started(existing.id, None, True)]
            await session.finish("fetch")
            assert await session.status(report.id) == "pending"

    async def test_a_deleted_chain_gives_its_key_back(self, store: Store) -> None:
        key = Deduplication("user-7", scope="any")
        async with store.connect() as session:
            await session.start(first := store.job(deduplication=key))
            await session.delete(first.id)

            (answer,) = await session.start(store.job(deduplication=key))

        assert not answer.duplicate

    async def test_a_start_that_is_rolled_back_gives_its_key_back(self, store: Store) -> None:
        key = Deduplication("user-7")
        async with store.connect() as session:
            async with session.rolled_back():
                await session.start(store.job(deduplication=key))

            (answer,) = await session.start(store.job(deduplication=key))

        assert not answer.duplicate

    async def test_a_key_may_hold_any_text(self, store: Store) -> None:
        key = Deduplication("żółw 🐢 'quoted' \"double\" %s :name $1 \\")
        async with store.connect() as session:
            await session.start(first := store.job(deduplication=key))

            (answer,) = await session.start(store.job(deduplication=key))

        assert answer == Started(first.id, None, True)

"""Tests of the history: what is pruned is moved there, whole, or stays where it was; old parts of it are dropped."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from onward.conformance.state.session import WORKER, Session, completing, continuing, failing, next_of
from onward.conformance.state.store import Store
from onward.errors import ChainNotFound
from onward.model import Chain, ChainId, CompletedJob, FailedJob, JobStatus
from onward.state.contract import Keeping, NewJob, Pruned
from onward.state.history import HistoryFilter, HistoryStatements

DAY = 86_400.0
_RULES = (Keeping("work", 7 * DAY, 30 * DAY, 365 * DAY),)


@pytest.mark.asyncio
class TestHistory:
    """`prune` where a history is kept, and `history`."""

    async def test_a_chain_is_moved_whole_and_as_it_was(self, store: Store) -> None:
        _skip_without_history(store)
        async with store.connect() as session:
            first = await session.start_and_take(store.job(input='{"n": 1}', meta='{"trace": "t"}', priority=3))
            await session.settle(continuing(first, next_of(first, "middle", input="[2]")))
            middle = await session.take_one("middle")
            await session.settle(continuing(middle, next_of(middle, "rest")))
            store.clock.advance(timedelta(days=40))  # what it did in another month is moved to where it ended
            await session.settle(completing(await session.take_one("rest"), output='{"sum": 3}'))
            before = sorted(await session.everything(), key=lambda job: job.chain_index)
            chain = (await session.connection.run(store.state.find_chains([first.id])))[0]
            store.clock.advance(timedelta(days=7))

            pruned = await _prune(session)

            assert (pruned.completed, pruned.failed, pruned.jobs, pruned.moved) == (1, 0, 3, 1)
            assert list(await session.everything()) == []
            assert await session.status(first.id) is None
            assert await _jobs(session, first.id) == before
            assert await _listed(session, chain_ids=[first.id]) == [chain]

    async def test_what_failed_is_moved_with_its_errors(self, store: Store) -> None:
        _skip_without_history(store)
        async with store.connect() as session:
            job = await session.start_and_take(store.job())
            await session.settle(failing(job))
            store.clock.advance(timedelta(days=30))

            assert (await _prune(session)).failed == 1

            (found,) = await _listed(session)
            assert isinstance(found.current, FailedJob)
            assert (found.id, found.status, found.current.errors[0].message) == (job.id, JobStatus.FAILED, "it broke")

    async def test_each_type_has_a_history_of_its_own_or_none(self, store: Store) -> None:
        _skip_without_history(store)
        rules = [Keeping("work", DAY, DAY, 10 * DAY), Keeping("probe", DAY, DAY), Keeping("book", DAY, DAY, 3 * DAY)]
        async with store.connect() as session:
            ids = [await _completed(session, store.job(name)) for name in ("work", "probe", "book")]
            store.clock.advance(timedelta(days=3))

            pruned = await _prune(session, *rules)
            assert (pruned.chains, pruned.moved) == (3, 1)

            assert await session.statuses(*ids) == [None, None, None]
            assert [chain.id for chain in await _listed(session)] == ids[:1]  # the last is too old for its history

    async def test_what_something_unfinished_waits_for_is_not_moved(self, store: Store) -> None:
        _skip_without_history(store)
        async with store.connect() as session:
            done, open_ = await _completed(session, store.job()), store.job("open")
            await session.start(open_)
            await session.start(store.job("report", blockers=(done, open_.id)))
            store.clock.advance(timedelta(days=8))
            assert (await _prune(session)).chains == 0
            assert await _listed(session) == []

            await session.finish("open")
            await session.finish("report")

            assert (await _prune(session)).chains == 1
            assert [chain.id for chain in await _listed(session)] == [done]

    async def test_a_batch_that_is_rolled_back_moves_nothing(self, store: Store) -> None:
        _skip_without_history(store)
        async with store.connect() as session:
            job = await _completed(session, store.job())
            store.clock.advance(timedelta(days=8))

            async with session.rolled_back():
                assert (await _prune(session)).chains == 1
                assert len(await _listed(session)) == 1

            assert (await session.status(job), await _listed(session)) == ("completed", [])
            assert (await _prune(session)).chains == 1
            assert [chain.id for chain in await _listed(session)] == [job]

    async def test_a_session_that_is_cut_off_leaves_chains_where_they_were(self, store: Store) -> None:
        _skip_without_history(store)
        async with store.connect() as session:
            job = await _completed(session, store.job())
            store.clock.advance(timedelta(days=8))

            async with store.reserve() as other:
                await other.connection.begin()
                assert (await _prune(other)).chains == 1
                other.connection.cut_off()

            assert (await session.status(job), await _listed(session)) == ("completed", [])

    async def test_pages_have_the_last_to_end_first(self, store: Store) -> None:
        _skip_without_history(store)
        async with store.connect() as session:
            ids = list[ChainId]()
            for n in range(9):
                job = await session.start_and_take(store.job("work" if n % 3 else "other"))
                await session.settle(failing(job) if n % 2 else completing(job))
                ids.append(job.id)
                store.clock.advance(timedelta(days=10))  # over several parts
            ended = [chain.ended_at for chain in await session.connection.run(store.state.find_chains(ids[3:4]))]
            store.clock.advance(timedelta(days=30))
            await _prune(session, *_RULES, Keeping("other", DAY, DAY, 365 * DAY))

            everything = [chain.id for chain in await _listed(session)]
            pages = [await _listed(session, limit=4)]
            while pages[-1]:
                pages.append(await _listed(session, limit=4, after=pages[-1][-1].id))
            others = await _listed(session, type_names=["other"])
            failed = await _listed(session, type_names=["work"], failed=[True])
            late, early = await _listed(session, ended_from=ended[0]), await _listed(session, ended_before=ended[0])

            assert everything == ids[::-1]
            assert [[chain.id for chain in page] for page in pages] == [ids[:4:-1], ids[4:0:-1], ids[:1], []]
            assert [chain.id for chain in others] == [ids[n] for n in (6, 3, 0)]
            assert [chain.id for chain in failed] == [ids[n] for n in (7, 5, 1)]
            assert [chain.id for chain in (*late, *early)] == everything
            assert len(early) == 3
            assert await _listed(session, after=store.job().id) == []

    async def test_an_id_that_was_used_again_is_moved_again(self, store: Store) -> None:
        _skip_without_history(store)
        async with store.connect() as session:
            again = store.job()
            for output in ("1", "2"):
                await session.settle(completing(await session.start_and_take(again), output=output))
                store.clock.advance(timedelta(days=40))
                assert (await _prune(session)).chains == 1

            found = await _listed(session)
            (last,) = await _jobs(session, found[0].id)

            assert len({chain.id for chain in found}) == 1
            assert isinstance(last, CompletedJob)
            assert (found[0].current, last.output) == (last, 2)
            assert await _listed(session, after=found[0].id) == []


@pytest.mark.asyncio
class TestHistoryBesideOthers:
    """The same at the same moment as what others do."""

    async def test_of_several_who_prune_one_moves_a_chain(self, store: Store) -> None:
        _skip_without_history(store)
        for _ in range(store.rounds):
            async with store.connect() as session:
                ids = [await _completed(session, store.job()) for _ in range(4)]
            store.clock.advance(timedelta(days=8))

            pruned = await store.together(*[partial(_prune_anew, store)] * 3)

            async with store.connect() as session:
                left = (await _prune(session)).chains
                moved = await _listed(session)
                assert sum(one.chains for one in pruned) + left == len(ids)
                assert sorted(chain.id for chain in moved)[-4:] == ids
                assert len(moved) == len({chain.id for chain in moved})

    async def test_a_chain_that_is_retried_or_deleted_meanwhile_is_in_one_place(self, store: Store) -> None:
        _skip_without_history(store)
        for n in range(store.rounds):
            async with store.connect() as session:
                job = await session.start_and_take(store.job())
                await session.settle(failing(job))
            store.clock.advance(timedelta(days=31))

            change = partial(_delete if n % 2 else _retry, store, job.id)
            _, pruned = await store.together(change, partial(_prune_anew, store))

            assert isinstance(pruned, Pruned)
            async with store.connect() as session:
                status, moved = await session.status(job.id), await _jobs(session, job.id)
                assert len(moved) == pruned.jobs
                assert status == (None if pruned.jobs or n % 2 else "pending")
                await session.delete(job.id)


@pytest.mark.asyncio
class TestOldHistory:
    """`history.drop`."""

    async def test_a_part_is_dropped_once_everything_that_may_be_in_it_is_old_enough(self, store: Store) -> None:
        history = _skip_without_history(store)
        store.clock.now = datetime(2030, 1, 30, tzinfo=UTC)
        rules = [Keeping("work", DAY, DAY, 10 * DAY), Keeping("long", DAY, DAY, 100 * DAY)]
        async with store.connect() as session:
            january = [await _completed(session, store.job(name)) for name in ("work", "long")]
            store.clock.advance(timedelta(days=3))
            february = await _completed(session, store.job())
            store.clock.advance(timedelta(days=3))
            assert (await _prune(session, *rules)).chains == 3
            assert not await _has_old(session)

            store.clock.now = datetime(2030, 3, 10, 23, 59, tzinfo=UTC)
            nothing = await session.connection.run(history.drop())
            store.clock.now = datetime(2030, 3, 11, tzinfo=UTC)
            assert await _has_old(session)
            first = await session.connection.run(history.drop())
            kept = [chain.id for chain in await _listed(session)]
            store.clock.now = datetime(2030, 5, 12, tzinfo=UTC)  # January's end, and a hundred days
            second = await session.connection.run(history.drop())

            assert (nothing, first, second) == (
                None,
                datetime(2030, 2, 1, tzinfo=UTC),
                datetime(2030, 1, 1, tzinfo=UTC),
            )
            assert sorted(kept) == sorted(january)
            assert (await _listed(session), await _jobs(session, february)) == ([], [])
            assert not await _has_old(session)

    async def test_whoever_looks_at_the_history_is_not_kept_waiting_and_keeps_it(self, store: Store) -> None:
        history = _skip_without_history(store)
        async with store.connect() as session, store.connect() as reader:
            await _completed(session, store.job())
            store.clock.advance(timedelta(days=8))
            await _prune(session)
            store.clock.advance(timedelta(days=500))

            async with store.promptly(), reader.transaction():
                assert len(await _listed(reader)) == 1
                assert await session.connection.run(history.drop()) is None
                assert len(await _listed(reader)) == 1

            assert await session.connection.run(history.drop()) is not None
            assert await _listed(session) == []

    async def test_while_a_part_is_dropped_chains_stay_where_they_are(self, store: Store) -> None:
        history = _skip_without_history(store)
        async with store.connect() as session, store.connect() as other:
            await _completed(session, store.job())
            store.clock.advance(timedelta(days=8))
            await _prune(session)
            store.clock.advance(timedelta(days=500))
            late = await _completed(session, store.job())
            store.clock.advance(timedelta(days=8))

            async with store.promptly(), other.transaction():
                assert await other.connection.run(history.drop()) is not None
                assert ((await _prune(session)).chains, await session.status(late)) == (0, "completed")

            assert (await _prune(session)).chains == 1
            assert [chain.id for chain in await _listed(session)] == [late]

    async def test_what_is_moved_into_a_part_keeps_it(self, store: Store) -> None:
        history = _skip_without_history(store)
        async with store.connect() as session, store.connect() as other:
            await _completed(session, store.job())
            late = await _completed(session, store.job("late"))
            store.clock.advance(timedelta(days=8))
            await _prune(session)
            store.clock.advance(timedelta(days=500))

            async with store.promptly(), other.transaction():
                assert (await _prune(other, Keeping("late", DAY, DAY, 1000 * DAY))).chains == 1
                assert await session.connection.run(history.drop()) is None

            assert await session.connection.run(history.drop()) is None
            assert late in [chain.id for chain in await _listed(session)]


def _skip_without_history(store: Store) -> HistoryStatements:
    if store.state.history is None:
        pytest.skip("keeps no history")
    return store.state.history


async def _completed(session: Session, job: NewJob) -> ChainId:
    await session.settle(completing(await session.start_and_take(job)))
    return job.id


async def _prune(session: Session, *rules: Keeping) -> Pruned:
    return await session.connection.run(session.state.prune(rules or _RULES, chains=100, rows=100))


async def _prune_anew(store: Store) -> Pruned:
    async with store.connect() as session:
        return await _prune(session)


async def _retry(store: Store, chain_id: ChainId) -> object:
    async with store.connect() as session:
        try:
            return await session.retry(chain_id)
        except ChainNotFound:
            return None


async def _delete(store: Store, chain_id: ChainId) -> object:
    async with store.connect() as session:
        return await session.delete(chain_id)


async def _listed(
    session: Session, *, after: ChainId | None = None, limit: int = 100, **filters: object
) -> Sequence[Chain]:
    assert session.state.history is not None
    look = session.state.history.list(HistoryFilter(**filters), after=after, limit=limit)  # type: ignore[arg-type]
    return await session.connection.run(look)


async def _jobs(session: Session, chain_id: ChainId) -> Sequence[object]:
    assert session.state.history is not None
    return await session.connection.run(session.state.history.jobs_of(chain_id))


async def _has_old(session: Session) -> bool:
    turn = session.state.take_pruning_turn(worker=WORKER, lease=60.0, walks=None)
    return (await session.connection.run(turn)).has_old_history

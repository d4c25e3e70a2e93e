"""Tests of pruning: what has been kept for long enough goes, whole, and nothing else does."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

from onward.conformance.state.session import OTHER_WORKER, WORKER, Session, completing, continuing, failing, next_of
from onward.conformance.state.store import Store
from onward.errors import BlockerNotFound, ChainNotFound, OnwardError
from onward.model import ChainId, JobStatus
from onward.state.contract import Filter, Keeping, NewJob, Pruned, PruningTurn, TakenJob

DAY = 86_400.0
WEEK = 7 * DAY
_RULES = (Keeping("work", WEEK, 30 * DAY),)


@pytest.mark.asyncio
class TestPruning:
    """`prune`."""

    async def test_a_chain_goes_once_it_has_been_kept_for_long_enough(self, store: Store) -> None:
        async with store.connect() as session:
            old = await _completed(session, store.job())
            store.clock.advance(timedelta(days=1))
            young = await _completed(session, store.job())

            store.clock.advance(timedelta(days=6) - timedelta(milliseconds=1))
            assert (await _prune(session)).chains == 0
            store.clock.advance(timedelta(milliseconds=1))
            pruned = await _prune(session)

            assert (pruned.completed, pruned.failed, pruned.jobs, pruned.is_end) == (1, 0, 1, True)
            assert await session.statuses(old, young) == [None, "completed"]

    async def test_what_failed_has_a_time_of_its_own(self, store: Store) -> None:
        async with store.connect() as session:
            job = await session.start_and_take(store.job())
            await session.settle(failing(job))
            store.clock.advance(timedelta(days=29))
            assert (await _prune(session)).chains == 0

            store.clock.advance(timedelta(days=1))
            pruned = await _prune(session)

            assert (pruned.completed, pruned.failed, pruned.jobs) == (0, 1, 1)
            assert await session.status(job.id) is None

    async def test_what_is_to_be_kept_or_belongs_to_others_stays(self, store: Store) -> None:
        rules = [Keeping("ledger", None, 0.0), Keeping("probe", 0.0, None)]
        async with store.connect() as session:
            kept = [await _completed(session, store.job("ledger")), await _completed(session, store.job("stranger"))]
            broken = await session.start_and_take(store.job("probe"))
            await session.settle(failing(broken))
            gone = await _completed(session, store.job("probe"))
            store.clock.advance(timedelta(days=1000))

            pruned = await _prune(session, *rules)

            assert pruned.chains == 1
            assert await session.statuses(*kept, broken.id, gone) == ["completed", "completed", "failed", None]

    async def test_nothing_unfinished_goes(self, store: Store) -> None:
        async with store.connect() as session:
            blocker, pending, late = store.job("other"), store.job("idle"), store.job("idle", delay=60.0)
            blocked = store.job("idle", blockers=(blocker.id,))
            await session.start(blocker, pending, late)
            await session.start(blocked)
            running = await session.start_and_take(store.job())
            moved = await session.start_and_take(store.job("long"))
            await session.settle(continuing(moved, next_of(moved, "rest")))
            store.clock.advance(timedelta(days=1000))
            before = {job.id for job in await session.everything()}

            pruned = await _prune(
                session, *(Keeping(name, 0.0, 0.0) for name in ("work", "idle", "other", "long", "rest"))
            )

            assert pruned.chains == 0
            assert {job.id for job in await session.everything()} == before
            assert running.id in before

    async def test_a_chain_goes_whole_and_by_the_type_it_began_with(self, store: Store) -> None:
        async with store.connect() as session:
            first = await session.start_and_take(store.job())
            await session.settle(continuing(first, next_of(first, "rest")))
            rest = await session.take_one("rest")
            await session.settle(completing(rest))
            store.clock.advance(timedelta(days=1000))

            assert (await _prune(session, Keeping("rest", 0.0, 0.0))).chains == 0
            pruned = await _prune(session)

            assert (pruned.completed, pruned.jobs) == (1, 2)
            assert list(await session.everything()) == []

    async def test_its_age_counts_from_the_end_of_the_chain(self, store: Store) -> None:
        async with store.connect() as session:
            first = await session.start_and_take(store.job())
            await session.settle(continuing(first, next_of(first, "rest")))
            store.clock.advance(timedelta(days=100))
            await session.finish("rest")
            store.clock.advance(timedelta(days=6))

            assert (await _prune(session)).chains == 0

    async def test_what_something_unfinished_waits_for_stays(self, store: Store) -> None:
        async with store.connect() as session:
            done, open_ = await _completed(session, store.job()), store.job("open")
            await session.start(open_)
            waiting = store.job("report", blockers=(done, open_.id))
            await session.start(waiting)
            store.clock.advance(timedelta(days=1000))
            assert (await _prune(session)).chains == 0

            await session.finish("open")
            assert (await _prune(session)).chains == 0  # pending: it has not read their outputs yet
            report = await session.take_one("report")
            assert (await _prune(session)).chains == 0
            await session.settle(completing(report))

            assert (await _prune(session)).chains == 1
            assert await session.status(done) is None
            blockers = (await session.connection.run(store.state.blockers_of([waiting.id]))).get(waiting.id, [])
            assert [blocker.chain_id for blocker in blockers] == [open_.id]

    async def test_what_waited_goes_before_what_it_waited_for(self, store: Store) -> None:
        async with store.connect() as session:
            blocker = await _completed(session, store.job("fetch"))
            await session.start(store.job(blockers=(blocker,)))
            await session.finish("work")
            store.clock.advance(timedelta(days=8))

            assert (await _prune(session)).chains == 1
            assert await session.status(blocker) == "completed"
            listed = await session.connection.run(store.state.list_blocked(blocker, after=None, limit=10))
            assert list(listed) == []

    async def test_a_failed_chain_that_came_back_stays(self, store: Store) -> None:
        async with store.connect() as session:
            job = await session.start_and_take(store.job())
            await session.settle(failing(job))
            store.clock.advance(timedelta(days=1000))
            await session.retry(job.id)
            assert (await _prune(session)).chains == 0

            await session.finish("work")
            store.clock.advance(timedelta(days=6))

            assert (await _prune(session)).chains == 0

    async def test_a_batch_is_bounded_and_says_where_the_next_begins(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(*(store.job() for _ in range(7)))
            await session.settle(*[completing(job) for job in await session.take()])
            store.clock.advance(timedelta(days=8))

            pruned = [await _prune(session, chains=3)]
            while not pruned[-1].is_end:
                pruned.append(await _prune(session, place=pruned[-1].reached, chains=3))

            assert [batch.chains for batch in pruned] == [3, 3, 1]
            assert list(await session.everything()) == []

    async def test_what_is_kept_is_read_once_in_a_walk(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(*(store.job("kept") for _ in range(45)))
            await session.settle(*[completing(job) for job in await session.take("kept", limit=45)])
            last = await _completed(session, store.job())
            store.clock.advance(timedelta(days=8))

            pruned = [await _prune(session, rows=2)]
            while not pruned[-1].is_end:
                pruned.append(await _prune(session, place=pruned[-1].reached, rows=2))

            assert [batch.chains for batch in pruned] == [0, 0, 1]  # twenty at a time
            assert await session.status(last) is None

    async def test_a_batch_ends_before_a_chain_that_would_make_it_too_large(self, store: Store) -> None:
        async with store.connect() as session:
            await _completed(session, store.job())
            first = await session.start_and_take(store.job())
            for _ in range(5):
                await session.settle(continuing(first, next_of(first, "work")))
                first = await session.take_one()
            await session.settle(completing(first))
            await _completed(session, store.job())
            store.clock.advance(timedelta(days=8))

            pruned = [await _prune(session, rows=4)]
            while not pruned[-1].is_end:
                pruned.append(await _prune(session, place=pruned[-1].reached, rows=4))

            assert [(batch.chains, batch.jobs) for batch in pruned] == [(1, 1), (1, 6), (1, 1)]

    async def test_what_waited_for_a_chain_counts_as_its_rows(self, store: Store) -> None:
        async with store.connect() as session:
            await _completed(session, store.job())
            popular = await _completed(session, store.job())
            await session.start(*(store.job("report", blockers=(popular,)) for _ in range(5)))
            await session.settle(*[completing(job) for job in await session.take("report")])
            store.clock.advance(timedelta(days=8))

            pruned = await _prune(session, rows=4)

            assert (pruned.chains, pruned.is_end) == (1, False)
            assert await session.status(popular) == "completed"
            assert (await _prune(session, place=pruned.reached, rows=4)).chains == 1

    async def test_a_walk_may_end_with_the_ids_of_a_time(self, store: Store) -> None:
        async with store.connect() as session:
            now = store.clock.now
            old = await _completed(session, store.job(id=_id_of(now - timedelta(hours=3))))
            young = await _completed(session, store.job(id=_id_of(now - timedelta(hours=1))))
            own = await _completed(session, store.job(id=UUID(int=2**128 - 1)))
            store.clock.advance(timedelta(minutes=1))

            first = await _prune(session, Keeping("work", 0.0, 0.0), before=7200.0)
            again = await _prune(session, Keeping("work", 0.0, 0.0), place=first.reached, before=7200.0)

            assert (first.chains, first.is_end, again.chains, again.is_end) == (1, True, 0, True)
            assert await session.statuses(old, young, own) == [None, "completed", "completed"]
            store.clock.advance(timedelta(hours=2))
            later = await _prune(session, Keeping("work", 0.0, 0.0), place=again.reached, before=7200.0)
            assert later.chains == 1
            assert await session.status(young) is None

    async def test_a_walk_through_everything_finds_every_id(self, store: Store) -> None:
        async with store.connect() as session:
            ids = [UUID(int=0), UUID(int=2**128 - 1), uuid4(), uuid4(), uuid4()]
            for id in ids:
                await _completed(session, store.job(id=id, id_is_callers=True))
            store.clock.advance(timedelta(days=8))

            assert (await _prune(session)).chains == 5

    async def test_times_of_any_length_are_understood(self, store: Store) -> None:
        async with store.connect() as session:
            job = await _completed(session, store.job())

            ever = timedelta(days=365_000).total_seconds()
            assert (await _prune(session, Keeping("work", ever, ever))).chains == 0
            assert (await _prune(session, Keeping("work", 0.0, 0.0), before=ever)).chains == 0
            assert (await _prune(session)).chains == 0
            assert await session.status(job) == "completed"

    async def test_a_batch_that_is_rolled_back_deletes_nothing(self, store: Store) -> None:
        async with store.connect() as session:
            job = await _completed(session, store.job())
            store.clock.advance(timedelta(days=8))

            async with session.rolled_back():
                assert (await _prune(session)).chains == 1

            assert await session.status(job) == "completed"


@pytest.mark.asyncio
class TestPruningBesideOthers:
    """`prune` at the same moment as what others do to the same chains."""

    async def test_a_chain_that_somebody_has_locked_is_passed_over(self, store: Store) -> None:
        if not store.state.locks_rows:
            pytest.skip("no row is ever locked by itself")
        async with store.connect() as session, store.connect() as other:
            long = await session.start_and_take(store.job())
            await session.settle(continuing(long, next_of(long, "rest")))
            await session.finish("rest")
            short, free = await _completed(session, store.job()), await _completed(session, store.job())
            store.clock.advance(timedelta(days=8))

            async with store.promptly(), other.transaction():
                for chain_id in (long.chain_id, short):
                    await other.connection.run(store.state.lock_current(chain_id))
                pruned = await _prune_beside_others(session)

            assert (pruned.chains, pruned.is_end) == (1, True)
            assert await session.statuses(long.id, short, free) == ["completed", "completed", None]
            assert (await _prune_beside_others(session)).chains == 2

    async def test_a_start_that_names_a_chain_waits_for_it_or_is_refused(self, store: Store) -> None:
        for round in range(store.rounds):
            async with store.connect() as session:
                done, open_ = await _completed(session, store.job()), store.job(f"open-{round}")
                await session.start(open_)
            job = store.job(f"report-{round}", blockers=(done, open_.id))
            store.clock.advance(timedelta(days=8))

            started, pruned = await _together(store, partial(_start, job), _prune_beside_others)

            assert isinstance(pruned, Pruned)
            async with store.connect() as session:
                if isinstance(started, BlockerNotFound):
                    assert (await session.statuses(done, job.id), pruned.chains) == ([None, None], 1)
                    continue
                assert started == "blocked"
                assert (await session.statuses(done, job.id), pruned.chains) == (["completed", "blocked"], 0)
                await session.finish(f"open-{round}")
                await session.finish(f"report-{round}")
                assert (await _prune_beside_others(session)).chains == 1

    @pytest.mark.parametrize("is_long", [False, True])
    async def test_a_retry_brings_a_whole_chain_back_or_finds_none(self, store: Store, is_long: bool) -> None:
        for _ in range(store.rounds):
            async with store.connect() as session:
                job = await session.start_and_take(store.job())
                if is_long:
                    await session.settle(continuing(job, next_of(job, "rest")))
                    job = await session.take_one("rest")
                await session.settle(failing(job))
            store.clock.advance(timedelta(days=31))

            retried, pruned = await _together(store, partial(_retry, job.chain_id), _prune_beside_others)

            assert isinstance(pruned, Pruned)
            async with store.connect() as session:
                if isinstance(retried, ChainNotFound):
                    assert pruned.jobs == 1 + is_long
                    assert list(await session.everything()) == []
                else:
                    assert (retried, pruned.chains) == (None, 0)
                    assert await session.status(job.id) == "pending"
                    await session.delete(job.chain_id)

    async def test_deletions_cancels_and_other_prunings_beside_it_leave_nothing_half(self, store: Store) -> None:
        for _ in range(store.rounds // 4 + 1):
            async with store.connect() as session:
                ids: list[ChainId] = []
                for _ in range(4):
                    job = await session.start_and_take(store.job(blockers=tuple(ids[-1:])))
                    await session.settle(continuing(job, next_of(job, "rest")))
                    await session.finish("rest")
                    ids.append(job.chain_id)
            store.clock.advance(timedelta(days=8))

            acts: list[Act] = [
                _prune_beside_others,
                _prune_beside_others,
                partial(_delete, ids[1], ids[3]),
                partial(_cancel, ids[2]),
            ]
            answers = await _together(store, *acts)

            async with store.connect() as session:
                while not (await _prune_beside_others(session)).is_end:
                    pass
                left = await session.everything()
                assert list(left) == []
                assert await session.connection.run(store.state.blockers_of(ids)) == {}
            assert all(isinstance(answer, Pruned | ChainNotFound | None) for answer in answers)

    async def test_chains_that_end_meanwhile_are_not_disturbed(self, store: Store) -> None:
        for _ in range(store.rounds):
            async with store.connect() as session:
                await session.start(*(store.job() for _ in range(10)))
                first, second = await session.take(limit=5), await session.take(limit=5)
                await session.settle(*[completing(job) for job in first])
            store.clock.advance(timedelta(days=8))

            answers = await _together(store, partial(_finish, second), _prune_beside_others)

            assert isinstance(answers[1], Pruned)
            assert (answers[0], answers[1].chains) == (None, 5)
            async with store.connect() as session:
                chains = await session.connection.run(store.state.list_chains(Filter(), after=None, limit=100))
                assert {chain.id for chain in chains} == {job.id for job in second}
                assert {chain.status for chain in chains} == {JobStatus.COMPLETED}
                await session.delete(*(chain.id for chain in chains))


@pytest.mark.asyncio
class TestPruningTurns:
    """`take_pruning_turn`."""

    async def test_one_worker_has_the_turn_until_it_runs_out(self, store: Store) -> None:
        async with store.connect() as session, store.connect() as other:
            mine = await _turn(session, WORKER)
            theirs = await _turn(other, OTHER_WORKER)
            store.clock.advance(timedelta(seconds=40))
            again = await _turn(session, WORKER, '{"at": 1}')
            store.clock.advance(timedelta(seconds=59))
            not_yet = await _turn(other, OTHER_WORKER, '{"at": 0}')
            store.clock.advance(timedelta(seconds=1))
            now_theirs = await _turn(other, OTHER_WORKER, '{"at": 0}')

            assert (mine.walks, theirs.walks, theirs.next_in) == ("{}", None, 60.0)
            assert (again.walks, not_yet.walks, not_yet.next_in) == ('{"at": 1}', None, 1.0)
            assert now_theirs.walks == '{"at": 1}'  # what one who had no turn left is not kept
            assert now_theirs.now == store.clock.now.timestamp()
            assert (await _turn(session, WORKER, '{"at": 2}')).walks is None

    async def test_a_turn_taken_while_the_clock_was_ahead_is_over(self, store: Store) -> None:
        async with store.connect() as session, store.connect() as other:
            store.clock.advance(timedelta(days=365))
            await _turn(session, WORKER)
            store.clock.advance(-timedelta(days=365))

            assert (await _turn(other, OTHER_WORKER)).walks is not None
            assert (await _turn(session, WORKER)).walks is None

    async def test_of_those_who_ask_at_once_one_gets_it(self, store: Store) -> None:
        for _ in range(store.rounds):
            workers = [partial(_turn, worker=f"worker-{n}") for n in range(4)]
            turns = await _together(store, *workers)

            assert len([turn for turn in turns if getattr(turn, "walks", None) is not None]) == 1
            store.clock.advance(timedelta(minutes=2))


Act = Callable[[Session], Awaitable[object]]


async def _completed(session: Session, job: NewJob) -> ChainId:
    await session.settle(completing(await session.start_and_take(job)))
    return job.id


async def _prune(session: Session, *rules: Keeping, **options: Any) -> Pruned:
    """A batch; where that is all there is, it was counted before, a few rows at a time."""
    counted = [Pruned(0, 0, 0, "", is_end=False)]
    while not options and not counted[-1].is_end:
        look = session.state.count_prunable(rules or _RULES, place=counted[-1].reached, rows=3)
        counted.append(await session.connection.run(look))
    pruned = await _prune_beside_others(session, *rules, **options)
    expected = sum(one.completed for one in counted), sum(one.failed for one in counted)
    assert options or (pruned.completed, pruned.failed) == expected
    return pruned


async def _prune_beside_others(
    session: Session,
    *rules: Keeping,
    place: str = "",
    before: float | None = None,
    chains: int = 100,
    rows: int = 100,
) -> Pruned:
    prune = session.state.prune(rules or _RULES, place=place, before=before, chains=chains, rows=rows)
    return await session.connection.run(prune)


async def _turn(session: Session, worker: str, walks: str | None = None) -> PruningTurn:
    return await session.connection.run(session.state.take_pruning_turn(worker=worker, lease=60.0, walks=walks))


async def _start(job: NewJob, session: Session) -> object:
    return (await session.start(job))[0].status


async def _finish(taken: Sequence[TakenJob], session: Session) -> None:
    await session.settle(*[completing(job) for job in taken])


async def _retry(chain_id: ChainId, session: Session) -> None:
    await session.retry(chain_id)


async def _delete(one: ChainId, two: ChainId, session: Session) -> None:
    await session.delete(one, two)


async def _cancel(chain_id: ChainId, session: Session) -> None:
    await session.cancel(chain_id)


async def _together(store: Store, *acts: Act) -> list[object]:
    """What each answered, or how it was refused."""

    async def do(act: Act) -> object:
        async with store.connect() as session:
            try:
                return await act(session)
            except OnwardError as error:
                return error

    return await store.together(*(partial(do, act) for act in acts))


def _id_of(moment: datetime) -> UUID:
    """A UUIDv7 of a time."""
    return UUID(int=(int(moment.timestamp() * 1000) << 80) | (7 << 76) | (2 << 62) | 1)

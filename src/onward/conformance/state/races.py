"""Tests of what happens at the same moment on several connections."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import pytest

from onward.conformance.state.session import (
    OTHER_WORKER,
    WORKER,
    Session,
    completing,
    continuing,
    failing,
    kinds,
    next_of,
)
from onward.conformance.state.store import Signal, Store
from onward.errors import BlockerNotFound, ChainNotFound, ChainReferenced
from onward.model import ChainId, Deduplication, Job, JobId, new_id
from onward.state.contract import Change, NewJob, Settlement, Started, TakenJob

T = TypeVar("T")


@pytest.mark.asyncio
class TestRaces:
    """Several connections, one truth."""

    async def test_takers_never_take_the_same_job(self, store: Store) -> None:
        jobs = [store.job("a" if n % 3 else "b") for n in range(20 * store.rounds)]
        async with store.connect() as session:
            await session.start(*jobs)

        async def take_all(worker: str) -> list[JobId]:
            mine: list[JobId] = []
            async with store.reserve() as session:
                while taken := await session.take("a", "b", limit=7, worker=worker):
                    mine.extend(job.id for job in taken)
            return mine

        shares = await store.together(*[partial(take_all, f"worker-{n}") for n in range(4)])

        taken = [job_id for share in shares for job_id in share]
        assert len(taken) == len(set(taken))
        assert set(taken) == {job.id for job in jobs}

    @pytest.mark.parametrize("ageing", [None, timedelta(seconds=1)], ids=["by-rank", "aged"])
    async def test_takers_of_many_types_are_never_turned_away_while_there_is_work(
        self, store: Store, ageing: timedelta | None
    ) -> None:
        """Nine of ten jobs are of one type, so that all takers want the same rows."""
        names = [f"type-{n}" for n in range(12)]
        jobs = [store.job(names[n % 12 if n % 10 == 0 else 0], priority=n % 2) for n in range(60 * store.rounds)]
        async with store.connect() as session:
            await session.start(*jobs)
        taken: list[JobId] = []
        turned_away: list[int] = []

        async def take_all(worker: str) -> None:
            async with store.reserve() as session:
                while len(taken) < len(jobs):
                    mine = await session.take(*names, limit=5, worker=worker, ageing=ageing)
                    taken.extend(job.id for job in mine)
                    if len(mine) < 5 and len(jobs) - len(taken) > 8 * 5:
                        turned_away.append(len(jobs) - len(taken))

        await store.together(*[partial(take_all, f"worker-{n}") for n in range(8)])

        assert sorted(taken) == sorted(job.id for job in jobs)
        assert turned_away == []

    async def test_two_last_blockers_that_complete_at_the_same_moment_unblock_once(self, store: Store) -> None:
        for _ in range(store.rounds):
            one, two = store.job("fetch"), store.job("fetch")
            job = store.job("report", blockers=(one.id, two.id))
            async with store.connect() as session:
                await session.start(one, two)
                await session.start(job)
                first, second = await session.take("fetch")

            answers = await store.together(*[partial(_settle, store, completing(each)) for each in (first, second)])

            unblocked = [change for changes in answers for change in changes if change.kind == "unblocked"]
            assert [change.job_id for change in unblocked] == [job.id]
            async with store.connect() as session:
                assert (await session.take_one("report")).id == job.id

    async def test_twenty_blockers_that_complete_at_the_same_moment_unblock_once(self, store: Store) -> None:
        for _ in range(store.rounds):
            blockers = [store.job("fetch") for _ in range(20)]
            job = store.job("report", blockers=tuple(blocker.id for blocker in blockers))
            async with store.connect() as session:
                await session.start(*blockers)
                await session.start(job)
                taken = await session.take("fetch", limit=20)

            shares = [[completing(each) for each in taken[n::5]] for n in range(5)]
            answers = await store.together(*[partial(_settle_one_by_one, store, share) for share in shares])

            unblocked = [change.job_id for changes in answers for change in changes if change.kind == "unblocked"]
            assert unblocked == [job.id]

    async def test_two_blockers_that_complete_further_on_unblock_once(self, store: Store) -> None:
        for _ in range(store.rounds):
            one, two = store.job("fetch"), store.job("fetch")
            job = store.job("report", blockers=(one.id, two.id))
            async with store.connect() as session:
                await session.start(one, two)
                await session.start(job)
                await session.settle(*[continuing(each, next_of(each)) for each in await session.take("fetch")])
                first, second = await session.take("next")

            answers = await store.together(*[partial(_settle, store, completing(each)) for each in (first, second)])

            unblocked = [change for changes in answers for change in changes if change.kind == "unblocked"]
            assert [change.job_id for change in unblocked] == [job.id]
            async with store.connect() as session:
                assert await session.status(job.id) == "pending"
                await session.take("report")

    async def test_one_blocker_completing_while_the_other_fails_fails_the_job(self, store: Store) -> None:
        for _ in range(store.rounds):
            one, two = store.job("fetch"), store.job("fetch")
            job = store.job("report", blockers=(one.id, two.id))
            async with store.connect() as session:
                await session.start(one, two)
                await session.start(job)
                first, second = await session.take("fetch")

            await store.together(
                partial(_settle, store, completing(first)),
                partial(_settle, store, failing(second)),
            )

            async with store.connect() as session:
                assert await session.status(job.id) == "failed"

    @pytest.mark.parametrize("outcome", [completing, failing])
    async def test_a_blocker_that_ends_while_the_job_is_being_started_is_not_missed(
        self, store: Store, outcome: type
    ) -> None:
        for _ in range(store.rounds):
            blocker = store.job("fetch")
            job = store.job("report", blockers=(blocker.id,))
            async with store.connect() as session:
                running = await session.start_and_take(blocker)

            await store.together(partial(_start, store, job), partial(_settle, store, outcome(running)))

            async with store.connect() as session:
                assert await session.status(job.id) == ("pending" if outcome is completing else "failed")

    async def test_a_blocker_that_ends_during_a_long_start_is_not_missed(self, store: Store) -> None:
        for _ in range(max(1, store.rounds // 5)):
            blocker = store.job("fetch")
            job = store.job("report", blockers=(blocker.id,))
            async with store.connect() as session:
                running = await session.start_and_take(blocker)
            started = store.signal()

            async def start(job: NewJob, started: Signal) -> Sequence[Change]:
                async with store.connect() as session, session.transaction():
                    await session.start(job)
                    started.set()
                    await session.ask_often()
                return []

            async def complete(running: TakenJob, started: Signal) -> Sequence[Change]:
                await started.wait()
                return await _settle(store, completing(running))

            _, changes = await store.together(partial(start, job, started), partial(complete, running, started))

            assert (job.id, "unblocked") in kinds(changes)

    async def test_many_starts_with_one_key_are_one_chain(self, store: Store) -> None:
        for number in range(max(1, store.rounds // 10)):
            key = Deduplication(f"user-{number}")
            jobs = [store.job(deduplication=key) for _ in range(20)]

            answers = await store.together(*[partial(_start, store, job) for job in jobs])

            assert len({started[0].id for started in answers}) == 1
            assert [started[0].duplicate for started in answers].count(False) == 1
            async with store.connect() as session:
                assert len(await session.take(limit=100)) == 1

    async def test_starts_with_the_same_keys_in_another_order_do_not_deadlock(self, store: Store) -> None:
        for number in range(store.rounds):
            keys = [Deduplication(f"{number}-{n}") for n in range(4)]
            forward = [store.job(deduplication=key) for key in keys]
            backward = [store.job(deduplication=key) for key in reversed(keys)]

            answers = await store.together(partial(_start, store, *forward), partial(_start, store, *backward))

            assert [each.id for each in answers[0]] == [each.id for each in reversed(answers[1])]

    async def test_the_second_start_with_a_key_waits_for_the_first_to_commit(self, store: Store) -> None:
        key = Deduplication("user-7")
        first, second = store.job(deduplication=key), store.job(deduplication=key)
        started = store.signal()

        async def slowly() -> Sequence[Started]:
            async with store.connect() as session, session.transaction():
                answer = await session.start(first)
                started.set()
                await session.ask_often()
            return answer

        async def meanwhile() -> Sequence[Started]:
            await started.wait()
            return await _start(store, second)

        _, answer = await store.together(slowly, meanwhile)

        assert list(answer) == [Started(first.id, None, True)]

    async def test_the_second_start_with_a_key_begins_if_the_first_rolls_back(self, store: Store) -> None:
        key = Deduplication("user-7")
        first, second = store.job(deduplication=key), store.job(deduplication=key)
        started = store.signal()

        async def in_vain() -> Sequence[Started]:
            async with store.connect() as session, session.rolled_back():
                answer = await session.start(first)
                started.set()
                await session.ask_often()
            return answer

        async def meanwhile() -> Sequence[Started]:
            await started.wait()
            return await _start(store, second)

        _, answer = await store.together(in_vain, meanwhile)

        assert [(each.id, each.duplicate) for each in answer] == [(second.id, False)]

    async def test_one_of_two_who_settle_an_attempt_wins(self, store: Store) -> None:
        for _ in range(store.rounds):
            async with store.connect() as session:
                running = await session.start_and_take(store.job())
            settlements = [completing(running, output=str(n)) for n in range(3)]

            answers = await store.together(*[partial(_settle, store, each) for each in settlements])

            assert sorted(len(changes) for changes in answers) == [0, 0, 1]
            winner = next(number for number, changes in enumerate(answers) if changes)
            async with store.connect() as session:
                assert (await session.find(running.id)).output == winner

    async def test_completion_beside_deletion_has_one_winner(self, store: Store) -> None:
        for _ in range(store.rounds):
            async with store.connect() as session:
                running = await session.start_and_take(store.job())

            settled, deleted = await store.together(
                partial(_settle, store, completing(running)), partial(_delete, store, running.id)
            )

            assert kinds(deleted) == {(running.id, "deleted")}
            assert kinds(settled) <= {(running.id, "settled")}
            async with store.connect() as session:
                assert await session.status(running.id) is None

    async def test_starting_behind_a_chain_that_is_being_deleted_has_one_winner(self, store: Store) -> None:
        for _ in range(store.rounds):
            blocker = store.job("fetch")
            job = store.job("report", blockers=(blocker.id,))
            async with store.connect() as session:
                await session.start(blocker)

            started, deleted = await store.together(
                partial(_succeeds, BlockerNotFound, partial(_start, store, job)),
                partial(_succeeds, ChainReferenced, partial(_delete, store, blocker.id)),
            )

            async with store.connect() as session:
                there = await session.statuses(blocker.id, job.id)
            assert there == (["pending", "blocked"] if started else [None, None])
            assert started != deleted

    async def test_reapers_never_reap_the_same_job(self, store: Store) -> None:
        count = 2 * store.rounds
        async with store.connect() as session:
            await session.start(*[store.job() for _ in range(count)])
            while await session.take(limit=100, lease=-1.0):
                pass

        async def reap_all(worker: str) -> list[JobId]:
            mine: list[JobId] = []
            async with store.reserve() as session:
                while jobs := (await session.reap(worker=worker, limit=3)).jobs:
                    mine.extend(job.id for job in jobs)
            return mine

        shares = await store.together(*[partial(reap_all, f"reaper-{n}") for n in range(3)])

        reaped = [job_id for share in shares for job_id in share]
        assert len(reaped) == len(set(reaped)) == count

    async def test_a_late_completion_beside_the_reaper_has_one_winner(self, store: Store) -> None:
        for _ in range(store.rounds):
            async with store.connect() as session:
                running = await session.start_and_take(store.job(), lease=-1.0)

            async def reap(running: TakenJob) -> Sequence[Change]:
                async with store.reserve() as session:
                    reaped = (await session.reap()).jobs
                    return await session.settle(*[completing(each, holder=OTHER_WORKER) for each in reaped])

            late, reaped = await store.together(
                partial(_settle, store, completing(running)),
                partial(reap, running),
            )

            assert sorted([len(late), len(reaped)]) == [0, 1]
            async with store.connect() as session:
                assert (await session.find(running.id)).completed_by == (WORKER if late else OTHER_WORKER)

    async def test_chains_that_wait_for_one_another_in_many_ways_do_not_deadlock(self, store: Store) -> None:
        for _ in range(max(1, store.rounds // 5)):
            blockers = [store.job("fetch") for _ in range(6)]
            ids = [blocker.id for blocker in blockers]
            reports = [store.job("report", blockers=tuple(ids[n:] + ids[:n])) for n in range(6)]
            async with store.connect() as session:
                await session.start(*blockers)
                running = await session.take("fetch")

            await store.together(
                *[partial(_start, store, report) for report in reports],
                *[partial(_settle, store, completing(each)) for each in running],
            )

            async with store.connect() as session:
                assert len(await session.take("report", limit=10)) == 6


@pytest.mark.asyncio
@pytest.mark.parametrize("index", [0, 1])
class TestChainsThatMoveOn:
    """Whoever asks for the current job of a chain while it goes on gets the one it has come to."""

    async def test_who_locks_a_chain_that_is_going_on_gets_its_next_job(self, store: Store, index: int) -> None:
        async def lock(session: Session, chain_id: ChainId) -> Job | None:
            async with session.transaction():
                return await session.connection.run(store.state.lock_current(chain_id))

        step, current = await _while_going_on(store, lock, index)

        assert current is not None
        assert (current.id, current.status) == (step.id, "pending")

    async def test_who_cancels_a_chain_that_is_going_on_cancels_its_next_job(self, store: Store, index: int) -> None:
        step, changes = await _while_going_on(store, Session.cancel, index)

        assert kinds(changes) == {(step.id, "failed")}
        async with store.connect() as session:
            assert await session.has_ended(step.chain_id)

    async def test_who_deletes_a_chain_that_is_going_on_deletes_its_next_job(self, store: Store, index: int) -> None:
        step, changes = await _while_going_on(store, Session.delete, index)

        assert (step.id, "deleted") in kinds(changes)
        async with store.connect() as session:
            assert list(await session.everything()) == []


async def _while_going_on(
    store: Store, act: Callable[[Session, ChainId], Coroutine[Any, Any, T]], index: int
) -> tuple[NewJob, T]:
    """Act on a chain while a transaction that continues it is about to commit; the next job, and the answer."""
    async with store.connect() as session:
        running = await session.start_and_take(store.job())
        for _ in range(index):
            await session.settle(continuing(running, next_of(running, "work")))
            running = await session.take_one("work")
    step = next_of(running)
    ready, settled = store.signal(), store.signal()
    answers: list[T] = []

    async def go_on() -> None:
        async with store.connect() as session:
            await ready.wait()
            async with session.transaction():
                await session.settle(continuing(running, step))
                settled.set()
                await session.ask_often()

    async def meanwhile() -> None:
        async with store.connect() as session:
            with suppress(ChainNotFound):  # whatever is done once per connection is done before it matters
                await act(session, new_id())
            ready.set()
            await settled.wait()
            answers.append(await act(session, running.chain_id))

    await store.together(go_on, meanwhile)
    return step, answers[0]


async def _settle_one_by_one(store: Store, settlements: Sequence[Settlement]) -> list[Change]:
    async with store.connect() as session:
        return [change for settlement in settlements for change in await session.settle(settlement)]


async def _settle(store: Store, settlement: Settlement) -> Sequence[Change]:
    async with store.connect() as session:
        return await session.settle(settlement)


async def _start(store: Store, *jobs: NewJob) -> Sequence[Started]:
    async with store.connect() as session:
        return await session.start(*jobs)


async def _delete(store: Store, chain_id: ChainId) -> Sequence[Change]:
    async with store.connect() as session:
        return await session.delete(chain_id)


async def _succeeds(refusal: type[Exception], operation: Callable[[], Awaitable[object]]) -> bool:
    try:
        await operation()
    except refusal:
        return False
    return True

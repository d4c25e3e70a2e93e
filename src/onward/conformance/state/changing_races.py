"""Tests of retry, cancel, trigger and delete at the same moment as starts and completions, and as one another."""

import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest

from onward.conformance.state.session import Session, completing, continuing, failing, kinds, next_of
from onward.conformance.state.store import Store
from onward.errors import (
    BlockersDeleted,
    ChainError,
    ChainNotFailed,
    ChainReferenced,
    KeyInUse,
    OnwardError,
)
from onward.model import BlockedJob, ChainId, Deduplication, FailedJob, JobStatus
from onward.state.contract import Filter, NewJob, Settlement

Act = Callable[[Session], Awaitable[object]]
_RUN_ANYWAY = (0, 3, 6, 9)


@pytest.mark.asyncio
class TestRacesOfChanges:
    """Retry, cancel and delete are as safe beside starts and completions as these are beside each other."""

    @pytest.mark.parametrize("outcome", [completing, failing])
    async def test_a_blocker_that_ends_while_another_is_retried_is_not_missed(
        self, store: Store, outcome: Callable[..., Settlement]
    ) -> None:
        for _ in range(store.rounds):
            one, two = store.job("one"), store.job("two")
            job = store.job("report", blockers=(one.id, two.id))
            async with store.connect() as session:
                await session.start(one, two)
                await session.start(job)
                await session.cancel(one.id)
                running = await session.take_one("two")

            await _together(store, _retry(one.id), _settle(outcome(running)))

            async with store.connect() as session:
                await session.finish("one")
                assert await session.status(job.id) == ("pending" if outcome is completing else "failed")
                await session.take("report")

    async def test_a_blocker_that_ends_while_what_waits_for_it_is_retried_is_not_missed(self, store: Store) -> None:
        for _ in range(store.rounds):
            blocker = store.job("fetch")
            job = store.job("report", blockers=(blocker.id,))
            async with store.connect() as session:
                await session.start(blocker)
                await session.start(job)
                await session.cancel(job.id)
                running = await session.take_one("fetch")

            await _together(store, _retry(job.id), _settle(completing(running)))

            async with store.connect() as session:
                assert await session.status(job.id) == "pending"
                await session.take("report")

    async def test_two_blockers_that_are_retried_at_the_same_moment_bring_the_job_back(self, store: Store) -> None:
        for _ in range(store.rounds):
            one, two = store.job("one"), store.job("two")
            job = store.job("report", blockers=(one.id, two.id))
            async with store.connect() as session:
                await session.start(one, two)
                await session.start(job)
                await session.cancel(one.id, two.id)

            await _together(store, _retry(one.id), _retry(two.id))

            async with store.connect() as session:
                assert (await session.find(job.id)).open_blockers == 2
                await session.finish("one")
                await session.finish("two")
                assert (await session.take_one("report")).id == job.id

    async def test_starting_behind_a_chain_that_is_being_retried_waits_for_it(self, store: Store) -> None:
        for _ in range(store.rounds):
            blocker = store.job("fetch")
            job = store.job("report", blockers=(blocker.id,))
            async with store.connect() as session:
                await session.start(blocker)
                await session.cancel(blocker.id)

            await _together(store, _retry(blocker.id), _start(job))

            async with store.connect() as session:
                assert await session.status(job.id) == "blocked"
                await session.finish("fetch")
                assert (await session.take_one("report")).id == job.id

    async def test_of_two_who_retry_a_chain_one_wins(self, store: Store) -> None:
        for _ in range(store.rounds):
            job = store.job()
            async with store.connect() as session:
                await session.start(job)
                await session.cancel(job.id)

            answers = await _together(store, _retry(job.id), _retry(job.id))

            assert sorted(isinstance(answer, ChainNotFailed) for answer in answers) == [False, True]
            async with store.connect() as session:
                assert (await session.take_one()).id == job.id

    async def test_retrying_beside_a_start_with_the_key_leaves_one_live_chain(self, store: Store) -> None:
        for number in range(store.rounds):
            key = Deduplication(f"user-{number}")
            failed, new = store.job(deduplication=key), store.job(deduplication=key)
            async with store.connect() as session:
                await session.start(failed)
                await session.cancel(failed.id)

            retried, started = await _together(store, _retry(failed.id), _start(new))

            assert isinstance(retried, KeyInUse) != started[0].duplicate
            async with store.connect() as session:
                assert len(await session.take()) == 1

    async def test_retrying_a_job_beside_the_deletion_of_its_blocker_has_one_winner(self, store: Store) -> None:
        for _ in range(store.rounds):
            blocker = store.job("fetch")
            job = store.job("report", blockers=(blocker.id,))
            async with store.connect() as session:
                await session.start(blocker)
                await session.start(job)
                await session.finish("fetch")
                await session.break_("report")

            retried, deleted = await _together(store, _retry(job.id), _delete(blocker.id))

            assert isinstance(retried, BlockersDeleted) != isinstance(deleted, ChainReferenced)
            async with store.connect() as session:
                there = await session.statuses(blocker.id, job.id)
                assert there == ([None, "failed"] if isinstance(retried, BlockersDeleted) else ["completed", "pending"])
                await session.take("report")

    async def test_retrying_beside_deletion_of_what_waits_leaves_nothing_behind(self, store: Store) -> None:
        for _ in range(store.rounds):
            blocker = store.job("fetch")
            job = store.job("report", blockers=(blocker.id,))
            async with store.connect() as session:
                await session.start(blocker)
                await session.start(job)
                await session.cancel(blocker.id)

            _, deleted = await _together(store, _retry(blocker.id), _delete(job.id))

            assert kinds(deleted) == {(job.id, "deleted")}
            async with store.connect() as session:
                assert kinds(await session.finish("fetch")) == {(blocker.id, "settled")}

    async def test_a_chain_that_goes_on_while_it_is_cancelled_ends(self, store: Store) -> None:
        for _ in range(store.rounds):
            async with store.connect() as session:
                running = await session.start_and_take(store.job())
                await session.start(waiting := store.job("report", blockers=(running.chain_id,)))
                step = next_of(running)

            await _together(store, _cancel(running.chain_id), _settle(continuing(running, step)))

            async with store.connect() as session:
                current = (await session.connection.run(store.state.find_chains([running.chain_id])))[0].current
                assert isinstance(current, FailedJob)
                assert current.reason == "cancelled"
                assert await session.has_ended(running.chain_id)
                assert await session.status(waiting.id) == "failed"

    async def test_starting_behind_a_chain_that_is_being_cancelled_fails(self, store: Store) -> None:
        for _ in range(store.rounds):
            blocker = store.job("fetch")
            job = store.job("report", blockers=(blocker.id,))
            async with store.connect() as session:
                await session.start(blocker)

            await _together(store, _start(job), _cancel(blocker.id))

            async with store.connect() as session:
                assert await session.statuses(blocker.id, job.id) == ["failed", "failed"]

    async def test_cancelling_with_blockers_beside_their_end_cancels_what_waits(self, store: Store) -> None:
        for number in range(store.rounds):
            job, blocker = (store.job("report"), store.job("fetch"))
            if number % 2:
                job, blocker = store.job("report", id=blocker.id), store.job("fetch", id=job.id)
            async with store.connect() as session:
                await session.start(blocker)
                await session.start(store.job("report", id=job.id, blockers=(blocker.id,)))
                running = await session.take_one("fetch")

            await _together(store, _cancel(job.id, cascade=True), _settle(completing(running)))

            async with store.connect() as session:
                assert (await session.find(job.id)).reason == "cancelled"
                assert await session.status(blocker.id) == "completed"

    async def test_deleting_with_blockers_beside_their_end_deletes_all(self, store: Store) -> None:
        for number in range(store.rounds):
            job, blocker = (store.job("report"), store.job("fetch"))
            if number % 2:
                job, blocker = store.job("report", id=blocker.id), store.job("fetch", id=job.id)
            async with store.connect() as session:
                await session.start(blocker)
                await session.start(store.job("report", id=job.id, blockers=(blocker.id,)))
                running = await session.take_one("fetch")

            await _together(store, _delete(job.id, cascade=True), _settle(completing(running)))

            async with store.connect() as session:
                assert list(await session.everything()) == []

    async def test_whatever_is_done_at_once_no_job_waits_in_vain(self, store: Store) -> None:
        for number in range(max(1, store.rounds // 5)):
            chance = random.Random(number)
            jobs = await _started_graph(store, chance)
            plans = [[_anything(store, jobs, chance) for _ in range(6)] for _ in range(4)]

            await store.together(*[partial(_one_by_one, store, plan) for plan in plans])

            async with store.connect() as session:
                await _nothing_waits_in_vain(session)
                await session.delete(*[job.id for job in await session.everything()])


def _retry(*chain_ids: ChainId) -> Act:
    return lambda session: session.retry(*chain_ids)


def _cancel(*chain_ids: ChainId, cascade: bool = False) -> Act:
    return lambda session: session.cancel(*chain_ids, cascade=cascade)


def _delete(*chain_ids: ChainId, cascade: bool = False) -> Act:
    return lambda session: session.delete(*chain_ids, cascade=cascade)


def _settle(settlement: Settlement) -> Act:
    return lambda session: session.settle(settlement)


def _start(*jobs: NewJob) -> Act:
    return lambda session: session.start(*jobs)


async def _together(store: Store, *acts: Act) -> Any:
    """What each answered, or the refusal it met."""
    return await store.together(*[partial(_act, store, act) for act in acts])


async def _act(store: Store, act: Act) -> Any:
    try:
        async with store.connect() as session:
            return await act(session)
    except ChainError as refusal:
        return refusal


async def _started_graph(store: Store, chance: random.Random) -> list[NewJob]:
    """Chains that wait for others in many ways, some of them whatever becomes of those."""
    jobs: list[NewJob] = []
    async with store.connect() as session:
        for n in range(10):
            blockers = tuple(job.id for job in chance.sample(jobs, min(len(jobs), chance.choice([0, 1, 2, 3]))))
            key = Deduplication(f"key-{n}") if n % 4 == 0 else None
            job = store.job(f"type-{n}", blockers=blockers, runs_anyway=n in _RUN_ANYWAY, deduplication=key)
            await session.start(job)
            jobs.append(job)
    return jobs


def _anything(store: Store, jobs: Sequence[NewJob], chance: random.Random) -> Act:
    ids = [job.id for job in chance.sample(jobs, chance.choice([1, 1, 1, 2]))]
    cascade, number = chance.random() < 0.3, chance.randrange(len(jobs))
    settle = chance.choice([completing, failing, _going_on])
    new = store.job("late", blockers=tuple(ids))

    async def run_one(session: Session) -> None:
        for taken in await session.take(f"type-{number}", "next", limit=2):
            await session.settle(settle(taken))

    return chance.choice(
        [
            lambda session: session.cancel(*ids, cascade=cascade),
            lambda session: session.retry(*ids),
            lambda session: session.retry(*ids),
            lambda session: session.delete(*ids, cascade=cascade),
            lambda session: session.start(new),
            run_one,
            run_one,
            run_one,
        ]
    )


def _going_on(taken: Any) -> Settlement:
    return continuing(taken, next_of(taken))


async def _one_by_one(store: Store, plan: Sequence[Act]) -> None:
    async with store.connect() as session:
        for act in plan:
            await _until_done(store, session, act)


async def _until_done(store: Store, session: Session, act: Act) -> None:
    """As clients do: again, when the database has undone one of two that were in each other's way."""
    while True:
        try:
            await act(session)
        except OnwardError:
            return
        except Exception as error:
            fault = store.driver.fault(error)
            if fault is None or not fault.is_transient:
                raise
        else:
            return


async def _nothing_waits_in_vain(session: Session) -> None:
    jobs = await session.everything()
    found = await session.connection.run(session.state.blockers_of([job.id for job in jobs]))
    ended = (JobStatus.COMPLETED, JobStatus.FAILED)
    for job in jobs:
        statuses = [blocker.status for blocker in found.get(job.id, [])]
        opened = [status for status in statuses if status not in ended]
        runs_anyway = job.type_name in [f"type-{n}" for n in _RUN_ANYWAY]
        if isinstance(job, BlockedJob):
            assert job.open_blockers == len(opened) > 0
            assert runs_anyway or JobStatus.FAILED not in statuses
        elif not (isinstance(job, FailedJob) or runs_anyway):  # one that ran may see a failed blocker come back
            assert set(statuses) <= {JobStatus.COMPLETED}
    chains = await session.connection.run(session.state.list_chains(Filter(), after=None, limit=1000))
    current = [chain.current for chain in chains]
    assert [await session.has_ended(job.chain_id) for job in current] == [job.status in ended for job in current]

"""Tests of where a job is in line, and of what keeps it from being there."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from onward.conformance.state.limiting import KEY, admit, limited
from onward.conformance.state.session import Session
from onward.conformance.state.store import Store
from onward.model import JobId, new_id
from onward.state.command import Steps
from onward.state.contract import LimitRule, Line, TakenJob, best_first
from onward.state.driver import Connection

MINUTE = timedelta(minutes=1)


async def line_of(
    session: Session, job_id: JobId, *types: tuple[str, int], ageing: timedelta | None = None, most: int = 100
) -> Line:
    seconds = None if ageing is None else ageing.total_seconds()
    look = session.state.line_of(job_id, types=types or [("work", 1)], ageing=seconds, most=most)
    return await session.connection.run(look)


@pytest.mark.asyncio
class TestLines:
    """`line_of`."""

    async def test_the_jobs_before_it_are_those_that_would_be_taken_first(self, store: Store) -> None:
        async with store.connect() as session:
            old = store.job()
            await session.start(old)
            store.clock.advance(MINUTE)
            urgent, plain = store.job(priority=2), store.job()
            other, newer = store.job("other", priority=1), store.job(payload_version=2)
            await session.start(urgent, plain, other, newer, store.job("paused", priority=9), store.job(delay=60.0))
            await session.connection.run(store.state.pause(["paused"]))
            every = [("work", 1), ("work", 2), ("other", 1), ("paused", 1)]

            for ageing in (None, MINUTE * 3, MINUTE / 4):
                ahead = {
                    job.id: (await line_of(session, job.id, *every, ageing=ageing)).ahead
                    for job in (newer, other, plain, urgent, old)
                }
                assert ahead == {job.id: n for n, job in enumerate(await _in_order(session, every, ageing))}
            assert (await line_of(session, newer.id)).ahead == 3
            assert (await line_of(session, newer.id, ("other", 1))).ahead == 1
            assert (await line_of(session, newer.id, ("nobody", 1))).ahead == 0
            assert (await line_of(session, newer.id, *every, most=2)).ahead == 2
            assert (await line_of(session, newer.id, *every, most=2, ageing=MINUTE)).ahead == 2
            await session.take()
            for id in (old.id, new_id()):  # neither waits: only the time is said
                expected = Line(now=store.clock.now, is_held=False, placed=0, next_at=None, ahead=0)
                assert await line_of(session, id) == expected

    async def test_what_is_held_waits_behind_those_of_its_key(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=2, every=60.0, burst=2))
            jobs = [store.job(limit_key=KEY) for _ in range(5)]
            stranger = store.job(limit_key="tenant/b")
            await session.start(*jobs, stranger)
            await admit(session)
            await admit(session)  # the next slot of a rate is known once somebody has looked for one

            lines = [await line_of(session, job.id) for job in (*jobs, stranger)]

        assert [line.is_held for line in lines] == [False, False, True, True, True, False]
        assert [line.ahead for line in lines[2:5]] == [0, 1, 2]
        assert [line.placed for line in lines] == [2, 2, 2, 2, 2, 1]

    async def test_chains_in_the_way_are_found_at_one_moment(self, store: Store) -> None:
        blockers = [store.job(f"fetch-{n}") for n in range(4)]
        order = [blockers[n].id for n in (3, 0, 2, 1)]
        one = store.job(blockers=tuple(order), runs_anyway=True)

        async def blocking(connection: Connection) -> list[list[tuple[JobId, JobId]]]:
            looks = [
                store.state.list_blocking([one.id, new_id()], failed=failed, limit=limit)
                for failed, limit in ((False, 10), (False, 1), (True, 10))
            ]
            return [[*await connection.run(look)] for look in looks]

        at_one_moment = store.state.at_one_moment(Steps(blocking))
        async with store.connect() as session:
            await session.start(*blockers)
            await session.start(one)
            await session.finish("fetch-0")
            async with session.transaction():
                await session.break_("fetch-2")
                within = await session.connection.run(at_one_moment)
            found = await session.connection.run(at_one_moment)

        assert found == [[(one.id, order[0]), (one.id, order[3])], [(one.id, order[0])], [(one.id, order[2])]]
        assert within == found


async def _in_order(session: Session, types: Sequence[tuple[str, int]], ageing: timedelta | None) -> Sequence[TakenJob]:
    """As they would be taken; they are not."""
    async with session.rolled_back():
        taken = [job for name, version in types for job in await session.take(name, version=version)]
    return best_first(taken, None if ageing is None else ageing.total_seconds())

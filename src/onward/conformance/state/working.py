"""Tests of the rows of workers, and of what waits for one."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from onward.conformance.state.session import OTHER_WORKER, WORKER, Session
from onward.conformance.state.store import Store
from onward.operating import WorkerInfo
from onward.state.workers import SignOfLife, WorkerRow

PROMISE = timedelta(seconds=60)


def row(id: str = WORKER, **said: Any) -> WorkerRow:
    """What a worker says of itself."""
    usual = {"host": "here", "pid": 7, "version": "1.4", "onward_version": "9", "types": {"work": (2, 1)}}
    return WorkerRow(**{"id": id, **usual, "concurrency": 5, **said})


async def sign(session: Session, worker: WorkerRow | None = None, **said: Any) -> None:
    usual = {"age": 0.0, "promise": PROMISE.total_seconds()}
    await session.connection.run(session.state.workers.sign(worker or row(), SignOfLife(**{**usual, **said})))


async def workers(session: Session) -> Sequence[WorkerInfo]:
    return await session.connection.run(session.state.workers.list())


async def states(session: Session) -> dict[str, str]:
    return {worker.id: worker.state for worker in await workers(session)}


@pytest.mark.asyncio
class TestWorkers:
    """`workers`."""

    async def test_a_sign_of_life_says_who_works(self, store: Store) -> None:
        async with store.connect() as session:
            await sign(session, age=10.0)

            assert await workers(session) == [
                WorkerInfo(
                    id=WORKER,
                    host="here",
                    pid=7,
                    version="1.4",
                    onward_version="9",
                    types={"work": (2, 1)},
                    concurrency=5,
                    started_at=store.clock.now - timedelta(seconds=10),
                    seen_at=store.clock.now,
                    state="alive",
                    running=[],
                )
            ]

    async def test_the_next_one_changes_only_what_changes(self, store: Store) -> None:
        async with store.connect() as session:
            await sign(session)
            began = store.clock.now
            store.clock.advance(timedelta(seconds=15))
            await sign(session, age=15.5, is_stopping=True, blocked_for=3.0)

            (worker,) = await workers(session)
            assert (worker.started_at, worker.seen_at, worker.state) == (began, store.clock.now, "stopping")
            assert worker.blocked_since == store.clock.now - timedelta(seconds=3)

            await sign(session, age=15.6)
            (worker,) = await workers(session)
            assert (worker.state, worker.blocked_since) == ("alive", None)

    async def test_who_keeps_its_promise_is_alive_and_who_does_not_is_dead(self, store: Store) -> None:
        async with store.connect() as session:
            await sign(session)
            store.clock.advance(PROMISE / 2)
            await sign(session, row(OTHER_WORKER))
            store.clock.advance(PROMISE / 2)
            assert await states(session) == {WORKER: "alive", OTHER_WORKER: "alive"}

            store.clock.advance(timedelta(seconds=1))

            assert list((await states(session)).items()) == [(OTHER_WORKER, "alive"), (WORKER, "dead")]
            await sign(session)
            assert await states(session) == {WORKER: "alive", OTHER_WORKER: "alive"}

    async def test_who_was_seen_to_die_is_dead_unless_it_gives_a_sign_of_life(self, store: Store) -> None:
        async with store.connect() as session:
            await sign(session)
            await session.connection.run(store.state.workers.bury(WORKER))
            assert await states(session) == {WORKER: "dead"}

            await sign(session)
            assert await states(session) == {WORKER: "alive"}

    async def test_who_is_removed_comes_back_with_a_sign_of_life(self, store: Store) -> None:
        async with store.connect() as session:
            await sign(session)
            await session.connection.run(store.state.workers.remove(WORKER))
            assert await states(session) == {}

            store.clock.advance(timedelta(seconds=15))
            await sign(session, age=15.0)
            (worker,) = await workers(session)
            assert worker.started_at == store.clock.now - timedelta(seconds=15)

    async def test_who_died_a_day_ago_goes_with_the_next_sign_of_life_of_another(self, store: Store) -> None:
        async with store.connect() as session:
            await sign(session, row("buried"))
            await session.connection.run(store.state.workers.bury("buried"))
            await sign(session, row("lost"))
            store.clock.advance(timedelta(hours=23))
            await sign(session)
            assert len(await workers(session)) == 3

            store.clock.advance(timedelta(hours=2))
            await sign(session)

            assert await states(session) == {WORKER: "alive"}

    async def test_a_clock_that_was_ahead_leaves_nobody_alive_who_is_not(self, store: Store) -> None:
        async with store.connect() as session:
            store.clock.advance(timedelta(days=3))
            await sign(session)
            store.clock.advance(-timedelta(days=3))
            assert await states(session) == {WORKER: "dead"}

            await sign(session, row(OTHER_WORKER))
            assert await states(session) == {OTHER_WORKER: "alive"}
            await sign(session)
            assert await states(session) == {WORKER: "alive", OTHER_WORKER: "alive"}

    async def test_what_it_runs_is_told_with_it(self, store: Store) -> None:
        async with store.connect() as session:
            await sign(session)
            await session.start(*(store.job() for _ in range(3)), store.job("other"))
            taken = await session.take(limit=2)

            (worker,) = await workers(session)

            assert [(job.job_id, job.attempt, job.type_name) for job in worker.running] == sorted(
                (job.id, 1, "work") for job in taken
            )
            assert {job.leased_until for job in worker.running} == {store.clock.now + timedelta(seconds=60)}

    async def test_who_holds_jobs_and_has_no_row_is_told_of_by_these(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(store.job(), store.job("other", payload_version=3))
            taken = [*await session.take(), *await session.take("other", version=3)]

            (worker,) = await workers(session)
            assert (worker.id, worker.is_known, worker.state) == (WORKER, False, "alive")
            assert worker.types == {"work": (1,), "other": (3,)}
            assert [job.job_id for job in worker.running] == sorted(job.id for job in taken)

            store.clock.advance(timedelta(seconds=61))
            assert await states(session) == {WORKER: "dead"}

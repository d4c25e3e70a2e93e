"""Who works: rows that are kept alive, removed, shown as dead, and that never get in the way of work."""

import asyncio
import logging
import os
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from itertools import pairwise
from typing import Any

import asyncpg  # pyright: ignore[reportMissingTypeStubs]
import pytest

from onward import Attempt, Onward, job
from onward.errors import ConfigurationError
from onward.observe import events
from onward.observe.logs import LogObserver
from onward.operating import WorkerInfo
from onward.state.workers import SignOfLife, WorkerRow
from onward.worker.connections import Reserved
from onward.worker.figures import TendFigures
from onward.worker.guardian import table, thread
from onward.worker.presence import Presence
from onward.worker.pruning import Pruning
from support import SOON, Recorder, intercept

PAIRS = (("postgres", "process"), ("sqlite", "thread"))
OTHERS = (("postgres", "thread"), ("sqlite", "process"))


def each(often: Sequence[tuple[str, str]] = PAIRS, rarely: Sequence[tuple[str, str]] = OTHERS) -> pytest.MarkDecorator:
    """On a database with a guardian of a kind: the one always, the other where there is time."""
    slow = [pytest.param(*pair, marks=pytest.mark.slow) for pair in rarely]
    return pytest.mark.parametrize(("target", "guardian"), [*often, *slow], indirect=["target"])


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life come often."""
    monkeypatch.setattr(Presence, "every", 0.1)


@job("echo", version=3)
async def echo(attempt: Attempt[int]) -> int:
    return attempt.input


@echo.upcast(2)
def _(value: Any) -> Any:
    return value


class Held:
    """A handler that runs until it is let go."""

    def __init__(self, **options: Any) -> None:
        self.begun, self.may_end, self.runs = asyncio.Event(), asyncio.Event(), 0
        self.job = job("held", **options)(self._run)

    async def _run(self, attempt: Attempt[int]) -> int:
        self.runs += 1
        self.begun.set()
        await self.may_end.wait()
        return attempt.input


async def until(
    app: Onward, wanted: Callable[[list[WorkerInfo]], object], within: timedelta = SOON
) -> list[WorkerInfo]:
    """The workers, once they are as wanted."""
    async with asyncio.timeout(within.total_seconds()):
        while not wanted(found := list(await app.workers())):
            await asyncio.sleep(0.02)
    return found


def table_of(app: Onward) -> str:
    return app.state.sql("list_paused").rpartition("FROM ")[2].split()[0].replace("paused_type", "worker")  # type: ignore[attr-defined]


async def run(app: Onward, *statements: str) -> None:
    async with app.driver.connection() as connection:
        for statement in statements:
            await connection.script(statement)


@each()
async def test_workers_are_told_with_what_they_run_until_they_have_stopped(
    make_app: Any, guardian: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONWARD_CODE_VERSION", "of the variable")
    held = Held()
    async with make_app(held.job, echo) as app:
        one, two = (app.worker(name="mail", concurrency=n, guardian=guardian, jobs=jobs) for n, jobs in (
            (5, [held.job]), (1, [echo])
        ))  # fmt: skip
        async with one, two:
            chain = await app.start(held.job, 1)
            await held.begun.wait()

            first, second = await app.workers()
            assert {first.id, second.id} == {one.id, two.id}
            mine = first if first.id == one.id else second
            other = second if mine is first else first
            assert (mine.pid, mine.version, mine.concurrency) == (os.getpid(), "of the variable", 5)
            assert (mine.types, other.types) == ({"held": (1,)}, {"echo": (3, 2)})
            assert ([run.chain_id for run in mine.running], list(other.running)) == ([chain.id], [])

            one.stop()
            found = await until(app, lambda workers: workers[-1].state == "stopping")
            assert [(worker.id, worker.state) for worker in found] == [(two.id, "alive"), (one.id, "stopping")]
            held.may_end.set()
        assert list(await app.workers()) == []


async def test_a_worker_that_stops_at_once_tells_nobody_that_it_is_about_to(
    make_app: Any, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.worker.worker._SAY_STOPPING_AFTER", SOON.total_seconds())  # however busy the machine is
    async with make_app(echo) as app:
        sign, told = app.state.workers.sign, list[bool]()

        def noted(row: WorkerRow, said: SignOfLife) -> Any:
            told.append(said.is_stopping)
            return sign(row, said)

        app.state.workers.sign = noted
        async with app.worker():
            pass

        assert told == [False]


async def test_chores_of_the_next_worker_begin_no_sooner_than_those_of_the_first(make_app: Any, target: str) -> None:
    async with make_app(echo) as app:
        for chore in (Pruning(app.store, list, first_after=(60.0, 60.0)), TendFigures(app.store)):
            first, next_one = Reserved(app.store.driver), Reserved(app.store.driver)

            wait = await chore.look(first)

            assert 0 < await chore.look(next_one) <= wait


def test_the_version_of_the_code_can_be_said(target: str) -> None:
    with pytest.raises(ConfigurationError, match="version"):
        Onward(target, jobs=[echo], version="")
    with pytest.raises(ConfigurationError, match="version"):
        Onward(target, jobs=[echo], version=7)  # type: ignore[arg-type]


async def test_sync_clients_see_workers_too(running: Any, target: str) -> None:
    app = await running(echo, version="1.4")

    def look() -> list[WorkerInfo]:
        with app.sync as client:
            return list(client.workers())

    (worker,) = await asyncio.to_thread(look)
    assert (worker.version, worker.state) == ("1.4", "alive")


@each()
@pytest.mark.usefixtures("often")
async def test_a_row_that_was_deleted_comes_back(running: Any, guardian: str) -> None:
    app = await running(echo, worker={"guardian": guardian})
    (before,) = await app.workers()
    await run(app, f"DELETE FROM {table_of(app)}")

    (worker,) = await until(app, bool)
    assert worker.id == before.id
    assert abs(worker.started_at - before.started_at) < timedelta(seconds=2)


@each(PAIRS[1:], PAIRS[:1])
@pytest.mark.usefixtures("often")
async def test_a_blocked_event_loop_is_alive_and_its_row_says_since_when_it_is_blocked(
    running: Any, guardian: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_BLOCKED", 0.7)  # which is longer than two beats are apart; not seen by a child
    blocks = 1.6 if guardian == "thread" else 2.8

    @job("block")
    async def block(attempt: Attempt[None]) -> None:
        time.sleep(blocks)  # noqa: ASYNC251 - on purpose

    def look() -> list[WorkerInfo]:
        with app.sync as client:
            found: list[WorkerInfo] = []
            while not (found and found[0].blocked_since):
                found = list(client.workers())
                time.sleep(0.05)
            return found

    app = await running(block, worker={"guardian": guardian, "stall": None})
    looking = asyncio.get_running_loop().run_in_executor(None, look)
    await app.start(block, None)
    async with asyncio.timeout(SOON.total_seconds()):
        (worker,) = await looking
    assert worker.state == "alive"
    assert worker.blocked_since is not None
    assert worker.blocked_since < worker.seen_at
    await until(app, lambda workers: workers[0].blocked_since is None)


PROGRAM = """
import asyncio, sys
from onward import Attempt, Onward, job
from onward.worker.presence import Presence

Presence.promise = float(sys.argv[3])

@job("echo", version=3)
async def echo(attempt: Attempt[int]) -> int: ...

async def main():
    async with Onward(sys.argv[1], jobs=[echo], schema=sys.argv[2]) as app, app.worker(guardian=sys.argv[4]):
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@each()
async def test_a_killed_worker_is_dead_when_its_guardian_says_so_or_its_promise_has_run_out(
    opened: Any, target: str, guardian: str
) -> None:
    promise = 600.0 if guardian == "process" else 1.0
    app: Onward = await opened(echo)
    schema = getattr(app.state, "schema", "onward")
    arguments = [sys.executable, "-c", PROGRAM, target, schema, str(promise), guardian]
    process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        (worker,) = await app.workers()
        assert (worker.state, worker.pid) == ("alive", process.pid)
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()

    (worker,) = await until(app, lambda workers: workers[0].state == "dead")
    assert worker.pid == process.pid


@asynccontextmanager
async def out_of_the_way(app: Onward) -> AsyncIterator[None]:
    """There is no table of workers meanwhile."""
    name = table_of(app)
    away = name.replace("worker", "away").rpartition(".")[2]
    await run(app, f"ALTER TABLE {name} RENAME TO {away}")
    yield
    await run(app, f"ALTER TABLE {name.replace('worker', 'away')} RENAME TO {name.rpartition('.')[2]}")


@each()
@pytest.mark.usefixtures("often")
async def test_trouble_with_the_row_is_told_once_and_disturbs_no_work(
    make_app: Any, recorder: Recorder, guardian: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "onward")
    held = Held(lease=timedelta(seconds=1))
    app: Onward = make_app(held.job, echo, observers=[recorder, LogObserver()])
    async with app, app.worker(concurrency=5, guardian=guardian):
        chain = await app.start(held.job, 7)
        await held.begun.wait()
        async with out_of_the_way(app):
            error = await recorder.next(events.StateError)
            assert error.doing == "say that a worker is alive"
            chains = [await app.start(echo, n) for n in range(20)]
            assert [await chain.wait(timeout=SOON) for chain in chains] == list(range(20))
            renewals = len(recorder.of(events.LeaseRenewed))
            await recorder.next(events.LeaseRenewed, count=renewals + 4)
        (before,) = await app.workers()
        await until(app, lambda workers: workers[0].seen_at > before.seen_at)
        held.may_end.set()
        assert await chain.wait(timeout=SOON) == 7

    assert (held.runs, len(recorder.of(events.StateError))) == (1, 1)
    said = [record.getMessage().split()[0] for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == ["StateError", "StateRecovered"], caplog.text
    assert len(recorder.of(events.AttemptEnded)) == 21


@pytest.mark.usefixtures("often")
async def test_a_worker_starts_works_and_stops_where_its_row_cannot_be_written(
    make_app: Any, recorder: Recorder
) -> None:
    async with make_app(echo) as app, out_of_the_way(app), app.worker():
        assert await (await app.start(echo, 7)).wait(timeout=SOON) == 7


async def locked(app: Onward, hold: Callable[[], Awaitable[object]], statement: str) -> None:
    async with app.driver.connection() as connection:
        await connection.begin()
        await connection.script(statement)
        await hold()
        await connection.rollback()


@each(PAIRS[:1], OTHERS[:1])
@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    "how",
    [
        "LOCK TABLE {} IN ACCESS EXCLUSIVE MODE",
        pytest.param("SELECT FROM {} FOR UPDATE", marks=pytest.mark.slow),
    ],
)
async def test_whoever_locks_the_rows_keeps_no_lease_from_being_renewed(
    make_app: Any, recorder: Recorder, guardian: str, how: str
) -> None:
    held = Held(lease=timedelta(seconds=1))
    async with make_app(held.job) as app, app.worker(guardian=guardian):
        chain = await app.start(held.job, 7)
        await held.begun.wait()

        async def hold() -> None:
            renewals = len(recorder.of(events.LeaseRenewed))
            await recorder.next(events.LeaseRenewed, count=renewals + 5)

        await locked(app, hold, how.format(table_of(app)))
        held.may_end.set()
        assert await chain.wait(timeout=SOON) == 7
    assert held.runs == 1
    assert recorder.of(events.LeaseLost) == []


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
@pytest.mark.parametrize("guardian", ["thread", "process"])
async def test_a_long_writer_to_the_file_kills_nobody_and_is_no_trouble(
    running: Any, recorder: Recorder, guardian: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Presence, "promise", 0.3)
    monkeypatch.setattr(thread, "_SIGNING", 0.3)
    app: Onward = await running(echo, worker={"guardian": guardian})
    with closing(sqlite3.connect(target.removeprefix("sqlite:///"), isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        (before,) = await app.workers()
        await asyncio.sleep(1.0)  # longer than a sign of life may take, and than the promise
        (worker,) = await app.workers()
    assert worker.seen_at == before.seen_at
    assert worker.state == "alive"

    await until(app, lambda workers: workers[0].seen_at > worker.seen_at, within=timedelta(seconds=5))
    assert recorder.of(events.StateError) == []


@each(PAIRS[:1], [*PAIRS[1:], *OTHERS])
async def test_an_idle_worker_says_that_it_is_alive_once_in_fifteen_seconds(
    running: Any, guardian: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here fifteen seconds are less than one."""
    monkeypatch.setattr(Presence, "every", 0.2)
    app: Onward = await running(echo, worker={"guardian": guardian})
    seen = [worker.seen_at for worker in await app.workers()]
    while len(seen) < 4:
        (worker,) = await until(app, lambda workers: workers[0].seen_at > seen[-1])
        seen.append(worker.seen_at)

    # The first came of the worker itself, before its guardian.
    assert all(later - sooner >= timedelta(seconds=0.2) for sooner, later in pairwise(seen[1:]))


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_a_worker_says_that_no_jobs_can_be_taken_for_as_long_as_that_is_so(
    make_app: Callable[..., Onward], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as on a server that answers, and takes no writes any more."""
    refuses = True

    async def take(run: Callable[[], Awaitable[Any]], **_: Any) -> Any:
        if refuses:
            raise asyncpg.ReadOnlySQLTransactionError("cannot execute UPDATE in a read-only transaction")
        return await run()

    app = make_app(echo)
    async with app:
        intercept(monkeypatch, app.state, "take", take)
        async with asyncio.timeout(SOON.total_seconds()), app.worker() as worker:
            while (trouble := await worker.trouble(within=5.0)) is None:
                await asyncio.sleep(0.01)
            refuses = False
            while await worker.trouble(within=5.0) is not None:
                await asyncio.sleep(0.01)

    assert trouble == "no jobs can be taken (ReadOnlySQLTransactionError)"

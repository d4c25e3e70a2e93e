"""A worker is stopped while its database does not answer, or is locked: it ends soon after its grace period."""

import asyncio
import inspect
import secrets
import sqlite3
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from onward import Attempt, Onward, job
from onward.observe import events
from onward.observe.observer import Observer
from onward.state.command import Command
from onward.state.driver import Fault
from proxy import Proxy, proxied
from support import Recorder, Run, intercept

KINDS = ["asyncpg", "psycopg", "sqlalchemy asyncpg", "sqlalchemy psycopg"]
GRACE = timedelta(milliseconds=100)
ENOUGH = 15.0
"""Seconds; what is not given up waits for ever, or for nearly as long."""


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.worker.worker._CUT_OFF_AFTER_GRACE", 0.2)
    monkeypatch.setattr("onward.worker.worker._SETTLE_AFTER_GRACE", 0.4)
    monkeypatch.setattr("onward.worker.settler._LAST_CHANCE", 0.2)
    monkeypatch.setattr("onward.worker.source._LAST_LOOK", 0.2)


class Stage:
    """Where a handler says that it is inside, and is told to go on."""

    def __init__(self) -> None:
        self.loop, self.is_inside, self.go = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def enter(self) -> None:
        self.loop.call_soon_threadsafe(self.is_inside.set)

    async def wait(self) -> None:
        self.enter()
        while not self.go.is_set():
            await asyncio.sleep(0.01)


async def ask(tx: Any, sql: str) -> None:
    asked = tx.execute(sqlalchemy.text(sql) if type(tx).__module__.startswith("sqlalchemy") else sql)
    if inspect.isawaitable(asked):
        await asked


def asking(stage: Stage) -> Any:
    @job("asks")
    async def asks(attempt: Attempt[int]) -> int:
        async with attempt.complete() as tx:
            await stage.wait()
            await ask(tx, "SELECT 1")
            return 1

    return asks


def committing(stage: Stage) -> Any:
    @job("commits")
    async def commits(attempt: Attempt[int]) -> int:
        async with attempt.complete():
            await stage.wait()
            return 1

    return commits


def asking_in_a_thread(stage: Stage) -> Any:
    @job("asks in a thread")
    def asks(attempt: Attempt[int]) -> int:
        with attempt.complete() as tx:
            stage.enter()
            stage.go.wait()
            tx.execute("SELECT 1")
            return 1

    return asks


def committing_in_a_thread(stage: Stage) -> Any:
    @job("commits in a thread")
    def commits(attempt: Attempt[int]) -> int:
        with attempt.complete():
            stage.enter()
            stage.go.wait()
            return 1

    return commits


@asynccontextmanager
async def app_on(
    kind: str, dsn: str, *jobs: Any, observers: Sequence[Observer] = ()
) -> AsyncIterator[tuple[Onward, Proxy]]:
    library, _, rest = kind.rpartition(" ")
    async with proxied(dsn) as (proxy, through):
        address = through.replace("://", f"+{rest}://", 1)
        engine = create_async_engine(address) if library == "sqlalchemy" else None
        app = Onward(
            engine or address, jobs=jobs, schema=f"t_{secrets.token_hex(6)}", migrate=True, observers=observers
        )
        try:
            async with app:
                yield app, proxy
                proxy.thaw()
        finally:
            if engine is not None:
                await engine.dispose()


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        *((kind, committing) for kind in KINDS),
        # psycopg itself asks the server for five seconds to cancel the statement.
        *((kind, asking) for kind in KINDS if "asyncpg" in kind),
        # Threads have the same driver whatever that of the app.
        ("asyncpg", asking_in_a_thread),
        ("asyncpg", committing_in_a_thread),
    ],
)
async def test_a_handler_whose_database_does_not_answer_does_not_keep_its_worker(
    postgres_dsn: str, kind: str, made: Any
) -> None:
    stage = Stage()
    handler = made(stage)
    async with app_on(kind, postgres_dsn, handler) as (app, proxy):
        worker = app.worker(grace=GRACE)
        running = asyncio.get_running_loop().create_task(worker.run())
        await app.start(handler, 1)
        await stage.is_inside.wait()
        proxy.freeze()
        stage.go.set()
        await asyncio.sleep(0.1)
        worker.stop()
        done, _ = await asyncio.wait([running], timeout=ENOUGH)
        proxy.thaw()
        await running

    assert done


@pytest.mark.parametrize("library", ["", "+aiosqlite"])
async def test_a_handler_in_a_thread_that_waits_for_a_locked_file_does_not_keep_its_worker(
    tmp_path: Path, library: str
) -> None:
    stage = Stage()

    @job("locked out")
    def locked_out(attempt: Attempt[int]) -> int:
        stage.enter()
        stage.go.wait()
        with attempt.complete():
            return 1

    address = f"sqlite{library}:///{tmp_path}/jobs.db"
    engine = create_async_engine(address) if library else None
    try:
        async with Onward(engine or address, jobs=[locked_out], observers=[]) as app:
            worker = app.worker(grace=GRACE)
            running = asyncio.get_running_loop().create_task(worker.run())
            await app.start(locked_out, 1)
            await stage.is_inside.wait()
            with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                stage.go.set()
                await asyncio.sleep(0.1)
                worker.stop()
                done, _ = await asyncio.wait([running], timeout=ENOUGH)
                other.execute("ROLLBACK")
            await running
        assert done
    finally:
        if engine is not None:
            await engine.dispose()


@pytest.mark.parametrize("library", ["", "+aiosqlite"])
async def test_a_worker_that_looks_for_jobs_in_a_locked_file_stops(tmp_path: Path, library: str) -> None:
    @job("locked out")
    async def locked_out(attempt: Attempt[int]) -> None: ...

    address = f"sqlite{library}:///{tmp_path}/jobs.db"
    engine = create_async_engine(address) if library else None
    try:
        async with Onward(engine or address, jobs=[locked_out], observers=[]) as app:
            with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                worker = app.worker(grace=GRACE)
                running = asyncio.get_running_loop().create_task(worker.run())
                await asyncio.sleep(0.2)
                worker.stop()
                done, _ = await asyncio.wait([running], timeout=ENOUGH)
                other.execute("ROLLBACK")
            await running
        assert done
    finally:
        if engine is not None:
            await engine.dispose()


@pytest.mark.parametrize("kind", KINDS)
async def test_who_waits_for_the_answer_to_the_first_statement_of_a_phase_is_cut_off(
    kind: str, postgres_dsn: str
) -> None:
    sleep = Command("SELECT pg_catalog.pg_sleep(:seconds::float)", {"seconds": 2 * ENOUGH}, len, "count")
    async with app_on(kind, postgres_dsn, committing(Stage())) as (app, _), app.driver.connection() as connection:
        asyncio.get_running_loop().call_later(0.5, connection.cut_off)
        async with asyncio.timeout(ENOUGH):
            with pytest.raises(Exception) as raised:  # noqa: PT011 - each client has its own
                await connection.run(sleep, begin=True)

    assert app.driver.fault(raised.value) is Fault.LOST


@pytest.mark.parametrize("kind", KINDS)
async def test_a_worker_with_nothing_to_do_stops_though_the_database_does_not_answer(
    postgres_dsn: str, kind: str
) -> None:
    handler = committing(Stage())
    async with app_on(kind, postgres_dsn, handler) as (app, proxy):
        worker = app.worker(grace=GRACE)
        running = asyncio.get_running_loop().create_task(worker.run())
        await asyncio.sleep(0.5)
        proxy.freeze()
        worker.stop()
        done, _ = await asyncio.wait([running], timeout=ENOUGH)
        proxy.thaw()
        await running

    assert done


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg"])
async def test_an_app_whose_database_does_not_answer_closes(
    postgres_dsn: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while connections on which handlers have written are being tidied up, which takes an answer."""
    monkeypatch.setattr("onward.state.postgres.psycopg._FAREWELL", 1.0)
    async with app_on(kind, postgres_dsn, committing(Stage())) as (app, proxy):
        async with app.transaction() as tx:
            await tx.execute("SELECT 1")
        proxy.freeze()
        await asyncio.sleep(0.3)
        done, _ = await asyncio.wait([closing := asyncio.get_running_loop().create_task(app.close())], timeout=8.0)
        proxy.thaw()
        await closing
        await app.open()

    assert done


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg"])
async def test_a_chore_whose_database_does_not_answer_does_not_keep_its_worker(
    postgres_dsn: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have borrowed a connection of the pool, to give which back takes an answer too."""
    monkeypatch.setattr("onward.worker.worker._LEAVE_WITHIN", 0.2)
    monkeypatch.setattr("onward.worker.figures._FIRST_LOOK", (0.1, 0.1))
    handler, begun = committing(Stage()), asyncio.Event()
    async with app_on(kind, postgres_dsn, handler) as (app, proxy):

        async def tend(run: Run) -> Any:
            proxy.freeze()
            begun.set()
            return await run()

        intercept(monkeypatch, app.state.figures, "tend", tend)  # type: ignore[arg-type]
        worker = app.worker(grace=GRACE)
        running = asyncio.get_running_loop().create_task(worker.run())
        await begun.wait()
        await asyncio.sleep(0.1)
        worker.stop()
        done, _ = await asyncio.wait([running], timeout=8.0)
        proxy.thaw()
        await running

    assert done


async def test_an_outcome_that_is_left_to_its_lease_is_not_said_to_have_come_too_late(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage, recorder = Stage(), Recorder()

    @job("returns")
    async def returns(attempt: Attempt[int]) -> int:
        await stage.wait()
        return 1

    async with app_on("asyncpg", postgres_dsn, returns, observers=[recorder]) as (app, proxy):
        worker = app.worker(grace=GRACE)
        running = asyncio.get_running_loop().create_task(worker.run())
        chain = await app.start(returns, 1)
        await stage.is_inside.wait()
        proxy.freeze()
        stage.go.set()
        worker.stop()
        await asyncio.wait([running], timeout=ENOUGH)
        proxy.thaw()
        await running

    assert f"job {chain.id} could not be settled in time and is left to its lease" in caplog.text
    assert [event.outcome for event in recorder.of(events.AttemptEnded)] == ["lost"]
    assert recorder.of(events.AlreadyCompleted) == []

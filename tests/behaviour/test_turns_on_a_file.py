"""How the tasks of an app share the one thread in which its transactions on a SQLite file are made."""

import asyncio
import gc
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from onward import Onward, SyncOnward
from onward.errors import DatabaseLocked, TransactionClosed
from onward.lifecycle.transaction import as_sync
from onward.state.command import Command
from onward.state.driver import run_now
from onward.state.sqlite.connection import SyncSqliteConnection
from onward.state.sqlite.file import SqliteFile
from onward.state.sqlite.sqlite3 import SqliteDriver, SyncSqliteDriver
from onward.state.sqlite.thread import ConnectionThread, SqliteConnection


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[SqliteDriver]:
    driver = SqliteDriver(SqliteFile(tmp_path / "jobs.db", lock_timeout=0.2))
    await driver.open()
    async with driver.connection() as connection:
        await connection.script("CREATE TABLE visit (n INTEGER)")
    yield driver
    await driver.close()


async def visit(connection: SqliteConnection, number: int) -> None:
    await connection.execute("INSERT INTO visit VALUES (:n)", {"n": number})


async def visits(driver: SqliteDriver) -> list[int]:
    async with driver.connection() as connection:
        return [row[0] for row in await connection.fetch("SELECT n FROM visit", {})]


async def take_turn(driver: SqliteDriver, number: int) -> None:
    async with driver.connection() as connection:
        await connection.begin()
        await visit(connection, number)
        await connection.commit()


async def in_line(driver: SqliteDriver, count: int) -> None:
    """So many wait for their turn."""
    async with asyncio.timeout(10):
        while len(driver.pool()._writer._waiting) != count:
            await asyncio.sleep(0)


async def test_who_waits_begins_when_the_one_before_has_ended_in_the_order_in_which_they_came(
    driver: SqliteDriver,
) -> None:
    async with asyncio.TaskGroup() as others, driver.connection() as first:
        await first.begin()
        for number in range(2, 6):
            others.create_task(take_turn(driver, number))
        await in_line(driver, 4)
        await visit(first, 1)
        await first.commit()

    assert await visits(driver) == [1, 2, 3, 4, 5]


async def test_a_cancelled_wait_leaves_the_line_and_no_transaction(driver: SqliteDriver) -> None:
    async with asyncio.TaskGroup() as others, driver.connection() as first:
        await first.begin()
        waiting = others.create_task(take_turn(driver, 2))
        others.create_task(take_turn(driver, 3))
        await in_line(driver, 2)

        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await visit(first, 1)
        await first.commit()

    assert await visits(driver) == [1, 3]


async def test_whose_turn_comes_as_it_is_cancelled_passes_it_on(driver: SqliteDriver) -> None:
    async with asyncio.TaskGroup() as others, driver.connection() as first:
        await first.begin()
        waiting = others.create_task(take_turn(driver, 2))
        await in_line(driver, 1)

        others.create_task(first.commit())
        await in_line(driver, 0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    await take_turn(driver, 3)
    assert await visits(driver) == [3]


async def test_nobody_waits_for_another_task_longer_than_for_another_process(driver: SqliteDriver) -> None:
    async with driver.connection() as first:
        await first.begin()
        with pytest.raises(DatabaseLocked) as told:
            await take_turn(driver, 2)
        assert told.value.waited == 0.2
        await visit(first, 1)
        await first.commit()

    await take_turn(driver, 3)
    assert await visits(driver) == [1, 3]


async def test_who_reads_waits_for_no_transaction(driver: SqliteDriver) -> None:
    async with driver.connection() as first:
        await first.begin()
        await visit(first, 1)

        assert await visits(driver) == []
        await first.rollback()


async def test_a_transaction_whose_connection_was_closed_by_hand_is_the_only_one_to_fail(driver: SqliteDriver) -> None:
    async with asyncio.TaskGroup() as others, driver.connection() as first:
        await first.begin()
        others.create_task(take_turn(driver, 2))
        first.raw.close()
        with pytest.raises(Exception, match="closed"):
            await visit(first, 1)

    assert await visits(driver) == [2]


async def test_a_transaction_that_is_open_when_the_driver_is_closed_can_still_be_committed(tmp_path: Path) -> None:
    driver = SqliteDriver(tmp_path / "jobs.db")
    await driver.open()
    async with driver.connection() as connection:
        await connection.script("CREATE TABLE visit (n INTEGER)")
        await connection.begin()
        await driver.close()
        await visit(connection, 1)
        await connection.commit()

    await driver.open()
    assert await visits(driver) == [1]
    await driver.close()


async def test_what_cannot_be_begun_holds_nobody_up(driver: SqliteDriver) -> None:
    def fail(_: Any) -> None:
        raise ValueError("not this one")

    async with driver.connection() as connection:
        with pytest.raises(ValueError, match="not this one"):
            await connection.run(Command("SELECT 1", {}, fail), begin=True)
        assert not connection.in_transaction

    await take_turn(driver, 1)
    assert await visits(driver) == [1]


async def test_who_waits_for_a_place_when_the_driver_is_closed_still_gets_a_turn(tmp_path: Path) -> None:
    driver = SqliteDriver(tmp_path / "jobs.db", pool_size=1)
    await driver.open()
    async with driver.connection() as connection:
        await connection.script("CREATE TABLE visit (n INTEGER)")
    async with asyncio.TaskGroup() as others, driver.connection() as first:
        await first.begin()
        for number in (2, 3, 4):
            others.create_task(take_turn(driver, number))
        await asyncio.sleep(0)
        await driver.close()
        await visit(first, 1)
        await first.commit()

    await driver.open()
    assert await visits(driver) == [1, 2, 3, 4]
    await driver.close()
    assert os.listdir(tmp_path) == ["jobs.db"]


async def test_who_gives_up_waiting_for_a_place_leaves_nothing_of_a_closed_driver(tmp_path: Path) -> None:
    driver = SqliteDriver(tmp_path / "jobs.db", pool_size=1)
    await driver.open()
    async with asyncio.TaskGroup() as others, driver.connection() as first:
        await first.begin()
        waiting = others.create_task(take_turn(driver, 2))
        await asyncio.sleep(0)
        await driver.close()
        await first.rollback()
        waiting.cancel()  # as the place becomes free

    assert os.listdir(tmp_path) == ["jobs.db"]


async def test_where_no_thread_can_be_started_the_next_has_its_turn_nonetheless(
    driver: SqliteDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            await take_turn(driver, 1)

    await take_turn(driver, 2)
    assert await visits(driver) == [2]


def test_a_transaction_that_everybody_has_forgotten_does_not_keep_the_file(tmp_path: Path) -> None:
    async def forget() -> None:
        driver = SqliteDriver(tmp_path / "jobs.db")
        await driver.open()
        await (await driver.connection().__aenter__()).begin()

    asyncio.run(forget())

    with closing(sqlite3.connect(tmp_path / "jobs.db", timeout=0)) as connection:
        for _ in range(1000):
            gc.collect()
            with suppress(sqlite3.OperationalError):  # its thread may still be about to forget it
                connection.execute("BEGIN IMMEDIATE")
                break
        assert connection.in_transaction


async def test_who_closes_while_another_does_is_told_when_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = ConnectionThread(SqliteFile(tmp_path / "jobs.db").connect)
    await thread.ask(SyncSqliteConnection.fetch, "SELECT 1", {}, inside=False)
    connection, tell, has_told, may_close = thread.connection, thread._tell, Event(), Event()
    closed = list[int]()

    def close() -> None:
        closed.append(1)
        if len(closed) == 2:
            may_close.wait()

    def note() -> None:
        tell()
        has_told.set()

    monkeypatch.setattr(connection, "close", close)
    monkeypatch.setattr(thread, "_tell", note)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        tasks.create_task(thread.close())
        await asyncio.sleep(0)
        has_told.wait()  # but the first has not heard it when the second asks, and ends the thread before that is done
        tasks.create_task(thread.close())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        may_close.set()
    connection.raw.close()


async def test_who_kept_the_connection_of_a_transaction_has_nothing_of_those_of_others(driver: SqliteDriver) -> None:
    async with driver.connection() as first:
        await first.begin()
        kept = first.raw
        kept.text_factory = bytes
        await first.commit()
    async with driver.connection() as second:
        await second.begin()
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            kept.execute("COMMIT")
        assert await second.fetch("SELECT 'text'", {}) == [("text",)]
        await visit(second, 2)
        await second.rollback()

    assert await visits(driver) == []


def test_nor_without_an_event_loop(tmp_path: Path) -> None:
    def keep(driver: SyncSqliteDriver) -> sqlite3.Connection:
        with as_sync(driver.connection()) as connection:
            run_now(connection.begin())
            kept: sqlite3.Connection = connection.raw
            kept.text_factory = bytes
            run_now(connection.commit())
        return kept

    driver = SyncSqliteDriver(tmp_path / "jobs.db")
    run_now(driver.open())
    kept = keep(driver)
    with as_sync(driver.connection()) as second:
        run_now(second.begin())
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            kept.execute("COMMIT")
        assert run_now(second.fetch("SELECT 'text'", {})) == [("text",)]
        run_now(second.rollback())
    run_now(driver.close())


async def test_after_its_block_a_transaction_gives_no_connection_any_more(tmp_path: Path) -> None:
    app = Onward(f"sqlite:///{tmp_path}/jobs.db", jobs=[])
    async with app:
        async with app.transaction() as tx:
            assert tx.connection.in_transaction
        with pytest.raises(TransactionClosed):
            assert tx.connection


@pytest.mark.parametrize(
    "statement",
    ["CREATE TEMP TABLE scratch (n INTEGER)", "-- nothing is written\nPRAGMA query_only = 1"],
)
@pytest.mark.parametrize("sync", [False, True])
async def test_what_a_statement_does_to_its_connection_ends_with_its_transaction(
    tmp_path: Path, statement: str, sync: bool
) -> None:
    def change(client: SyncOnward) -> None:
        with client.transaction() as tx:
            tx.execute(statement)

    app = Onward(f"sqlite:///{tmp_path}/jobs.db", jobs=[])
    async with app:
        if sync:
            with app.sync as client:
                change(client)
                change(client)
        for _ in range(2):
            async with app.transaction() as tx:
                await tx.execute(statement)
        async with app.transaction() as tx:
            await tx.execute("CREATE TABLE visit (n INTEGER)")

"""What is asked of the client library below a SQLAlchemy engine, and who waits for whom."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from onward.errors import TransactionClosed
from onward.state.command import Command
from onward.state.sqlalchemy import SqlAlchemyDriver
from support import SOON

FIRST = Command("SELECT 1", {}, len, "count")
LAST = Command("SELECT 2", {}, len, "count")


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/remarks.db")
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE remarks (remark text)"))
        await connection.execute(text("CREATE TABLE strict (remark text NOT NULL)"))
    yield engine
    await engine.dispose()


@pytest.fixture
async def driver(engine: AsyncEngine) -> AsyncIterator[SqlAlchemyDriver]:
    driver = SqlAlchemyDriver(engine)
    await driver.open()
    yield driver
    await driver.close()


async def remark(driver: SqlAlchemyDriver, said: str) -> None:
    async with driver.connection() as connection:
        await connection.run(FIRST, begin=True)
        await connection.native.execute(text("INSERT INTO remarks VALUES (:said)"), {"said": said})
        await connection.run(LAST, commit=True)


async def remarks(engine: AsyncEngine) -> list[str]:
    async with engine.connect() as connection:
        return list((await connection.execute(text("SELECT remark FROM remarks ORDER BY 1"))).scalars())


async def test_aiosqlite_is_not_asked_to_end_what_has_ended(
    driver: SqlAlchemyDriver, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()
    for name in ("commit", "rollback"):
        ask: Any = getattr(aiosqlite.Connection, name)

        def noted(raw: aiosqlite.Connection, name: str = name, ask: Any = ask) -> Any:
            asked.append(name)
            return ask(raw)

        monkeypatch.setattr(aiosqlite.Connection, name, noted)

    await remark(driver, "kept")
    for_us = asked.copy()
    async with engine.connect() as own:  # on the same connection
        await own.execute(text("INSERT INTO remarks VALUES ('undone')"))
        await own.rollback()

    assert not for_us
    assert "rollback" in asked
    assert await remarks(engine) == ["kept"]


@pytest.mark.parametrize("sql", ["INSERT INTO remarks VALUES ('one')", "SELECT remark FROM remarks"])
async def test_aiosqlite_is_asked_once_for_a_statement_of_ours_alone(
    driver: SqlAlchemyDriver, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    asked, ask = list[Any](), aiosqlite.Connection._execute

    async def noted(raw: aiosqlite.Connection, work: Any, *arguments: Any) -> Any:
        asked.append(work)
        return await ask(raw, work, *arguments)

    await remark(driver, "on a connection that is open already")
    monkeypatch.setattr(aiosqlite.Connection, "_execute", noted)

    async with driver.connection() as connection:
        await connection.run(Command(sql, {}, len))

    assert len(asked) == 1


async def test_a_statement_of_ours_alone_is_committed_and_one_that_fails_leaves_nothing(
    driver: SqlAlchemyDriver, engine: AsyncEngine
) -> None:
    async with driver.connection() as connection:
        await connection.run(Command("INSERT INTO remarks VALUES ('kept')", {}, len))
        with pytest.raises(sqlite3.IntegrityError):
            await connection.run(Command("INSERT INTO strict VALUES ('first'), (NULL)", {}, len))
    async with driver.reserved() as connection:
        await connection.run(Command("INSERT INTO remarks VALUES ('kept too')", {}, len))
        with pytest.raises(sqlite3.IntegrityError):
            await connection.run(Command("INSERT INTO strict VALUES ('first'), (NULL)", {}, len))

    assert await remarks(engine) == ["kept", "kept too"]
    async with engine.connect() as own:
        assert not (await own.execute(text("SELECT * FROM strict"))).all()


async def test_a_file_of_an_engine_has_a_write_ahead_log_from_the_start(
    driver: SqlAlchemyDriver, engine: AsyncEngine
) -> None:
    async with engine.connect() as own:
        assert (await own.execute(text("PRAGMA journal_mode"))).scalar() == "wal"


async def test_what_is_written_when_a_file_is_about_to_be_committed_is_committed(
    driver: SqlAlchemyDriver, engine: AsyncEngine
) -> None:
    event.listen(
        engine.sync_engine,
        "commit",
        lambda connection: connection.exec_driver_sql("INSERT INTO remarks VALUES ('late')"),
    )

    await remark(driver, "first")

    assert await remarks(engine) == ["first", "late"]


async def test_what_is_written_while_a_connection_goes_back_is_undone(
    driver: SqlAlchemyDriver, engine: AsyncEngine
) -> None:
    def write(raw: Any, *_: object) -> None:
        raw.cursor().execute("INSERT INTO remarks VALUES ('nobody commits this')")

    event.listen(engine.sync_engine, "reset", write)

    await remark(driver, "kept")
    event.remove(engine.sync_engine, "reset", write)

    assert await remarks(engine) == ["kept"]


async def test_who_wants_to_write_to_a_file_waits_without_a_connection(
    driver: SqlAlchemyDriver, engine: AsyncEngine
) -> None:
    pool: Any = engine.pool
    async with asyncio.timeout(SOON.total_seconds()), asyncio.TaskGroup() as tasks, driver.connection() as first:
        await first.begin()
        others = [tasks.create_task(remark(driver, f"remark {number}")) for number in range(3)]
        await asyncio.sleep(0)
        async with driver.connection() as reader:  # has nobody to wait for
            await reader.fetch("SELECT 1", {})
            lent = pool.checkedout()
        others[0].cancel()
        await first.rollback()

    assert lent == 2
    assert await remarks(engine) == ["remark 1", "remark 2"]


async def test_who_waits_for_an_engines_connection_does_so_before_it_has_one(postgres_dsn: str) -> None:
    """A worker counts those who wait, and takes no more jobs than it can serve."""
    url = postgres_dsn.replace("postgresql", "postgresql+asyncpg", 1)
    engine = create_async_engine(url, pool_size=1, max_overflow=0)
    driver = SqlAlchemyDriver(engine)
    await driver.open()
    got_it = asyncio.Event()

    async def borrow() -> None:
        async with driver.connection():
            got_it.set()

    async with asyncio.timeout(SOON.total_seconds()), asyncio.TaskGroup() as tasks, driver.connection() as connection:
        await connection.begin()
        tasks.create_task(borrow())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waited = not got_it.is_set()
        await connection.rollback()

    await driver.close()
    await engine.dispose()
    assert waited


async def test_what_is_refused_in_a_suspended_transaction_is_not_to_who_has_its_connection_next(
    driver: SqlAlchemyDriver, engine: AsyncEngine
) -> None:
    async with AsyncSession(engine) as session:
        suspended = driver.wrap(session)
        assert suspended is not None
        await suspended.begin()
        suspended.suspend()
        with pytest.raises(TransactionClosed):
            await session.execute(text("SELECT 1"))
        await suspended.commit()  # a session gives its connection back at once
        said = await remarks(engine)
        suspended.resume()

    assert said == []


async def test_a_suspended_transaction_takes_nothing_by_a_listener_that_executes_itself_either(
    driver: SqlAlchemyDriver, engine: AsyncEngine
) -> None:
    def execute(cursor: Any, *given: Any) -> bool:
        cursor.execute(*given[:2])
        return True

    event.listen(engine.sync_engine, "do_execute", execute)
    async with driver.connection() as connection:
        await connection.begin()
        connection.suspend()
        with pytest.raises(TransactionClosed):
            await connection.native.execute(text("INSERT INTO remarks VALUES ('too late')"))
        await connection.commit()

    assert await remarks(engine) == []

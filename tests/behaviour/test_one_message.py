"""BEGIN and COMMIT through SQLAlchemy, in one message with a statement of ours: what it and its client make of that."""

import asyncio
import traceback
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from onward.state.command import Command
from onward.state.driver import run_now
from onward.state.sqlalchemy import SqlAlchemyDriver, SyncSqlAlchemyDriver, one_message

FIRST = Command("SELECT :n::int AS n", {"n": 1}, len, "count")
LAST = Command("SELECT :word::text AS word", {"word": "it's"}, len, "count")
WRONG = Command("SELECT 1 / :n::int", {"n": 0}, len, "count")


@pytest.fixture(params=["asyncpg", "psycopg"])
def client(request: pytest.FixtureRequest) -> str:
    named: str = request.param
    return named


@pytest.fixture
async def engine(postgres_dsn: str, client: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(postgres_dsn.replace("postgresql", f"postgresql+{client}", 1), pool_size=1)
    async with engine.begin() as connection:
        await connection.execute(text("DROP TABLE IF EXISTS said_remarks"))
        await connection.execute(text("CREATE TABLE said_remarks (remark text)"))
    yield engine
    await engine.dispose()


@pytest.fixture
async def driver(engine: AsyncEngine) -> AsyncIterator[SqlAlchemyDriver]:
    driver = SqlAlchemyDriver(engine)
    await driver.open()
    yield driver
    await driver.close()


async def remark(tx: Any, said: str) -> None:
    await tx.execute(text("INSERT INTO said_remarks VALUES (:said)"), {"said": said})


async def remarks(engine: AsyncEngine) -> list[str]:
    async with engine.connect() as connection:
        return list((await connection.execute(text("SELECT remark FROM said_remarks ORDER BY 1"))).scalars())


@pytest.fixture
def messages(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What goes past SQLAlchemy."""
    sent = list[str]()
    for name in ("_ask_asyncpg", "_ask_psycopg"):
        ask: Any = getattr(one_message, name)

        def noted(connection: Any, message: str, sql: str, ask: Any = ask) -> Any:
            sent.append(message)
            return ask(connection, message, sql)

        monkeypatch.setattr(one_message, name, noted)
    return sent


async def test_begin_and_commit_cost_no_round_trip_of_their_own(
    driver: SqlAlchemyDriver, engine: AsyncEngine, messages: list[str]
) -> None:
    through_sqlalchemy = list[str]()
    event.listen(engine.sync_engine, "before_cursor_execute", lambda *given: through_sqlalchemy.append(given[2]))

    async with driver.connection() as connection:
        assert await connection.run(FIRST, begin=True) == 1
        await remark(connection.native, "kept")
        await connection.run(LAST, commit=True)

    begun, committed = messages
    assert begun.startswith("BEGIN")  # before SQLAlchemy 2.1 with the usual isolation level
    assert begun.endswith(";SELECT 1::int AS n")
    assert committed == "SELECT E'it''s'::text AS word;COMMIT"
    assert len(through_sqlalchemy) == 1
    assert await remarks(engine) == ["kept"]


def test_nor_do_they_without_an_event_loop(postgres_dsn: str) -> None:
    engine = create_engine(postgres_dsn.replace("postgresql", "postgresql+psycopg", 1), pool_size=1)
    driver = SyncSqlAlchemyDriver(engine)
    run_now(driver.open())
    lending = driver.connection()
    connection = run_now(lending.__aenter__())  # type: ignore[arg-type]

    assert run_now(connection.run(FIRST, begin=True)) == 1
    assert connection.native.execute(text("SELECT 1")).scalar() == 1
    run_now(connection.run(LAST, commit=True))

    run_now(lending.__aexit__(None, None, None))  # type: ignore[arg-type]
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    run_now(driver.close())
    engine.dispose()


async def test_the_engines_isolation_is_kept(postgres_dsn: str, client: str, messages: list[str]) -> None:
    url = postgres_dsn.replace("postgresql", f"postgresql+{client}", 1)
    engine = create_async_engine(url, isolation_level="REPEATABLE READ")
    driver = SqlAlchemyDriver(engine)
    await driver.open()

    async with driver.connection() as connection:
        await connection.run(FIRST, begin=True)
        level = (await connection.native.execute(text("SHOW transaction_isolation"))).scalar()
        await connection.run(LAST, commit=True)

    await driver.close()
    await engine.dispose()
    assert level == "repeatable read"
    assert messages[0].upper().startswith("BEGIN ISOLATION LEVEL REPEATABLE READ;")


@pytest.mark.parametrize("names", ["known", "unknown"])
@pytest.mark.parametrize("ends", ["commit", "rollback", "wrong first", "wrong last"])
async def test_however_it_ends_the_next_begins_anew(
    driver: SqlAlchemyDriver, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, ends: str, names: str
) -> None:
    """Also with clients that keep account of transactions under other names."""
    if names == "unknown":
        monkeypatch.setattr(one_message, "_keeps_account", lambda adapted: False)
    async with driver.connection() as connection:
        if ends == "wrong first":
            with pytest.raises(DBAPIError):
                await connection.run(WRONG, begin=True)
        else:
            await connection.run(FIRST, begin=True)
            await remark(connection.native, "first")
            if ends == "wrong last":
                with pytest.raises(DBAPIError):
                    await connection.run(WRONG, commit=True)
            else:
                await (connection.run(LAST, commit=True) if ends == "commit" else connection.rollback())

    async with driver.connection() as connection:
        await connection.run(FIRST, begin=True)
        async with connection.native.begin_nested():
            await remark(connection.native, "second")
        await connection.run(LAST, commit=True)
    async with engine.begin() as own:
        await remark(own, "third")

    assert await remarks(engine) == [*(["first"] if ends == "commit" else []), "second", "third"]


async def test_the_application_may_nest_a_transaction_of_its_clients_own(
    driver: SqlAlchemyDriver, engine: AsyncEngine
) -> None:
    async with driver.connection() as connection:
        await connection.run(FIRST, begin=True)
        raw: Any = (await connection.native.get_raw_connection()).driver_connection
        with pytest.raises(ZeroDivisionError):
            async with raw.transaction():
                await raw.execute("INSERT INTO said_remarks VALUES ('undone')")
                raise ZeroDivisionError
        async with raw.transaction():
            await raw.execute("INSERT INTO said_remarks VALUES ('kept')")
        await connection.run(LAST, commit=True)
        assert not raw.is_in_transaction() if hasattr(raw, "is_in_transaction") else raw.info.transaction_status == 0

    assert await remarks(engine) == ["kept"]


async def test_who_listens_for_a_commit_can_still_write(driver: SqlAlchemyDriver, engine: AsyncEngine) -> None:
    def last_words(connection: Any) -> None:
        connection.exec_driver_sql("INSERT INTO said_remarks VALUES ('last words')")

    event.listen(engine.sync_engine, "commit", last_words)
    async with driver.connection() as connection:
        await connection.run(FIRST, begin=True)
        await connection.run(LAST, commit=True)
    event.remove(engine.sync_engine, "commit", last_words)

    assert await remarks(engine) == ["last words"]


async def test_what_waits_in_a_session_is_written(engine: AsyncEngine) -> None:
    def last_words(session: Any) -> None:
        session.execute(text("INSERT INTO said_remarks VALUES ('of a session')"))

    driver = SqlAlchemyDriver(async_sessionmaker(engine))
    await driver.open()
    async with driver.connection() as connection:
        await connection.run(FIRST, begin=True)
        event.listen(connection.native.sync_session, "before_commit", last_words)
        await connection.run(LAST, commit=True)
    await driver.close()

    assert await remarks(engine) == ["of a session"]


async def test_cancelled_at_any_moment_it_leaves_a_connection_that_works(
    driver: SqlAlchemyDriver, engine: AsyncEngine
) -> None:
    async def work() -> None:
        while True:
            async with driver.connection() as connection:
                await connection.run(FIRST, begin=True)
                await remark(connection.native, "both")
                await remark(connection.native, "both")
                await connection.run(LAST, commit=True)

    for delay in range(40):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(delay / 4_000):
                await work()
        async with driver.connection() as connection:
            assert await connection.run(FIRST, begin=True) == 1
            await connection.run(LAST, commit=True)

    assert len(await remarks(engine)) % 2 == 0
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("asks", [False, True])
async def test_a_listener_may_say_how_its_transaction_is_isolated(
    driver: SqlAlchemyDriver, engine: AsyncEngine, asks: bool
) -> None:
    """It has begun by then, and what else the listener asks would come before a level that is said again."""

    def begun(connection: Any) -> None:
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        if asks:
            connection.exec_driver_sql("SELECT 1")

    event.listen(engine.sync_engine, "begin", begun)
    async with driver.connection() as connection:
        await connection.run(FIRST, begin=True)
        level = (await connection.native.execute(text("SHOW transaction_isolation"))).scalar()
        await connection.run(LAST, commit=True)

    assert level == "repeatable read"


async def test_what_fails_says_so_as_sqlalchemy_would_and_without_what_was_to_be_stored(
    driver: SqlAlchemyDriver, engine: AsyncEngine
) -> None:
    async with engine.begin() as own:
        await own.execute(text("DROP TABLE IF EXISTS answers"))
        await own.execute(text("ALTER TABLE said_remarks ADD PRIMARY KEY (remark)"))
        await own.execute(
            text("CREATE TABLE answers (to_remark text REFERENCES said_remarks DEFERRABLE INITIALLY DEFERRED)")
        )
    secret = Command("SELECT :word::text AS word", {"word": "card 4111"}, len, "count")

    async with driver.connection() as connection:
        await connection.run(FIRST, begin=True)
        await connection.native.execute(text("INSERT INTO answers VALUES ('nothing')"))
        with pytest.raises(IntegrityError) as refused:
            await connection.run(secret, commit=True)

    async with engine.begin() as own:
        await own.execute(text("DROP TABLE answers"))
    assert "4111" not in str(refused.value)
    assert "4111" not in "".join(traceback.format_exception(refused.value))

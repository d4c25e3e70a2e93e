"""What outlives a borrower of one of our own connections: prepared statements of ours, and nothing of his."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from onward import Onward, job
from onward.define.attempt import Attempt
from onward.state.command import Command
from onward.state.postgres.asyncpg import AsyncpgDriver
from onward.state.postgres.psycopg import PsycopgDriver, SyncPsycopgDriver
from onward.state.postgres.session import new_name

FIRST = Command("SELECT :n::int AS n", {"n": 1}, len, "count")
LAST = Command("SELECT :word::text AS word", {"word": "it's"}, len, "count")


@job("echo")
async def echo(attempt: Attempt[str]) -> str:
    return attempt.input


@pytest.fixture
async def driver(postgres_dsn: str) -> AsyncIterator[AsyncpgDriver]:
    driver = AsyncpgDriver(postgres_dsn, pool_size=1)
    await driver.open()
    yield driver
    await driver.close()


# -- prepared statements


def test_no_two_statements_are_prepared_under_one_name() -> None:
    names = [new_name("SELECT 1"), new_name("SELECT 1"), new_name("SELECT 2")]

    assert len(set(names)) == 3
    assert all(name.startswith("onward_") and len(name) < 64 for name in names)


@pytest.mark.parametrize("within", ["begin", "commit"])
async def test_a_prepare_that_is_cancelled_after_the_server_did_it_harms_nobody(
    driver: AsyncpgDriver, within: str
) -> None:
    """The answer is lost to us, not the statement to the server: the same connection goes on as if nothing had been."""
    async with driver.connection() as connection:
        if within == "commit":
            await connection.begin()
        execute, prepared = connection._raw.execute, list[str]()

        async def cancelled_when_done(sql: str, **options: Any) -> Any:
            answer = await execute(sql, **options)
            if sql.startswith("PREPARE"):
                prepared.append(sql)
                raise asyncio.CancelledError
            return answer

        raw = connection._raw
        connection._raw = _Patched(raw, execute=cancelled_when_done)
        with pytest.raises(asyncio.CancelledError):
            await connection.run(FIRST if within == "begin" else LAST, **{within: True})
        connection._raw = raw

        if within == "begin":
            assert await connection.run(FIRST, begin=True) == 1
        await connection.run(LAST, commit=True)

    assert len(prepared) == 1


class _Patched:
    """An asyncpg connection, which has no room for other methods, with some."""

    def __init__(self, raw: Any, **methods: Any) -> None:
        self._raw = raw
        vars(self).update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


async def test_prepares_cancelled_at_any_moment_leave_a_connection_that_works(driver: AsyncpgDriver) -> None:
    for delay in range(40):
        async with driver.connection() as connection:
            connection.session.prepared.clear()
            with pytest.raises((asyncio.CancelledError, TimeoutError)):
                async with asyncio.timeout(delay / 20_000):
                    while True:
                        await connection.run(FIRST, begin=True)
                        connection.session.prepared.clear()
                        await connection.run(LAST, commit=True)
                        connection.session.prepared.clear()
            await connection.end_unfinished()
            assert await connection.run(FIRST, begin=True) == 1
            await connection.run(LAST, commit=True)


async def test_two_apps_on_one_connection_prepare_the_same_statement(postgres_dsn: str) -> None:
    raw = await asyncpg.connect(postgres_dsn)
    for driver in (AsyncpgDriver(postgres_dsn), AsyncpgDriver(postgres_dsn)):
        connection = driver.wrap(raw)
        assert connection is not None
        assert await connection.run(FIRST, begin=True) == 1
        await connection.run(LAST, commit=True)
    await raw.close()


@pytest.mark.parametrize("forget", ["DEALLOCATE ALL", "DISCARD ALL"])
async def test_statements_that_the_application_had_the_server_forget_are_prepared_again(
    driver: AsyncpgDriver, forget: str
) -> None:
    async with driver.connection() as connection:
        assert await connection.run(FIRST, begin=True) == 1
        await connection.run(LAST, commit=True)
        await connection.script(forget)

        with pytest.raises(asyncpg.InvalidSQLStatementNameError) as raised:
            await connection.run(FIRST, begin=True)
        await connection.rollback()
        assert await connection.run(FIRST, begin=True) == 1
        await connection.run(LAST, commit=True)

    fault = driver.fault(raised.value)
    assert fault is not None
    assert fault.is_transient


@pytest.mark.parametrize("forget", ["DEALLOCATE ALL", "DISCARD ALL"])
async def test_so_are_those_that_asyncpg_prepared(driver: AsyncpgDriver, forget: str) -> None:
    asking = Command("SELECT :n::int[] AS n, 1 AS other", {"n": [1]}, len)
    async with driver.connection() as connection:
        await connection.run(asking)
        await connection.script(forget)

        with pytest.raises(asyncpg.InvalidSQLStatementNameError):
            await connection.run(asking)
        assert await connection.run(asking) == 1


async def test_a_prepare_in_a_transaction_that_has_failed_is_tried_anew_in_the_next(driver: AsyncpgDriver) -> None:
    async with driver.connection() as connection:
        await connection.begin()
        with pytest.raises(asyncpg.DivisionByZeroError):
            await connection.query("SELECT 1 / 0", {})
        with pytest.raises(asyncpg.InFailedSQLTransactionError):
            await connection.run(LAST, commit=True)
        await connection.rollback()

        await connection.begin()
        await connection.run(LAST, commit=True)


async def test_prepared_statements_outlive_the_reset_between_two_borrowers(driver: AsyncpgDriver) -> None:
    async with driver.connection() as connection:
        await connection.run(FIRST, begin=True)
        await connection.query("SELECT 1", {})
        await connection.run(LAST, commit=True)
        names = dict(connection.session.prepared)
    async with driver.connection() as connection:
        await connection.run(FIRST, begin=True)
        await connection.run(LAST, commit=True)

        assert names.items() <= connection.session.prepared.items()


# -- what a borrower leaves behind


TRACES = """
DROP TABLE IF EXISTS traced CASCADE;
CREATE TABLE traced (n int);
CREATE OR REPLACE FUNCTION leave_traces() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM set_config('app.tenant', 'ACME', false);
  PERFORM set_config('role', 'pg_monitor', false);
  PERFORM pg_advisory_lock(4711);
  CREATE TEMP TABLE IF NOT EXISTS left_behind (n int);
  RETURN new;
END $$;
CREATE TRIGGER leaves BEFORE INSERT ON traced FOR EACH ROW EXECUTE FUNCTION leave_traces();
"""
SEEN = """
SELECT coalesce(current_setting('app.tenant', true), '') || ' ' || current_setting('role') || ' '
    || (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND pid = pg_backend_pid()) || ' '
    || (to_regclass('pg_temp.left_behind') IS NOT NULL)
"""
NOTHING = " none 0 false"


@pytest.fixture(params=["asyncpg", "psycopg"])
async def client(request: pytest.FixtureRequest, postgres_dsn: str, opened: Any) -> Onward:
    address = postgres_dsn.replace("postgresql", f"postgresql+{request.param}", 1)
    app: Onward = await opened(echo, target=address, pool_size=1)
    async with app.driver.connection() as connection:
        await connection.script(TRACES)
    return app


@pytest.fixture
def target(postgres_dsn: str) -> str:
    return postgres_dsn


async def test_what_a_trigger_sets_is_gone_for_the_next(client: Onward) -> None:
    """Nothing in the text of a statement says what it leaves behind."""
    async with client.transaction() as tx:
        await tx.execute("INSERT INTO traced VALUES (1)")
        left = await tx.fetchval(SEEN)
    async with client.transaction() as tx:
        seen = await tx.fetchval(SEEN)

    assert (left, seen) == ("ACME pg_monitor 1 true", NOTHING)


@pytest.mark.parametrize("how", ["SET SESSION AUTHORIZATION pg_monitor", "SET ROLE pg_monitor"])
async def test_the_next_is_oneself_again_whoever_the_last_one_became(client: Onward, how: str) -> None:
    who = "SELECT current_user || ' ' || session_user"
    async with client.transaction() as tx:
        oneself = await tx.fetchval(who)
        await tx.execute(how)
        became = await tx.fetchval(who)
    async with client.transaction() as tx:
        seen = await tx.fetchval(who)

    assert "pg_monitor" in became
    assert seen == oneself


async def test_the_reset_is_not_undone_with_the_transaction_it_travels_with(client: Onward) -> None:
    async with client.transaction() as tx:
        await tx.execute("INSERT INTO traced VALUES (1)")
    with pytest.raises(ZeroDivisionError):
        async with client.transaction():
            raise ZeroDivisionError
    async with client.driver.connection() as connection:
        seen = (await connection.fetch(SEEN, {}))[0][0]

    assert seen == NOTHING


async def test_a_lone_call_after_a_borrower_finds_a_session_as_new(client: Onward) -> None:
    async with client.transaction() as tx:
        await tx.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        await tx.execute("SET default_transaction_read_only = off")
        await tx.execute("SET ROLE pg_monitor")

    chain = await client.start(echo, "as oneself")

    assert await client.find_chain(chain.id) is not None


async def test_the_reset_costs_no_round_trip_of_its_own(driver: AsyncpgDriver) -> None:
    sent: list[str] = []
    for _ in range(2):  # what it runs is prepared once
        async with driver.connection() as connection:
            await connection.run(FIRST, begin=True)
            await connection.run(LAST, commit=True)
            await connection.query("SELECT 1", {})
    for _ in range(3):
        async with driver.connection() as connection:
            with connection._raw.query_logger(lambda record: sent.append(record.query)):
                await connection.run(FIRST, begin=True)
                await connection.execute("SELECT set_config('app.tenant', :name, false)", {"name": "ACME"})
                await connection.run(LAST, commit=True)
                await asyncio.sleep(0)  # asyncpg tells a moment later

    assert len(sent) == 9
    assert not any("AUTHORIZATION" in message for message in sent)
    assert ["RESET ALL" in message for message in sent] == [True, False, False] * 3


@pytest.mark.parametrize(
    "first",
    [
        pytest.param("-- A look, perhaps at nothing.\nSELECT 1 WHERE :n::int > 1", id="a query without rows"),
        pytest.param("UPDATE traced SET n = :n::int", id="no query"),
    ],
)
async def test_whatever_the_next_begins_with_no_lock_of_the_session_is_left(client: Onward, first: str) -> None:
    for _ in range(3):  # not all of it is prepared at first
        async with client.driver.connection() as connection:
            await connection.query("SELECT pg_advisory_lock(4711)", {})
        async with client.driver.connection() as connection:
            assert await connection.run(Command(first, {"n": 1}, len, "count"), begin=True) == 0
            seen = (await connection.fetch(SEEN, {}))[0][0]
            await connection.rollback()

        assert seen == NOTHING


async def test_connections_on_which_only_our_own_statements_ran_are_not_reset(driver: AsyncpgDriver) -> None:
    for _ in range(2):
        async with driver.connection() as connection:
            await connection.run(FIRST, begin=True)
            await connection.fetch("SELECT 1", {})
            await connection.run(LAST, commit=True)
            assert not connection.session.needs_reset


def test_a_sync_client_leaves_nothing_behind_either(postgres_dsn: str) -> None:
    app = Onward(
        postgres_dsn.replace("postgresql", "postgresql+psycopg", 1),
        jobs=[echo],
        pool_size=1,
        schema="sync_sessions",
        migrate=True,
    )
    with app.sync as client:
        with client.transaction() as tx:
            tx.execute("SELECT set_config('app.tenant', 'ACME', false), pg_advisory_lock(4711)")
        with client.transaction() as tx:
            seen = tx.fetchval(SEEN)

    assert seen == NOTHING


# -- how many


@pytest.mark.parametrize("kind", [AsyncpgDriver, PsycopgDriver])
def test_the_sync_sibling_has_as_many_connections(kind: Any) -> None:
    sibling = kind("postgresql://localhost/none", pool_size=40).sync_sibling()

    assert isinstance(sibling, SyncPsycopgDriver)
    assert sibling._pool_size == 40


async def test_the_sync_sibling_of_an_engine_has_as_many_as_the_engine() -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    from onward.state.sqlalchemy import SqlAlchemyDriver

    engine = create_async_engine("postgresql+asyncpg://localhost/none", pool_size=7)
    sibling = SqlAlchemyDriver(engine).sync_sibling()

    assert isinstance(sibling, SyncPsycopgDriver)
    assert sibling._pool_size == 7

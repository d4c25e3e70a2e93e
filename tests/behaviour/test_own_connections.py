"""The connections of psycopg's that our own pools are made of wait in a way of their own: as psycopg's do, for less."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, LiteralString

import asyncpg
import psycopg
import pytest

from onward.state.command import Command
from onward.state.postgres.asyncpg import AsyncpgDriver
from onward.state.postgres.psycopg_own import OwnConnection

SOON = 10
_SLEEP = "SELECT pg_sleep(60)"


@pytest.fixture
async def connection(postgres_dsn: str) -> AsyncIterator[OwnConnection]:
    async with asyncio.timeout(60), await OwnConnection.connect(postgres_dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
async def other(postgres_dsn: str) -> AsyncIterator[OwnConnection]:
    async with await OwnConnection.connect(postgres_dsn, autocommit=True) as connection:
        yield connection


async def asleep(other: OwnConnection, connection: OwnConnection) -> None:
    """Until the server is at work on the connection's statement."""
    state = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND state = 'active' AND wait_event = 'PgSleep'"
    while await value(other, state, connection.info.backend_pid) == 0:
        await asyncio.sleep(0.01)


async def value(connection: OwnConnection, sql: LiteralString, *given: Any) -> Any:
    row = await (await connection.execute(sql, given)).fetchone()
    assert row is not None
    return row[0]


def listens(number: int) -> bool:
    """Whether the event loop listened to a socket, which it does not do any more."""
    return asyncio.get_running_loop().remove_reader(number)


async def test_a_cancelled_statement_ends_on_the_server_too(connection: OwnConnection, other: OwnConnection) -> None:
    async with asyncio.timeout(SOON), asyncio.TaskGroup() as tasks:
        sleeping = tasks.create_task(connection.execute(_SLEEP))
        await asleep(other, connection)
        sleeping.cancel()

    assert sleeping.cancelled()
    assert await value(connection, "SELECT 7") == 7


async def end_session(connection: OwnConnection, other: OwnConnection) -> None:
    await other.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])


async def close(connection: OwnConnection, other: OwnConnection) -> None:
    await connection.close()


@pytest.mark.parametrize("end", [end_session, close])
async def test_whoever_waits_on_a_connection_that_ends_is_told(
    connection: OwnConnection, other: OwnConnection, end: Callable[[OwnConnection, OwnConnection], Awaitable[None]]
) -> None:
    number = connection.pgconn.socket

    async def sleep() -> None:
        with pytest.raises(psycopg.OperationalError):
            await connection.execute(_SLEEP)

    async with asyncio.timeout(SOON), asyncio.TaskGroup() as tasks:
        tasks.create_task(sleep())
        await asleep(other, connection)
        await end(connection, other)

    assert not listens(number)


async def test_nobody_listens_to_one_that_was_lost_while_it_was_idle(
    connection: OwnConnection, other: OwnConnection
) -> None:
    await connection.execute("SELECT 1")
    number = connection.pgconn.socket

    await end_session(connection, other)

    while connection._loop is not None:
        await asyncio.sleep(0.01)
    assert not listens(number)
    with pytest.raises(psycopg.OperationalError):
        await connection.execute("SELECT 1")
    assert not listens(number)


async def test_what_comes_unasked_is_not_lost(connection: OwnConnection, other: OwnConnection) -> None:
    heard = list[psycopg.Notify]()
    connection.add_notify_handler(heard.append)
    await connection.execute("LISTEN news")
    await other.execute("NOTIFY news, 'first'")
    while connection._loop is not None:
        await asyncio.sleep(0.01)

    assert await value(connection, "SELECT 7") == 7

    assert [notify.payload for notify in heard] == ["first"]


async def test_it_does_what_is_more_than_to_read_an_answer(connection: OwnConnection, other: OwnConnection) -> None:
    long = "x" * 30_000_000
    assert await value(connection, "SELECT length(%s)", long) == len(long)

    async with connection.cursor() as cursor:
        await cursor.execute("CREATE TEMP TABLE many (number integer)")
        async with cursor.copy("COPY many FROM STDIN") as copying:
            for number in range(10_000):
                await copying.write_row([number])
        async with cursor.copy("COPY many TO STDOUT") as copied:
            assert len([row async for row in copied.rows()]) == 10_000

    async with connection.pipeline():
        first = await connection.execute("SELECT 1")
        second = await connection.execute("SELECT 2")
        assert [await first.fetchone(), await second.fetchone()] == [(1,), (2,)]

    await connection.execute("LISTEN news")
    await other.execute("NOTIFY news, 'later'")
    assert [notify.payload async for notify in connection.notifies(timeout=SOON, stop_after=1)] == ["later"]
    assert await value(connection, "SELECT 7") == 7


@pytest.mark.parametrize("is_last", [False, True])
async def test_whoever_is_cancelled_before_the_commit_has_begun_leaves_no_transaction_open(
    postgres_dsn: str, is_last: bool
) -> None:
    loop, raw = asyncio.get_running_loop(), await asyncpg.connect(postgres_dsn)
    connection = AsyncpgDriver(postgres_dsn).wrap(raw)
    assert connection is not None
    await connection.begin()
    before = loop.create_task(connection.fetch("SELECT pg_sleep(:s::float)", {"s": 1}))  # another task's, first in turn
    await asyncio.sleep(0.05)

    last = Command("SELECT 1", {}, len, "count")
    committing = loop.create_task(connection.run(last, commit=True) if is_last else connection.commit())
    await asyncio.sleep(0.05)
    committing.cancel()
    await asyncio.wait([committing, before])

    assert committing.cancelled()
    assert before.exception()
    assert not connection.in_transaction
    assert raw.is_closed() or raw._top_xact is None
    await raw.close()


async def test_whoever_is_cancelled_while_a_transaction_begins_leaves_none_open(postgres_dsn: str) -> None:
    loop, raw, driver = asyncio.get_running_loop(), await asyncpg.connect(postgres_dsn), AsyncpgDriver(postgres_dsn)
    left = list[int]()
    for turns in range(8):  # of the event loop: every state that it can be in
        connection = driver.wrap(raw)
        assert connection is not None
        beginning = loop.create_task(connection.begin())
        for _ in range(turns):
            await asyncio.sleep(0)
        beginning.cancel()
        await asyncio.wait([beginning])
        if beginning.cancelled():
            await raw.execute("SELECT 1")
            left += [turns] * raw.is_in_transaction()
        await connection.rollback()
    await raw.close()

    assert left == []

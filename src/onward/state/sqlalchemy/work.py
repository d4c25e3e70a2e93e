"""What is done with a SQLAlchemy connection, as plain functions of the sync one; `do` runs them on either kind."""

import asyncio
import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from traceback import clear_frames
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, InvalidRequestError, StatementError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from onward.errands import to_the_end
from onward.errors import TransactionUnsuitable
from onward.state.command import Command, Operation, Rows
from onward.state.driver import POISONED, Result, run_in_turn, run_now
from onward.state.postgres.session import reads_only as said_to_read_only
from onward.state.postgres.settings import ask_safely, hide_row
from onward.state.sqlalchemy.one_message import ask_past
from onward.state.sqlite.connection import SyncSqliteConnection, is_busy, writes
from onward.state.sqlite.gate import LockLimit
from onward.state.statement import ParameterStyle, spell
from onward.transport import cut_off

T = TypeVar("T")
MakePatience: TypeAlias = Callable[[Connection], AbstractContextManager[None]]
"""How long statements of ours may take on a connection."""
STYLES: dict[str, ParameterStyle] = {
    "asyncpg": "dollar",
    "psycopg": "percent",
    "aiosqlite": "qmark",
    "pysqlite": "qmark",
}
"""The clients that are known to work, and how their parameters are spelled."""


_SOON, _LOOK = 0.05, 0.001
"""Seconds in which whoever waits for a file's lock looks again and again, and between looks."""


class WriterBusy(Exception):
    """Another connection writes to the SQLite file; nothing has been done yet that trying again would repeat."""


async def do(handle: Any, work: Callable[..., T], *arguments: Any, limit: LockLimit | None = None) -> T:
    """Do work with the sync object behind a connection or session, waiting for SQLite's write lock if need be, for ever
    unless there is a `limit`.

    An async connection that is not open yet is opened first.
    """
    began = time.monotonic()
    is_async = isinstance(handle, AsyncConnection | AsyncSession)
    whole = is_async and is_file(handle)
    while True:
        try:
            if whole:
                # Whoever is cancelled is told afterwards: the thread goes on all the same, and may take the write lock.
                return await to_the_end(_do(handle, work, *arguments))
            return await _do(handle, work, *arguments) if is_async else work(handle, *arguments)
        except WriterBusy:
            if limit is not None:
                limit.check(began)
            pause = random.uniform(0.005, 0.03)
        if is_async:
            await asyncio.sleep(pause)
        else:
            time.sleep(pause)  # noqa: ASYNC251 - there is no loop to keep running


async def _do(handle: Any, work: Callable[..., T], *arguments: Any) -> T:
    if not is_open(handle):
        await _start(handle)
    answer: T = await handle.run_sync(work, *arguments)
    return answer


async def open_whole(handle: Any, options: Mapping[str, Any]) -> None:
    """Open what an engine or sessionmaker has made, if that is still to be done, with these options of SQLAlchemy's.

    An engine that has them would set them before anybody has the connection: to cancel that, which waits with psycopg,
    would lose it. Whoever has it gives it up: it may be in autocommit then, and nobody would know.
    """
    if not is_open(handle):
        await (to_the_end(_start(handle)) if is_file(handle) else _start(handle))
    if not options:
        return
    if not isinstance(handle, AsyncConnection):
        handle.execution_options(**options)
        return
    try:
        await handle.execution_options(**options)
    except BaseException:
        await to_the_end(handle.invalidate())
        raise


async def _start(handle: AsyncConnection) -> None:
    try:
        await handle.start()
    except BaseException as error:
        # A connection that is made while its wait is cancelled would live as long as anybody has the traceback.
        clear_frames(error.__traceback__)
        raise


def is_open(handle: Any) -> bool:
    """Whether it has its connection; all but an async one open by themselves."""
    return not isinstance(handle, AsyncConnection) or handle.sync_connection is not None


def is_file(handle: AsyncConnection | AsyncSession) -> bool:
    """Whether it leads to SQLite."""
    bind = handle.engine if isinstance(handle, AsyncConnection) else handle.get_bind()
    return bind.dialect.name == "sqlite"


def has_thread(handle: Any) -> bool:
    """Whether it leads to SQLite by way of aiosqlite, which does in a thread what it is asked."""
    return isinstance(handle, AsyncConnection | AsyncSession) and is_file(handle)


# -- statements


def rows(connection: Connection, sql: str, parameters: Mapping[str, Any], past: bool = False) -> Rows:
    """Run a statement of ours; its rows. `past`: SQLAlchemy has not to begin before it."""
    if connection.dialect.driver == "asyncpg":
        ask_safely(client(connection))
        if past:
            return _rows_of_asyncpg(connection, sql, parameters)
    try:
        return query(connection, sql, parameters).rows
    except StatementError as error:
        hide_row(error)
        raise


def _rows_of_asyncpg(connection: Connection, sql: str, parameters: Mapping[str, Any]) -> Rows:
    """The same, past SQLAlchemy, at a third of the cost."""
    spelled = spell(sql, "dollar")
    given = spelled.positional(parameters)
    return ask_past(connection, spelled.sql, lambda raw: raw.fetch(spelled.sql, *given))


def run_in_thread(
    connection: Connection, first: Operation[T], more: tuple[Command[Any], ...] = (), *, begin: bool, commit: bool
) -> T:
    """Run operations of ours in aiosqlite's thread as one piece, past SQLAlchemy, which goes there four times for each
    statement; `begin` as SQLite's one writer before the first, `commit` after the last.
    """
    adapted: Any = connection.connection.dbapi_connection
    sync = SyncSqliteConnection(adapted.driver_connection._conn)

    def run() -> T:
        if begin:
            _begin_at_once(sync.raw)
        return run_now(run_in_turn(sync, first, *more, commit=commit))

    answer: T = adapted.run_async(lambda raw: raw._execute(run))
    return answer


def rows_in_thread(connection: Connection, sql: str, parameters: Mapping[str, Any], *, alone: bool) -> Rows:
    """The rows of a statement of ours, likewise; `alone`: one that may write commits by itself."""
    begins = alone and writes(sql)
    try:
        return run_in_thread(connection, Command(sql, parameters, _as_they_are), begin=begins, commit=begins)
    except sqlite3.OperationalError as error:
        if alone and is_busy(error):
            raise WriterBusy from error
        raise


def _as_they_are(rows: Rows) -> Rows:
    return rows


def _begin_at_once(raw: sqlite3.Connection) -> None:
    """Begin as the one writer, or raise WriterBusy soon. SQLite's own wait can neither be cancelled nor ended; it looks
    ever more seldom, until it finds the lock free by chance only.
    """
    if raw.in_transaction:
        # An event listener of the application's has begun, or sqlite3 with autocommit=False; nothing is done yet.
        raw.execute("ROLLBACK")
    asking = raw.cursor()
    asking.row_factory = None  # the application's, perhaps
    patience = asking.execute("PRAGMA busy_timeout").fetchone()[0]
    asking.execute("PRAGMA busy_timeout = 0")
    try:
        _begin_soon(raw)
    finally:
        asking.execute(f"PRAGMA busy_timeout = {patience}")
        asking.close()


def _begin_soon(raw: sqlite3.Connection) -> None:
    until = time.monotonic() + _SOON
    while True:
        try:
            raw.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            if time.monotonic() > until:
                raise WriterBusy from error
        time.sleep(random.uniform(0.5, 1.5) * _LOOK)


def query(connection: Connection, sql: str, parameters: Mapping[str, Any]) -> Result:
    """Run a statement; all there is to know of it."""
    style = STYLES[connection.dialect.driver]
    spelled = spell(sql, style)
    given: Any = tuple(spelled.positional(parameters))
    if style == "percent":
        # psycopg makes an array of a list, and a record of a tuple.
        named = zip(spelled.names, given, strict=True)
        given = {name: list(value) if isinstance(value, tuple) else value for name, value in named}
    try:
        result = connection.exec_driver_sql(spelled.sql, given)
    except StatementError as error:
        error.hide_parameters = True  # payloads are among them, and its text goes into logs
        raise
    changed = result.rowcount  # forgotten with the last row; and SQLite does not count what RETURNING returns
    columns = tuple(result.keys()) if result.returns_rows else ()
    found = [tuple(row) for row in result] if result.returns_rows else []
    return Result(columns, found, max(changed, len(found)))


def script(connection: Connection, sql: str) -> None:
    """Run several statements."""
    driver = connection.dialect.driver
    if driver == "asyncpg":
        # A cursor here prepares, which takes one statement at a time; but it is also what begins the transaction.
        if not is_autocommit(connection) and not client(connection).is_in_transaction():
            connection.exec_driver_sql("SELECT 1")
        adapted: Any = connection.connection.dbapi_connection
        adapted.run_async(lambda raw: raw.execute(sql))
    elif driver == "psycopg":
        connection.exec_driver_sql(sql, execution_options={"no_parameters": True})
    else:
        # sqlite3's own executescript would commit first.
        for statement in _statements(sql):
            connection.exec_driver_sql(statement)


def _statements(sql: str) -> Iterator[str]:
    statement = ""
    for piece in sql.split(";"):
        statement += piece + ";"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


# -- transactions


def client(connection: Connection) -> Any:
    """The connection as the client library has it."""
    raw: Any = connection.connection.dbapi_connection
    return getattr(raw, "driver_connection", raw)  # async clients come in SQLAlchemy's own wrapping


def is_in_transaction(connection: Connection) -> bool:
    """Whether the server knows of a transaction; SQLAlchemy may only believe that there is one."""
    raw = client(connection)
    if connection.dialect.driver == "psycopg":
        return bool(raw.info.transaction_status.name != "IDLE")
    return bool(raw.is_in_transaction() if connection.dialect.driver == "asyncpg" else raw.in_transaction)


def end_of(connection: Connection) -> Callable[[], object]:
    """Cuts a connection to a server off."""
    raw = client(connection)
    if connection.dialect.driver == "asyncpg":
        terminate: Callable[[], object] = raw.terminate
        return terminate
    number: int = raw.fileno()
    return lambda: cut_off(number)


def reads_only(connection: Connection) -> bool | None:
    """Whether the Postgres server says of itself that it takes no writes; None where it does not say."""
    raw = client(connection)
    if connection.dialect.driver == "psycopg":
        said: Callable[[str], str | None] = raw.info.parameter_status
    else:
        settings = raw.get_settings()
        said = lambda name: getattr(settings, name, None)  # noqa: E731 - the same question to another client
    return said_to_read_only(standby=said("in_hot_standby"), by_default=said("default_transaction_read_only"))


def is_autocommit(thing: Connection | Engine) -> bool:
    """Whether statements are committed one by one."""
    chosen = thing.get_execution_options().get("isolation_level")
    return (chosen or getattr(thing.dialect, "_on_connect_isolation_level", None)) == "AUTOCOMMIT"


def is_locked(error: DBAPIError) -> bool:
    """Whether SQLite could not get a lock."""
    code = getattr(error.orig, "sqlite_errorcode", 0)
    return code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def take_write_lock(connection: Connection) -> None:
    """Begin as SQLite's one writer."""
    try:
        if not connection.in_transaction():
            connection.begin()
    except DBAPIError as error:  # of an event listener of the application's that begins
        if is_locked(error):
            raise WriterBusy from error
        raise
    adapted: Any = connection.connection.dbapi_connection
    if connection.dialect.driver == "aiosqlite":
        adapted.run_async(lambda raw: raw._execute(lambda: _begin_at_once(raw._conn)))
    else:
        _begin_at_once(adapted)


def keep_write_ahead_log(connection: Connection) -> None:
    """As our own connections to the file have it, who may come later; unless somebody is in the way."""
    with suppress(DBAPIError):
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")


def refuse_poisoned(connection: Connection) -> None:
    """In a transaction that a failed statement has poisoned, COMMIT means ROLLBACK, and no client says so."""
    poisoned = False
    if connection.dialect.driver == "psycopg":
        poisoned = client(connection).info.transaction_status.name == "INERROR"
    elif connection.dialect.driver == "asyncpg":
        try:
            connection.exec_driver_sql("SELECT 1")  # asyncpg keeps the state to itself
        except DBAPIError as error:
            poisoned = getattr(error.orig, "sqlstate", None) == "25P02"
            if not poisoned:
                raise
    if poisoned:
        raise TransactionUnsuitable(POISONED)


def nothing() -> None:
    """In place of what ends a wait, where nobody can."""


def take_back(connection: Connection) -> None:
    """Have the connection of a session go back to its pool, whatever the session says to that: a task that the
    application has left behind may be in the midst of something with it.
    """
    if not connection.closed:
        roll_back(connection)
        connection.close()


def roll_back(target: Connection | Session, connection: Connection | None = None) -> None:
    """Undo what is open, and have nobody lent a connection where that could not be. `connection`: that of a session."""
    is_lent = connection is not None and not (connection.closed or connection.invalidated)
    lent: Any = connection.connection if connection is not None and is_lent else None
    record = lent and lent._connection_record
    try:
        target.rollback()
    except InvalidRequestError:
        if connection is None:
            raise
        take_back(connection)
    except (DBAPIError, OSError) as error:
        # It is broken, or in the middle of a statement that the application has left behind, and SQLAlchemy takes the
        # transaction for ended all the same: whoever is lent the connection next would write in it.
        with suppress(DBAPIError, OSError):
            if isinstance(target, Connection):
                target.invalidate(error)
            elif record is not None:  # the session has given it back
                record.invalidate(error)

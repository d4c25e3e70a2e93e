"""The client libraries, patched where every statement passes: what is injected is what the library itself would meet.

On Postgres an error is raised by the server, on the very connection and in the very transaction, and a cut ends the
real socket. SQLite has no server: its errors are made here, with the codes that SQLite gives.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
from asyncpg import connect_utils
from asyncpg.protocol import Protocol
from psycopg import errors, generators, pq
from psycopg._connection_base import BaseConnection
from psycopg._cursor_base import BaseCursor

from onward.transport import cut_off
from sweep.points import ERRORS, TAP, Blow

CODES = {Blow.READ_ONLY: "25006", Blow.SERIALIZATION: "40001", Blow.TIMEOUT: "57014", Blow.FULL: "53100"}
_RAISE = "DO $$BEGIN RAISE EXCEPTION USING ERRCODE = '{}', MESSAGE = 'injected'; END$$"
_NEVER_FAIL = ("BEGIN", "ROLLBACK", "RELEASE", "SAVEPOINT", "DEALLOCATE", "DISCARD", "RESET", "UNLISTEN", "CLOSE")


def can_fail(label: str) -> bool:
    """Whether a server that is there can refuse the statement."""
    return not label.upper().startswith(_NEVER_FAIL) or ";" in label.rstrip(" ;")


def _instead(blow: Blow, sql: str) -> str:
    """What is sent instead of a statement that is to fail, so that the session ends up as it would have."""
    failing = _RAISE.format(CODES[blow])
    words = sql.upper()
    if words.strip().startswith("COMMIT") or (words.rstrip(" ;").endswith("COMMIT") and blow is Blow.SERIALIZATION):
        return f"ROLLBACK;{failing}"  # a COMMIT that fails has ended the transaction
    begins = words.rfind("BEGIN;")
    return f"{sql[: begins + 6]}{failing}" if begins >= 0 else failing


# -- asyncpg


def _patch_asyncpg(patch: pytest.MonkeyPatch) -> None:
    query, prepare, bind_execute = Protocol.query, Protocol.prepare, Protocol.bind_execute

    async def hit(self: Any, blow: Blow | None, sql: str, going_on: Any) -> Any:
        if blow is None:
            return await going_on()
        if blow in ERRORS:
            return await query(self, _instead(blow, sql), None)
        if blow is Blow.CUT_BEFORE:
            self.abort()
            return await going_on()
        answer = await going_on()
        assert answer is not NotImplemented
        self.abort()
        raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

    async def tapped_query(self: Any, sql: str, timeout: Any) -> Any:
        blow = TAP.statement(sql)
        return await hit(self, blow, sql, lambda: query(self, sql, timeout))

    async def tapped_prepare(self: Any, name: str, sql: str, timeout: Any, **options: Any) -> Any:
        blow = TAP.statement(f"prepare: \x00{sql}")
        return await hit(self, blow, sql, lambda: prepare(self, name, sql, timeout, **options))

    async def tapped_bind_execute(self: Any, state: Any, *arguments: Any, **options: Any) -> Any:
        blow = TAP.statement(state.query)
        return await hit(self, blow, state.query, lambda: bind_execute(self, state, *arguments, **options))

    connect = connect_utils._connect

    async def tapped_connect(**options: Any) -> Any:
        blow = TAP.statement("connect")
        if blow is Blow.CUT_BEFORE:
            raise ConnectionRefusedError(111, "Connect call failed (injected)")
        if blow is Blow.FULL:
            raise asyncpg.TooManyConnectionsError("sorry, too many clients already (injected)")
        return await connect(**options)

    patch.setattr(Protocol, "query", tapped_query)
    patch.setattr(Protocol, "prepare", tapped_prepare)
    patch.setattr(Protocol, "bind_execute", tapped_bind_execute)
    patch.setattr(connect_utils, "_connect", tapped_connect)


# -- psycopg


def _failing(raw: Any, blow: Blow, text: str) -> Iterator[Any]:
    """As a generator of psycopg's: the statement fails on the server."""
    if text == "COMMIT":
        yield from raw._exec_command("ROLLBACK")
    else:
        yield from raw._start_query()
    raw.pgconn.send_query(_RAISE.format(CODES[blow]).encode())
    results = yield from generators.execute(raw.pgconn)
    raise errors.error_from_result(results[-1], encoding="utf-8")


def _refuse(blow: Blow | None) -> None:
    """A server that is not reached, or has no room."""
    if blow is Blow.CUT_BEFORE:
        raise psycopg.OperationalError("connection failed: Connection refused (injected)")
    if blow is Blow.FULL:
        raise psycopg.OperationalError("connection failed: FATAL:  sorry, too many clients already (injected)")


def _tapped(raw: Any, text: str, going_on: Iterator[Any]) -> Iterator[Any]:
    """A generator of psycopg's that speaks to the server, as a point."""
    blow = None if raw in UNTAPPED else TAP.statement(text)
    if blow in ERRORS:
        return (yield from _failing(raw, blow, text))
    if blow is Blow.INTERRUPTED_BEFORE:
        raise KeyboardInterrupt
    if blow is Blow.CUT_BEFORE:
        cut_off(raw.pgconn.socket)
    answer = yield from going_on
    if blow is Blow.CUT_AFTER:
        raw.pgconn.finish()
        raise _lost()
    if blow is Blow.INTERRUPTED_AFTER:
        raise KeyboardInterrupt
    return answer


def _lost() -> psycopg.OperationalError:
    return psycopg.OperationalError("consuming input failed: server closed the connection unexpectedly (injected)")


def _patch_psycopg(patch: pytest.MonkeyPatch) -> None:
    execute, commit, rollback = BaseCursor._execute_gen, BaseConnection._commit_gen, BaseConnection._rollback_gen
    async_connect, connect = psycopg.AsyncConnection.connect, psycopg.Connection.connect

    def tapped_execute(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        return _tapped(self._conn, _text(query), execute(self, query, *arguments, **options))

    def tapped_commit(self: Any) -> Any:
        return commit(self) if _is_idle(self) else _tapped(self, "COMMIT", commit(self))

    def tapped_rollback(self: Any) -> Any:
        return rollback(self) if _is_idle(self) else _tapped(self, "ROLLBACK", rollback(self))

    @classmethod  # type: ignore[misc]
    async def tapped_async_connect(cls: Any, *arguments: Any, **options: Any) -> Any:
        _refuse(TAP.statement("connect"))
        return await async_connect.__func__(cls, *arguments, **options)  # type: ignore[attr-defined]

    @classmethod  # type: ignore[misc]
    def tapped_connect(cls: Any, *arguments: Any, **options: Any) -> Any:
        _refuse(TAP.statement("connect"))
        return connect.__func__(cls, *arguments, **options)  # type: ignore[attr-defined]

    patch.setattr(BaseCursor, "_execute_gen", tapped_execute)
    patch.setattr(BaseConnection, "_commit_gen", tapped_commit)
    patch.setattr(BaseConnection, "_rollback_gen", tapped_rollback)
    patch.setattr(psycopg.AsyncConnection, "connect", tapped_async_connect)
    patch.setattr(psycopg.Connection, "connect", tapped_connect)


UNTAPPED: set[Any] = set()
"""Connections of the sweep's own."""


def _is_idle(raw: Any) -> bool:
    """Whether there is no transaction to end."""
    return bool(raw.pgconn.transaction_status == pq.TransactionStatus.IDLE)


def _text(query: Any) -> str:
    return query.decode() if isinstance(query, bytes) else str(query)


# -- sqlite3

SQLITE = {
    Blow.READ_ONLY: (sqlite3.SQLITE_READONLY, "attempt to write a readonly database"),
    Blow.SERIALIZATION: (sqlite3.SQLITE_BUSY, "database is locked"),
    Blow.TIMEOUT: (sqlite3.SQLITE_INTERRUPT, "interrupted"),
    Blow.FULL: (sqlite3.SQLITE_FULL, "database or disk is full"),
    Blow.CUT_BEFORE: (sqlite3.SQLITE_IOERR, "disk I/O error"),
}
_ROLLS_BACK = (Blow.CUT_BEFORE, Blow.TIMEOUT)
"""After these SQLite may have rolled back by itself."""


def _sqlite_error(blow: Blow) -> sqlite3.OperationalError:
    code, message = SQLITE[blow]
    error = sqlite3.OperationalError(f"{message} (injected)")
    error.sqlite_errorcode, error.sqlite_errorname = code, message.upper()
    return error


def _met_sqlite(connection: sqlite3.Connection, sql: str) -> Blow | None:
    """Raise what is to be met before the statement; what is left for afterwards."""
    inside = connection.in_transaction
    blow = TAP.statement(("" if inside else "alone: \x00") + sql, in_thread=True)
    if blow is None or blow is Blow.INTERRUPTED_AFTER:
        return blow
    if blow is Blow.INTERRUPTED_BEFORE:
        raise KeyboardInterrupt
    if inside and blow in _ROLLS_BACK:
        sqlite3.Connection.execute(connection, "ROLLBACK")
    raise _sqlite_error(blow)


class TappedCursor(sqlite3.Cursor):
    """A cursor whose statements are points."""

    _left: Blow | None = None

    def execute(self, sql: str, *arguments: Any) -> Any:
        self._left = _met_sqlite(self.connection, sql)
        found = super().execute(sql, *arguments)
        if self.description is None:
            self._end()
        return found

    def fetchall(self) -> Any:
        rows = super().fetchall()
        self._end()
        return rows

    def _end(self) -> None:
        left, self._left = self._left, None
        if left is Blow.INTERRUPTED_AFTER:
            raise KeyboardInterrupt


class TappedConnection(sqlite3.Connection):
    """A connection whose statements are points."""

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(TappedCursor if factory in (None, sqlite3.Cursor) else factory)

    def execute(self, sql: str, *arguments: Any) -> Any:
        return self.cursor().execute(sql, *arguments)

    def commit(self) -> None:
        if self.in_transaction:
            _met_sqlite(self, "COMMIT")
        super().commit()


def can_fail_on_sqlite(label: str, blow: Blow) -> bool:
    """Whether SQLite can answer a statement so."""
    alone = label.startswith("alone: ")
    words = label.removeprefix("alone: ").upper()
    if words.startswith(("ROLLBACK", "RELEASE")):
        return False
    if blow is Blow.SERIALIZATION:
        return alone and not words.startswith(("PRAGMA", "COMMIT"))  # inside, the write lock is held
    return not (blow is Blow.READ_ONLY and words.startswith(("COMMIT", "SELECT", "PRAGMA")))


def _patch_sqlite(patch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect

    def tapped_connect(*arguments: Any, **options: Any) -> Any:
        return connect(*arguments, **{"factory": TappedConnection, **options})

    patch.setattr(sqlite3, "connect", tapped_connect)
    patch.setattr(sqlite3.dbapi2, "connect", tapped_connect)


def untapped_sqlite(path: Any) -> sqlite3.Connection:
    """A connection of the sweep's own."""
    return sqlite3.Connection(path, timeout=2.0, isolation_level=None, check_same_thread=False)


@contextmanager
def tapped() -> Iterator[None]:
    """While the block runs, every statement of every client library passes the tap."""
    with pytest.MonkeyPatch.context() as patch:
        _patch_asyncpg(patch)
        _patch_psycopg(patch)
        _patch_sqlite(patch)
        yield

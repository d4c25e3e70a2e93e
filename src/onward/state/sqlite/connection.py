"""Connections over the standard library's sqlite3: one that works where it is called, one adopted."""

import asyncio
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from onward.errors import DatabaseLocked, TransactionClosed, TransactionUnsuitable
from onward.state.command import Command, Operation, Rows
from onward.state.driver import CLOSED_BY_HAND, ENDED_BY_HAND, Fault, PlainConnection, Result, run_now, value_fault
from onward.state.sqlite.gate import Gate, LockLimit, LockWait

T = TypeVar("T")

_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_READS = re.compile(r"\s*(SELECT|VALUES|EXPLAIN|PRAGMA)\b", re.IGNORECASE)
_PASSES = re.compile(
    r"\s*(SELECT|VALUES|EXPLAIN|INSERT|REPLACE|UPDATE|DELETE|WITH|SAVEPOINT|RELEASE|ROLLBACK)\b", re.IGNORECASE
)


def primary_code(error: BaseException) -> int | None:
    """SQLite's result code, without the extension that says why."""
    code = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(error, sqlite3.Error) and isinstance(code, int) else None


def is_busy(error: BaseException) -> bool:
    """Whether another connection is in the way."""
    return primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


_FAULTS = {
    **dict.fromkeys(
        (
            sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_CORRUPT,
            sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_INTERNAL,
        ),
        Fault.TROUBLE,
    ),
    **dict.fromkeys((sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG), Fault.VALUE),
    sqlite3.SQLITE_READONLY: Fault.READ_ONLY,
    sqlite3.SQLITE_INTERRUPT: Fault.TIMEOUT,
}  # fmt: skip


def fault_of(error: BaseException) -> Fault | None:
    """What an error of sqlite3's says about the file. Ours never see it busy; a caller's own connection may."""
    if isinstance(error, DatabaseLocked):
        return Fault.TIMEOUT
    return _FAULTS.get(primary_code(error) or 0) or value_fault(error)


class SyncSqliteConnection(PlainConnection):
    """A connection that works in the calling thread; its coroutines never suspend.

    With a gate it queues for the write lock and never shows that the file is busy. Without, it is the caller's, in the
    caller's transaction, and what SQLite says is the caller's to handle.
    """

    def __init__(self, raw: sqlite3.Connection, *, gate: Gate | None = None, native: Any = None) -> None:
        self._raw = raw
        self.has_escaped = False
        """Whether the application may have kept it, or have changed it for good."""
        self.native = native
        self.is_abandoned: Callable[[], bool] = never
        """Asked while waiting for others; true: raise Abandoned instead of waiting on."""
        self.patience: LockLimit | None = None
        """How long it waits for the write lock; None: for ever."""
        self._gate = gate
        self._entered = False
        self._failed = False
        """Whether a statement failed since it began; some errors make SQLite roll back."""

    @property
    def raw(self) -> sqlite3.Connection:
        self.has_escaped = True
        return self._raw

    @property
    def in_transaction(self) -> bool:
        try:
            return self._raw.in_transaction
        except sqlite3.ProgrammingError:  # it is closed
            return False

    @property
    def is_closed(self) -> bool:
        """Whether the application, which may have had it, has closed it."""
        try:
            self._raw.total_changes  # noqa: B018 - the cheapest question that a closed connection refuses
        except sqlite3.ProgrammingError:
            return True
        return False

    def check(self) -> None:
        if self.is_closed:
            raise TransactionClosed(CLOSED_BY_HAND)
        if not self._raw.in_transaction:
            if self._failed:
                raise TransactionUnsuitable(_ROLLED_BACK)
            raise TransactionClosed(ENDED_BY_HAND)

    async def fetch(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        return self._run(_fetch, sql, parameters)

    async def query(self, sql: str, parameters: Mapping[str, Any]) -> Result:
        self.has_escaped = self.has_escaped or may_stay(sql)
        return self._run(_query, sql, parameters)

    def _run(self, ask: Callable[..., T], sql: str, parameters: Mapping[str, Any]) -> T:
        try:
            if self._gate is None or self._raw.in_transaction:
                return ask(self._raw, sql, parameters)
            return self._alone(ask, sql, parameters)
        except sqlite3.Error:
            self._failed = True
            raise

    async def script(self, sql: str) -> None:
        # Not executescript, which commits what is open.
        for statement in split(sql):
            await self.fetch(statement, {})

    async def begin(self) -> None:
        self._failed = False
        if self._gate is None or self._raw.in_transaction:
            self._raw.execute("BEGIN IMMEDIATE")
            return
        self._enter(self._gate)
        try:
            self._patiently(self._raw.execute, "BEGIN IMMEDIATE")
        except BaseException:
            self._leave()
            raise

    async def commit(self) -> None:
        try:
            if not self._raw.in_transaction:
                raise TransactionUnsuitable(_ROLLED_BACK)
            self._raw.execute("COMMIT")
        except BaseException:
            await self.rollback()
            raise
        self._leave()

    async def rollback(self) -> None:
        try:
            if self.in_transaction:
                self._raw.execute("ROLLBACK")
        finally:
            self._leave()

    def after_commit(self, action: Callable[[], Any]) -> bool:
        return False

    def cut_off(self) -> None:
        self.is_abandoned = _always

    def lent(self) -> None:
        """Somebody else has it now."""
        self.is_abandoned = never

    def prepare(self, pragma: str) -> None:
        """Set up the connection; also waits for others, who may be opening the file for the first time."""
        self._patiently(lambda: self._raw.execute(pragma).fetchall())

    def data_version(self) -> int:
        """A number that changes when another connection has committed."""
        return int(self._patiently(lambda: self._raw.execute("PRAGMA data_version").fetchone())[0])

    def close(self) -> None:
        """End what is open and let go of the file."""
        try:
            self._raw.close()
        finally:
            self._leave()

    def _alone(self, ask: Callable[..., T], sql: str, parameters: Mapping[str, Any]) -> T:
        """A statement that commits by itself."""
        if self._gate is None or not writes(sql):
            return self._patiently(ask, self._raw, sql, parameters)
        self._enter(self._gate)
        try:
            return self._patiently(ask, self._raw, sql, parameters)
        finally:
            self._leave()

    def _enter(self, gate: Gate) -> None:
        if self._entered:  # it would wait for itself
            raise TransactionClosed(ENDED_BY_HAND)
        gate.enter(lambda: self.is_abandoned(), self.patience)
        self._entered = True
        gate.leave_a_gap()

    def _leave(self) -> None:
        if self._gate is not None and self._entered:
            self._entered = False
            self._gate.leave()

    def _patiently(self, work: Callable[..., T], *arguments: Any) -> T:
        patience: LockWait | None = None
        while True:
            try:
                return work(*arguments)
            except sqlite3.OperationalError as error:
                if self._gate is None or not is_busy(error):
                    raise
            self._gate.met_another()
            patience = patience or LockWait(lambda: self.is_abandoned(), self.patience)
            patience.wait()


class AiosqliteConnection(PlainConnection):
    """A connection of aiosqlite's: a sync connection does the work in its thread."""

    def __init__(self, native: Any, patience: LockLimit | None = None) -> None:
        self.native = native
        self._sync = SyncSqliteConnection(native._conn)
        self._patience = patience

    @property
    def raw(self) -> Any:
        return self.native

    @property
    def in_transaction(self) -> bool:
        return self._sync.in_transaction

    def check(self) -> None:
        self._sync.check()

    async def fetch(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        rows: Rows = await self.native._execute(lambda: run_now(self._sync.fetch(sql, parameters)))
        return rows

    async def query(self, sql: str, parameters: Mapping[str, Any]) -> Result:
        result: Result = await self.native._execute(lambda: run_now(self._sync.query(sql, parameters)))
        return result

    async def script(self, sql: str) -> None:
        await self.native._execute(lambda: run_now(self._sync.script(sql)))

    async def begin(self) -> None:
        began = time.monotonic()
        try:
            while not await self.native._execute(self._try_to_begin):
                if self._patience is not None:
                    self._patience.check(began)
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            # It may have begun nonetheless, and nobody would end it.
            await self.rollback()
            raise

    def _try_to_begin(self) -> bool:
        try:
            run_now(self._sync.begin())
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            return False
        return True

    async def commit(self) -> None:
        await self.native._execute(lambda: run_now(self._sync.commit()))

    async def rollback(self) -> None:
        await self.native._execute(lambda: run_now(self._sync.rollback()))

    def after_commit(self, action: Callable[[], Any]) -> bool:
        return False

    async def run(self, first: Operation[T], *more: Command[Any], begin: bool = False, commit: bool = False) -> T:
        """In the thread, as one piece, once there is a transaction."""
        if begin:
            await self.begin()
        try:
            result: T = await self.native._execute(lambda: run_now(self._sync.run(first, *more, commit=commit)))
        except BaseException:
            if begin:
                await self.rollback()
            raise
        return result


_ROLLED_BACK = "the transaction was not committed: an error had already made SQLite roll it back"


def never() -> bool:
    return False


def _always() -> bool:
    return True


def _fetch(raw: sqlite3.Connection, sql: str, parameters: Mapping[str, Any]) -> Rows:
    cursor = raw.cursor()
    cursor.row_factory = None  # the caller's connection may make dictionaries of its rows
    try:
        # All of them: rows of RETURNING that nobody has read make COMMIT fail.
        return cursor.execute(sql, parameters).fetchall()
    except sqlite3.Error:
        cursor.close()  # the error keeps it, and with it a statement that could not be read to its end
        raise


def _query(raw: sqlite3.Connection, sql: str, parameters: Mapping[str, Any]) -> Result:
    cursor = raw.cursor()
    cursor.row_factory = None
    try:
        rows = cursor.execute(sql, parameters).fetchall()
    except sqlite3.Error:
        cursor.close()
        raise
    columns = tuple(column[0] for column in cursor.description or ())
    return Result(columns, rows, max(cursor.rowcount, len(rows)))


@lru_cache(maxsize=1024)
def writes(sql: str) -> bool:
    """Whether a statement may write; when in doubt, yes."""
    bare = _COMMENT.sub(" ", sql)
    if _READS.match(bare):
        return False
    return not re.match(r"\s*WITH\b", bare, re.IGNORECASE) or bool(
        re.search(r"\b(INSERT|UPDATE|DELETE|REPLACE)\b", bare, re.IGNORECASE)
    )


@lru_cache(maxsize=1024)
def may_stay(sql: str) -> bool:
    """Whether what a statement does to its connection, as a PRAGMA or a temporary table does, may outlast its
    transaction; when in doubt, yes. No trigger or function does such a thing.
    """
    return not _PASSES.match(_COMMENT.sub(" ", sql))


def split(script: str) -> Iterator[str]:
    """The statements of a script; a semicolon in a string, comment or trigger ends none."""
    statement = ""
    for part in script.split(";")[:-1]:
        statement += part + ";"
        if sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""
    rest = statement + script.rpartition(";")[2]
    if _COMMENT.sub("", rest).strip():
        yield rest.strip()

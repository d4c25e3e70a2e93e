"""The drivers over the standard library's sqlite3.

A process that forks must open its app after the fork: neither a connection nor a thread survives it, and what SQLite
knows of its locks would be wrong in the child even for connections of its own. These drivers refuse to be used there.
"""

import asyncio
import os
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from threading import BoundedSemaphore
from typing import Any

from onward.errands import to_the_end
from onward.errors import ConfigurationError, TransactionUnsuitable
from onward.state.driver import Address, Connection, Dialect, Driver, Fault
from onward.state.process import HomeProcess, leave_to_parent
from onward.state.sqlite.connection import (
    AiosqliteConnection,
    SyncSqliteConnection,
    fault_of,
)
from onward.state.sqlite.file import SqliteFile, Synchronous, parse_path
from onward.state.sqlite.thread import ConnectionThread, SqliteConnection

__all__ = [
    "SqliteConnection",
    "SqliteDriver",
    "SyncSqliteConnection",
    "SyncSqliteDriver",
    "open_driver",
    "parse_path",
]


def open_driver(address: str, *, pool_size: int = 10, lock_timeout: float | None = None) -> "SqliteDriver":
    """The driver for `sqlite:///…` or `memory://`."""
    return SqliteDriver(SqliteFile(parse_path(address), lock_timeout=lock_timeout), pool_size=pool_size)


class SyncSqliteDriver:
    """Connections that work in the calling thread."""

    dialect: Dialect = "sqlite"
    is_async = False

    def __init__(
        self,
        path: str | os.PathLike[str] | SqliteFile | None,
        *,
        pool_size: int = 10,
        synchronous: Synchronous = "normal",
        transaction_type: Any = None,
    ) -> None:
        self.file = path if isinstance(path, SqliteFile) else SqliteFile(path, synchronous=synchronous)
        self.transaction_type = transaction_type
        self._home = HomeProcess()
        self._idle: list[SyncSqliteConnection] = []
        self._pool_size = pool_size
        self._places = BoundedSemaphore(pool_size)
        self._is_open = False

    @property
    def address(self) -> Address | None:
        return self.file.address

    async def open(self) -> None:
        if self._is_open and self._home.is_elsewhere:
            leave_to_parent(self._idle)
            self._idle, self._is_open = [], False
            self._places = BoundedSemaphore(self._pool_size)
        if not self._is_open:
            self.file.open()
            self._home.move_in()
            self._is_open = True

    async def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if self._home.is_elsewhere:
            leave_to_parent(self._idle)
            self._idle = []
            return
        while self._idle:
            self._idle.pop().close()
        self.file.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[SyncSqliteConnection]:
        _require_open(self._is_open)
        self._home.require()
        with self._places:
            connection = self._idle.pop() if self._idle else self.file.impatient()
            connection.lent()
            try:
                yield connection
            finally:
                await connection.rollback()
                if self._is_open and not (connection.is_closed or connection.has_escaped):
                    self._idle.append(connection)
                else:
                    connection.close()

    @asynccontextmanager
    async def reserved(self) -> AsyncIterator[SyncSqliteConnection]:
        _require_open(self._is_open)
        self._home.require()
        connection = self.file.connect()
        try:
            yield connection
        finally:
            connection.close()

    def wrap(self, native: object) -> Connection | None:
        if not isinstance(native, sqlite3.Connection):
            return None
        _refuse_closed(native)
        connection = SyncSqliteConnection(native, gate=self.file.gate, native=native)
        connection.patience = self.file.patience
        return connection

    def adopt(self, tx: object) -> Connection | None:
        return _in_transaction(self.wrap(tx), 'connection.execute("BEGIN IMMEDIATE")')

    def fault(self, error: BaseException) -> Fault | None:
        return fault_of(error)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - a sync driver blocks its thread

    def sync_sibling(self) -> Driver | None:
        return self


class SqliteDriver:
    """Connections with a thread each, for an event loop."""

    dialect: Dialect = "sqlite"
    is_async = True

    def __init__(
        self,
        path: str | os.PathLike[str] | SqliteFile | None,
        *,
        pool_size: int = 10,
        synchronous: Synchronous = "normal",
        transaction_type: Any = None,
    ) -> None:
        self.file = path if isinstance(path, SqliteFile) else SqliteFile(path, synchronous=synchronous)
        self.transaction_type = transaction_type
        self._home = HomeProcess()
        self._pool_size = pool_size
        self._pool: _Pool | None = None

    @property
    def address(self) -> Address | None:
        return self.file.address

    async def open(self) -> None:
        if self._pool is None:
            self._home.move_in()
            self.file.open()
            self._pool = _Pool(self.file, self._pool_size)
        self._home.require()

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        if self._home.is_elsewhere:
            leave_to_parent(pool)
            return
        try:
            await pool.close()
        finally:
            self.file.close()

    def connection(self) -> "_Lent":
        return _Lent(self)

    def pool(self) -> "_Pool":
        """What it has while it is open."""
        if self._pool is None:
            raise ConfigurationError("the app is not open: use `async with app:` around this call")
        self._home.require()
        return self._pool

    @asynccontextmanager
    async def reserved(self) -> AsyncIterator[SqliteConnection]:
        self.pool()
        connection = SqliteConnection(ConnectionThread(self.file.connect))
        try:
            yield connection
        finally:
            await connection.close()

    def wrap(self, native: object) -> Connection | None:
        if isinstance(native, sqlite3.Connection):
            _refuse_closed(native)
            # It works in the calling thread, where the caller's connection lives, and without the gate: to wait there
            # would stop the event loop, perhaps with the very task that is to let it in.
            return SyncSqliteConnection(native, native=native)
        # Whoever has a connection of aiosqlite's has imported the module; we need not.
        module = sys.modules.get("aiosqlite")
        if module is None or not isinstance(native, module.Connection):
            return None
        _refuse_closed(native)
        return AiosqliteConnection(native, self.file.patience)

    def adopt(self, tx: object) -> Connection | None:
        begin = 'connection.execute("BEGIN IMMEDIATE")'
        return _in_transaction(self.wrap(tx), begin if isinstance(tx, sqlite3.Connection) else f"await {begin}")

    def fault(self, error: BaseException) -> Fault | None:
        return fault_of(error)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def sync_sibling(self) -> Driver | None:
        return SyncSqliteDriver(self.file, pool_size=self._pool_size, transaction_type=self.transaction_type)


class _Pool:
    """So many connections, all of which make their transactions in one place."""

    def __init__(self, file: SqliteFile, size: int) -> None:
        self._file, self._places = file, asyncio.Semaphore(size)
        self._writer = ConnectionThread(file.impatient)
        self._idle: list[SqliteConnection] = []
        self._users, self._is_open = 0, True
        """So many have a connection, or wait for one."""

    async def acquire(self) -> SqliteConnection:
        self._users += 1
        try:
            await self._places.acquire()
        except BaseException:
            await self._leave()
            raise
        return self._idle.pop() if self._idle else self._connection()

    def _connection(self) -> SqliteConnection:
        return SqliteConnection(ConnectionThread(self._file.impatient), self._writer, self._file.patience)

    async def release(self, connection: SqliteConnection) -> None:
        try:
            await connection.rollback()
        finally:
            self._idle.append(connection)
            self._places.release()
            await self._leave()

    async def _leave(self) -> None:
        self._users -= 1
        if not self._is_open:  # the driver was closed, and perhaps opened anew, meanwhile
            await to_the_end(self.close())

    async def close(self) -> None:
        """What is lent follows when it comes back, and with the last where its transactions are made."""
        self._is_open = False
        while self._idle:
            await self._idle.pop().close()
        if not self._users:
            await self._writer.close()


class _Lent(AbstractAsyncContextManager[SqliteConnection]):
    """A connection of a driver's, for a block. Not a generator: the event loop would keep account of each."""

    def __init__(self, driver: SqliteDriver) -> None:
        self._driver = driver

    async def __aenter__(self) -> SqliteConnection:
        self._pool = self._driver.pool()
        self._connection = await self._pool.acquire()
        return self._connection

    async def __aexit__(self, *error: object) -> None:
        await self._pool.release(self._connection)


def _require_open(is_open: bool) -> None:
    if not is_open:
        raise ConfigurationError("the client is not open: use `with app.sync as client:` around this call")


def _refuse_closed(connection: Any) -> None:
    try:
        connection.total_changes  # noqa: B018 - the cheapest question that a closed connection refuses
    except (ValueError, sqlite3.ProgrammingError):
        raise TransactionUnsuitable("the connection passed as tx= is closed: pass one that is open") from None


def _in_transaction(connection: Connection | None, begin: str) -> Connection | None:
    if connection is not None and not connection.in_transaction:
        raise TransactionUnsuitable(
            f"the connection passed as tx= is not in a transaction: begin one first with {begin}"
        )
    return connection

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

from onward.errors import ConfigurationError, TransactionUnsuitable
from onward.state.driver import Address, Connection, Dialect, Driver, Fault
from onward.state.process import HomeProcess, leave_to_parent
from onward.state.sqlite.connection import (
    AiosqliteConnection,
    SqliteConnection,
    SyncSqliteConnection,
    fault_of,
)
from onward.state.sqlite.file import SqliteFile, Synchronous, parse_path

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
            self.file.forked()
        if not self._is_open:
            self._home.move_in()
            self.file.open()
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
                if self._is_open and not connection.is_closed:
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
        self._idle: list[SqliteConnection] = []
        self._places: asyncio.Semaphore | None = None

    @property
    def address(self) -> Address | None:
        return self.file.address

    async def open(self) -> None:
        if self._places is None:
            self._home.move_in()
            self.file.open()
            self._places = asyncio.Semaphore(self._pool_size)
        self._home.require()

    async def close(self) -> None:
        if self._places is None:
            return
        self._places = None
        if self._home.is_elsewhere:
            leave_to_parent(self._idle)
            self._idle = []
            return
        try:
            while self._idle:
                await self._idle.pop().close()
        finally:
            self.file.close()

    def connection(self) -> "_Lent":
        return _Lent(self)

    async def acquire(self) -> tuple[SqliteConnection, asyncio.Semaphore]:
        """A connection, as soon as there is a place for it, and where the place is to be given back."""
        places = _required(self._places)
        self._home.require()
        await places.acquire()
        try:
            return self._idle.pop() if self._idle else await SqliteConnection.open(self.file.impatient), places
        except BaseException:
            places.release()
            raise

    async def release(self, connection: SqliteConnection, places: asyncio.Semaphore) -> None:
        """The end of what `acquire` began."""
        try:
            if connection.in_transaction:
                await connection.rollback()
        finally:
            try:
                if self._places is places and not connection.is_closed:
                    self._idle.append(connection)
                else:  # the driver was closed, and perhaps opened anew, meanwhile; or a handler has closed it
                    await connection.close()
            finally:
                places.release()

    @asynccontextmanager
    async def reserved(self) -> AsyncIterator[SqliteConnection]:
        _required(self._places)
        self._home.require()
        connection = await SqliteConnection.open(self.file.connect)
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


class _Lent(AbstractAsyncContextManager[SqliteConnection]):
    """A connection of a driver's, for a block. Not a generator: the event loop would keep account of each."""

    def __init__(self, driver: SqliteDriver) -> None:
        self._driver = driver

    async def __aenter__(self) -> SqliteConnection:
        self._held = await self._driver.acquire()
        return self._held[0]

    async def __aexit__(self, *error: object) -> None:
        await self._driver.release(*self._held)


def _require_open(is_open: bool) -> None:
    if not is_open:
        raise ConfigurationError("the client is not open: use `with app.sync as client:` around this call")


def _required(places: asyncio.Semaphore | None) -> asyncio.Semaphore:
    if places is None:
        raise ConfigurationError("the app is not open: use `async with app:` around this call")
    return places


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

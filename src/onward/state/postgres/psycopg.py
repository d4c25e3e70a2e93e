"""The psycopg 3 drivers, async and sync.

Both kinds of psycopg connection and pool have the same methods; the answers of one kind have to be awaited. Everything
here is therefore written once, and asks through `_answer`.
"""

import asyncio
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from typing import Any

import psycopg
import psycopg_pool
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from onward.errors import ConfigurationError, TransactionUnsuitable
from onward.state.driver import Address, Dialect, Driver, Fault, Result, Rows, StepByStep, value_fault
from onward.state.postgres.settings import (
    CHECK_CLIENT,
    fault_of_code,
    libpq_options,
    session_settings,
    transport_settings,
)
from onward.state.statement import spell
from onward.transport import STATEMENT, UNANSWERED, UNANSWERED_IN_POOL, Patience, cut_off, has_news

_LOOK_AT_SERVER_AFTER = 3.0
"""Seconds without a free connection after which it is time to see whether there is still a server."""


async def _answer(value: Any) -> Any:
    return await value if inspect.iscoroutine(value) else value


class PsycopgConnection(StepByStep):
    """A connection of psycopg's, of either kind."""

    def __init__(
        self,
        raw: Any,
        *,
        native: Any = None,
        begun: bool = False,
        patience: AbstractContextManager[None] | None = None,
    ) -> None:
        self.raw = raw
        self.native = native
        self.is_demoted = False
        """Whether the server has refused to write: there may be a better one by now."""
        self._patience = patience or nullcontext()
        self._begun = begun
        self._autocommit = raw.autocommit

    @property
    def in_transaction(self) -> bool:
        return self._begun or self.raw.info.transaction_status != TransactionStatus.IDLE

    async def fetch(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        cursor = await self._run(sql, parameters)
        rows: Rows = await _answer(cursor.fetchall()) if cursor.description else []
        return rows

    async def query(self, sql: str, parameters: Mapping[str, Any]) -> Result:
        cursor = await self._run(sql, parameters)
        rows = await _answer(cursor.fetchall()) if cursor.description else []
        return Result(tuple(column.name for column in cursor.description or ()), rows, max(cursor.rowcount, 0))

    async def script(self, sql: str) -> None:
        with self._patience:
            await _answer(self.raw.execute(sql, prepare=False))

    async def _run(self, sql: str, parameters: Mapping[str, Any]) -> Any:
        # The application may have its own taste in cursors and rows; ours are plain.
        kind: Any = psycopg.AsyncCursor if isinstance(self.raw, psycopg.AsyncConnection) else psycopg.Cursor
        cursor = kind(self.raw, row_factory=tuple_row)
        spelled = spell(sql, "percent")
        given = {name: _array(parameters[name]) for name in spelled.names}
        try:
            with self._patience:
                await _answer(cursor.execute(spelled.sql, given))
        except psycopg.errors.ReadOnlySqlTransaction:
            self.is_demoted = True
            raise
        return cursor

    async def begin(self) -> None:
        # psycopg sends BEGIN before the next statement, with the isolation level the application has chosen.
        await _answer(self.raw.set_autocommit(False))
        self._begun = True

    async def commit(self) -> None:
        # In a transaction that a failed statement has poisoned, COMMIT means ROLLBACK and psycopg does not say so.
        poisoned = self.raw.info.transaction_status == TransactionStatus.INERROR
        try:
            with self._patience:
                await _answer(self.raw.rollback() if poisoned else self.raw.commit())
        except BaseException:
            await self.rollback()
            raise
        await self._ended()
        if poisoned:
            raise TransactionUnsuitable("the transaction was not committed: an earlier statement in it had failed")

    async def rollback(self) -> None:
        if not self.raw.closed:
            with suppress(psycopg.OperationalError), self._patience:
                await _answer(self.raw.rollback())
        await self._ended()

    async def _ended(self) -> None:
        self._begun = False
        if not self.raw.closed:
            await _answer(self.raw.set_autocommit(self._autocommit))

    def after_commit(self, action: Callable[[], Any]) -> bool:
        return False


class _Psycopg(ABC):
    """What the two drivers share: all but which classes of psycopg they use."""

    dialect: Dialect = "postgres"
    is_async: bool
    _connection_class: Any
    _pool_class: Any

    def __init__(
        self,
        dsn: str | None = None,
        *,
        pool: Any = None,
        pool_size: int = 10,
        prepared: bool = True,
        transaction_type: Any = None,
    ) -> None:
        self._dsn, self._pool, self._own_pool = dsn, pool, pool is None
        self._pool_size = pool_size
        self._prepared = prepared
        self.transaction_type = transaction_type or (None if pool is None else self._connection_class)
        self.postgres_dsn = dsn if prepared else None
        self.open_counter = None

    @property
    def address(self) -> Address | None:
        if self._dsn is None:
            return None
        conninfo, options = self._options(self._dsn, session_settings())
        name = {"fallback_application_name": "onward guardian"}
        return Address("psycopg", {"conninfo": conninfo, **name, **options})

    async def open(self) -> None:
        if self._pool is None:
            # Where the server cannot be reached a pool only says that time is up; a connection says why.
            await _answer((await self._connect()).close())
            conninfo, options = self._options(self._dsn or "", transport_settings(), unanswered=UNANSWERED_IN_POOL)
            pool = self._pool_class(
                conninfo,
                kwargs=options,
                min_size=1,
                max_size=self._pool_size,
                open=False,
                # Tries at ever longer intervals would go on sleeping when the server is back: give up, begin again.
                reconnect_timeout=1.0,
                reconnect_failed=self._pool_class.check,
            )
            await _answer(pool.open())
            self._pool = pool

    async def close(self) -> None:
        if self._own_pool and self._pool is not None:
            pool, self._pool = self._pool, None
            await _answer(pool.close())

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[PsycopgConnection]:
        pool = self._pool
        if pool is None:
            raise ConfigurationError("the app is not open: use `async with app:` around this call")
        raw = await self._borrow(pool)
        while self._own_pool and has_news(raw.pgconn.socket):
            await _answer(raw.close())
            await _answer(pool.putconn(raw))
            raw = await self._borrow(pool)
        try:
            autocommit = raw.autocommit
            await _answer(raw.set_autocommit(True))
            connection = PsycopgConnection(raw, native=None if self._own_pool else raw)
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    await connection.rollback()
                if connection.is_demoted:
                    await self._discard(raw)
                if not raw.closed:
                    await _answer(raw.set_autocommit(autocommit))
        finally:
            await _answer(pool.putconn(raw))

    async def _discard(self, raw: Any) -> None:
        """Do not lend a connection again that leads to a server which cannot write, nor its sisters."""
        await _answer(raw.close())
        pool: Any = self._pool
        if self._own_pool and hasattr(pool, "drain"):  # from psycopg_pool 3.3 on
            await _answer(pool.drain())

    async def _borrow(self, pool: Any) -> Any:
        """A connection of the pool, however long they are all lent; an error that says why if there is no server."""
        while self._own_pool:
            try:
                return await _answer(pool.getconn(timeout=_LOOK_AT_SERVER_AFTER))
            except psycopg_pool.PoolTimeout:
                await _answer((await self._connect()).close())
        return await _answer(pool.getconn())

    @asynccontextmanager
    async def reserved(self) -> AsyncIterator[PsycopgConnection]:
        raw = await self._connect()
        number = raw.pgconn.socket
        # Closing would not end the wait for an answer, and its cancellation asks the server.
        patience = Patience(STATEMENT, lambda: cut_off(number)) if self.is_async else None
        try:
            await _answer(raw.set_autocommit(True))
            if self._prepared:
                with (
                    suppress(psycopg.errors.UndefinedObject, psycopg.errors.InvalidParameterValue),
                    patience or nullcontext(),
                ):
                    await _answer(raw.execute(CHECK_CLIENT))
            yield PsycopgConnection(raw, patience=patience)
        finally:
            await _answer(raw.close())

    async def _connect(self) -> Any:
        if self._dsn is not None:
            conninfo, options = self._options(self._dsn, session_settings())
            return await _answer(self._connection_class.connect(conninfo, **options))
        pool: Any = self._pool
        given: list[Any] = []
        for value in (pool.conninfo, pool.kwargs):  # each may be a function that makes it, with a new password
            given.append(await _answer(value() if callable(value) else value))
        conninfo, options = self._options(given[0] or "", session_settings())
        return await _answer(pool.connection_class.connect(conninfo, **{**options, **(given[1] or {})}))

    def _options(
        self, conninfo: str, settings: dict[str, str], *, unanswered: float = UNANSWERED
    ) -> tuple[str, dict[str, Any]]:
        given: dict[str, Any] = {"fallback_application_name": "onward", **libpq_options(unanswered=unanswered)}
        given |= conninfo_to_dict(conninfo)
        if not self._prepared:
            # A server-side pooler hands every transaction another connection: no statement or setting may outlive one.
            return make_conninfo("", **given), {"autocommit": True, "prepare_threshold": None}
        words = [given.pop("options", ""), *(f"-c {name}={value}" for name, value in settings.items())]
        return make_conninfo("", **given, options=" ".join(filter(None, words)) or None), {"autocommit": True}

    def wrap(self, native: object) -> PsycopgConnection | None:
        return self._of_caller(native, begun=False)

    def adopt(self, tx: object) -> PsycopgConnection | None:
        # Without autocommit the next statement begins a transaction, which its owner ends.
        connection = self._of_caller(tx, begun=not getattr(tx, "autocommit", True))
        if connection is not None and not connection.in_transaction:
            raise TransactionUnsuitable(
                "the connection passed as tx= is in autocommit mode and not in a transaction: "
                "use `with connection.transaction():`, or connect without autocommit=True"
            )
        return connection

    def _of_caller(self, given: object, *, begun: bool) -> PsycopgConnection | None:
        if not isinstance(given, self._connection_class):
            return None
        raw: Any = given
        status = raw.info.transaction_status
        if raw.closed or status == TransactionStatus.UNKNOWN:
            raise TransactionUnsuitable("the connection passed is closed")
        if status == TransactionStatus.INERROR:
            raise TransactionUnsuitable(
                "a statement has failed in the transaction of the connection passed: roll it back, or to a savepoint "
                "(`connection.transaction()` inside a transaction), before going on"
            )
        return PsycopgConnection(raw, native=raw, begun=begun)

    def fault(self, error: BaseException) -> Fault | None:
        if isinstance(error, psycopg_pool.PoolClosed):
            return None
        code = getattr(error, "sqlstate", None)
        if code is not None:
            return fault_of_code(code)
        if isinstance(error, psycopg.OperationalError):
            return Fault.LOST  # what does not come from the server comes from losing it, or not reaching it
        return Fault.VALUE if isinstance(error, psycopg.DataError) else value_fault(error)

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    @abstractmethod
    def sync_sibling(self) -> Driver | None: ...


class PsycopgDriver(_Psycopg):
    """Connects with psycopg 3 and asyncio, by DSN or through an AsyncConnectionPool of the application's."""

    is_async = True
    _connection_class = psycopg.AsyncConnection
    _pool_class = psycopg_pool.AsyncConnectionPool

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def sync_sibling(self) -> Driver | None:
        if self._dsn is None:
            return None
        return SyncPsycopgDriver(self._dsn, prepared=self._prepared)


class SyncPsycopgDriver(_Psycopg):
    """Connects with psycopg 3 without an event loop, by DSN or through a ConnectionPool of the application's."""

    is_async = False
    _connection_class = psycopg.Connection
    _pool_class = psycopg_pool.ConnectionPool

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - there is no loop to keep running

    def sync_sibling(self) -> Driver | None:
        return self


def pool_driver(pool: Any, *, prepared: bool = True) -> PsycopgDriver | SyncPsycopgDriver:
    """The driver for a pool of the application's."""
    if isinstance(pool, psycopg_pool.AsyncConnectionPool):
        return PsycopgDriver(pool=pool, prepared=prepared)
    return SyncPsycopgDriver(pool=pool, prepared=prepared)


def _array(value: Any) -> Any:
    # psycopg makes an array of a list, and a record of a tuple.
    return list(value) if isinstance(value, tuple) else value

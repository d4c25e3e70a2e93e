"""The asyncpg driver."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from onward.errors import ConfigurationError, TransactionUnsuitable
from onward.state.driver import Address, Dialect, Driver, Fault, Result, Rows, Statement, value_fault
from onward.state.postgres.lending import Lender, may_leave_traces
from onward.state.postgres.literals import call, name_of
from onward.state.postgres.settings import (
    CHECK_CLIENT,
    fault_of_code,
    session_settings,
    transport_settings,
)
from onward.state.statement import spell
from onward.transport import CONNECT, STATEMENT, UNANSWERED_IN_POOL, Patience, watch

_FAREWELL = 5.0
_prepared_names: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
"""Of the statements that we prepared on a connection, which outlives what we make of it."""
_LOST = (OSError, TimeoutError, asyncpg.InternalClientError, asyncpg.TargetServerAttributeNotMatched)
"""Not reached, or not understood; the last while a standby takes over."""
_CLOSED = ("connection is closed", "connection was closed", "released back to the pool")
"""What asyncpg says of a connection that is gone; the last of one that a pool had lent and took back when it broke."""


class AsyncpgConnection:
    """A connection of asyncpg's."""

    def __init__(
        self,
        raw: Any,
        *,
        prepared: bool,
        native: Any = None,
        patience: AbstractContextManager[None] | None = None,
    ) -> None:
        self.native = native
        self.is_touched = self.is_shown = False
        self.is_demoted = False
        """Whether the server has refused to write: there may be a better one by now."""
        self.shown = raw
        """What the application may see: perhaps a pool's wrapping, calls through which cost more."""
        self._raw = getattr(raw, "_con", None) or raw
        self._prepared = prepared
        self._names = _prepared_names.setdefault(self._raw, set())
        self._patience = patience or nullcontext()

    @property
    def raw(self) -> Any:
        self.is_shown = True
        return self.shown

    @property
    def in_transaction(self) -> bool:
        return bool(self._raw.is_in_transaction())

    @property
    def is_sound(self) -> bool:
        return not (self.is_demoted or self._raw.is_closed() or self._raw.is_in_transaction())

    async def fetch(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        spelled = spell(sql, "dollar")
        if self.is_touched and self.native is None and not self.in_transaction:
            await self._reset()
        try:
            with self._patience:
                rows: Rows = await self._raw.fetch(spelled.sql, *spelled.positional(parameters))
        except asyncpg.ReadOnlySQLTransactionError:
            self.is_demoted = True
            raise
        return rows

    async def query(self, sql: str, parameters: Mapping[str, Any]) -> Result:
        spelled = spell(sql, "dollar")
        self.is_touched = self.is_touched or may_leave_traces(sql)
        try:
            rows = await self._raw.fetch(spelled.sql, *spelled.positional(parameters))
        except asyncpg.ReadOnlySQLTransactionError:
            self.is_demoted = True
            raise
        return Result(tuple(rows[0].keys()) if rows else (), rows)

    async def execute(self, sql: str, parameters: Mapping[str, Any]) -> int:
        spelled = spell(sql, "dollar")
        self.is_touched = self.is_touched or may_leave_traces(sql)
        try:
            if spelled.names:
                return _changed(await self._raw.execute(spelled.sql, *spelled.positional(parameters)))
            # Without parameters asyncpg would also run several statements, which no other client does.
            statement = await self._raw.prepare(spelled.sql, name=None if self._prepared else "")
            await statement.fetch()
            return _changed(statement.get_statusmsg())
        except asyncpg.ReadOnlySQLTransactionError:
            self.is_demoted = True
            raise

    async def script(self, sql: str) -> None:
        with self._patience:
            await self._raw.execute(sql)

    async def begin(self) -> None:
        with self._patience:
            await self._raw.execute(self._fresh + "BEGIN")

    async def begin_with(self, first: Statement) -> int:
        if not self._prepared:
            await self.begin()
            return len(await self.fetch(*first))
        call = await self._call(first)
        with self._patience:
            return _changed(await self._raw.execute(f"{self._fresh}BEGIN;{call}"))

    async def commit_with(self, last: Statement) -> None:
        if not self._prepared:
            await self.fetch(*last)
            await self.commit()
            return
        call = await self._call(last)
        with self._patience:
            await self._raw.execute(f"{call};COMMIT")

    @property
    def _fresh(self) -> str:
        """What has to be said first on a connection that was lent before and has not been reset since.

        It becomes part of the transaction: should that be rolled back, the connection is as it was, and stays touched.
        """
        return self._raw.get_reset_query() if self.is_touched and self.native is None else ""

    async def _reset(self) -> None:
        await self._raw.execute(self._raw.get_reset_query())
        self.is_touched = False

    def terminate(self) -> None:
        """Cut it off."""
        self._raw.terminate()

    async def _call(self, statement: Statement) -> str:
        """SQL that runs a statement, prepared on this connection once: so that it can go along with another."""
        sql, parameters = statement
        spelled, name = spell(sql, "dollar"), name_of(sql)
        if name not in self._names:
            await self._raw.execute(f"PREPARE {name} AS {spelled.sql}")
            self._names.add(name)
        return call(name, spelled.positional(parameters))

    async def commit(self) -> None:
        # In a transaction that a failed statement has poisoned, COMMIT answers "ROLLBACK" instead of failing.
        with self._patience:
            answer = await self._raw.execute("COMMIT")
        if answer == "ROLLBACK":
            raise TransactionUnsuitable("the transaction was not committed: an earlier statement in it had failed")

    async def rollback(self) -> None:
        if not self._raw.is_closed():
            with suppress(asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError), self._patience:
                await self._raw.execute("ROLLBACK")

    def after_commit(self, action: Callable[[], Any]) -> bool:
        return False


class AsyncpgDriver:
    """Connects with asyncpg, by DSN or through a pool of the application's."""

    dialect: Dialect = "postgres"
    is_async = True

    def __init__(
        self,
        dsn: str | None = None,
        *,
        pool: Any = None,
        pool_size: int = 10,
        prepared: bool = True,
        transaction_type: Any = None,
    ) -> None:
        self._dsn = dsn
        self._pool: Any = pool
        self._pool_size = pool_size
        self._lender: Lender[AsyncpgConnection] | None = None
        self._to_reset: WeakSet[Any] = WeakSet()
        self._prepared = prepared
        self.transaction_type = transaction_type or (asyncpg.Connection if pool is not None else None)
        self.postgres_dsn = (dsn or _dsn_of(pool)) if prepared else None
        self.open_counter = None

    @property
    def address(self) -> Address | None:
        settings = {**session_settings(), "application_name": "onward guardian"}
        return None if self._dsn is None else Address("asyncpg", self._options(settings))

    async def open(self) -> None:
        if self._pool is None:
            options = {**self._options(transport_settings()), "min_size": 1, "max_size": self._pool_size}
            self._pool = await asyncpg.create_pool(init=_watch_in_pool, reset=self._reset, **options)
            self._lender = Lender(self._pool_size, acquire=self._acquire, release=self._release)

    async def close(self) -> None:
        if self._lender is not None:
            with suppress(TimeoutError):  # then they are cut off
                async with asyncio.timeout(_FAREWELL):
                    await self._lender.let_go()
                    await self._pool.close()
            self._pool = None
            self._lender = None

    async def _acquire(self) -> AsyncpgConnection:
        return AsyncpgConnection(await self._pool.acquire(), prepared=self._prepared)

    async def _release(self, connection: AsyncpgConnection) -> None:
        if connection.is_demoted:
            connection.terminate()
            await self._pool.expire_connections()  # its sisters lead to the same server
        raw = connection.shown._con  # none, if it has broken and the pool has noticed
        if raw is not None and (connection.is_touched or connection.is_shown):
            self._to_reset.add(raw)
        await self._pool.release(connection.shown)

    async def _reset(self, raw: Any) -> None:
        """For the pool, when no statement is under way any more and the transaction has ended."""
        if raw in self._to_reset:
            self._to_reset.discard(raw)
            await raw.execute(raw.get_reset_query())

    def connection(self) -> AbstractAsyncContextManager[AsyncpgConnection]:
        if self._pool is None:
            raise ConfigurationError("the app is not open: use `async with app:` around this call")
        return self._from_theirs() if self._lender is None else _Lent(self._lender)

    @asynccontextmanager
    async def _from_theirs(self) -> AsyncIterator[AsyncpgConnection]:
        async with self._pool.acquire() as raw:
            connection = AsyncpgConnection(raw, prepared=self._prepared, native=raw)
            try:
                yield connection
            finally:
                if connection.is_demoted:
                    connection.terminate()

    @asynccontextmanager
    async def reserved(self) -> AsyncIterator[AsyncpgConnection]:
        raw = await self._connect()
        try:
            if self._prepared:
                with suppress(asyncpg.UndefinedObjectError, asyncpg.InvalidParameterValueError):
                    await raw.execute(CHECK_CLIENT, timeout=CONNECT)
            yield AsyncpgConnection(raw, prepared=self._prepared, patience=Patience(STATEMENT, raw.terminate))
        except BaseException:
            raw.terminate()  # a farewell would wait for whatever it is that does not come
            raise
        finally:
            with suppress(OSError, asyncpg.InterfaceError, TimeoutError):
                await raw.close(timeout=2)

    async def _connect(self) -> Any:
        if self._dsn is not None:
            raw: Any = await asyncpg.connect(**self._options(session_settings()))
        else:
            # A pool keeps to itself how it connects; one of its own kind is made the same way.
            options = {"timeout": CONNECT, **self._pool._connect_kwargs}
            if self._prepared:
                options["server_settings"] = {**session_settings(), **(options.get("server_settings") or {})}
            raw = await asyncpg.connect(*self._pool._connect_args, **options)
        watch(raw._transport.get_extra_info("socket"))
        return raw

    def _options(self, settings: dict[str, str]) -> dict[str, Any]:
        if self._prepared:
            settings = {"application_name": "onward", **settings}
            return {"dsn": self._dsn, "timeout": CONNECT, "server_settings": settings}
        # A server-side pooler hands every transaction another connection: no statement or setting may outlive one.
        return {"dsn": self._dsn, "timeout": CONNECT, "statement_cache_size": 0}

    def wrap(self, native: object) -> AsyncpgConnection | None:
        if not isinstance(native, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
            return None
        raw: Any = native
        if _is_closed(raw):
            raise TransactionUnsuitable("the connection passed is closed")
        return AsyncpgConnection(raw, prepared=self._prepared, native=raw)

    def adopt(self, tx: object) -> AsyncpgConnection | None:
        connection = self.wrap(tx)
        if connection is not None and not connection.in_transaction:
            raise TransactionUnsuitable(
                "the connection passed as tx= is not in a transaction: use `async with connection.transaction():`"
            )
        return connection

    def fault(self, error: BaseException) -> Fault | None:
        if isinstance(error, _LOST):
            return Fault.LOST
        if isinstance(error, asyncpg.InterfaceError) and any(words in str(error) for words in _CLOSED):
            return Fault.LOST
        return fault_of_code(getattr(error, "sqlstate", None)) or value_fault(error)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def sync_sibling(self) -> Driver | None:
        if self._dsn is None:
            return None
        try:
            from onward.state.postgres.psycopg import SyncPsycopgDriver
        except ImportError:
            return None
        return SyncPsycopgDriver(self._dsn, prepared=self._prepared)


class _Lent:
    """A connection of our own pool, within a block."""

    __slots__ = ("_connection", "_lender")

    def __init__(self, lender: Lender[AsyncpgConnection]) -> None:
        self._lender = lender

    async def __aenter__(self) -> AsyncpgConnection:
        self._connection = await self._lender.lend()
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lender.take_back(self._connection, keep=error is None)
        if self._connection.is_demoted:
            await self._lender.let_go()


async def _watch_in_pool(raw: Any) -> None:
    watch(raw._transport.get_extra_info("socket"), unanswered=UNANSWERED_IN_POOL)


def _is_closed(raw: Any) -> bool:
    try:
        return bool(raw.is_closed())
    except asyncpg.InterfaceError:  # a pool's, which took it back when it broke
        return True


def _dsn_of(pool: Any) -> str | None:
    """The address a pool was made with; None if it was made with separate options."""
    arguments = getattr(pool, "_connect_args", ())
    return arguments[0] if arguments and isinstance(arguments[0], str) else None


def _changed(status: str | None) -> int:
    last = (status or "").rpartition(" ")[2]
    return int(last) if last.isdigit() else 0

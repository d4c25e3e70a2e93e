"""The asyncpg driver."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from typing import Any

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from onward.errors import ConfigurationError, TransactionUnsuitable
from onward.state.driver import Address, Dialect, Driver, Result, Rows
from onward.state.postgres.settings import (
    CHECK_CLIENT,
    is_disconnect_code,
    is_read_only_code,
    is_transient_code,
    session_settings,
    transport_settings,
)
from onward.state.statement import spell
from onward.transport import CONNECT, STATEMENT, UNANSWERED_IN_POOL, Patience, watch

_FAREWELL = 5.0
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
        lent: "weakref.WeakSet[Any] | None" = None,
    ) -> None:
        self.raw = raw
        self.native = native
        self.is_demoted = False
        """Whether the server has refused to write: there may be a better one by now."""
        self._prepared = prepared
        self._patience = patience or nullcontext()
        self._lent = lent

    @property
    def in_transaction(self) -> bool:
        return bool(self.raw.is_in_transaction())

    async def fetch(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        spelled = spell(sql, "dollar")
        try:
            with self._patience:
                rows: Rows = await self.raw.fetch(spelled.sql, *spelled.positional(parameters))
        except asyncpg.ReadOnlySQLTransactionError:
            self.is_demoted = True
            raise
        return rows

    async def query(self, sql: str, parameters: Mapping[str, Any]) -> Result:
        spelled = spell(sql, "dollar")
        try:
            statement = await self.raw.prepare(spelled.sql, name=None if self._prepared else "")
            rows = await statement.fetch(*spelled.positional(parameters))
        except asyncpg.ReadOnlySQLTransactionError:
            self.is_demoted = True
            raise
        columns = tuple(attribute.name for attribute in statement.get_attributes())
        return Result(columns, rows, _changed(statement.get_statusmsg()))

    async def script(self, sql: str) -> None:
        with self._patience:
            await self.raw.execute(sql)

    async def begin(self) -> None:
        if self._lent is not None:
            self._lent.add(self.raw._con)
        with self._patience:
            await self.raw.execute("BEGIN")

    async def commit(self) -> None:
        # In a transaction that a failed statement has poisoned, COMMIT answers "ROLLBACK" instead of failing.
        with self._patience:
            answer = await self.raw.execute("COMMIT")
        if answer == "ROLLBACK":
            raise TransactionUnsuitable("the transaction was not committed: an earlier statement in it had failed")

    async def rollback(self) -> None:
        if not _is_closed(self.raw):
            with suppress(asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError), self._patience:
                await self.raw.execute("ROLLBACK")

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
        self._dsn, self._pool, self._own_pool = dsn, pool, pool is None
        self._pool_size = pool_size
        self._lent: weakref.WeakSet[Any] = weakref.WeakSet()
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

    async def close(self) -> None:
        if self._own_pool and self._pool is not None:
            pool, self._pool = self._pool, None
            with suppress(TimeoutError):  # then they are cut off
                async with asyncio.timeout(_FAREWELL):
                    await pool.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncpgConnection]:
        if self._pool is None:
            raise ConfigurationError("the app is not open: use `async with app:` around this call")
        async with self._pool.acquire() as raw:
            lent = self._lent if self._own_pool else None
            native = None if self._own_pool else raw
            connection = AsyncpgConnection(raw, prepared=self._prepared, native=native, lent=lent)
            try:
                yield connection
            finally:
                if connection.is_demoted:
                    await self._discard(raw)

    async def _reset(self, raw: Any) -> None:
        """A connection that was lent for a transaction may have been set up otherwise; one of ours never is."""
        if raw in self._lent:
            self._lent.discard(raw)
            await raw.execute(raw.get_reset_query())

    async def _discard(self, raw: Any) -> None:
        """Do not lend a connection again that leads to a server which cannot write, nor its sisters."""
        raw.terminate()
        if self._own_pool and self._pool is not None:
            await self._pool.expire_connections()

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

    def is_transient(self, error: BaseException) -> bool:
        return is_transient_code(getattr(error, "sqlstate", None)) or self.is_disconnect(error)

    def is_disconnect(self, error: BaseException) -> bool:
        if isinstance(error, asyncpg.InterfaceError):
            return any(words in str(error) for words in _CLOSED)
        if isinstance(error, asyncpg.TargetServerAttributeNotMatched):  # while a standby takes over
            return True
        return isinstance(error, OSError | TimeoutError) or is_disconnect_code(getattr(error, "sqlstate", None))

    def is_read_only(self, error: BaseException) -> bool:
        return is_read_only_code(getattr(error, "sqlstate", None))

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

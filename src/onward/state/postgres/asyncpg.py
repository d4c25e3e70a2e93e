"""The asyncpg driver."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from onward.errors import ConfigurationError, TransactionUnsuitable
from onward.state.driver import Dialect, Driver, Result, Rows
from onward.state.postgres.settings import is_disconnect_code, is_transient_code, session_settings
from onward.state.statement import spell


class AsyncpgConnection:
    """A connection of asyncpg's."""

    def __init__(self, raw: Any, *, prepared: bool, native: Any = None) -> None:
        self.raw = raw
        self.native = native
        self._prepared = prepared

    @property
    def in_transaction(self) -> bool:
        return bool(self.raw.is_in_transaction())

    async def fetch(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        spelled = spell(sql, "dollar")
        rows: Rows = await self.raw.fetch(spelled.sql, *spelled.positional(parameters))
        return rows

    async def query(self, sql: str, parameters: Mapping[str, Any]) -> Result:
        spelled = spell(sql, "dollar")
        statement = await self.raw.prepare(spelled.sql, name=None if self._prepared else "")
        rows = await statement.fetch(*spelled.positional(parameters))
        columns = tuple(attribute.name for attribute in statement.get_attributes())
        return Result(columns, rows, _changed(statement.get_statusmsg()))

    async def script(self, sql: str) -> None:
        await self.raw.execute(sql)

    async def begin(self) -> None:
        await self.raw.execute("BEGIN")

    async def commit(self) -> None:
        # In a transaction that a failed statement has poisoned, COMMIT answers "ROLLBACK" instead of failing.
        if await self.raw.execute("COMMIT") == "ROLLBACK":
            raise TransactionUnsuitable("the transaction was not committed: an earlier statement in it had failed")

    async def rollback(self) -> None:
        if not self.raw.is_closed():
            with suppress(asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError):
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
        self._prepared = prepared
        self.transaction_type = transaction_type or (asyncpg.Connection if pool is not None else None)
        self.postgres_dsn = (dsn or _dsn_of(pool)) if prepared else None
        self.open_counter = None

    async def open(self) -> None:
        if self._pool is None:
            self._pool = await asyncpg.create_pool(min_size=1, max_size=self._pool_size, **self._options({}))

    async def close(self) -> None:
        if self._own_pool and self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncpgConnection]:
        if self._pool is None:
            raise ConfigurationError("the app is not open: use `async with app:` around this call")
        async with self._pool.acquire() as raw:
            yield AsyncpgConnection(raw, prepared=self._prepared, native=None if self._own_pool else raw)

    @asynccontextmanager
    async def reserved(self) -> AsyncIterator[AsyncpgConnection]:
        raw = await self._connect()
        try:
            yield AsyncpgConnection(raw, prepared=self._prepared)
        finally:
            with suppress(OSError, asyncpg.InterfaceError, TimeoutError):
                await raw.close(timeout=2)

    async def _connect(self) -> Any:
        if self._dsn is not None:
            return await asyncpg.connect(**self._options(session_settings()))
        # A pool keeps to itself how it connects; one of its own kind is made the same way.
        return await asyncpg.connect(*self._pool._connect_args, **self._pool._connect_kwargs)

    def _options(self, settings: dict[str, str]) -> dict[str, Any]:
        if self._prepared:
            return {"dsn": self._dsn, "server_settings": {"application_name": "onward", **settings}}
        # A server-side pooler hands every transaction another connection: no statement or setting may outlive one.
        return {"dsn": self._dsn, "statement_cache_size": 0}

    def wrap(self, native: object) -> AsyncpgConnection | None:
        if not isinstance(native, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
            return None
        raw: Any = native
        if raw.is_closed():
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
            return "connection is closed" in str(error) or "connection was closed" in str(error)
        return isinstance(error, OSError | TimeoutError) or is_disconnect_code(getattr(error, "sqlstate", None))

    def is_read_only(self, error: BaseException) -> bool:
        return getattr(error, "sqlstate", None) == "25006"

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


def _dsn_of(pool: Any) -> str | None:
    """The address a pool was made with; None if it was made with separate options."""
    arguments = getattr(pool, "_connect_args", ())
    return arguments[0] if arguments and isinstance(arguments[0], str) else None


def _changed(status: str | None) -> int:
    last = (status or "").rpartition(" ")[2]
    return int(last) if last.isdigit() else 0

"""The SQLAlchemy drivers, async and sync."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from functools import partial
from inspect import signature
from typing import Any, cast

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DataError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.pool import QueuePool

from onward.errands import Errands, to_the_end
from onward.errors import ConfigurationError
from onward.state.driver import Address, Dialect, Driver, Fault, run_now, value_fault
from onward.state.postgres.patience import PoolWatch, is_busy
from onward.state.postgres.settings import FORGOTTEN, fault_of_code, fault_of_libpq, session_settings
from onward.state.process import HomeProcess
from onward.state.sqlalchemy.checks import address_of, causes, check_connection, check_session, dialect_of, sqlstate
from onward.state.sqlalchemy.direct import DirectConnection
from onward.state.sqlalchemy.joined import JoinedConnection
from onward.state.sqlalchemy.pooled import PooledConnection, Turns, entered
from onward.state.sqlalchemy.reaching import conninfo_of
from onward.state.sqlalchemy.work import client, do, end_of, keep_write_ahead_log, reads_only, rows
from onward.state.sqlite.connection import fault_of
from onward.state.sqlite.file import SqliteFile
from onward.state.sqlite.gate import LockLimit
from onward.state.sqlite.sqlite3 import SyncSqliteDriver
from onward.transport import CONNECT, STATEMENT, Patience, Reach, watch

_FAREWELL = 1.0
"""Seconds for a connection to be closed in."""
_TURN = 30.0
"""Seconds to wait for a turn to write; whoever has waited for so long tries beside who has it."""
_AFTER_LOSS = "8s2b"
"""What SQLAlchemy calls what it says in place of whatever is to follow in a transaction whose connection was lost."""


class _SqlAlchemy(ABC):
    """What the two drivers share: all but which classes of SQLAlchemy they use."""

    is_async: bool
    _engine_class: Any
    _connection_class: Any
    _session_class: Any
    _scoped_class: Any

    def __init__(
        self, source: Any, *, prepared: bool = True, transaction_type: Any = None, lock_timeout: float | None = None
    ) -> None:
        self._engine = source if isinstance(source, self._engine_class) else self._bind_of(source)
        self._sync_engine: Engine = getattr(self._engine, "sync_engine", self._engine)
        self.dialect: Dialect = dialect_of(self._sync_engine)
        self._prepared = prepared
        self._address = address_of(self._sync_engine.url) if self.dialect == "postgres" else None
        database = self._sync_engine.url.database
        self.file = SqliteFile(database, lock_timeout=lock_timeout) if self.dialect == "sqlite" else None
        self.postgres_dsn = self._address if prepared else None
        self.reach = self._reach() if prepared and self.dialect == "postgres" else None
        self.address: Address | None = None
        self._home, self._is_open = HomeProcess(), False
        self._turns: Turns | None = None
        self._errands = Errands()
        self._watch = PoolWatch(self, self._errands)
        self._listener = partial(_notice_useless if self.dialect == "postgres" else _keep_after_cancel)
        """One for each driver: two may share an engine."""
        # Saves round trips. SQLite has none, and the application may use isolation_level in its own way; and behind a
        # server-side pooler asyncpg needs a transaction to prepare and run a statement on the same server connection.
        self._options = {"isolation_level": "AUTOCOMMIT"} if prepared and self.dialect == "postgres" else {}
        self._hand_out = source.connect if source is self._engine else _for_one_block(source)
        self.transaction_type = transaction_type or (
            self._connection_class if source is self._engine else _session_class(source)
        )

    def _bind_of(self, source: Any) -> Any:
        bind = getattr(source, "kw", {}).get("bind")
        engine = bind if isinstance(bind, self._engine_class) else getattr(bind, "engine", None)
        if not isinstance(engine, self._engine_class):
            raise ConfigurationError(
                f"{type(self).__name__} takes a SQLAlchemy {self._engine_class.__name__}, or a sessionmaker bound to "
                f"one (bind=engine), not {source!r}"
            )
        return engine

    async def open(self) -> None:
        """Listen for what has an engine give up connections; it is the application's, and open already."""
        if self._is_open:
            self._come_home()
        self._home.move_in()
        self._is_open = True
        self._turns = self._turns_of_pool() if self.is_async else None
        if self.file is not None:
            self.file.make()
        if not self._is_listening:
            event.listen(self._sync_engine, "handle_error", self._listener)
        if self.dialect == "sqlite":
            with suppress(DBAPIError):  # if it cannot be opened, whoever needs it will be told
                async with entered(self._engine.connect(), self._options) as raw:
                    await do(raw, keep_write_ahead_log)

    async def close(self) -> None:
        self._is_open = False
        if self.is_async and not self._home.is_elsewhere:
            self._watch.end()
            await self._errands.end()
        if self._is_listening:
            event.remove(self._sync_engine, "handle_error", self._listener)

    def _turns_of_pool(self) -> Turns | None:
        pool = self._sync_engine.pool
        if self.dialect == "sqlite":
            return Turns(1, _TURN)
        overflow = getattr(pool, "_max_overflow", -1)
        if not isinstance(pool, QueuePool) or overflow < 0 or not pool.size():
            return None
        return Turns(pool.size() + overflow, pool.timeout())

    @property
    def _is_listening(self) -> bool:
        return event.contains(self._sync_engine, "handle_error", self._listener)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[PooledConnection]:
        self._come_home()
        pooled = PooledConnection(
            self.dialect,
            direct=self._engine.connect,
            options=self._options,
            joined=self._hand_out,
            patience=self._patience,
            turns=self._turns,
            limit=self._lock_limit,
        )
        try:
            await pooled.queue()  # here a worker sees who waits, and takes no more than it can serve
            yield pooled
        finally:
            await pooled.give_back()

    @property
    def _lock_limit(self) -> LockLimit | None:
        return None if self.file is None else self.file.patience

    def _come_home(self) -> None:
        """In a child of the process that opened the driver an engine without an event loop is made to connect anew."""
        if self._home.is_elsewhere:
            if self.is_async or self.dialect == "sqlite":
                self._home.require()
            self._home.move_in()
            self._sync_engine.dispose(close=False)  # what is open belongs to the parent

    def _patience(self, connection: Connection) -> AbstractContextManager[None]:
        """For statements of ours on a connection of the application's pool."""
        if self.dialect == "sqlite":
            return nullcontext()
        raw = client(connection)
        if not self.is_async:
            return self._limit(raw)
        process: int = raw.get_server_pid() if connection.dialect.driver == "asyncpg" else raw.info.backend_pid
        return self._watch.patience(process=process if self._prepared else None, give_up=end_of(connection))

    def _limit(self, raw: Any) -> AbstractContextManager[None]:
        """`PoolWatch` without an event loop. Whether the server is at work is asked by a connection that has limits."""
        if self._address is None:
            return nullcontext()
        from onward.state.postgres.psycopg import SyncPsycopgDriver
        from onward.state.postgres.psycopg_connection import Limit, Limited

        beside = SyncPsycopgDriver(self._address, prepared=self._prepared)
        process: int | None = raw.info.backend_pid if self._prepared else None
        return Limited(raw, Limit(STATEMENT, lambda: run_now(is_busy(beside, process))))

    @asynccontextmanager
    async def reserved(self) -> AsyncIterator[DirectConnection]:
        self._come_home()
        engine = self._like(_beside(self._sync_engine))
        try:
            async with AsyncExitStack() as stack:
                # Left to itself a client waits for a minute, or for ever.
                async with asyncio.timeout(CONNECT) if self.is_async else nullcontext():
                    raw = await stack.enter_async_context(entered(engine.connect(), self._options))
                if self.dialect == "sqlite":
                    yield DirectConnection(raw)
                    return
                end = await do(raw, _watch)
                patience = Patience(STATEMENT, end) if self.is_async else self._limit(client(raw))
                with patience:
                    await do(raw, _set, session_settings() if self._prepared else {})
                try:
                    yield DirectConnection(raw, patience=patience, end=end, past=self._prepared)
                except BaseException:
                    await do(raw, Connection.invalidate)  # a farewell would wait for whatever it is that does not come
                    raise
        finally:
            await (to_the_end(self._dispose(engine)) if self.is_async else self._dispose(engine))

    @abstractmethod
    def _reach(self) -> Reach | None: ...

    def wrap(self, native: object) -> JoinedConnection | None:
        return self._of_caller(native, begun=False)

    def adopt(self, tx: object) -> JoinedConnection | None:
        # SQLAlchemy begins by itself, with the first statement.
        return self._of_caller(tx, begun=True)

    def _of_caller(self, given: Any, *, begun: bool) -> JoinedConnection | None:
        raw = given() if isinstance(given, self._scoped_class) else given
        if isinstance(raw, self._session_class):
            check_session(getattr(raw, "sync_session", raw), self._sync_engine)
        elif isinstance(raw, self._connection_class):
            check_connection(getattr(raw, "sync_connection", raw), self._sync_engine)
        else:
            return None
        return JoinedConnection(raw, begun=begun, limit=self._lock_limit)

    def fault(self, error: BaseException) -> Fault | None:
        said = fault_of_code(sqlstate(error), error) if self.dialect == "postgres" else None
        if said is Fault.READ_ONLY:  # also where it has made us give up the connection
            return said
        if self._is_lost(error):
            return Fault.LOST
        if isinstance(error, PoolTimeout):
            return Fault.TROUBLE
        if self.dialect == "postgres":
            return said or self._value_fault(error)
        return next(filter(None, map(fault_of, causes(error))), None)

    def _is_lost(self, error: BaseException) -> bool:
        if getattr(error, "connection_invalidated", False) or getattr(error, "code", None) == _AFTER_LOSS:
            return True
        if not isinstance(error, DBAPIError):
            # A TimeoutError is our own, from connecting.
            kinds = OSError if self._sync_engine.dialect.driver == "asyncpg" else TimeoutError
            return isinstance(error, kinds)
        lost = isinstance(error, OperationalError) and sqlstate(error) is None and fault_of_libpq(str(error.orig))
        return self.dialect == "postgres" and (bool(lost) or "connection is closed" in str(error.orig))

    @staticmethod
    def _value_fault(error: BaseException) -> Fault | None:
        if isinstance(error, DataError):  # what the client itself refuses has no code
            return Fault.VALUE
        return next(filter(None, map(value_fault, causes(error))), None)

    @abstractmethod
    def _like(self, engine: Engine) -> Any:
        """The engine as this driver uses engines."""

    @abstractmethod
    async def _dispose(self, engine: Any) -> None: ...

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    @abstractmethod
    def sync_sibling(self) -> Driver | None: ...


class SqlAlchemyDriver(_SqlAlchemy):
    """Connects through an AsyncEngine, and hands out its connections, or an async_sessionmaker, and its sessions.

    `prepared=False` is for PgBouncer in transaction mode, for which the engine too has to be made without prepared
    statements.
    """

    is_async = True
    _engine_class = AsyncEngine
    _connection_class = AsyncConnection
    _session_class = AsyncSession
    _scoped_class = async_scoped_session

    def _like(self, engine: Engine) -> AsyncEngine:
        return AsyncEngine(engine)

    async def _dispose(self, engine: AsyncEngine) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL):  # for which a server that does not answer would let us wait
                await engine.dispose()

    def _reach(self) -> Reach:
        return Reach("asyncpg" if self._sync_engine.dialect.driver == "asyncpg" else "psycopg", self._client_beside)

    @asynccontextmanager
    async def _client_beside(self) -> AsyncIterator[Any]:
        self._come_home()
        engine = self._like(_beside(self._sync_engine))
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(CONNECT):
                    connection = await stack.enter_async_context(entered(engine.connect(), self._options))
                try:
                    raw = await do(connection, client)
                    yield raw
                finally:
                    await to_the_end(connection.invalidate())
        finally:
            await to_the_end(self._dispose(engine))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def sync_sibling(self) -> Driver | None:
        if self.file is not None:
            return SyncSqliteDriver(self.file)
        try:
            from onward.state.postgres.psycopg import SyncPsycopgDriver
        except ImportError:
            return None
        conninfo = conninfo_of(self._sync_engine)
        if conninfo is None:
            return None
        size = getattr(self._sync_engine.pool, "size", None)
        options = {} if size is None else {"pool_size": size()}
        return SyncPsycopgDriver(conninfo, prepared=self._prepared, **options)


class SyncSqlAlchemyDriver(_SqlAlchemy):
    """Connects without an event loop through an Engine, and hands out its connections, or a sessionmaker."""

    is_async = False
    _engine_class = Engine
    _connection_class = Connection
    _session_class = Session
    _scoped_class = scoped_session

    def _like(self, engine: Engine) -> Engine:
        return engine

    async def _dispose(self, engine: Engine) -> None:
        engine.dispose()

    def _reach(self) -> Reach | None:
        conninfo = conninfo_of(self._sync_engine)
        return None if conninfo is None else Reach("psycopg", conninfo)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - there is no loop to keep running

    def sync_sibling(self) -> Driver | None:
        return self


def driver_for(
    source: Any, *, prepared: bool = True, lock_timeout: float | None = None
) -> SqlAlchemyDriver | SyncSqlAlchemyDriver:
    """The driver for an engine or sessionmaker of the application's. `lock_timeout` is for files of SQLite."""
    kind = SqlAlchemyDriver if isinstance(source, AsyncEngine | async_sessionmaker) else SyncSqlAlchemyDriver
    return kind(source, prepared=prepared, lock_timeout=lock_timeout)


def _for_one_block(maker: Any) -> Callable[[], Any]:
    """Makes sessions that are closed for good: one that is used after its block would begin anew, on a connection that
    nobody gives back.
    """
    is_known = "close_resets_only" in signature(Session.__init__).parameters  # from SQLAlchemy 2.0.22 on
    if not is_known or "close_resets_only" in getattr(maker, "kw", {}):
        return cast(Callable[[], Any], maker)
    return partial(maker, close_resets_only=False)


def _session_class(maker: Any) -> Any:
    """The class a sessionmaker was given: it makes its sessions of one of its own, with the same name."""
    made, given = maker.class_.__mro__[:2]
    return given if given.__name__ == made.__name__ else made


def _beside(engine: Engine) -> Engine:
    """An engine that connects as the application's does, listeners for connecting included, but with its own pool.

    Each serves one connection: the application may have made its pools small.
    """
    return Engine(engine.pool.recreate(), engine.dialect, engine.url)


def _notice_useless(context: ExceptionContext) -> None:
    """Have SQLAlchemy replace every connection of a pool that leads to a server which takes no writes any more; and one
    whose server has forgotten (DEALLOCATE, DISCARD) what the client will ask for again and again.

    Whosever statement it was: those of handlers do not pass through us.
    """
    if context.connection is None or context.connection.invalidated:
        return
    code = sqlstate(context.sqlalchemy_exception or context.original_exception)
    if fault_of_code(code) is Fault.READ_ONLY and reads_only(context.connection) is True:
        context.is_disconnect = True
    elif code == FORGOTTEN:
        context.is_disconnect, context.invalidate_pool_on_disconnect = True, False


def _keep_after_cancel(context: ExceptionContext) -> None:
    """Have SQLAlchemy not throw away a connection to a file because a statement on it was cancelled.

    aiosqlite's thread does what it was asked all the same, one thing after the other, so that nothing is wrong with the
    connection. Closed in the middle of a transaction it would keep the write lock for as long as anybody remembers one
    of its cursors, such as the traceback of the cancellation; rolled back it does not.
    """
    if isinstance(context.original_exception, asyncio.CancelledError):
        context.is_disconnect = False


def _watch(connection: Connection) -> Callable[[], object]:
    """Have the connection notice the loss of its server; how to end it."""
    raw = client(connection)
    if connection.dialect.driver == "asyncpg":
        watch(raw._transport.get_extra_info("socket"))
    else:
        watch(raw.fileno())
        if connection.dialect.is_async:
            from onward.state.postgres.psycopg_connection import end_when_cancelled

            end_when_cancelled(raw)
    return end_of(connection)


def _set(connection: Connection, settings: Mapping[str, str]) -> None:
    if settings:
        sql = (
            "SELECT pg_catalog.set_config(name, value, false) "
            "FROM unnest(:names::text[], :values::text[]) AS s (name, value)"
        )
        rows(connection, sql, {"names": list(settings), "values": list(settings.values())})
        connection.commit()

"""The asyncpg driver."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    suppress,
)
from datetime import datetime
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from onward.errands import Errands, after_a_moment, to_the_end
from onward.errors import ConfigurationError, TransactionUnsuitable
from onward.state.driver import Address, Dialect, Driver, Fault, value_fault
from onward.state.postgres.asyncpg_connection import AsyncpgConnection, OwnConnection, new_session, user_of
from onward.state.postgres.cache import ConnectionCache, Lent
from onward.state.postgres.patience import PoolWatch
from onward.state.postgres.session import Session
from onward.state.postgres.settings import (
    CHECK_CLIENT,
    INSISTED,
    fault_of_code,
    session_settings,
    transport_settings,
)
from onward.state.process import HomeProcess, leave_to_parent
from onward.transport import CONNECT, STATEMENT, UNANSWERED_IN_POOL, Attended, Reach, watch

_NOT_OPEN = "the app is not open: use `async with app:` around this call"
_FAREWELL = 5.0
_TAKE_LEAVE = 0.5
"""Seconds for one connection that is idle: a server that does not hear of its end will notice."""
_LOST = (OSError, TimeoutError, asyncpg.InternalClientError, asyncpg.TargetServerAttributeNotMatched)
"""Not reached, or not understood; the last while a standby takes over."""
_BROKEN = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What may come of giving back a connection that is lost."""
_CLOSED = ("connection is closed", "connection was closed", "released back to the pool")
"""What asyncpg says of a connection that is gone; the last of one that a pool had lent and took back when it broke."""


_KINDS = {"uuid": UUID, "timestamptz": datetime, "float8": float, "int4": int, "text": str, "bool": bool}
"""What our statements give, and as what."""
_OF_EACH_KIND = (
    "SELECT '00000000-0000-0000-0000-000000000000'::pg_catalog.uuid, pg_catalog.now(), 1::pg_catalog.float8, "
    "1::pg_catalog.int4, ''::pg_catalog.text, true"
)


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
        self._cache: ConnectionCache[AsyncpgConnection] | None = None
        self._home = HomeProcess()
        self._errands = Errands()
        self._watch = PoolWatch(self, self._errands)
        self._sessions: WeakKeyDictionary[Any, Session] = WeakKeyDictionary()
        """Of connections, which outlive what we make of them while they are lent."""
        self._prepared = prepared
        self.transaction_type = transaction_type or (asyncpg.Connection if pool is not None else None)
        self.postgres_dsn = (dsn or _dsn_of(pool)) if prepared else None
        self.reach = Reach("asyncpg", dsn or self._beside_theirs) if prepared else None

    @property
    def address(self) -> Address | None:
        settings = {**session_settings(), "application_name": "onward guardian"}
        return None if self._dsn is None else Address("asyncpg", self._options(settings))

    async def open(self) -> None:
        if self._home.is_elsewhere:
            self._leave_to_parent()
        if self._pool is None:
            # It keeps none open by itself: it would log every failure to do so while there is no server.
            options = {**self._options(transport_settings()), "min_size": 0, "max_size": self._pool_size}
            pool: Any = await asyncpg.create_pool(
                connect=connect_whole,
                init=self._have_made,
                reset=self._reset,
                connection_class=OwnConnection,
                **options,
            )
            try:
                async with pool.acquire():  # whoever opens the app is told what is wrong
                    pass
            except BaseException:
                pool.terminate()
                raise
            self._pool = pool
            self._cache = ConnectionCache(
                self._pool_size,
                acquire=self._acquire,
                release=self._release,
                reset=AsyncpgConnection.reset,
                errands=self._errands,
            )
        elif self._cache is None:
            async with self.connection() as connection:
                _check_codecs(*(await connection.fetch(_OF_EACH_KIND, {}))[0])

    async def close(self) -> None:
        if self._home.is_elsewhere:
            self._leave_to_parent()
        self._watch.end()
        if self._cache is None:
            await self._errands.end()
            return
        pool, cache, self._pool, self._cache = self._pool, self._cache, None, None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL):
                    await self._errands.end()
                    await cache.close()
                    await pool.close()
        finally:
            pool.terminate()  # those that are still lent, or do not answer

    def _leave_to_parent(self) -> None:
        """In a child of the process that opened the driver: begin anew."""
        leave_to_parent(self._pool, self._cache, self._errands)
        self._errands = Errands()
        self._watch = PoolWatch(self, self._errands)
        if self._cache is not None:
            self._pool = self._cache = None
        self._home.move_in()

    # -- connections of our own pool

    async def _acquire(self) -> AsyncpgConnection:
        pool = self._pool
        if pool is None:  # closed while this waited for its turn
            raise ConfigurationError(_NOT_OPEN)
        try:
            shown = await pool.acquire()
        except asyncpg.InterfaceError:
            if not pool.is_closing():
                raise
            raise ConfigurationError(_NOT_OPEN) from None
        connection: AsyncpgConnection = shown._con.ours
        connection.shown, connection.escaped = shown, False
        return connection

    async def _have_made(self, raw: Any) -> None:
        """The pool has made one."""
        watch(raw._transport.get_extra_info("socket"), unanswered=UNANSWERED_IN_POOL)
        raw.ours = AsyncpgConnection(raw, prepared=self._prepared, session=self._session_of(raw))
        self._look_after(raw.ours, raw)

    def _look_after(self, connection: AsyncpgConnection, raw: Any) -> None:
        self._watch.add(connection, process=raw.get_server_pid() if self._prepared else None)

    def _session_of(self, raw: Any) -> Session:
        raw = getattr(raw, "_con", None) or raw
        session = self._sessions.get(raw)
        if session is None:
            session = self._sessions[raw] = new_session(raw)
        return session

    async def _release(self, connection: AsyncpgConnection) -> None:
        with suppress(*_BROKEN):  # then it is cut off
            if connection.escaped or not connection.is_sound:
                connection.resume()
                if connection.is_demoted:
                    connection.cut_off()
                await connection.end_unfinished()
            await connection.shown._holder._pool.release(connection.shown, timeout=STATEMENT)

    async def _reset(self, raw: Any) -> None:
        """For the pool, when no statement is under way any more and the transaction has ended."""
        session: Session = raw.ours.session
        if session.needs_reset and self._cache is not None:
            await raw.forget_codecs()
            await raw.execute(session.reset(user_of(raw)))
            session.needs_reset = False

    async def replace_all(self) -> None:
        """Lend none again of those there are: they lead to a server that takes no writes any more."""
        await self._pool.expire_connections()
        if self._cache is not None:
            await self._cache.let_go()
            for holder in self._pool._holders:
                if holder.is_idle():
                    holder.terminate()

    def connection(self) -> AbstractAsyncContextManager[AsyncpgConnection]:
        if self._pool is None:
            raise ConfigurationError(_NOT_OPEN)
        if self._home.is_elsewhere:
            raise self._home.refusal()
        return self._from_theirs() if self._cache is None else Lent(self._cache, self.replace_all)

    @asynccontextmanager
    async def _from_theirs(self) -> AsyncIterator[AsyncpgConnection]:
        raw = await self._pool.acquire()
        try:
            session = self._session_of(raw)
        except ConfigurationError:
            await to_the_end(self._pool.release(raw))
            raise
        connection = AsyncpgConnection(raw, prepared=self._prepared, native=raw, session=session)
        self._look_after(connection, raw)
        try:
            yield connection
        finally:
            await to_the_end(self._return_to_them(connection))

    async def _return_to_them(self, connection: AsyncpgConnection) -> None:
        if connection.is_demoted:
            await self.replace_all()
        await self._release(connection)

    @asynccontextmanager
    async def reserved(self) -> AsyncIterator[AsyncpgConnection]:
        self._home.require()
        raw = await self._connect()
        try:
            if self._prepared:
                with suppress(asyncpg.UndefinedObjectError, asyncpg.InvalidParameterValueError):
                    await raw.execute(CHECK_CLIENT, timeout=CONNECT)
            connection = AsyncpgConnection(raw, prepared=self._prepared)
            with Attended(connection, STATEMENT):
                yield connection
        except BaseException:
            raw.terminate()  # a farewell would wait for whatever it is that does not come
            raise
        finally:
            with suppress(OSError, asyncpg.InterfaceError, TimeoutError):
                await raw.close(timeout=_TAKE_LEAVE)

    async def _connect(self) -> Any:
        if self._dsn is not None:
            raw: Any = await connect_whole(**self._options(session_settings()))
        else:
            raw = await self._connect_as_theirs(session_settings() if self._prepared else {})
        watch(raw._transport.get_extra_info("socket"))
        return raw

    async def _connect_as_theirs(self, settings: dict[str, str]) -> Any:
        """A pool keeps to itself how it connects; one of its own kind is made the same way."""
        pool = self._pool
        options = {"timeout": CONNECT, **pool._connect_kwargs}
        if settings:
            options["server_settings"] = {**settings, **(options.get("server_settings") or {}), **INSISTED}
        return await connect_whole(
            *pool._connect_args,
            connect=pool._connect,  # an application may connect in a way of its own
            loop=asyncio.get_running_loop(),
            connection_class=pool._connection_class,
            record_class=pool._record_class,
            **options,
        )

    @asynccontextmanager
    async def _beside_theirs(self) -> AsyncIterator[Any]:
        raw = await self._connect_as_theirs({})
        try:
            yield raw
        finally:
            raw.terminate()

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
        return AsyncpgConnection(raw, prepared=self._prepared, native=raw, session=self._session_of(raw))

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
        return fault_of_code(getattr(error, "sqlstate", None), error) or value_fault(error)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def sync_sibling(self) -> Driver | None:
        if self._dsn is None:
            return None
        try:
            from onward.state.postgres.psycopg import SyncPsycopgDriver
        except ImportError:
            return None
        return SyncPsycopgDriver(self._dsn, prepared=self._prepared, pool_size=self._pool_size)


async def connect_whole(*arguments: Any, connect: Any = None, **options: Any) -> Any:
    """Connect, in the application's way if it has one.

    Cancelled in the midst of that, asyncpg may leave an error behind that nobody is told of, and which is logged.
    """

    async def connecting() -> Any:
        return await (connect or asyncpg.connect)(*arguments, **options)

    return await after_a_moment(connecting(), undo=asyncpg.Connection.terminate)


def _check_codecs(*found: object) -> None:
    """Raise unless our statements can be read on the connections of a pool of the application's."""
    for value, (name, kind) in zip(found, _KINDS.items(), strict=True):
        if not isinstance(value, kind):
            raise ConfigurationError(
                f"the pool's connections have a codec that makes a {type(value).__name__} of {name}, where a "
                f"{kind.__name__} is needed: build the app on the pool's address, or on a pool without it"
            )


def _is_closed(raw: Any) -> bool:
    try:
        return bool(raw.is_closed())
    except asyncpg.InterfaceError:  # a pool's, which took it back when it broke
        return True


def _dsn_of(pool: Any) -> str | None:
    """The address a pool was made with; None if it was made with separate options."""
    arguments = getattr(pool, "_connect_args", ())
    return arguments[0] if arguments and isinstance(arguments[0], str) else None

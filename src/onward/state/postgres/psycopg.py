"""The psycopg 3 drivers, async and sync.

Both kinds of psycopg pool have the same methods; the answers of one kind have to be awaited. Everything here is
therefore written once, and asks through `answer`.
"""

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from traceback import clear_frames
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
import psycopg_pool
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from onward.errands import Errands, to_the_end
from onward.errors import ConfigurationError, TransactionUnsuitable
from onward.state.driver import Address, Dialect, Driver, Fault, run_now, value_fault
from onward.state.postgres.cache import ConnectionCache, Lent
from onward.state.postgres.patience import PoolWatch, is_busy
from onward.state.postgres.psycopg_connection import Limit, PsycopgConnection, answer, end_when_cancelled, user_of
from onward.state.postgres.psycopg_own import OwnConnection
from onward.state.postgres.psycopg_turns import Handed, Turns
from onward.state.postgres.session import Session
from onward.state.postgres.settings import (
    CHECK_CLIENT,
    fault_of_code,
    fault_of_libpq,
    libpq_options,
    session_settings,
    transport_settings,
)
from onward.state.process import HomeProcess, leave_to_parent
from onward.transport import STATEMENT, UNANSWERED, UNANSWERED_IN_POOL, Attended, Reach, cut_off, has_news

_NOT_OPEN = "the app is not open: use `async with app:` around this call"
_FAREWELL = 5.0
"""Seconds for which closing waits for a server."""
_LOOK_AT_SERVER_AFTER = 3.0
"""Seconds without a free connection after which it is time to see whether there is still a server."""


class _Psycopg(ABC):
    """What the two drivers share: all but which classes of psycopg they use."""

    dialect: Dialect = "postgres"
    is_async: bool
    _connection_class: Any
    _own_class: Any
    """Of the connections in a pool of our own."""
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
        self.reach = Reach("psycopg", dsn) if dsn is not None and prepared else None
        self._home, self._moving = HomeProcess(), threading.Lock()
        self._errands = Errands()
        self._watch = PoolWatch(self, self._errands)
        self._sessions: WeakKeyDictionary[Any, Session] = WeakKeyDictionary()
        self._cache: ConnectionCache[PsycopgConnection] | None = None

    @property
    def address(self) -> Address | None:
        if self._dsn is None:
            return None
        conninfo, options = self._options(self._dsn, session_settings())
        name = {"fallback_application_name": "onward guardian"}
        return Address("psycopg", {"conninfo": conninfo, **name, **options})

    async def open(self) -> None:
        if self._own_pool and (self._pool is None or self._home.is_elsewhere):
            pool = await self._make_pool()
            if self._home.is_elsewhere:
                self._leave_to_parent()
            self._pool = pool
            self._lend_in_turn()
        self._home.move_in()

    async def _make_pool(self) -> Any:
        # Where the server cannot be reached a pool only says that time is up; a connection says why.
        await self._look_at_server()
        conninfo, options = self._options(self._dsn or "", transport_settings(), unanswered=UNANSWERED_IN_POOL)
        pool = self._pool_class(
            conninfo,
            connection_class=self._own_class,
            kwargs=options,
            min_size=1,
            max_size=self._pool_size,
            open=False,
            # Tries at ever longer intervals would go on sleeping when the server is back: give up, begin again.
            reconnect_timeout=1.0,
            reconnect_failed=self._pool_class.check,
        )
        try:
            await answer(pool.open())
        except BaseException:
            await self._unbroken(answer(pool.close()))
            raise
        return pool

    async def close(self) -> None:
        if self._home.is_elsewhere:
            self._leave_to_parent()
            self._pool = None if self._own_pool else self._pool
            self._home.move_in()
        # To give a connection back, or to reset it, takes an answer, which may not come.
        patience = asyncio.get_running_loop().call_later(_FAREWELL, self._cut_off_all) if self.is_async else None
        try:
            if self.is_async:
                self._watch.end()
                await self._errands.end()
            if self._own_pool and self._pool is not None:
                pool, cache, self._pool, self._cache = self._pool, self._cache, None, None
                if cache is not None:
                    await cache.close()
                await answer(pool.close())
        finally:
            if patience is not None:
                patience.cancel()

    def _cut_off_all(self) -> None:
        """Have nobody wait for the server any more on a connection of ours."""
        if self._own_pool:
            for raw in list(self._sessions):
                with suppress(psycopg.Error):
                    cut_off(raw.pgconn.socket)

    def _leave_to_parent(self) -> None:
        """In a child of the process that opened the driver: forget all that it opened."""
        leave_to_parent(self._pool, self._cache, self._errands, self._sessions)
        self._cache = None
        self._errands, self._sessions = Errands(), WeakKeyDictionary()
        self._watch = PoolWatch(self, self._errands)

    async def _come_home(self) -> None:
        """In a child of the process that opened the driver a sync one opens a pool of its own, as servers that load the
        application before they fork would have it.
        """
        if self.is_async or not self._own_pool:
            self._home.require()
        with self._moving:
            if self._home.is_elsewhere:
                await self.open()

    def connection(self) -> AbstractAsyncContextManager[PsycopgConnection]:
        return self._borrowed()

    @abstractmethod
    def _lend_in_turn(self) -> None:
        """There is a new pool of our own to lend from."""

    async def _acquire(self) -> PsycopgConnection:
        if self._pool is None:  # closed while this waited for its turn
            raise ConfigurationError(_NOT_OPEN)
        return self._of_pool(await self._borrow(self._pool))

    async def _release(self, connection: PsycopgConnection) -> None:
        await self._take_back(connection.shown, connection, autocommit=True)

    @asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[PsycopgConnection]:
        if self._pool is None:
            raise ConfigurationError(_NOT_OPEN)
        if self._home.is_elsewhere:
            await self._come_home()
        raw = await self._borrow(self._pool)
        autocommit, connection = raw.autocommit, None
        try:
            if not autocommit:
                await answer(raw.set_autocommit(True))
            connection = self._of_pool(raw)
            yield connection
        finally:
            await self._unbroken(self._take_back(raw, connection, autocommit))

    def _of_pool(self, raw: Any) -> PsycopgConnection:
        native, session = None if self._own_pool else raw, self._sessions.get(raw)
        if session is None:
            session = self._sessions[raw] = Session(user_of(raw))
        if not self.is_async:
            limit = Limit(STATEMENT, lambda: run_now(is_busy(self, self._process_of(raw))))
            return PsycopgConnection(raw, native=native, session=session, limit=limit)
        connection = PsycopgConnection(raw, native=native, session=session)
        self._watch.add(connection, process=self._process_of(raw))
        return connection

    def _process_of(self, raw: Any) -> int | None:
        return raw.info.backend_pid if self._prepared else None

    async def _take_back(self, raw: Any, connection: PsycopgConnection | None, autocommit: bool) -> None:
        try:
            if connection is not None:
                await self._leave_as_it_was(raw, connection)
            if not raw.closed and raw.autocommit != autocommit:
                await answer(raw.set_autocommit(autocommit))
        finally:
            await answer(self._pool_of(raw).putconn(raw))

    async def _leave_as_it_was(self, raw: Any, connection: PsycopgConnection) -> None:
        connection.resume()
        if not raw.closed and connection.in_transaction:
            await connection.rollback()
        if connection.is_demoted:
            # Do not lend a connection again that leads to a server which cannot write, nor its sisters.
            await answer(raw.close())
            if hasattr(self._pool_of(raw), "drain"):  # from psycopg_pool 3.3 on
                await answer(self._pool_of(raw).drain())
        elif self._cache is not None and connection.needs_reset and not raw.closed:
            with suppress(psycopg.Error):  # then it is lost, which the pool sees
                await connection.reset()

    def _pool_of(self, raw: Any) -> Any:
        return raw._pool  # also when the driver has been closed meanwhile

    async def _unbroken(self, work: Coroutine[Any, Any, None]) -> None:
        await (to_the_end(work) if self.is_async else work)

    async def _borrow(self, pool: Any) -> Any:
        """A connection of the pool, however long they are all lent; an error that says why if there is no server."""
        while self._own_pool:
            try:
                raw = await self._get(pool, timeout=_LOOK_AT_SERVER_AFTER)
            except psycopg_pool.PoolTimeout:
                await self._look_at_server()
            else:
                if not has_news(raw.pgconn.socket):
                    return raw
                await self._unbroken(self._drop(pool, raw))
        return await self._get(pool)

    async def _get(self, pool: Any, **options: Any) -> Any:
        task = asyncio.current_task() if self.is_async else None
        before = 0 if task is None else task.cancelling()
        raw = None
        try:
            raw = await answer(pool.getconn(**options))
        except psycopg_pool.PoolClosed:
            if self._own_pool:
                raise ConfigurationError(_NOT_OPEN) from None
            raise
        finally:
            if task is not None and task.cancelling() > before:
                # Before Python 3.12 `asyncio.wait_for`, which the pool uses, forgets a cancellation that comes with
                # what it waits for; who cancelled would wait in vain for this task to end.
                if raw is not None:
                    await self._unbroken(answer(pool.putconn(raw)))
                raise asyncio.CancelledError
        return raw

    async def _look_at_server(self) -> None:
        """Raise, saying why, if there is none."""
        await answer((await self._connect()).close())

    async def _drop(self, pool: Any, raw: Any) -> None:
        await answer(raw.close())
        await answer(pool.putconn(raw))

    @asynccontextmanager
    async def reserved(self) -> AsyncIterator[PsycopgConnection]:
        if self.is_async:
            self._home.require()
        raw = await self._connect()
        try:
            await answer(raw.set_autocommit(True))
            if self.is_async:
                end_when_cancelled(raw)
            connection = PsycopgConnection(raw, limit=None if self.is_async else Limit(STATEMENT))
            with Attended(connection, STATEMENT) if self.is_async else nullcontext():
                if self._prepared:
                    with suppress(psycopg.errors.UndefinedObject, psycopg.errors.InvalidParameterValue):
                        await connection.fetch(CHECK_CLIENT, {})
                yield connection
        finally:
            await answer(raw.close())

    async def _connect(self) -> Any:
        try:
            return await self._try_to_connect()
        except BaseException as error:
            # A connection that is made while its wait is cancelled would live as long as anybody has the traceback.
            clear_frames(error.__traceback__)
            raise

    async def _try_to_connect(self) -> Any:
        if self._dsn is not None:
            conninfo, options = self._options(self._dsn, session_settings())
            return await answer(self._connection_class.connect(conninfo, **options))
        pool: Any = self._pool
        given: list[Any] = []
        for value in (pool.conninfo, pool.kwargs):  # each may be a function that makes it, with a new password
            given.append(await answer(value() if callable(value) else value))
        theirs = dict(given[1] or {})
        said = {"options": theirs.pop("options")} if "options" in theirs else {}
        conninfo, options = self._options(make_conninfo(given[0] or "", **said), session_settings())
        return await answer(pool.connection_class.connect(conninfo, **{**options, **theirs}))

    def _options(
        self, conninfo: str, settings: dict[str, str], *, unanswered: float = UNANSWERED
    ) -> tuple[str, dict[str, Any]]:
        # What somebody else wrote must not stop a worker that is set to another encoding; asyncpg, too, asks for UTF-8.
        given: dict[str, Any] = {"fallback_application_name": "onward", "client_encoding": "UTF8"}
        given |= libpq_options(unanswered=unanswered)
        given |= conninfo_to_dict(conninfo)
        if not self._prepared:
            # A server-side pooler hands every transaction another connection: no statement or setting may outlive one.
            return make_conninfo("", **given), {"autocommit": True, "prepare_threshold": None}
        words = [given.pop("options", ""), *(_set(name, value) for name, value in settings.items())]
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
            return fault_of_code(code, error)
        if isinstance(error, psycopg.OperationalError):
            return fault_of_libpq(str(error))
        return Fault.VALUE if isinstance(error, psycopg.DataError) else value_fault(error)

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    @abstractmethod
    def sync_sibling(self) -> Driver | None: ...


class PsycopgDriver(_Psycopg):
    """Connects with psycopg 3 and asyncio, by DSN or through an AsyncConnectionPool of the application's."""

    is_async = True
    _connection_class = psycopg.AsyncConnection
    _own_class = OwnConnection
    _pool_class = psycopg_pool.AsyncConnectionPool

    async def open(self) -> None:
        if type(asyncio.get_running_loop()).__name__ == "ProactorEventLoop":
            raise ConfigurationError(
                "psycopg cannot use Windows' usual event loop: run the program with "
                "asyncio.Runner(loop_factory=asyncio.SelectorEventLoop), or install asyncpg"
            )
        await super().open()

    def _lend_in_turn(self) -> None:
        self._cache = ConnectionCache(
            self._pool_size,
            acquire=self._acquire,
            release=self._release,
            # A client that is cancelled first asks the server to cancel, which may not answer.
            reset=lambda connection: to_the_end(connection.reset()),
            errands=self._errands,
        )

    def connection(self) -> AbstractAsyncContextManager[PsycopgConnection]:
        if self._cache is None:
            return self._borrowed()
        self._home.require()
        return Lent(self._cache, self._replace_all)

    async def _replace_all(self) -> None:
        if self._cache is not None:
            await self._cache.let_go()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def sync_sibling(self) -> Driver | None:
        if self._dsn is None:
            return None
        return SyncPsycopgDriver(self._dsn, prepared=self._prepared, pool_size=self._pool_size)


class SyncPsycopgDriver(_Psycopg):
    """Connects with psycopg 3 without an event loop, by DSN or through a ConnectionPool of the application's."""

    is_async = False
    _connection_class = _own_class = psycopg.Connection
    _pool_class = psycopg_pool.ConnectionPool
    _turns: Turns | None = None
    """Of a pool of our own."""

    def _lend_in_turn(self) -> None:
        self._turns = Turns(
            self._pool_size,
            acquire=self._acquire,
            release=self._release,
            look=self._look_at_server,
            look_after=_LOOK_AT_SERVER_AFTER,
        )

    async def close(self) -> None:
        turns, self._turns = None if self._home.is_elsewhere else self._turns, None
        await super().close()
        if turns is not None:
            turns.close()

    def connection(self) -> AbstractAsyncContextManager[PsycopgConnection]:
        if self._turns is None or self._home.is_elsewhere:
            return self._borrowed()
        return Handed(self._turns)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - there is no loop to keep running

    def sync_sibling(self) -> Driver | None:
        return self


def _set(name: str, value: str) -> str:
    """A setting as an option of libpq's."""
    spaced = value.replace(" ", r"\ ")
    return f"-c {name}={spaced}"


def pool_driver(pool: Any, *, prepared: bool = True) -> PsycopgDriver | SyncPsycopgDriver:
    """The driver for a pool of the application's."""
    if isinstance(pool, psycopg_pool.AsyncConnectionPool):
        return PsycopgDriver(pool=pool, prepared=prepared)
    return SyncPsycopgDriver(pool=pool, prepared=prepared)

"""A connection of psycopg's, async or sync.

Both kinds have the same methods; the answers of one kind have to be awaited. Everything here is therefore written once,
and asks through `answer`.
"""

import asyncio
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from functools import partial
from types import CoroutineType
from typing import Any, TypeVar

import psycopg
from psycopg import generators
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.rows import tuple_row
from psycopg.waiting import Wait, wait_async

from onward.errors import TransactionClosed, TransactionUnsuitable
from onward.state.command import Command, Operation, Rows
from onward.state.driver import (
    CLOSED_BY_HAND,
    COMMIT_WITHIN,
    ENDED_BY_HAND,
    POISONED,
    UNFINISHED,
    PlainConnection,
    Result,
    run_in_turn,
)
from onward.state.postgres.session import Session, as_one, inlined, reads_only
from onward.state.postgres.settings import hide_row
from onward.state.statement import spell
from onward.transport import cut_off, has_news

T = TypeVar("T")
_LOOK_EVERY = 0.1
"""Seconds between looks of psycopg's for something other than an answer."""
_ROLL_BACK_WITHIN = 1.0
"""Seconds in which the application's own statements end that are under way when their transaction is undone."""


def user_of(raw: Any) -> bytes | None:
    """Whom the server takes us for."""
    user: bytes | None = raw.pgconn.parameter_status(b"session_authorization")
    return user


async def answer(value: Any) -> Any:
    return await value if isinstance(value, CoroutineType) else value


class NoAnswer(psycopg.OperationalError):
    """The connection was cut off because the server did not answer."""


class Limit:
    """`Patience` without an event loop: how long a sync connection waits for the answer to a statement of ours."""

    def __init__(self, seconds: float, is_busy: Callable[[], bool] | None = None) -> None:
        self._seconds, self._is_busy = seconds, is_busy

    def around(self, waiting: Generator[Any, Any, Any], number: int) -> Generator[Any, Any, Any]:
        """The same wait, which psycopg has look around ten times a second, with an end."""
        until = time.monotonic() + self._seconds
        try:
            wanted = next(waiting)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > until:
                    if self._is_busy is None or not self._is_busy():
                        cut_off(number)
                        raise NoAnswer("the server does not answer")
                    until = time.monotonic() + self._seconds
                wanted = waiting.send(ready)
        except StopIteration as ended:
            return ended.value


def end_when_cancelled(raw: Any) -> None:
    """Have a statement that is cancelled end the async connection, which nobody else uses.

    Left to itself psycopg asks the server to cancel it, and waits for ten seconds if that does not answer.
    """

    async def wait(waiting: Any, interval: float = _LOOK_EVERY, **options: Any) -> Any:
        try:
            return await wait_async(waiting, raw.pgconn.socket, interval, **options)
        except asyncio.CancelledError:
            raw.pgconn.finish()
            raise

    raw.wait = wait


class Limited:
    """`with limited:` around each wait for an answer on a sync connection that others use as well."""

    def __init__(self, raw: Any, limit: Limit) -> None:
        self._raw, self._limit = raw, limit

    def __enter__(self) -> None:
        self._raw.wait = self._wait

    def __exit__(self, *_: object) -> None:
        vars(self._raw).pop("wait", None)

    def _wait(self, waiting: Any, *arguments: Any, **options: Any) -> Any:
        limited = self._limit.around(waiting, self._raw.pgconn.socket)
        try:
            return type(self._raw).wait(self._raw, limited, *arguments, **options)
        except NoAnswer:
            self._raw.close()  # so that whoever lent it sees that it is lost
            raise


class PsycopgConnection(PlainConnection):
    """A connection of psycopg's, of either kind."""

    def __init__(
        self,
        raw: Any,
        *,
        native: Any = None,
        begun: bool = False,
        session: Session | None = None,
        limit: Limit | None = None,
    ) -> None:
        self.native = native
        self.shown = self._raw = raw
        self._own_wait: Any = vars(raw).get("wait")
        self._limit = limit
        self._ours, self._theirs = _Asking(self, limit), _Asking(self, None)
        self.waits_since = 0.0
        """For whoever looks after it."""
        self.session = self._session = session or Session(user_of(raw))
        self.is_to_be_reset = self._session.needs_reset and native is None
        self._begun = begun
        self._has_begun = False
        """Whether the server, too, has heard that a transaction of ours began: with the first statement, whosever."""
        self._autocommit = raw.autocommit
        self._is_asking = self._is_limited = self._is_suspended = self._is_watched = False
        self.escaped = native is not None
        """Whether the application has the connection itself."""
        self._refused_to_write = False
        self._read_only_before = self._reads_only

    @property
    def raw(self) -> Any:
        self.escaped = self._session.needs_reset = True
        return self._raw

    @property
    def in_transaction(self) -> bool:
        return self._begun or self._raw.pgconn.transaction_status != TransactionStatus.IDLE

    @property
    def needs_reset(self) -> bool:
        return self._session.needs_reset

    @property
    def is_sound(self) -> bool:
        connection = self._raw.pgconn
        is_idle = connection.transaction_status == TransactionStatus.IDLE
        return is_idle and not self._refused_to_write and not has_news(connection.socket)

    def check(self) -> None:
        if self._raw.closed:
            if not self._raw.broken:
                raise TransactionClosed(CLOSED_BY_HAND)
        elif self._has_begun and self._raw.pgconn.transaction_status == TransactionStatus.IDLE:
            raise TransactionClosed(ENDED_BY_HAND)

    @property
    def is_demoted(self) -> bool:
        """Whether the server takes no writes any more: there may be a better one by now."""
        if self._refused_to_write or not self.escaped:
            return self._refused_to_write
        # What the server refused to do for the application itself we have not heard.
        return self._reads_only is True and self._read_only_before is False

    @property
    def _reads_only(self) -> bool | None:
        if self._raw.closed:
            return None
        said = self._raw.info.parameter_status
        return reads_only(standby=said("in_hot_standby"), by_default=said("default_transaction_read_only"))

    # -- statements

    async def fetch(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        if self.is_to_be_reset and not self.in_transaction:
            await self.reset()
        cursor = await self._run(sql, parameters, ours=True)
        rows: Rows = await answer(cursor.fetchall()) if cursor.description else []
        return rows

    async def query(self, sql: str, parameters: Mapping[str, Any]) -> Result:
        self._session.needs_reset = True
        cursor = await self._run(sql, parameters, ours=False)
        rows = await answer(cursor.fetchall()) if cursor.description else []
        return Result(tuple(column.name for column in cursor.description or ()), rows, max(cursor.rowcount, 0))

    async def script(self, sql: str) -> None:
        self._session.needs_reset = True
        with self._theirs:
            await answer(self._raw.execute(sql, prepare=False))

    async def _run(self, sql: str, parameters: Mapping[str, Any], *, ours: bool) -> Any:
        if self._raw.pgconn.pipeline_status:
            raise TransactionUnsuitable(
                "the connection is in pipeline mode, in which a statement has no answer yet: leave the block of "
                "connection.pipeline() first"
            )
        # The application may have its own taste in cursors and rows; ours are plain.
        kind: Any = psycopg.AsyncCursor if isinstance(self._raw, psycopg.AsyncConnection) else psycopg.Cursor
        cursor = kind(self._raw, row_factory=tuple_row)
        spelled = spell(sql, "percent")
        given = {name: _array(parameters[name]) for name in spelled.names}
        with self._ours if ours else self._theirs:
            # Ours in binary: what a time looks like in text is the role's to say, and not all of it psycopg can read.
            await answer(cursor.execute(spelled.sql, given, binary=ours))
        return cursor

    async def _send(self, sql: str) -> int:
        with self._ours:
            return await send(self._raw, sql)

    def asks(self, *, limited: bool) -> None:
        """From now on it is one of ours or the user's, through us, that waits for an answer."""
        self._is_asking, self._is_limited = True, limited
        if limited:
            self._raw.wait = self._wait

    def has_asked(self, error: BaseException | None) -> None:
        """Remember what an error says of the connection."""
        self._is_asking = False
        if self._is_limited:
            self._is_limited = False
            self._restore_wait()
        if error is not None and isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
            # A server that says of itself that it can write means this transaction only.
            self._refused_to_write = self._refused_to_write or self._reads_only is not False

    def _wait(self, waiting: Any, *arguments: Any, **options: Any) -> Any:
        """In place of the connection's own `wait`, through which goes all that is asked of the server."""
        if self._is_suspended and not self._is_asking:
            raise TransactionClosed("the block of this transaction has ended: its connection takes no more statements")
        if self._is_watched and not self._has_begun:
            waiting = self._noticing(waiting)
        if self._is_limited and self._limit is not None:
            waiting = self._limit.around(waiting, self._raw.pgconn.socket)
        own = self._own_wait or partial(type(self._raw).wait, self._raw)
        return own(waiting, *arguments, **options)

    def _noticing(self, waiting: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        answer = yield from waiting
        self._has_begun = self._raw.info.transaction_status != TransactionStatus.IDLE
        return answer

    def _restore_wait(self) -> None:
        if self._is_suspended or self._is_watched:
            return
        if self._own_wait is not None:
            self._raw.wait = self._own_wait
        elif "wait" in self._raw.__dict__:
            del self._raw.wait

    # -- transactions

    async def begin(self) -> None:
        if self.native is None:
            await self._begin("BEGIN")
        else:
            # psycopg sends BEGIN before the next statement, with the isolation level the application has chosen.
            with self._ours:
                await answer(self._raw.set_autocommit(False))
            self._begun = self._is_watched = True
            self._raw.wait = self._wait

    async def _begin(self, message: str) -> int:
        reset = self._session.reset_first(user_of(self._raw)) if self.is_to_be_reset else ""
        count = await self._send(reset + message)
        self._has_begun = True
        if reset:
            self.is_to_be_reset = self._session.needs_reset = False
        return count

    async def run(self, first: Operation[T], *more: Command[Any], begin: bool = False, commit: bool = False) -> T:
        if isinstance(first, Command):
            if more and not (begin or commit or self.in_transaction):
                first, more = as_one(first, more)
            takes_one = self.native is None and takes_one_message(self._raw)
            if begin != commit and not more and first.needs != "rows" and takes_one:
                return await self._run_in_one_message(first, begin=begin)
        return await run_in_turn(self, first, *more, begin=begin, commit=commit)

    async def _run_in_one_message(self, command: Command[T], *, begin: bool) -> T:
        # Not prepared: psycopg has the server forget all that is whenever a table is dropped, or a transaction undone.
        statement, count = inlined(command.sql, command.parameters), 0
        try:
            if begin:
                count = await self._begin(f"BEGIN;{statement}")
            else:
                await self._insist_on_turn()
                await self._send(f"{statement};COMMIT")
                await self._ended()
        except BaseException:
            await self.rollback()  # it may have begun, or the statement failed so that COMMIT was not even tried
            raise
        return command.read([()] * count)

    async def commit(self) -> None:
        # In a transaction that a failed statement has poisoned, COMMIT means ROLLBACK and psycopg does not say so.
        poisoned = self._raw.info.transaction_status == TransactionStatus.INERROR
        try:
            await self._insist_on_turn()
            with self._ours:
                await answer(self._raw.rollback() if poisoned else self._raw.commit())
        except BaseException:
            await self.rollback()
            raise
        await self._ended()
        if poisoned:
            raise TransactionUnsuitable(POISONED)

    async def _insist_on_turn(self) -> None:
        if not await self._has_turn(COMMIT_WITHIN):
            raise TransactionUnsuitable(UNFINISHED)

    async def _has_turn(self, within: float) -> bool:
        """Whether the connection is free in time: what the application has begun on it may keep it for ever."""
        lock = self._raw.lock
        if not lock.locked():
            return True
        if isinstance(lock, asyncio.Lock):
            with suppress(TimeoutError):
                async with asyncio.timeout(within), lock:
                    return True
        elif lock.acquire(timeout=within):
            lock.release()
            return True
        return False

    async def rollback(self) -> None:
        if not (self._raw.closed or await self._has_turn(_ROLL_BACK_WITHIN)):
            await answer(self._raw.close())
        if not self._raw.closed:
            with suppress(psycopg.OperationalError), self._ours:
                await answer(self._raw.rollback())
        await self._ended()

    async def _ended(self) -> None:
        self._begun = self._has_begun = self._is_watched = False
        self._restore_wait()
        if not self._raw.closed and self._raw.autocommit != self._autocommit:
            with self._ours:
                await answer(self._raw.set_autocommit(self._autocommit))

    def after_commit(self, action: Callable[[], Any]) -> bool:
        return False

    def cut_off(self) -> None:
        # Closing would not end the wait for an answer, and its cancellation asks the server.
        with suppress(psycopg.OperationalError):  # it is closed
            cut_off(self._raw.pgconn.socket)

    # -- between borrowers

    async def reset(self) -> None:
        """Have the server forget what the last borrower left behind."""
        await self._send(self._session.reset(user_of(self._raw)))
        self.is_to_be_reset = self._session.needs_reset = False

    # -- between the end of a block and the commit

    def suspend(self) -> None:
        self._is_suspended = True
        self._raw.wait = self._wait

    def resume(self) -> None:
        self._is_suspended = False
        self._restore_wait()


class _Asking:
    """`with asking:` around each wait for an answer: not for ever, and a refusal to write is remembered."""

    __slots__ = ("_connection", "_limit")

    def __init__(self, connection: PsycopgConnection, limit: Limit | None) -> None:
        self._connection, self._limit = connection, limit

    def __enter__(self) -> None:
        connection = self._connection
        connection.asks(limited=self._limit is not None)
        if self is connection._ours:
            connection.waits_since = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._connection.waits_since = 0.0
        self._connection.has_asked(error)
        if isinstance(error, psycopg.IntegrityError) and self is self._connection._ours:
            hide_row(error)


def takes_one_message(raw: Any) -> bool:
    """Whether statements with their values written out can be sent: not in another encoding, where a sign may be
    spelled with a byte that means a quote or a backslash alone, nor in a pipeline that the application has left open.
    """
    connection = raw.pgconn
    return bool(connection.parameter_status(b"client_encoding") == b"UTF8" and connection.pipeline_status == 0)


async def send(raw: Any, sql: str) -> int:
    """Statements without parameters in one message on a connection of either kind; how many rows the last gave.

    A cursor would cost as much again, and its pipeline mode twice as much.
    """
    await answer(raw.lock.acquire())
    try:
        last = await answer(raw.wait(_exchange(raw.pgconn, sql.encode())))
    finally:
        raw.lock.release()
    if last.status == ExecStatus.FATAL_ERROR:  # which ends the message
        raise psycopg.errors.error_from_result(last)
    return int(last.ntuples)


def _exchange(pgconn: Any, message: bytes) -> Generator[Any, Any, Any]:
    """What the last of the statements gave.

    To have psycopg fetch it would let go of the GIL three times for each of them, and as often another thread wakes.
    """
    pgconn.send_query(message)
    yield from generators.send(pgconn)
    last = result = None
    while True:
        while pgconn.is_busy():
            while not (yield Wait.R):
                pass
            pgconn.consume_input()
        last, result = result, pgconn.get_result()
        if result is None:
            break
    while (heard := pgconn.notifies()) is not None:
        if pgconn.notify_handler is not None:
            pgconn.notify_handler(heard)
    return last


def _array(value: Any) -> Any:
    # psycopg makes an array of a list, and a record of a tuple.
    return list(value) if isinstance(value, tuple) else value

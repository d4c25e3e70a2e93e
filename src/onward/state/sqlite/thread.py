"""Connections for an event loop: work goes into a thread, and its result comes back to the loop that asked."""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

from onward.errors import DatabaseLocked
from onward.state.command import Command, Operation, Rows
from onward.state.driver import PlainConnection, Result, run_now
from onward.state.sqlite.connection import SyncSqliteConnection, may_stay
from onward.state.sqlite.gate import LockLimit

T = TypeVar("T")


class Call(Generic[T]):
    """Something to be done with a connection, and what came of it."""

    __slots__ = (
        "_arguments",
        "_error",
        "_future",
        "_result",
        "_work",
        "finished",
        "is_abandoned",
        "is_inside",
        "is_put",
        "loop",
    )

    def __init__(
        self, work: Callable[..., Coroutine[Any, Any, T]], arguments: tuple[Any, ...], is_inside: bool
    ) -> None:
        self._work, self._arguments = work, arguments
        self.is_inside = is_inside
        """Whether it is part of a transaction that is open."""
        self.loop = asyncio.get_running_loop()
        self._future = self.loop.create_future()
        self._result: T
        self._error: BaseException | None = None
        self.finished = self.is_put = False
        self.is_abandoned = False
        """Set by the loop when nobody waits any more; work that can still be given up looks here."""

    def run(self, connection: Callable[[bool], SyncSqliteConnection]) -> None:
        """In the thread: do it."""
        try:
            self._result = run_now(self._work(connection(self.is_inside), *self._arguments))
        except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
            self._error = error

    def refuse(self, limit: LockLimit) -> None:
        """In the loop: it has waited for too long, unless it does not wait any more."""
        if not self.is_put:
            self._error = DatabaseLocked(path=limit.path, waited=limit.seconds)
            self.deliver()

    def deliver(self) -> None:
        """In the loop: wake who waits."""
        self.finished = True
        if not self._future.done():
            self._future.set_result(None)

    async def outcome(self) -> T:
        """Wait until it is done, also when cancelled: what a connection is doing must be over before it is used again.

        Cancelled: the cancellation is raised afterwards, whatever came out; at once if the thread does not know of it.
        """
        cancelled: asyncio.CancelledError | None = None
        while not self.finished:
            try:
                await self._future
            except asyncio.CancelledError as error:
                cancelled, self.is_abandoned = error, True
                if not self.is_put:
                    raise
                self._future = self.loop.create_future()
        if cancelled is not None:
            raise cancelled
        if self._error is not None:
            raise self._error
        return self._result


class ConnectionThread:
    """A connection and its thread, made when they are needed: does one thing after another.

    Who begins a transaction has it alone: others begin theirs when that one has been told to end.
    """

    def __init__(self, connect: Callable[[Callable[[], bool]], SyncSqliteConnection]) -> None:
        """`connect` is told what says, in the thread, whether a wait is to be given up."""
        self._connect = connect
        self._connection: SyncSqliteConnection | None = None
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._call: Call[Any] | None = None
        self._done: list[Call[Any]] = []
        """Of which the loop has not been told."""
        self._thread: Thread | None = None
        self._is_taken = False
        """Whether somebody has begun a transaction and not yet told it to end."""
        self._waiting: deque[Call[Any]] = deque()
        """Who is to begin the next ones."""

    @property
    def connection(self) -> SyncSqliteConnection:
        """Which has been needed before."""
        assert self._connection is not None
        return self._connection

    def ask(self, work: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, inside: bool) -> Coroutine[Any, Any, T]:
        """Have something done with the connection; `inside` the transaction that the caller has open."""
        call = Call(work, arguments, inside)
        self._put(call)
        return call.outcome()

    async def begin(self, work: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, limit: LockLimit | None) -> T:
        """Have a transaction begun, once the last has been told to end. If that succeeds, the caller is to `end` it."""
        call = Call(work, arguments, False)
        late: asyncio.TimerHandle | None = None
        if not self._is_taken:
            self._put(call)  # first: where no thread can be started nobody has taken anything
            self._is_taken = True
        else:
            self._waiting.append(call)
            if limit is not None:
                late = asyncio.get_running_loop().call_later(limit.seconds, call.refuse, limit)
        try:
            return await call.outcome()
        except BaseException:
            # Cancelled after the lock had been granted: nobody knows of this transaction, so nobody would end it.
            if call.is_put:
                undone = self.ask(SyncSqliteConnection.rollback, inside=True)
                self.end()
                await undone
            else:
                self._waiting.remove(call)
            raise
        finally:
            if late is not None:
                late.cancel()

    def end(self) -> None:
        """What was asked for last ends the transaction: the next may queue behind it."""
        if self._waiting:
            self._put(self._waiting.popleft())
        else:
            self._is_taken = False

    def _put(self, call: Call[Any]) -> None:
        if self._thread is None:
            # A daemon: a process that ends without closing its app must not hang.
            thread = Thread(target=_work, args=(self._inbox,), name="onward-sqlite", daemon=True)
            thread.start()
            self._thread = thread
        call.is_put = True
        self._inbox.put(partial(self._do, call))

    def _do(self, call: Call[Any]) -> None:
        """In the thread."""
        self._call = call
        call.run(self._usable)
        self._call = None
        self._done.append(call)
        if self._inbox.empty():  # else what was begun behind an end is told with it
            self._tell()

    def _tell(self) -> None:
        """Wake the loop, which costs more than most statements."""
        done, self._done = self._done, []
        try:
            if done:
                done[0].loop.call_soon_threadsafe(_deliver, done)
        except RuntimeError:
            pass  # the loop was closed: nobody is left to be told

    def _usable(self, is_inside: bool) -> SyncSqliteConnection:
        if self._connection is None or (self._connection.is_closed and not is_inside):
            self._tell()
            self._connection = self._connect(self.is_abandoned)
        return self._connection

    def is_abandoned(self) -> bool:
        """In the thread, before it waits for others: whether nobody waits any more for what it is doing."""
        self._tell()
        return self._call is not None and self._call.is_abandoned

    async def close(self) -> None:
        """End what is open, let go of the file, end the thread."""
        try:
            if self._connection is not None:
                await self.ask(_close, inside=True)
        finally:
            if self._thread is not None:
                self._inbox.put(self._tell)  # what another, who closes it as well, has asked for
                self._inbox.put(None)
            self._thread = self._connection = None


class SqliteConnection(PlainConnection):
    """A connection for an event loop: threads do the work.

    Its transactions may be made where others make theirs. There can be but one at a time anyway, what one has read of
    the file the next need not read again, and no thread waits for another.
    """

    native = None

    def __init__(
        self, thread: ConnectionThread, writer: ConnectionThread | None = None, limit: LockLimit | None = None
    ) -> None:
        self._thread, self._writer, self._limit = thread, writer or thread, limit
        self._is_inside = self._has_escaped = False
        """Whether it has begun a transaction, and not yet told it to end; whether the application may have kept what
        it is made on, or have changed it for good.
        """

    @property
    def _sync(self) -> SyncSqliteConnection:
        return (self._writer if self._is_inside else self._thread).connection

    @property
    def raw(self) -> sqlite3.Connection:
        self._has_escaped = True
        return self._sync.raw

    @property
    def in_transaction(self) -> bool:
        return self._is_inside and self._sync.in_transaction

    def check(self) -> None:
        self._sync.check()

    async def fetch(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        return await self._ask(SyncSqliteConnection.fetch, sql, parameters)

    async def query(self, sql: str, parameters: Mapping[str, Any]) -> Result:
        self._has_escaped = self._has_escaped or may_stay(sql)
        return await self._ask(SyncSqliteConnection.query, sql, parameters)

    async def script(self, sql: str) -> None:
        await self._ask(SyncSqliteConnection.script, sql)

    async def begin(self) -> None:
        await self._begin(SyncSqliteConnection.begin)

    async def commit(self) -> None:
        await self._end(SyncSqliteConnection.commit)

    async def rollback(self) -> None:
        if self._is_inside:
            await self._end(SyncSqliteConnection.rollback)

    def after_commit(self, action: Callable[[], Any]) -> bool:
        return False

    async def close(self) -> None:
        await self._thread.close()

    async def run(self, first: Operation[T], *more: Command[Any], begin: bool = False, commit: bool = False) -> T:
        """In the thread, as one piece.

        Not only because it is faster: between two statements the event loop may be busy with something else, and the
        only write lock there is would wait with it.
        """
        work = partial(SyncSqliteConnection.run, begin=begin, commit=commit)
        if begin and not commit:
            return await self._begin(work, first, *more)
        return await (self._end if commit else self._ask)(work, first, *more)

    def _ask(self, work: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> Coroutine[Any, Any, T]:
        thread = self._writer if self._is_inside else self._thread
        return thread.ask(work, *arguments, inside=self._is_inside)

    async def _begin(self, work: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        answer = await self._writer.begin(work, *arguments, limit=self._limit)
        self._is_inside = True
        return answer

    def _end(self, work: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> Coroutine[Any, Any, T]:
        if self._is_inside and self._has_escaped:
            self._has_escaped, arguments, work = False, (work, *arguments), _and_close
        answer = self._ask(work, *arguments)
        if self._is_inside:
            self._is_inside = False
            self._writer.end()
        return answer


def _work(inbox: SimpleQueue[Callable[[], None] | None]) -> None:
    """In the thread. While idle it keeps nothing: a connection that everybody has forgotten must not keep the lock."""
    while (do := inbox.get()) is not None:
        do()
        del do


def _deliver(calls: list[Call[Any]]) -> None:
    for call in calls:
        call.deliver()


async def _close(connection: SyncSqliteConnection) -> None:
    connection.close()


async def _and_close(
    connection: SyncSqliteConnection, work: Callable[..., Coroutine[Any, Any, T]], *arguments: Any
) -> T:
    """Whoever has kept the connection is to have nothing of the transactions that others make after this one."""
    try:
        return await work(connection, *arguments)
    finally:
        connection.close()

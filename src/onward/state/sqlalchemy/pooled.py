"""What the application's pool lends, in turn: a connection for single statements, or one in a transaction."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, NoReturn, TypeVar

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from onward.errands import to_the_end
from onward.errors import TransactionClosed
from onward.state.command import Command, Operation, Rows, as_one
from onward.state.driver import (
    BLOCK_ENDED,
    Dialect,
    PlainConnection,
    Result,
)
from onward.state.sqlalchemy.after_commit import has_ended
from onward.state.sqlalchemy.direct import DirectConnection
from onward.state.sqlalchemy.joined import JoinedConnection
from onward.state.sqlalchemy.work import (
    MakePatience,
    is_file,
    is_open,
    open_whole,
)
from onward.state.sqlite.connection import writes
from onward.state.sqlite.gate import LockLimit

T = TypeVar("T")


class Turns:
    """As many as a pool has connections: to wait in there is a task for each. For a file's transactions there is one:
    SQLite has no queue for those that want to write, who sleep and try again, ever longer.
    """

    def __init__(self, count: int, seconds: float) -> None:
        self._free, self._seconds = asyncio.Semaphore(count), seconds

    async def take(self) -> bool:
        """Whether one came in time; if not, the pool will say what is wrong."""
        if not self._free.locked():
            return await self._free.acquire()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                return await self._free.acquire()
        return False

    def release(self) -> None:
        self._free.release()


class PooledConnection(PlainConnection):
    """What the application's pool lends: nothing yet, a connection for single statements, or an object to hand out."""

    def __init__(
        self,
        dialect: Dialect,
        *,
        direct: Callable[[], Any],
        options: Mapping[str, Any],
        joined: Callable[[], Any],
        patience: MakePatience,
        turns: Turns | None,
        limit: LockLimit | None,
    ) -> None:
        """`limit`: how long to wait for a file's write lock."""
        self._limit = limit
        self._is_file, self._turns = dialect == "sqlite", turns
        self._make_direct, self._options, self._make_joined = direct, options, joined
        self._make_patience = patience
        self._lent: DirectConnection | JoinedConnection | None = None
        self._handle: Any = None
        self._has_queued = False
        """Also where the turn did not come in time."""
        self._has_turn = False

    @property
    def raw(self) -> Any:
        return self._lent and self._lent.raw

    @property
    def native(self) -> Any:
        return self._lent and self._lent.native

    @property
    def in_transaction(self) -> bool:
        return isinstance(self._lent, JoinedConnection)

    async def fetch(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        return await (await self._current()).fetch(sql, parameters)

    async def query(self, sql: str, parameters: Mapping[str, Any]) -> Result:
        return await (await self._current()).query(sql, parameters)

    async def script(self, sql: str) -> None:
        await (await self._current()).script(sql)

    async def run(self, first: Operation[T], *more: Command[Any], begin: bool = False, commit: bool = False) -> T:
        is_lone = not (begin or commit or self.in_transaction)
        if is_lone:
            if more and not self._is_file and isinstance(first, Command):
                first, more = as_one(first, more)
            begin = commit = bool(more) or self._queues_to_write(first)
        if not (begin or commit):
            return await (await self._current()).run(first, *more)
        try:
            # Lent from the first word on: who waits for the answer to BEGIN can be cut off.
            self._lent = joined = await self._join(is_lone=is_lone) if begin else await self._current()
            answer = await joined.run(first, *more, begin=begin, commit=commit)
        except BaseException:
            await self.give_back()
            raise
        if commit:
            await self.give_back()
        return answer

    async def begin(self) -> None:
        joined = await self._join()
        await joined.begin()
        self._lent = joined

    def _queues_to_write(self, operation: Operation[Any]) -> bool:
        """Whether it is one statement that is to be written to a file in turn."""
        is_in_line = self._is_file and self._turns is not None
        return is_in_line and isinstance(operation, Command) and writes(operation.sql)

    async def _join(self, *, is_lone: bool = False) -> JoinedConnection:
        """`is_lone`: for statements of ours alone, so that a session would only be in the way."""
        if self._lent is not None:
            await self.give_back()
        await self._take_turn()
        self._handle = self._make_direct() if is_lone and self._is_file else self._make_joined()
        return JoinedConnection(self._handle, lent=self._make_patience, limit=self._limit)

    async def commit(self) -> None:
        try:
            await (await self._current()).commit()
        finally:
            await self.give_back()

    async def rollback(self) -> None:
        try:
            await (await self._current()).rollback()
        finally:
            await self.give_back()

    def after_commit(self, action: Callable[[], Any]) -> bool:
        return self._lent is not None and self._lent.after_commit(action)

    def check(self) -> None:
        if self._lent is not None:
            self._lent.check()

    def suspend(self) -> None:
        if self._lent is not None:
            self._lent.suspend()

    def resume(self) -> None:
        if self._lent is not None:
            self._lent.resume()

    def cut_off(self) -> None:
        if self._lent is not None:
            self._lent.cut_off()

    async def give_back(self) -> None:
        """To the application's pool, as it was."""
        self.resume()
        handle, self._handle, self._lent = self._handle, None, None
        try:
            if handle is not None:
                retire(handle)
                await _close(handle)
        finally:
            self._has_queued = False
            if self._has_turn and self._turns is not None:
                self._has_turn = False
                self._turns.release()

    async def queue(self) -> None:
        """Wait for a turn at the pool, unless that depends on what it is for, as with files."""
        if not self._is_file:
            await self._take_turn()

    async def _take_turn(self) -> None:
        if self._turns is not None and not self._has_queued:
            self._has_queued = True
            self._has_turn = await self._turns.take()

    async def _current(self) -> DirectConnection | JoinedConnection:
        if self._lent is None:
            await self.queue()
            self._handle = raw = self._make_direct()
            if not self._is_file:  # else it is opened along with the first statement
                await open_whole(raw, self._options)
            patience = self._make_patience(getattr(raw, "sync_connection", raw))
            self._lent = DirectConnection(raw, patience=patience, limit=self._limit)
        return self._lent


@asynccontextmanager
async def entered(handle: Any, options: Mapping[str, Any]) -> AsyncIterator[Any]:
    """A connection of either kind with these options, closed at the end."""
    try:
        await open_whole(handle, options)
        yield handle
    finally:
        await _close(handle)


def retire(handle: Any) -> None:
    """Have a session that was lent take nothing more: closed, it would begin anew, and nobody would end that."""
    session = getattr(handle, "sync_session", handle)
    if isinstance(session, Session):
        vars(session)["get_bind"] = _refuse_retired  # whom it asks for a connection, whatever it is to do


def _refuse_retired(*_: object, **__: object) -> NoReturn:
    raise TransactionClosed(BLOCK_ENDED)


async def _close(handle: Any) -> None:
    if isinstance(handle, AsyncSession):
        await to_the_end(handle.close())
    elif not isinstance(handle, AsyncConnection):
        handle.close()
    elif is_open(handle) and not handle.closed:
        await to_the_end(handle.run_sync(_close_idle) if is_file(handle) else handle.close())


def _close_idle(connection: Connection) -> None:
    with nullcontext() if connection.invalidated else has_ended(connection):
        connection.close()

"""Connections over SQLAlchemy: in a transaction of SQLAlchemy's, in autocommit, or either as the need arises."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from traceback import clear_frames
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from onward.errands import to_the_end
from onward.errors import TransactionClosed, TransactionUnsuitable
from onward.state.command import Rows
from onward.state.driver import CLOSED_BY_HAND, ENDED_BY_HAND, Fault, Result, StepByStep
from onward.state.postgres.settings import fault_of_code
from onward.state.sqlalchemy.after_commit import after_commit
from onward.state.sqlalchemy.checks import sqlstate
from onward.state.sqlalchemy.work import (
    WriterBusy,
    client,
    do,
    end_of,
    is_autocommit,
    is_file,
    is_in_transaction,
    is_locked,
    query,
    reads_only,
    refuse_poisoned,
    rows,
    script,
    take_write_lock,
)

T = TypeVar("T")
MakePatience: TypeAlias = Callable[[Connection], AbstractContextManager[None]]
"""How long statements of ours may take on a connection."""


class JoinedConnection(StepByStep):
    """A connection or session in a transaction of SQLAlchemy's: the caller's, or one begun here to be handed out."""

    def __init__(self, raw: Any, *, begun: bool = False, lent: MakePatience | None = None) -> None:
        self.raw = self.native = raw
        self._begun = begun
        self._lent = lent
        self._patience: AbstractContextManager[None] = nullcontext()
        self._connection: Connection | None = None
        self._transaction: Any = None
        """That was begun here."""
        self._has_begun = False
        """Whether the server, too, has heard of it: SQLAlchemy begins with the first statement, whosever it is."""
        self._watched: Connection | None = None
        self._is_asking = False
        self._suspended: Connection | None = None
        self._end: Callable[[], object] = _nothing

    @property
    def in_transaction(self) -> bool:
        return self._begun or bool(self.raw.in_transaction())

    def check(self) -> None:
        connection = self._connection
        if self._transaction is None or connection is None or connection.invalidated:
            return
        target = getattr(self.raw, "sync_session", None) or connection
        if connection.closed or target.get_transaction() is not self._transaction:
            is_closed = connection.closed and target is connection
            raise TransactionClosed(CLOSED_BY_HAND if is_closed else ENDED_BY_HAND)
        if self._has_begun and not is_in_transaction(connection):
            raise TransactionClosed(ENDED_BY_HAND)

    async def fetch(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        with self._patience:
            return await do(self.raw, self._within, rows, sql, parameters)

    async def query(self, sql: str, parameters: Mapping[str, Any]) -> Result:
        return await do(self.raw, self._within, query, sql, parameters)

    async def script(self, sql: str) -> None:
        await do(self.raw, self._within, script, sql)

    async def begin(self) -> None:
        try:
            await do(self.raw, self._begin)
        except asyncio.CancelledError as error:
            clear_frames(error.__traceback__)  # with what they hold of a connection that is half made
            self._unwatch()
            await do(self.raw, self._roll_back)  # it may have begun
            raise
        self._begun = True
        if self._lent is not None and self._connection is not None:
            self._patience = self._lent(self._connection)
            if self._connection.dialect.name == "postgresql":
                self._end = end_of(self._connection)

    async def commit(self) -> None:
        self._begun = False
        self._unwatch()
        with self._patience:
            await do(self.raw, self._commit)

    async def rollback(self) -> None:
        self._begun = False
        self._unwatch()
        with self._patience:
            await do(self.raw, self._roll_back)

    def suspend(self) -> None:
        connection = self._connection
        if self._suspended is None and connection is not None and not connection.closed:
            event.listen(connection, "before_cursor_execute", self._refuse)
            self._suspended = connection

    def resume(self) -> None:
        if self._suspended is not None:
            event.remove(self._suspended, "before_cursor_execute", self._refuse)
            self._suspended = None

    def cut_off(self) -> None:
        self._end()

    def _refuse(self, *_: object) -> None:
        if not self._is_asking:
            raise TransactionClosed("the block of this transaction has ended: it takes no more statements")

    def after_commit(self, action: Callable[[], Any]) -> bool:
        if self._connection is None or self._connection.closed:
            return False
        after_commit(self._connection, action)
        return True

    def _within(self, target: Connection | Session, work: Callable[..., T], *arguments: Any) -> T:
        connection = self._enter(target)
        if connection.dialect.name == "sqlite" and not client(connection).in_transaction:
            # sqlite3 begins late, and before a statement that starts with WITH not at all.
            take_write_lock(connection)
        try:
            return self._ask(work, connection, *arguments)
        except DBAPIError as error:
            if self._lent is not None:
                _discard_demoted(connection, error)
            raise

    def _ask(self, work: Callable[..., T], *arguments: Any) -> T:
        self._is_asking = True
        try:
            return work(*arguments)
        finally:
            self._is_asking = False

    def _roll_back(self, target: Connection | Session) -> None:
        self._ask(_roll_back, target)

    def _enter(self, target: Connection | Session) -> Connection:
        connection = target.connection() if isinstance(target, Session) else target
        if is_autocommit(connection):
            raise TransactionUnsuitable("the connection is in AUTOCOMMIT isolation: nothing in it can be rolled back")
        self._connection = connection
        return connection

    def _begin(self, target: Connection | Session) -> None:
        try:
            target.begin()
            connection = self._enter(target)
            if connection.dialect.name == "sqlite":
                take_write_lock(connection)
            self._transaction, self._has_begun = target.get_transaction(), connection.dialect.name == "sqlite"
            self._watch(connection)
        except BaseException as error:
            _roll_back(target)
            if isinstance(error, DBAPIError) and is_locked(error):  # by an event listener that begins
                raise WriterBusy from error
            raise

    def _watch(self, connection: Connection) -> None:
        event.listen(connection, "after_cursor_execute", self._heard)
        self._watched = connection

    def _unwatch(self) -> None:
        if self._watched is not None:
            event.remove(self._watched, "after_cursor_execute", self._heard)
            self._watched = None

    def _heard(self, *_: object) -> None:
        self._has_begun = True

    def _commit(self, target: Connection | Session) -> None:
        try:
            self._ask(refuse_poisoned, self._enter(target))
            self._ask(target.commit)
        except BaseException:
            self._roll_back(target)
            raise


class DirectConnection(StepByStep):
    """A connection that nobody else sees, in autocommit if it can be: single statements are one round trip."""

    native = None

    def __init__(
        self,
        raw: Any,
        *,
        patience: AbstractContextManager[None] | None = None,
        end: Callable[[], object] | None = None,
    ) -> None:
        self.raw = raw
        self.in_transaction = False
        self._end = end or _nothing
        self._patience = patience or nullcontext()

    async def fetch(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        return await self._do(self._alone, rows, sql, parameters)

    async def query(self, sql: str, parameters: Mapping[str, Any]) -> Result:
        return await self._do(self._alone, query, sql, parameters)

    async def script(self, sql: str) -> None:
        await self._do(self._alone, script, sql)

    async def begin(self) -> None:
        try:
            await self._do(_begin_by_hand)
        except asyncio.CancelledError:
            await self._do(_roll_back_by_hand)  # it may have begun
            raise
        self.in_transaction = True

    async def commit(self) -> None:
        self.in_transaction = False
        await self._do(_commit_by_hand)

    async def rollback(self) -> None:
        self.in_transaction = False
        await self._do(_roll_back_by_hand)

    async def _do(self, work: Callable[..., T], *arguments: Any) -> T:
        with self._patience:
            return await do(self.raw, work, *arguments)

    def after_commit(self, action: Callable[[], Any]) -> bool:
        return False

    def cut_off(self) -> None:
        self._end()

    def _alone(self, connection: Connection, work: Callable[..., T], *arguments: Any) -> T:
        if self.in_transaction:
            return work(connection, *arguments)
        try:
            answer = work(connection, *arguments)
            # In autocommit only SQLAlchemy believes that there is a transaction to end.
            connection.commit()
        except BaseException as error:
            if isinstance(error, DBAPIError):
                _discard_demoted(connection, error)
            _roll_back(connection)
            if isinstance(error, DBAPIError) and is_locked(error):
                raise WriterBusy from error
            raise
        return answer


class PooledConnection(StepByStep):
    """What the application's pool lends: nothing yet, a connection for single statements, or an object to hand out."""

    def __init__(
        self, *, direct: Callable[[], Any], joined: Callable[[], Any], is_async: bool, patience: MakePatience
    ) -> None:
        self._make_direct, self._make_joined = direct, joined
        self._is_async, self._make_patience = is_async, patience
        self._lent: DirectConnection | JoinedConnection | None = None
        self._return = AsyncExitStack()

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

    async def begin(self) -> None:
        await self.give_back()
        raw = await self._return.enter_async_context(entered(self._make_joined()))
        joined = JoinedConnection(raw, lent=self._make_patience)
        await joined.begin()
        self._lent = joined

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
        self._lent = None
        await (to_the_end(self._return.aclose()) if self._is_async else self._return.aclose())

    async def _current(self) -> DirectConnection | JoinedConnection:
        if self._lent is None:
            raw = await self._return.enter_async_context(entered(self._make_direct()))
            patience = self._make_patience(getattr(raw, "sync_connection", raw))
            self._lent = DirectConnection(raw, patience=patience)
        return self._lent


@asynccontextmanager
async def entered(handle: Any) -> AsyncIterator[Any]:
    """A connection or session of either kind, closed at the end."""
    if isinstance(handle, AsyncConnection | AsyncSession):
        try:
            await (to_the_end(_open(handle)) if is_file(handle) else _open(handle))
            yield handle
        finally:
            if getattr(handle, "sync_connection", handle) is not None:  # else it was never opened
                await to_the_end(handle.close())
    else:
        with handle:
            yield handle


async def _open(handle: AsyncConnection | AsyncSession) -> None:
    if isinstance(handle, AsyncConnection):
        try:
            await handle.start()
        except BaseException as error:
            # A connection that is made while its wait is cancelled would live as long as anybody has the traceback.
            clear_frames(error.__traceback__)
            raise


def _nothing() -> None:
    return


def _discard_demoted(connection: Connection, error: DBAPIError) -> None:
    """Have the pool not lend a connection again that leads to a server which cannot write."""
    if fault_of_code(sqlstate(error)) is not Fault.READ_ONLY or connection.closed or connection.invalidated:
        return
    if connection.dialect.name == "sqlite" or reads_only(connection) is not False:
        connection.invalidate(error)


def _roll_back(target: Connection | Session) -> None:
    # Where the connection is broken there is nothing left to undo.
    with suppress(DBAPIError, OSError):
        target.rollback()


def _by_hand(connection: Connection, sql: str) -> None:
    # Out of autocommit SQLAlchemy begins, commits and rolls back itself.
    if is_autocommit(connection):
        connection.exec_driver_sql(sql)


def _begin_by_hand(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        take_write_lock(connection)
    else:
        _by_hand(connection, "BEGIN")


def _commit_by_hand(connection: Connection) -> None:
    try:
        refuse_poisoned(connection)
        _by_hand(connection, "COMMIT")
        connection.commit()
    except BaseException:
        _roll_back_by_hand(connection)
        raise


def _roll_back_by_hand(connection: Connection) -> None:
    with suppress(DBAPIError, OSError):
        _by_hand(connection, "ROLLBACK")
    _roll_back(connection)

"""Connections over SQLAlchemy: in a transaction of SQLAlchemy's, in autocommit, or either as the need arises."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from onward.errors import TransactionUnsuitable
from onward.state.driver import Fault, Result, Rows, StepByStep
from onward.state.postgres.settings import fault_of_code
from onward.state.sqlalchemy.after_commit import after_commit
from onward.state.sqlalchemy.checks import sqlstate
from onward.state.sqlalchemy.work import (
    WriterBusy,
    client,
    do,
    is_autocommit,
    is_locked,
    query,
    refuse_poisoned,
    rows,
    script,
    take_write_lock,
)

T = TypeVar("T")


class JoinedConnection(StepByStep):
    """A connection or session in a transaction of SQLAlchemy's: the caller's, or one begun here to be handed out."""

    def __init__(self, raw: Any, *, begun: bool = False, lent: bool = False) -> None:
        self.raw = self.native = raw
        self._begun = begun
        self._lent = lent
        self._connection: Connection | None = None

    @property
    def in_transaction(self) -> bool:
        return self._begun or bool(self.raw.in_transaction())

    async def fetch(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        return await do(self.raw, self._within, rows, sql, parameters)

    async def query(self, sql: str, parameters: Mapping[str, Any]) -> Result:
        return await do(self.raw, self._within, query, sql, parameters)

    async def script(self, sql: str) -> None:
        await do(self.raw, self._within, script, sql)

    async def begin(self) -> None:
        await do(self.raw, self._begin)
        self._begun = True

    async def commit(self) -> None:
        self._begun = False
        await do(self.raw, self._commit)

    async def rollback(self) -> None:
        self._begun = False
        await do(self.raw, _roll_back)

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
            return work(connection, *arguments)
        except DBAPIError as error:
            if self._lent:
                _discard_demoted(connection, error)
            raise

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
        except BaseException as error:
            _roll_back(target)
            if isinstance(error, DBAPIError) and is_locked(error):  # by an event listener that begins
                raise WriterBusy from error
            raise

    def _commit(self, target: Connection | Session) -> None:
        try:
            refuse_poisoned(self._enter(target))
            target.commit()
        except BaseException:
            _roll_back(target)
            raise


class DirectConnection(StepByStep):
    """A connection that nobody else sees, in autocommit if it can be: single statements are one round trip."""

    native = None

    def __init__(self, raw: Any, *, patience: AbstractContextManager[None] | None = None) -> None:
        self.raw = raw
        self.in_transaction = False
        self._patience = patience or nullcontext()

    async def fetch(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        return await self._do(self._alone, rows, sql, parameters)

    async def query(self, sql: str, parameters: Mapping[str, Any]) -> Result:
        return await self._do(self._alone, query, sql, parameters)

    async def script(self, sql: str) -> None:
        await self._do(self._alone, script, sql)

    async def begin(self) -> None:
        await self._do(_begin_by_hand)
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

    def __init__(self, *, direct: Callable[[], Any], joined: Callable[[], Any]) -> None:
        self._make_direct, self._make_joined = direct, joined
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
        joined = JoinedConnection(await self._return.enter_async_context(entered(self._make_joined())), lent=True)
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

    async def give_back(self) -> None:
        self._lent = None
        await self._return.aclose()

    async def _current(self) -> DirectConnection | JoinedConnection:
        if self._lent is None:
            self._lent = DirectConnection(await self._return.enter_async_context(entered(self._make_direct())))
        return self._lent


@asynccontextmanager
async def entered(handle: Any) -> AsyncIterator[Any]:
    """A connection or session of either kind, closed at the end."""
    if isinstance(handle, AsyncConnection | AsyncSession):
        async with handle:
            yield handle
    else:
        with handle:
            yield handle


def _discard_demoted(connection: Connection, error: DBAPIError) -> None:
    """Have the pool not lend a connection again that leads to a server which cannot write."""
    if fault_of_code(sqlstate(error)) is Fault.READ_ONLY:
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

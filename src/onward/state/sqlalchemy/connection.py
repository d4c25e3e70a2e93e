"""Connections over SQLAlchemy: in a transaction of SQLAlchemy's, in autocommit, or either as the need arises."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from traceback import clear_frames
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from onward.errands import to_the_end
from onward.errors import TransactionClosed, TransactionUnsuitable
from onward.state.command import Command, Operation, Rows, as_one
from onward.state.driver import (
    CLOSED_BY_HAND,
    ENDED_BY_HAND,
    Dialect,
    Fault,
    PlainConnection,
    Result,
    run_in_turn,
    run_now,
)
from onward.state.postgres.settings import FORGOTTEN, fault_of_code
from onward.state.sqlalchemy.after_commit import after_commit, has_ended
from onward.state.sqlalchemy.checks import sqlstate
from onward.state.sqlalchemy.one_message import begin_with, commit_with, has_begun, takes_one_message
from onward.state.sqlalchemy.work import (
    WriterBusy,
    client,
    do,
    end_of,
    has_thread,
    is_autocommit,
    is_file,
    is_in_transaction,
    is_locked,
    is_open,
    open_whole,
    query,
    reads_only,
    refuse_poisoned,
    rows,
    rows_in_thread,
    run_in_thread,
    script,
    take_write_lock,
)
from onward.state.sqlite.connection import writes
from onward.state.sqlite.gate import LockLimit

T = TypeVar("T")
MakePatience: TypeAlias = Callable[[Connection], AbstractContextManager[None]]
"""How long statements of ours may take on a connection."""
_SUSPENDED = "onward_suspended"


class JoinedConnection(PlainConnection):
    """A connection or session in a transaction of SQLAlchemy's: the caller's, or one begun here to be handed out."""

    def __init__(
        self, raw: Any, *, begun: bool = False, lent: MakePatience | None = None, limit: LockLimit | None = None
    ) -> None:
        self.raw = self.native = raw
        self._begun = begun
        self._lent = lent
        self._do = partial(do, raw, limit=limit)
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
        return await self._do(self.fetch_now, sql, parameters)

    async def query(self, sql: str, parameters: Mapping[str, Any]) -> Result:
        return await self._do(self.query_now, sql, parameters)

    async def script(self, sql: str) -> None:
        await self._do(self.script_now, sql)

    async def run(self, first: Operation[T], *more: Command[Any], begin: bool = False, commit: bool = False) -> T:
        """As one piece of work with the sync object: to change over to that costs as much as a small statement."""
        at_once = self._run_in_thread if self._lent is not None and has_thread(self.raw) else self._run
        work = self._beginning if begin else self._do
        return await work(at_once, first, more, begin, commit)

    def _run(self, target: Any, first: Operation[T], more: tuple[Command[Any], ...], begin: bool, commit: bool) -> T:
        if isinstance(first, Command) and not more and first.needs != "rows" and self._lent is not None:
            if begin and not commit:
                return self._begin_with(target, first)
            if commit and not begin and self._can_commit_with(target) and takes_one_message(target):
                self.commit_now(target, is_sound=True, last=first)
                return first.read(())
        return run_now(run_in_turn(_Inside(self, target), first, *more, begin=begin, commit=commit))

    def _begin_with(self, target: Any, command: Command[T]) -> T:
        self.begin_now(target, watched=False)
        try:
            connection = self._enter(target)
            if has_begun(connection) or not takes_one_message(connection):
                return command.read(self.fetch_directly(target, command.sql, command.parameters))
            with self._patience:
                count = self._within(target, begin_with, command)
        except BaseException:
            self.roll_back_now(target)
            raise
        return command.read([()] * count)

    def _can_commit_with(self, target: Any) -> bool:
        """Whether nothing else is to be done in the transaction: a session has still to write what waits in it."""
        return not (isinstance(target, Session) or target.dispatch.commit)

    def _run_in_thread(
        self, target: Any, first: Operation[T], more: tuple[Command[Any], ...], begin: bool, commit: bool
    ) -> T:
        answers: list[T] = []
        at_once = commit and self._can_commit_with(target)

        def run(connection: Connection) -> None:
            begins = begin or not client(connection).in_transaction
            answers.append(run_in_thread(connection, first, more, begin=begins, commit=at_once))

        try:
            if begin:
                self.begin_now(target, watched=False, lock=run)
            else:
                self._ask(run, self._enter(target))
            if commit:
                with has_ended(target) if at_once else nullcontext():
                    self.commit_now(target, is_sound=True)
        except BaseException:
            if begin or commit:
                self.roll_back_now(target)
            raise
        return answers[0]

    async def begin(self) -> None:
        await self._beginning(self.begin_now)

    async def _beginning(self, work: Callable[..., T], *arguments: Any) -> T:
        try:
            return await self._do(work, *arguments)
        except asyncio.CancelledError as error:
            clear_frames(error.__traceback__)  # with what they hold of a connection that is half made
            if is_open(self.raw):
                await self.rollback()  # it may have begun
            raise

    async def commit(self) -> None:
        await self._do(self.commit_now)

    async def rollback(self) -> None:
        await self._do(self.roll_back_now)

    def suspend(self) -> None:
        connection = self._connection
        if self._suspended is None and connection is not None and not connection.closed:
            _guard(connection.engine)
            # Not in its `info`: that is the next borrower's, too, who may come before we are told to resume.
            vars(connection)[_SUSPENDED] = self.refuse
            self._suspended = connection

    def resume(self) -> None:
        if self._suspended is not None:
            del vars(self._suspended)[_SUSPENDED]
            self._suspended = None

    def cut_off(self) -> None:
        self._end()

    def refuse(self) -> None:
        """Raise unless it is we who ask."""
        if not self._is_asking:
            raise TransactionClosed("the block of this transaction has ended: it takes no more statements")

    def after_commit(self, action: Callable[[], Any]) -> bool:
        if self._connection is None or self._connection.closed:
            return False
        after_commit(self._connection, action)
        return True

    # -- with the sync object

    def fetch_now(self, target: Connection | Session, sql: str, parameters: Mapping[str, Any]) -> Rows:
        with self._patience:
            return self._within(target, rows, sql, parameters)

    def fetch_directly(self, target: Connection | Session, sql: str, parameters: Mapping[str, Any]) -> Rows:
        """The same, past SQLAlchemy where that can be."""
        with self._patience:
            return self._within(target, rows, sql, parameters, self._has_begun and self._lent is not None)

    def query_now(self, target: Connection | Session, sql: str, parameters: Mapping[str, Any]) -> Result:
        return self._within(target, query, sql, parameters)

    def script_now(self, target: Connection | Session, sql: str) -> None:
        self._within(target, script, sql)

    def begin_now(
        self,
        target: Connection | Session,
        *,
        watched: bool = True,
        lock: Callable[[Connection], None] = take_write_lock,
    ) -> None:
        try:
            target.begin()
            connection = self._enter(target)
            is_file = connection.dialect.name == "sqlite"
            if is_file:
                lock(connection)
            self._transaction, self._has_begun = target.get_transaction(), is_file
            if watched and not is_file:
                event.listen(connection, "after_cursor_execute", self._heard)
                self._watched = connection
            if self._lent is not None:
                self._patience, self._end = self._lent(connection), _nothing if is_file else end_of(connection)
        except BaseException as error:
            _roll_back(target, self._connection)
            if isinstance(error, DBAPIError) and is_locked(error):  # by an event listener that begins
                raise WriterBusy from error
            raise
        self._begun = True

    def commit_now(
        self, target: Connection | Session, *, is_sound: bool = False, last: Command[Any] | None = None
    ) -> None:
        """`last`: in one message with a last statement of ours."""
        self._ended()
        try:
            with self._patience:
                connection = self._enter(target)
                if not is_sound:
                    self._ask(refuse_poisoned, connection)
                if last is not None:
                    self._within(target, commit_with, last)
                self._ask(target.commit)
        except BaseException:
            self.roll_back_now(target)
            raise
        if self._lent is not None:
            target.close()  # back to the pool, without changing over once more

    def roll_back_now(self, target: Connection | Session) -> None:
        self._ended()
        with self._patience:
            self._ask(_roll_back, target, self._connection)

    def _within(self, target: Connection | Session, work: Callable[..., T], *arguments: Any) -> T:
        connection = self._enter(target)
        if connection.dialect.name == "sqlite" and not client(connection).in_transaction:
            # sqlite3 begins late, and before a statement that starts with WITH not at all.
            take_write_lock(connection)
        try:
            answer = self._ask(work, connection, *arguments)
        except DBAPIError as error:
            if self._lent is not None:
                _discard_useless(connection, error)
            raise
        self._has_begun = self._begun
        return answer

    def _ask(self, work: Callable[..., T], *arguments: Any) -> T:
        self._is_asking = True
        try:
            return work(*arguments)
        finally:
            self._is_asking = False

    def _enter(self, target: Connection | Session) -> Connection:
        connection = target.connection() if isinstance(target, Session) else target
        if connection is not self._connection:  # SQLAlchemy lets nobody change it later
            if is_autocommit(connection):
                raise TransactionUnsuitable(
                    "the connection is in AUTOCOMMIT isolation: nothing in it can be rolled back"
                )
            self._connection = connection
        return connection

    def _ended(self) -> None:
        self._begun = False
        if self._watched is not None:
            event.remove(self._watched, "after_cursor_execute", self._heard)
            self._watched = None

    def _heard(self, *_: object) -> None:
        self._has_begun = True


class _Inside(PlainConnection):
    """A connection to those who work with the sync object already: it never suspends."""

    def __init__(self, joined: JoinedConnection, target: Connection | Session) -> None:
        self._joined, self._target = joined, target
        self._is_sound = False
        """Whether the last statement has shown that none before it had failed."""

    raw: Any = None
    native: Any = None

    @property
    def in_transaction(self) -> bool:
        return self._joined.in_transaction

    async def fetch(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        return self._shown(self._joined.fetch_directly, sql, parameters)

    async def query(self, sql: str, parameters: Mapping[str, Any]) -> Result:
        return self._shown(self._joined.query_now, sql, parameters)

    async def script(self, sql: str) -> None:
        self._shown(self._joined.script_now, sql)

    def _shown(self, work: Callable[..., T], *arguments: Any) -> T:
        self._is_sound = False
        answer = work(self._target, *arguments)
        self._is_sound = True
        return answer

    async def begin(self) -> None:
        self._joined.begin_now(self._target, watched=False)

    async def commit(self) -> None:
        self._joined.commit_now(self._target, is_sound=self._is_sound)

    async def rollback(self) -> None:
        self._joined.roll_back_now(self._target)

    def after_commit(self, action: Callable[[], Any]) -> bool:
        return self._joined.after_commit(action)


class DirectConnection(PlainConnection):
    """A connection that nobody else sees, in autocommit if it can be: single statements are one round trip."""

    native = None

    def __init__(
        self,
        raw: Any,
        *,
        patience: AbstractContextManager[None] | None = None,
        end: Callable[[], object] | None = None,
        past: bool = False,
        limit: LockLimit | None = None,
    ) -> None:
        """`past`: ask past SQLAlchemy, which is then told of no error: no other connection is given up for it."""
        self.raw = raw
        self._past, self._limit = past, limit
        self.in_transaction = False
        self._end = end or _nothing
        self._patience = patience or nullcontext()

    async def fetch(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        return await self._do(self._rows, sql, parameters)

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
            return await do(self.raw, work, *arguments, limit=self._limit)

    def after_commit(self, action: Callable[[], Any]) -> bool:
        return False

    def cut_off(self) -> None:
        self._end()

    def _rows(self, connection: Connection, sql: str, parameters: Mapping[str, Any]) -> Rows:
        if connection.dialect.driver == "aiosqlite" and not connection.dispatch.commit:
            return rows_in_thread(connection, sql, parameters, alone=not self.in_transaction)
        return self._alone(connection, rows, sql, parameters, self._past)

    def _alone(self, connection: Connection, work: Callable[..., T], *arguments: Any) -> T:
        if self.in_transaction:
            return work(connection, *arguments)
        try:
            answer = work(connection, *arguments)
            # In autocommit only SQLAlchemy believes that there is a transaction to end.
            connection.commit()
        except BaseException as error:
            if isinstance(error, DBAPIError):
                _discard_useless(connection, error)
            _roll_back(connection)
            if isinstance(error, DBAPIError) and is_locked(error):
                raise WriterBusy from error
            raise
        return answer


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


def _nothing() -> None:
    return


def _guard(engine: Engine) -> None:
    # Once for each engine: to listen to one connection, and no more, costs as much as a small statement.
    if _SUSPENDED not in vars(engine):
        event.listen(engine, "before_cursor_execute", _refuse_suspended)
        setattr(engine, _SUSPENDED, True)


def _refuse_suspended(connection: Connection, *_: object) -> None:
    refuse = vars(connection).get(_SUSPENDED)
    if refuse is not None:
        refuse()


def _discard_useless(connection: Connection, error: DBAPIError) -> None:
    """Have the pool not lend a connection again that leads to a server which cannot write, or has forgotten what the
    client goes on asking for.
    """
    code = sqlstate(error)
    is_refused = fault_of_code(code) is Fault.READ_ONLY
    if not (is_refused or code == FORGOTTEN) or connection.closed or connection.invalidated:
        return
    if not is_refused or connection.dialect.name == "sqlite" or reads_only(connection) is not False:
        connection.invalidate(error)


def _roll_back(target: Connection | Session, connection: Connection | None = None) -> None:
    """`connection`: that of a session."""
    is_lent = connection is not None and not (connection.closed or connection.invalidated)
    lent: Any = connection.connection if connection is not None and is_lent else None
    record = lent and lent._connection_record
    try:
        target.rollback()
    except (DBAPIError, OSError) as error:
        # It is broken, or in the middle of a statement that the application has left behind, and SQLAlchemy takes the
        # transaction for ended all the same: whoever is lent the connection next would write in it.
        with suppress(DBAPIError, OSError):
            if isinstance(target, Connection):
                target.invalidate(error)
            elif record is not None:  # the session has given it back
                record.invalidate(error)


def _by_hand(connection: Connection, sql: str) -> None:
    # Out of autocommit SQLAlchemy begins, commits and rolls back itself; a connection that is lost has done so.
    if is_autocommit(connection) and not connection.invalidated:
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

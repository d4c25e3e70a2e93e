"""A connection or session in a transaction of SQLAlchemy's."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from traceback import clear_frames
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.orm import Session

from onward.errors import TransactionClosed, TransactionUnsuitable
from onward.state.command import Command, Operation, Rows
from onward.state.driver import (
    BLOCK_ENDED,
    CLOSED_BY_HAND,
    ENDED_BY_HAND,
    PlainConnection,
    Result,
    run_in_turn,
    run_now,
)
from onward.state.sqlalchemy.after_commit import after_commit, has_ended
from onward.state.sqlalchemy.checks import discard_useless, refuse_failed_savepoint
from onward.state.sqlalchemy.one_message import begin_with, commit_with, has_begun, takes_one_message
from onward.state.sqlalchemy.work import (
    MakePatience,
    WriterBusy,
    client,
    do,
    end_of,
    has_thread,
    is_autocommit,
    is_in_transaction,
    is_locked,
    is_open,
    nothing,
    query,
    refuse_poisoned,
    roll_back,
    rows,
    run_in_thread,
    script,
    take_write_lock,
)
from onward.state.sqlite.gate import LockLimit

T = TypeVar("T")
_SUSPENDED = "onward_suspended"
_IN_USE = "isce"
"""What SQLAlchemy calls it that another task is in the midst of something with a session."""


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
        self._end: Callable[[], object] = nothing

    @property
    def in_transaction(self) -> bool:
        return self._begun or bool(self.raw.in_transaction())

    def check(self) -> None:
        connection = self._connection
        if self._transaction is None or connection is None or connection.invalidated:
            return
        session = getattr(self.raw, "sync_session", self.raw)
        target = session if isinstance(session, Session) else connection
        if connection.closed or target.get_transaction() is not self._transaction:
            is_closed = connection.closed and target is connection
            raise TransactionClosed(CLOSED_BY_HAND if is_closed else ENDED_BY_HAND)
        if self._has_begun and not is_in_transaction(connection):
            raise TransactionClosed(ENDED_BY_HAND)
        if isinstance(session, Session):
            refuse_failed_savepoint(session)

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

    async def flush(self) -> None:
        await self._do(self.flush_now)

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
            raise TransactionClosed(BLOCK_ENDED)

    @property
    def borrowed(self) -> Connection | None:
        """What is to go back to the pool."""
        return self._connection

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
                self._patience, self._end = self._lent(connection), nothing if is_file else end_of(connection)
        except BaseException as error:
            roll_back(target, self._connection)
            if isinstance(error, DBAPIError) and is_locked(error):  # by an event listener that begins
                raise WriterBusy from error
            raise
        self._begun = True

    def flush_now(self, target: Connection | Session) -> None:
        if isinstance(target, Session):
            target.flush()

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
                with _in_our_words():
                    self._ask(target.commit)
        except BaseException:
            self.roll_back_now(target)
            raise
        if self._lent is not None:
            target.close()  # back to the pool, without changing over once more

    def roll_back_now(self, target: Connection | Session) -> None:
        self._ended()
        with self._patience:
            self._ask(roll_back, target, self._connection)

    def _within(self, target: Connection | Session, work: Callable[..., T], *arguments: Any) -> T:
        connection = self._enter(target)
        if connection.dialect.name == "sqlite" and not client(connection).in_transaction:
            # sqlite3 begins late, and before a statement that starts with WITH not at all.
            take_write_lock(connection)
        try:
            answer = self._ask(work, connection, *arguments)
        except DBAPIError as error:
            if self._lent is not None:
                discard_useless(connection, error)
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
        # That is what sets a savepoint which the application has begun and left.
        with _in_our_words():
            connection = self._ask(target.connection) if isinstance(target, Session) else target
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


@contextmanager
def _in_our_words() -> Iterator[None]:
    try:
        yield
    except InvalidRequestError as error:
        if error.code != _IN_USE:
            raise
        raise TransactionUnsuitable(
            "another task is in the midst of something with the session: wait for its end before you go on"
        ) from error


def _guard(engine: Engine) -> None:
    # Once for each engine: to listen to one connection, and no more, costs as much as a small statement.
    if _SUSPENDED not in vars(engine):
        event.listen(engine, "before_cursor_execute", _refuse_suspended)
        setattr(engine, _SUSPENDED, True)


def _refuse_suspended(connection: Connection, *_: object) -> None:
    refuse = vars(connection).get(_SUSPENDED)
    if refuse is not None:
        refuse()

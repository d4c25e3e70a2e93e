"""A connection of asyncpg's."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from onward.errors import TransactionClosed, TransactionUnsuitable
from onward.state.command import Command, Operation, Rows
from onward.state.driver import CLOSED_BY_HAND, COMMIT_WITHIN, ENDED_BY_HAND, POISONED, UNFINISHED, Result, run_in_turn
from onward.state.postgres.session import UNLOCK, Session, as_one, inlined, reads_only
from onward.state.postgres.settings import ask_safely, hide_row
from onward.state.statement import spell

T = TypeVar("T")


class OwnConnection(asyncpg.Connection):
    """One of our own pool, which knows whether it was closed or lost, and what it was told to make of values."""

    ours: "AsyncpgConnection"
    """What we make of it, as long as it lives."""
    was_closed = False
    """By whoever had it, or by the pool."""
    _codecs: tuple[tuple[str, str], ...] = ()
    """The types, each with its schema, that whoever had it has made something else of."""

    async def set_type_codec(self, typename: str, *, schema: str = "public", **how: Any) -> None:
        self._codecs = (*self._codecs, (typename, schema))
        await super().set_type_codec(typename, schema=schema, **how)

    async def set_builtin_type_codec(self, typename: str, *, schema: str = "public", **how: Any) -> None:
        self._codecs = (*self._codecs, (typename, schema))
        await super().set_builtin_type_codec(typename, schema=schema, **how)

    async def forget_codecs(self) -> None:
        """For the next who borrows it, and for our own statements."""
        while self._codecs:
            await self.reset_type_codec(self._codecs[0][0], schema=self._codecs[0][1])
            self._codecs = self._codecs[1:]

    async def close(self, *, timeout: float | None = None) -> None:
        self.was_closed = True
        await super().close(timeout=timeout)


class AsyncpgConnection:
    """A connection of asyncpg's."""

    was_awaited = False

    def __init__(
        self,
        raw: Any,
        *,
        prepared: bool,
        native: Any = None,
        session: Session | None = None,
    ) -> None:
        self.native = native
        self.escaped = native is not None
        """Whether the application has the connection itself."""
        self.shown = raw
        """What the application may see: perhaps a pool's wrapping, calls through which cost more."""
        self._raw = getattr(raw, "_con", None) or raw
        self._prepared = prepared
        self.session = session or new_session(self._raw)
        self.is_cut_short = False
        """Whether a statement was cancelled, and nothing has been asked since."""
        self.is_to_be_reset = self._is_noted = False
        self._turn = asyncio.Lock()
        """Of several tasks, whose statements go one after another, as with other clients: asyncpg refuses them."""
        self._refused_to_write = False
        self._read_only_before = _reads_only(self._raw)
        self.waits_since = 0.0
        """For whoever looks after it."""

    @property
    def raw(self) -> Any:
        self.escaped = self.session.needs_reset = True
        if self.in_transaction:
            self._note_begun()
        return self.shown

    @property
    def in_transaction(self) -> bool:
        return not self._raw.is_closed() and bool(self._raw.is_in_transaction())

    @property
    def is_sound(self) -> bool:
        raw = self._raw
        return not (self.is_cut_short or self._refused_to_write or raw.is_closed() or raw.is_in_transaction())

    @property
    def is_demoted(self) -> bool:
        """Whether the server takes no writes any more: there may be a better one by now."""
        if self._refused_to_write or not self.escaped:
            return self._refused_to_write
        # What the server refused to do for the application itself we have not heard.
        return _reads_only(self._raw) is True and self._read_only_before is False

    def check(self) -> None:
        if self._raw.is_closed():
            if getattr(self._raw, "was_closed", False):
                raise TransactionClosed(CLOSED_BY_HAND)
        elif not self._raw.is_in_transaction():
            raise TransactionClosed(ENDED_BY_HAND)

    def _heed(self, error: BaseException, *, ours: bool = True) -> None:
        """Remember what an error in place of an answer says of the connection."""
        if not isinstance(error, Exception):
            self.is_cut_short = True
        elif isinstance(error, asyncpg.InternalClientError):
            # What asyncpg makes of a server that had ended the session, when it has heard so but not seen the end.
            self.cut_off()
            raise asyncpg.ConnectionDoesNotExistError("the server has ended the connection") from None
        elif isinstance(error, asyncpg.PostgresError):
            self._heed_server(error)
            if ours:
                hide_row(error)

    def _heed_server(self, error: Exception) -> None:
        if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
            # A server that says of itself that it can write means this transaction only.
            self._refused_to_write = self._refused_to_write or _reads_only(self._raw) is not False
        else:
            self.session.heed(getattr(error, "sqlstate", None), error)
            if isinstance(error, asyncpg.InvalidSQLStatementNameError):
                self._raw._drop_local_statement_cache()  # what asyncpg itself prepared is gone as well

    # -- statements

    async def _ask(self, asking: Coroutine[Any, Any, T]) -> T:
        """What the server answers to a statement of ours. Whoever looks after it sees how long that takes."""
        try:
            await self._turn.acquire()
            self.waits_since = time.monotonic()
            try:
                return await asking
            finally:
                self.waits_since = 0.0
                self._turn.release()
        except BaseException as error:
            asking.close()  # it may not have had its turn
            self._heed(error)
            raise

    async def _ask_for_user(self, asking: Coroutine[Any, Any, T]) -> T:
        """What it answers to one of the application's, which may take its time, and leave something behind."""
        self.session.needs_reset = True
        try:
            async with self._turn:
                return await asking
        except BaseException as error:
            asking.close()
            self._heed(error, ours=False)
            raise

    async def fetch(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        spelled = spell(sql, "dollar")
        if self.is_to_be_reset and not self.in_transaction:
            await self.reset()
        rows: Rows = await self._ask(self._raw.fetch(spelled.sql, *spelled.positional(parameters)))
        return rows

    async def query(self, sql: str, parameters: Mapping[str, Any]) -> Result:
        spelled = spell(sql, "dollar")
        rows = await self._ask_for_user(self._raw.fetch(spelled.sql, *spelled.positional(parameters)))
        return Result(tuple(rows[0].keys()) if rows else (), rows)

    async def execute(self, sql: str, parameters: Mapping[str, Any]) -> int:
        spelled = spell(sql, "dollar")
        if spelled.names:
            asked = self._raw.execute(spelled.sql, *spelled.positional(parameters))
            return _changed(await self._ask_for_user(asked))
        return _changed(await self._ask_for_user(self._execute_one(spelled.sql)))

    async def _execute_one(self, sql: str) -> str:
        """Without parameters asyncpg would also run several statements, which no other client does."""
        statement = await self._raw.prepare(sql, name=None if self._prepared else "")
        await statement.fetch()
        status: str = statement.get_statusmsg()
        return status

    async def script(self, sql: str) -> None:
        await self._ask_for_user(self._raw.execute(sql))

    # -- transactions

    async def begin(self) -> None:
        try:
            await (self._begin_anew("BEGIN") if self.is_to_be_reset else self._ask(self._raw.execute("BEGIN")))
        except asyncio.CancelledError:
            await self.rollback()  # it may have begun
            raise
        if self.native is not None:
            self._note_begun()

    async def run(self, first: Operation[T], *more: Command[Any], begin: bool = False, commit: bool = False) -> T:
        if commit and self._turn.locked():
            await self._insist_on_turn()
        if not isinstance(first, Command):
            return await run_in_turn(self, first, *more, begin=begin, commit=commit)
        if more and not (begin or commit or self.in_transaction):
            first, more = as_one(first, more)
        if not (more or begin or commit):
            return first.read(await self.fetch(first.sql, first.parameters))
        in_turn = more or begin == commit or first.needs == "rows" or not self._prepared
        # asyncpg sends values in UTF-8 all the same, and in another encoding a backslash, say, may be half of a sign:
        # what is quoted here would not be for the server.
        if in_turn or self._raw.is_closed() or self._raw.get_settings().client_encoding != "UTF8":
            return await run_in_turn(self, first, *more, begin=begin, commit=commit)
        # In one message.
        try:
            # Not prepared if it only writes, such as a hint: that it is known no longer should undo nobody's work.
            if first.needs == "nothing":
                call = inlined(first.sql, first.parameters)
            else:
                if first.sql not in self.session.prepared:
                    await self._prepare(first)
                call = self.session.call(first)
            message = f"BEGIN;{call}" if begin else f"{call};COMMIT"
            anew = begin and self.is_to_be_reset
            asked = self._begin_anew(message, calls=True) if anew else self._ask(self._raw.execute(message))
            answer: str = await asked
        except BaseException:
            await self.rollback()  # it may have begun, or the statement failed so that COMMIT was not even tried
            raise
        if commit and self._is_noted:
            self._note_ended()
        elif begin and self.native is not None:
            self._note_begun()
        return first.read([()] * _changed(answer) if begin else ())

    async def _prepare(self, command: Command[Any]) -> None:
        if self.is_to_be_reset and not self.in_transaction:
            await self.reset()
        await self._ask(self.session.prepare(command, self._raw.execute))

    async def _begin_anew(self, message: str, *, calls: bool = False) -> str:
        """Begin where the last borrower has left something behind, which the server is to forget first.

        `calls`: something prepared. If that is gone, and it is begun anew, so may what unlocks be, too: to plan that
        takes half as long as all that is reset.
        """
        session, unlock = self.session, UNLOCK.sql
        if calls:
            if unlock not in session.prepared:
                await self._ask(session.prepare(UNLOCK, self._raw.execute))
            unlock = session.call(UNLOCK)
        reset = session.reset_first(user_of(self._raw), unlock)
        answer: str = await self._ask(self._raw.execute(reset + message))
        self.is_to_be_reset = session.needs_reset = False
        return answer

    async def commit(self) -> None:
        # In a transaction that a failed statement has poisoned, COMMIT answers "ROLLBACK" instead of failing.
        if self._turn.locked():
            await self._insist_on_turn()
        try:
            answer = await self._ask(self._raw.execute("COMMIT"))
        except asyncio.CancelledError:
            await self.rollback()  # it may not have been begun
            raise
        finally:
            if self._is_noted:
                self._note_ended()
        if answer == "ROLLBACK":
            raise TransactionUnsuitable(POISONED)

    async def _insist_on_turn(self) -> None:
        try:
            async with asyncio.timeout(COMMIT_WITHIN), self._turn:
                return
        except TimeoutError:
            await self.rollback()
        except BaseException:
            await self.rollback()  # the connection may be the caller's own, whom nobody else would rid of it
            raise
        raise TransactionUnsuitable(UNFINISHED)

    async def rollback(self) -> None:
        if self._turn.locked():
            self.cut_off()  # what another task has under way is undone as well, however long it would take
        if not self._raw.is_closed():
            with suppress(asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError):
                await self._ask(self._raw.execute("ROLLBACK"))
        self._note_ended()

    def _note_begun(self) -> None:
        """Have asyncpg know of the transaction, so that the application may nest another in it."""
        if not self._is_noted and self._raw._top_xact is None:
            self._raw._top_xact, self._is_noted = begun(self._raw), True

    def _note_ended(self) -> None:
        if self._is_noted:
            self._raw._top_xact, self._is_noted = None, False

    async def flush(self) -> None:
        return

    def after_commit(self, action: Callable[[], Any]) -> bool:
        return False

    # -- between borrowers

    async def reset(self) -> None:
        """Have the server forget what the last borrower left behind."""
        await self._ask(self._raw.execute(self.session.reset(user_of(self._raw))))
        self.is_to_be_reset = self.session.needs_reset = False

    async def end_unfinished(self) -> None:
        """Leave no transaction open, nor one whose statement was cancelled."""
        self._note_ended()
        if self._turn.locked():
            self.cut_off()
        if not self._raw.is_closed():
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                await self._ask(self._raw._protocol._wait_for_cancellation())
                if self.in_transaction:
                    await self._ask(self._raw.execute("ROLLBACK"))
                elif self.is_cut_short:
                    # asyncpg prepares without ending the exchange: the server would wait for more, its snapshot open.
                    await self._ask(self._raw.execute("SELECT 1"))
                self.is_cut_short = False

    def suspend(self) -> None:
        """What the application has of a pool's connection answers nothing but that the transaction is closed."""
        if self.escaped and getattr(self.shown, "_con", None) is self._raw:
            self.shown._con = _SUSPENDED

    def resume(self) -> None:
        if self.escaped and getattr(self.shown, "_con", None) is _SUSPENDED:
            self.shown._con = self._raw

    def cut_off(self) -> None:
        self._raw.terminate()


class _RefusesAll(type):
    """A pool's wrapping calls the methods of its connection by way of the class."""

    def __getattr__(cls, name: str) -> NoReturn:
        raise TransactionClosed("the block of this transaction has ended: its connection takes no more statements")


class _Suspended(metaclass=_RefusesAll):
    """Stands in for a connection between the end of a block and the commit."""

    def _set_proxy(self, proxy: object) -> None:
        """Said by the pool when the connection breaks meanwhile."""

    def __getattr__(self, name: str) -> NoReturn:
        raise TransactionClosed("the block of this transaction has ended: its connection takes no more statements")


_SUSPENDED: Any = _Suspended()


def new_session(raw: Any) -> Session:
    """Of a connection that we have not seen before."""
    ask_safely(raw)
    return Session(user_of(raw))


def begun(raw: Any, isolation: str | None = None) -> Any:
    """A transaction of asyncpg's own that stands for one that was begun in SQL."""
    transaction = raw.transaction(isolation=isolation)
    transaction._state = type(transaction._state).STARTED
    return transaction


def user_of(raw: Any) -> str | None:
    """Whom the server takes us for."""
    user: str | None = getattr(raw.get_settings(), "session_authorization", None)
    return user


def _reads_only(raw: Any) -> bool | None:
    if raw.is_closed():
        return None
    said = raw.get_settings()
    return reads_only(
        standby=getattr(said, "in_hot_standby", None), by_default=getattr(said, "default_transaction_read_only", None)
    )


def _changed(status: str | None) -> int:
    last = (status or "").rpartition(" ")[2]
    return int(last) if last.isdigit() else 0

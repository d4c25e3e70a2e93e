"""The store: state adapter, driver, hints and events as one thing that client and worker write through."""

import logging
import weakref
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from onward.errors import DatabaseError, DatabaseLocked, DatabaseUnavailable, OnwardError, TransactionUnsuitable
from onward.lifecycle.effects import Announcer, Awaited, Effects, EffectsOf, describe
from onward.lifecycle.transaction import (
    OpenTransaction,
    SyncView,
    open_here,
    refuse_inside_transaction,
)
from onward.notify.contract import Hint, NotifyAdapter
from onward.observe import events
from onward.observe.observer import Observers
from onward.pacing import pause_after
from onward.state.command import Command, Operation
from onward.state.contract import StateAdapter
from onward.state.driver import POISONED, Connection, Driver, Fault, is_clients_own

logger = logging.getLogger("onward")
T = TypeVar("T")
_TRIES = 6
_TAKES_NO_MORE = (
    "an earlier statement in the transaction has failed, so that it takes no more: roll it back before going on, or "
    "back to a savepoint that was begun before that statement"
)


class Store:
    """Runs operations: in the caller's transaction, or alone, tried again when the database stumbles."""

    def __init__(
        self,
        *,
        state: StateAdapter,
        driver: Driver,
        notify: NotifyAdapter,
        announcer: Announcer,
        observers: Observers,
        awaited: Awaited,
        is_transient: Callable[[BaseException], bool] | None = None,
    ) -> None:
        self._is_transient = is_transient
        self.state, self.driver, self.observers, self.awaited = state, driver, observers, awaited
        self.effects_of = EffectsOf(observers, awaited)
        self._notify, self._announcer = notify, announcer
        self._identity: str | None = None
        self.transactions: dict[int, OpenTransaction] = {}
        """Transactions of ours, by the object of the client library's that the user has of each."""
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._warned = False

    def fault(self, error: BaseException) -> Fault | None:
        """What an error says about the database; nothing, if it is the application's and cannot be looked at."""
        try:
            return self.driver.fault(error)
        except Exception:
            logger.exception("an error of type %s cannot be looked at", type(error).__name__)
            return None

    def is_transient(self, error: BaseException) -> bool:
        """Whether trying again may help, by the driver's judgement or the application's."""
        if isinstance(error, DatabaseError) and error.__cause__ is not None:
            error = error.__cause__
        fault = self.fault(error)
        return (fault is not None and fault.is_transient) or self.is_said_to_be_transient(error)

    def is_said_to_be_transient(self, error: BaseException) -> bool:
        """By the application's judgement. One that cannot judge an error knows nothing of it."""
        try:
            return self._is_transient is not None and bool(self._is_transient(error))
        except KeyboardInterrupt:
            raise
        except BaseException:
            logger.exception("is_transient= raised, which is taken for no")
            return False

    def raise_in_words(self, error: Exception, doing: str, *, commits: bool = False) -> None:
        """Raise a DatabaseError of what the database's client raised, which is its cause; all else may go as it is.

        So may what COMMIT says of the user's own data, such as a constraint that is checked late.
        """
        if self.fault(error) is Fault.POISONED:
            raise TransactionUnsuitable(f"{doing}: {_TAKES_NO_MORE}") from error
        told = self._in_words(error, doing, commits=commits)
        if told is not None:
            raise told from error

    def _in_words(self, error: Exception, doing: str, *, commits: bool = False) -> DatabaseError | None:
        fault = self.fault(error)
        is_transient = fault is not None and fault.is_transient
        if isinstance(error, OnwardError) or not (is_transient or (is_clients_own(error) and not commits)):
            return None
        kind = DatabaseUnavailable if is_transient else DatabaseError
        text = " ".join(str(error).split())[:500]
        said = f"{type(error).__name__}: {text}" if text else type(error).__name__
        told = kind(f"{doing}: the database refused: {said}", doing=doing, fault=fault)
        told.__cause__ = error
        return told

    # -- effects

    def release(self, effects: Effects) -> None:
        """The change is committed: let its hints and events go."""
        for event in effects.events:
            self.observers.emit(event)
        if effects.hints:  # before the application's actions, which may take their time, or be interrupted
            self._announcer.post(effects.hints)
        for action in effects.actions:
            _run_after_commit(action)

    async def _carrying(self, hints: list[Hint], run: Callable[..., Awaitable[T]]) -> T:
        """Run what commits, and have hints leave with it if it is time that some do; then they are no longer there."""
        carried = self._announcer.carry(hints) if hints else None
        if carried is None:
            return await run()
        hints.clear()
        try:
            answer = await run(carried.command)
        except BaseException:
            self._announcer.take_back(carried)
            raise
        finally:
            if carried.too_late is not None:
                carried.too_late.cancel()
        if self.observers.wants(events.HintsSent):
            self.observers.emit(events.HintsSent(count=len(carried.hints)))
        return answer

    # -- running operations

    async def read(self, operation: Operation[T], *, tx: object = None, while_: Callable[[], bool] = lambda: True) -> T:
        """Run a reading operation; tried again `while_` there is time."""
        if tx is None:
            return (await self._tried_again(operation, "read", while_=while_))[0]
        try:
            connection, _ = await self._join(tx)
            return await connection.run(operation)
        except Exception as error:
            self.raise_in_words(error, "read")
            raise

    async def write(
        self,
        operation: Operation[T],
        effects_of: Callable[[T], Effects],
        *,
        tx: object = None,
        doing: str,
        again: Callable[[bool], Operation[T]] | None = None,
    ) -> T:
        """Run a changing operation; its effects are released after the commit, whosever commit that is.

        `again` makes what is run when it has to be tried once more; told whether its outcome is unknown. Ids are made
        by the client, so that it can be repeated.
        """
        if tx is None:
            refuse_inside_transaction(doing)
            effects: Effects | None = None
            if isinstance(operation, Command) and operation.needs == "nothing":
                # Of what only writes the answer is known before: then its hints can leave with the commit.
                effects = effects_of(operation.read(()))
            answer, tries = await self._tried_again(operation, doing, effects=effects, again=again)
            self.release(effects_of(answer) if effects is None or tries > 1 else effects)
            return answer
        own: OpenTransaction | None = None
        try:
            connection, own = await self._join(tx)
            answer = await connection.run(operation)
            effects = effects_of(answer)
            if own is not None and own.link.native is None:  # nobody else commits it
                own.effects.add(effects)
            else:
                await self._release_with(own, connection, effects)
        except Exception as error:
            if own is None and self.fault(error) is Fault.READ_ONLY:
                raise TransactionUnsuitable(
                    f"{doing}: the transaction passed as tx= is read-only; begin one that may write"
                ) from error
            self.raise_in_words(error, doing)
            raise
        return answer

    async def _tried_again(
        self,
        operation: Operation[T],
        doing: str,
        *,
        while_: Callable[[], bool] = lambda: True,
        effects: Effects | None = None,
        again: Callable[[bool], Operation[T]] | None = None,
    ) -> tuple[T, int]:
        """The answer, and how many tries it took."""
        is_unknown = False
        for turn in range(1, _TRIES + 1):
            try:
                async with self.driver.connection() as connection:
                    hints = effects.hints if effects is not None and turn == 1 else []
                    result = await self._carrying(hints, partial(connection.run, operation))
            except Exception as error:
                if turn == _TRIES or isinstance(error, DatabaseLocked) or not (self.is_transient(error) and while_()):
                    self.raise_in_words(error, doing)
                    raise
                told = self._in_words(error, doing) or error
                self.observers.emit(events.StateError(doing=doing, error=describe(told)))
                is_unknown = is_unknown or self.fault(error) is Fault.LOST
            else:
                self.observers.database_works(doing)
                return result, turn
            operation = again(is_unknown) if again is not None else operation
            await self.driver.sleep(pause_after(turn, 0.1, 1.0, jitter=0.5))
        raise AssertionError("unreachable")

    # -- transactions

    async def commit(self, tx: OpenTransaction) -> None:
        """Commit a transaction of ours, perhaps with the hints of what was done in it. Its effects are released by
        whoever has given its connection back.
        """
        try:
            await self._carrying(tx.effects.hints, tx.commit)
        except Exception as error:
            if self.fault(error) is Fault.POISONED:  # what COMMIT alone would have said
                raise TransactionUnsuitable(POISONED) from error
            self.raise_in_words(error, "commit", commits=True)
            raise

    def idle(self, native: object) -> Connection:
        """A connection of the caller's own, in which no transaction is open."""
        wrapped = self.driver.wrap(native)
        if wrapped is None:
            raise TransactionUnsuitable(
                f"a {type(native).__name__} is not a connection of this app's driver{_advice(native)}"
            )
        if wrapped.in_transaction:
            raise TransactionUnsuitable("the connection is already in a transaction: pass it as tx= instead")
        return wrapped

    def handed_out(self, tx: OpenTransaction) -> Any:
        """What the user gets: the client library's own object, or Onward's `Transaction`."""
        if tx.link.native is not None:
            return tx.link.native
        return tx if self.driver.is_async else SyncView(tx)

    async def _join(self, tx: object) -> tuple[Connection, OpenTransaction | None]:
        """The connection of the caller's transaction; and that transaction, if it is one of ours."""
        own = tx.inner if isinstance(tx, SyncView) else tx if isinstance(tx, OpenTransaction) else None
        own = own or self.transactions.get(id(tx))
        if own is not None:
            own.check()
            own.is_joined = True
            return own.link, own
        adopted = self.driver.adopt(tx)
        if adopted is None:
            raise TransactionUnsuitable(
                f"tx= is a {type(tx).__module__}.{type(tx).__qualname__}, which this app's driver "
                f"({type(self.driver).__name__}) does not know: pass what app.transaction() gives, or the driver's own"
                f"{_advice(tx)}"
            )
        await self._check_identity(adopted)
        return adopted, None

    async def learn_identity(self, connection: Connection) -> None:
        """To which database the app's own connections lead.

        When it is opened: later those who pass connections of the same pool may have them all, and wait for one more.
        """
        self._identity = await connection.run(self.state.identify())

    async def _check_identity(self, adopted: Connection) -> None:
        with suppress(TypeError):  # sqlite3 connections cannot be remembered; asking one costs no round trip
            if adopted.raw in self._known:
                return
        theirs = await adopted.run(self.state.identify())
        if self._identity is None:
            async with self.driver.connection() as own:
                await self.learn_identity(own)
        if theirs != self._identity:
            raise TransactionUnsuitable(
                f"the connection passed as tx= leads to another database ({theirs}) than the app's ({self._identity})"
            )
        with suppress(TypeError):
            self._known.add(adopted.raw)

    async def _release_with(self, own: OpenTransaction | None, connection: Connection, effects: Effects) -> None:
        """Let effects go with a commit that is still to come; `own`: if it will be ours."""
        if connection.after_commit(partial(self.release, effects)):
            if not self.driver.is_async:
                await self._send_within(connection, effects)
            return
        if own is not None:
            own.effects.add(effects)
        elif effects.hints:
            await self._send_within(connection, effects)
            if effects.hints and not self._notify.sees_commits and not self._warned:
                self._warned = True
                logger.warning(
                    "a bare connection cannot say when it commits, so its jobs are found by polling: "
                    "use `async with app.transaction(connection) as tx` to have them start at once"
                )

    async def _send_within(self, connection: Connection, effects: Effects) -> None:
        """Have hints leave with the commit, where the database carries them; then they are no longer among its effects.

        Without an event loop they would be sent right after it, by one more connection of a pool whose connections may
        all be lent to those who commit.
        """
        hint = self._notify.command(effects.hints) if effects.hints else None
        if hint is not None:
            await connection.run(hint)
            effects.hints.clear()


class TransactionBlock:
    """`async with`: a transaction of ours, on a connection of the pool or on the caller's own, idle one.

    It gives what the user gets of the transaction, and commits or rolls back.
    """

    __slots__ = ("_lent", "_native", "_store", "_tx")

    def __init__(self, store: Store, native: object = None) -> None:
        self._store, self._native = store, native

    async def __aenter__(self) -> Any:
        refuse_inside_transaction("opening a transaction")
        store = self._store
        try:
            self._lent: AbstractAsyncContextManager[Connection] = (
                store.driver.connection() if self._native is None else nullcontext(store.idle(self._native))
            )
            link = await self._lent.__aenter__()
            try:
                await link.begin()
            except BaseException as error:
                await self._lent.__aexit__(type(error), error, error.__traceback__)
                raise
        except Exception as error:
            store.raise_in_words(error, "begin a transaction")
            raise
        self._tx = OpenTransaction(link, store.transactions)
        open_here.set(self._tx)
        return store.handed_out(self._tx)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = error
        try:
            await (self._tx.rollback() if error is not None else self._store.commit(self._tx))
        except BaseException as failure:
            left = failure
            raise
        finally:
            if open_here.get() is self._tx:  # else the block is left in another task than it was entered in
                open_here.set(None)
            try:
                await self._lent.__aexit__(type(left) if left else None, left, left.__traceback__ if left else None)
            finally:
                # Now that the connection is given back: what follows may need one, and all others may be lent to those
                # who have got as far as this.
                if left is None:
                    self._store.release(self._tx.effects)


def _run_after_commit(action: Callable[[], None]) -> None:
    """What it raises is logged and goes no further: the work is committed, and others wait to be told."""
    try:
        action()
    except KeyboardInterrupt:
        raise
    except BaseException:
        logger.exception("an action after a commit failed; the commit itself has succeeded")


def _advice(tx: object) -> str:
    """What whoever passed this most likely wants."""
    if type(tx).__module__.partition(".")[0] == "sqlalchemy":
        return "; to pass your sessions, build the app on your sessionmaker or engine: Onward(Session, jobs=[…])"
    return ""

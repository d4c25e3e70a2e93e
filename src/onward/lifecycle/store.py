"""The store: state adapter, driver, hints and events as one thing that client and worker write through."""

import logging
import random
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from onward.errors import TransactionUnsuitable
from onward.lifecycle.after_commit import Awaited, Consequences, Effects, describe
from onward.lifecycle.announcer import Announcer, Ride
from onward.lifecycle.context import open_transaction, refuse_inside_transaction
from onward.lifecycle.transaction import OpenTransaction, SyncView
from onward.notify.contract import NotifyAdapter
from onward.observe import events
from onward.observe.observer import Observers
from onward.state.contract import StateAdapter
from onward.state.driver import Connection, Driver, Fault, Statement

logger = logging.getLogger("onward")
T = TypeVar("T")
_TRIES = 6


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
        also_transient: Callable[[BaseException], bool] | None = None,
    ) -> None:
        self._also_transient = also_transient
        self.state, self.driver, self.observers, self.awaited = state, driver, observers, awaited
        self.consequences = Consequences(observers, awaited)
        self._notify, self._announcer = notify, announcer
        self._identity: str | None = None
        self._ours: dict[int, OpenTransaction] = {}
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._warned = False

    def is_transient(self, error: BaseException) -> bool:
        """Whether trying again may help, by the driver's judgement or the application's."""
        fault = self.driver.fault(error)
        if fault is not None and fault.is_transient:
            return True
        return self._also_transient is not None and self._also_transient(error)

    # -- effects

    def release(self, effects: Effects) -> None:
        """The change is committed: let its hints and events go."""
        for event in effects.events:
            self.observers.emit(event)
        if effects.hints:
            self._announcer.post(effects.hints)

    def ride(self, effects: Effects) -> Ride | None:
        """Have the hints of a commit of our own leave with it; then they are no longer among its effects."""
        ride = self._announcer.ride(effects.hints) if effects.hints else None
        if ride is not None:
            effects.hints.clear()
        return ride

    # -- running operations

    async def read(self, operation: Callable[[Connection], Awaitable[T]], *, tx: object = None) -> T:
        """Run a reading operation."""
        if tx is not None:
            return await operation(await self._join(tx))
        return await self._tried_again(operation, "read")

    async def write(
        self, operation: Callable[[Connection], Awaitable[tuple[T, Effects]]], *, tx: object = None, doing: str
    ) -> T:
        """Run a changing operation; its effects are released after the commit, whosever commit that is."""
        if tx is None:
            refuse_inside_transaction(doing)
            result, effects = await self._tried_again(operation, doing)
            self.release(effects)
            return result
        connection = await self._join(tx)
        try:
            result, effects = await operation(connection)
        except Exception as error:
            if self.driver.fault(error) is Fault.READ_ONLY:
                raise TransactionUnsuitable(
                    f"{doing}: the transaction passed as tx= is read-only; begin one that may write"
                ) from error
            raise
        await self._release_with(tx, connection, effects)
        return result

    async def _tried_again(self, operation: Callable[[Connection], Awaitable[T]], doing: str) -> T:
        """Ids are made by the client, so that an operation whose commit has an unknown outcome can be repeated."""
        for turn in range(1, _TRIES + 1):
            try:
                async with self.driver.connection() as connection:
                    result = await operation(connection)
                self.observers.database_works(doing)
                return result
            except Exception as error:
                if turn == _TRIES or not self.is_transient(error):
                    raise
                self.observers.emit(events.StateError(doing=doing, error=describe(error)))
            await self.driver.sleep(min(0.05 * 2**turn, 1.0) * (0.5 + random.random()))
        raise AssertionError("unreachable")

    # -- transactions

    @asynccontextmanager
    async def transaction(self, native: object = None) -> AsyncIterator[OpenTransaction]:
        """A transaction of ours, on a connection of the pool or on the caller's own, idle one."""
        refuse_inside_transaction("opening a transaction")
        async with self._link(native) as link:
            tx = await self.begin(link)
            mark = open_transaction.set(tx)
            try:
                yield tx
            except BaseException:
                await self.abandon(tx)
                raise
            else:
                await self.commit(tx)
            finally:
                open_transaction.reset(mark)

    @asynccontextmanager
    async def _link(self, native: object) -> AsyncIterator[Connection]:
        if native is None:
            async with self.driver.connection() as link:
                yield link
            return
        wrapped = self.driver.wrap(native)
        if wrapped is None:
            raise TransactionUnsuitable(f"a {type(native).__name__} is not a connection of this app's driver")
        if wrapped.in_transaction:
            raise TransactionUnsuitable("the connection is already in a transaction: pass it as tx= instead")
        yield wrapped

    async def begin(self, link: Connection, first: Statement | None = None) -> OpenTransaction:
        """Begin a transaction on a connection, with a first statement of ours if there is one."""
        found = 0
        if first is None:
            await link.begin()
        else:
            try:
                found = await link.begin_with(first)
            except BaseException:
                await link.rollback()  # the transaction may have begun
                raise
        tx = OpenTransaction(link, found=found)
        if link.native is not None:
            self._ours[id(link.native)] = tx
        return tx

    async def commit(self, tx: OpenTransaction, last: Statement | None = None) -> None:
        """Commit, with a last statement of ours if there is one, and release what waited for it."""
        self._ours.pop(id(tx.link.native), None)
        await tx.commit(last)

    async def abandon(self, tx: OpenTransaction) -> None:
        """Roll back."""
        self._ours.pop(id(tx.link.native), None)
        await tx.rollback()

    def handed_out(self, tx: OpenTransaction) -> Any:
        """What the user gets: the client library's own object, or Onward's `Transaction`."""
        if tx.link.native is not None:
            return tx.link.native
        return tx if self.driver.is_async else SyncView(tx)

    def _own(self, tx: object) -> OpenTransaction | None:
        if isinstance(tx, SyncView):
            return tx.inner
        if isinstance(tx, OpenTransaction):
            return tx
        return self._ours.get(id(tx))

    async def _join(self, tx: object) -> Connection:
        own = self._own(tx)
        if own is not None:
            own.check()
            own.is_joined = True
            return own.link
        adopted = self.driver.adopt(tx)
        if adopted is None:
            raise TransactionUnsuitable(
                f"tx= is a {type(tx).__module__}.{type(tx).__qualname__}, which this app's driver "
                f"({type(self.driver).__name__}) does not know: pass what app.transaction() gives, or the driver's own"
            )
        await self._check_identity(adopted)
        return adopted

    async def _check_identity(self, adopted: Connection) -> None:
        with suppress(TypeError):  # sqlite3 connections cannot be remembered; asking one costs no round trip
            if adopted.raw in self._known:
                return
        theirs = await self.state.identify(adopted)
        if self._identity is None:
            async with self.driver.connection() as own:
                self._identity = await self.state.identify(own)
        if theirs != self._identity:
            raise TransactionUnsuitable(
                f"the connection passed as tx= leads to another database ({theirs}) than the app's ({self._identity})"
            )
        with suppress(TypeError):
            self._known.add(adopted.raw)

    async def _release_with(self, tx: object, connection: Connection, effects: Effects) -> None:
        """Let effects go with a commit that is still to come."""
        if connection.after_commit(lambda: self.release(effects)):
            return
        own = self._own(tx)
        if own is not None:
            own.after_commit(lambda: self.release(effects))
        elif effects.hints:
            statement = self._notify.within_transaction(effects.hints)
            if statement is not None:
                await connection.fetch(*statement)
            elif not self._notify.sees_commits and not self._warned:
                self._warned = True
                logger.warning(
                    "a bare connection cannot say when it commits, so its jobs are found by polling: "
                    "use `async with app.transaction(connection) as tx` to have them start at once"
                )

"""The transactions of an attempt: opened for a phase, held until its job is settled, committed with what it wrote."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Token
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from onward.define.registry import Registry
from onward.errors import (
    AttemptLost,
    ConfigurationError,
    JobAlreadyCompleted,
    PhaseError,
    TransactionError,
    TransactionUnsuitable,
)
from onward.lifecycle.effects import Effects, describe
from onward.lifecycle.settle import settlement_of_cancel
from onward.lifecycle.store import Store
from onward.lifecycle.transaction import Mark, OpenTransaction, open_here
from onward.model import CompletedJob, JobStatus, WorkerId
from onward.observe import events
from onward.pacing import Pacing
from onward.state.command import Command, Operation
from onward.state.contract import Change, Settlement, TakenJob
from onward.state.driver import POISONED, Fault, run_now
from onward.worker.middleware import Hook, Surrounded, onion
from onward.worker.progress import ProgressBoard

logger = logging.getLogger("onward.worker")
T = TypeVar("T")
PhaseKind = Literal["prepare", "atomic", "complete"]
Stage = Literal["fresh", "inside", "prepared", "completed", "ended", "settled"]
"""Before any phase; inside one; after prepare(), or after complete(); nothing may follow; committed with the job."""
Party = Literal["onward", "handler", "unknown"]
"""Whose statement failed: ours, the handler's through our transaction, or anybody's."""
_OVER: tuple[Stage, ...] = ("ended", "settled")
"""Nothing may follow, because the handler has returned or raised."""
_OPENING = "open a phase"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
"""Seconds between tries to open a phase."""
_LONG_LOCK = 1.0


class PhaseFailure(NamedTuple):
    """What went wrong in a phase, to tell the database's troubles from the handler's."""

    error: BaseException
    """What left the phase."""
    cause: BaseException
    """What failed first."""
    party: Party


class _Cancelled(Exception):
    """The job was to be cancelled, and neither goes on nor comes back: nor does what the phase has written."""


@dataclass(slots=True, kw_only=True)
class Workplace:
    """What the attempts of a worker share."""

    worker: WorkerId
    registry: Registry
    progress: ProgressBoard
    provided: tuple[object, ...] = ()
    """What all handlers can get by type."""
    was_told: Callable[[Any], object] = bool
    """Hears of each attempt that was told to stop."""
    queueing: set["Phases"] = field(default_factory=set["Phases"])
    """Those that wait for a connection of the pool."""


class Phases(msgspec.Struct, eq=False):
    """The phases of one attempt, with at most one transaction open at a time."""

    _job: TakenJob
    store: Store
    _workplace: Workplace
    stage: Stage = "fresh"
    failure: PhaseFailure | None = None
    has_time: bool = True
    """Whether to wait for a database that is away; not if the handler was told to stop."""
    is_held_up: bool = False
    """Whether the handler waits for a phase to begin or to commit: for the database, or for a connection to it."""
    had_to_wait: bool = False
    """Whether a connection of the pool had to be given back first, as far as its driver tells."""
    tx: OpenTransaction | None = None
    settled: Settlement | None = None
    """What was committed with the handler's writes."""
    _lending: AbstractAsyncContextManager[Any] | None = None
    """Gives back the connection of the open phase."""
    _is_held: bool = False
    """Whether nothing but this attempt had to do with its job when the transaction began."""
    _began: float = math.inf
    _interrupt: Callable[[], None] | None = None
    """Ends the wait for the database that is under way, if there is one."""

    __repr__ = object.__repr__  # without the input of the job, which may have secrets

    # -- one phase

    async def enter(self, phase: PhaseKind) -> OpenTransaction:
        """Begin a phase, in the transaction that is open or in a new one; however often that takes: what the handler
        has done so far need not be done again.
        """
        before = self.stage
        if before != "fresh":
            check_order(before, phase)
        tx, pauses, self.is_held_up = self.tx, None, True
        self.stage = "inside"  # from now on: another task of the handler's may come while this one waits
        if tx is not None:
            tx.resume()
        try:
            while tx is None:
                try:
                    tx = await self._begin(locked=phase != "prepare")
                except BaseException as error:  # noqa: BLE001 - raised unless trying again may help
                    pauses = pauses or Pacing(_FIRST_PAUSE, _LONGEST_PAUSE)
                    await self._recover(error, pauses)
                else:
                    if pauses is not None:
                        self.store.observers.database_works(_OPENING)
            if self.stage in _OVER:  # it has not waited for this
                await self.discard()
                check_order(self.stage, phase)
        except BaseException:
            if self.stage not in _OVER:
                self.stage = before
            raise
        finally:
            self.is_held_up = False
        return tx

    async def leave(self, phase: PhaseKind, error: BaseException | None) -> None:
        """End a phase: staged prepare commits here, the others stay open until the job is settled."""
        if self.stage in _OVER:
            return  # the handler has not waited for this block: its transaction is being ended, or has been
        tx = self.tx
        after: Stage = "ended" if phase == "complete" else "prepared"
        if error is not None and phase == "complete":
            self.stage = "ended"  # at once: a handler that does not wait for this must not come to an outcome meanwhile
        try:
            if error is not None:
                own = tx is not None and any(failed is error for failed in tx.errors)
                self._note(error, "handler" if own else "unknown")
                await self.discard()
                return
            assert tx is not None
            try:
                tx.check()
            except TransactionError as ended:
                self._note(ended, "handler", tx)
                await self.discard()
                raise
            tx.suspend()
            if phase == "prepare":
                await self._commit_staged(tx)
            elif phase == "complete":
                after = "completed"
        finally:
            if self.stage not in _OVER:
                self.stage = after  # not before: its connection is given back until then

    async def _commit_staged(self, tx: OpenTransaction) -> None:
        self.is_held_up = True
        try:
            await self._commit()
        except BaseException as failed:
            self._note(failed, "onward", tx)
            raise
        finally:
            self.is_held_up = False

    # -- its transaction

    async def _begin(self, *, locked: bool) -> OpenTransaction:
        """Begin on a connection of the pool; `locked`: and hold the attempt, so that nobody else settles its job."""
        store, lending = self.store, self.store.driver.connection()
        queueing = self._workplace.queueing
        queueing.add(self)
        began = time.monotonic()
        try:
            link = await lending.__aenter__()
        finally:
            queueing.discard(self)
        self.had_to_wait = self.had_to_wait or link.was_awaited
        if events.PoolWaited in store.observers.wanted:
            seconds = time.monotonic() - began
            store.observers.emit(events.PoolWaited(type_name=self._job.type_name, seconds=seconds))
        self._lending, self._interrupt = lending, link.cut_off
        job, holder = self._job, self._workplace.worker
        if locked:
            hold = store.state.hold_attempt(job_id=job.id, attempt=job.attempt, holder=holder)
            self._is_held = await link.run(hold, begin=True)
        else:
            await link.begin()
        self.tx = tx = OpenTransaction(link, store.transactions)
        self._began = time.monotonic()
        if locked and not self._is_held:
            await link.run(store.state.lock_attempt(job_id=job.id, attempt=job.attempt, holder=holder))
        return tx

    async def _recover(self, error: BaseException, pauses: Pacing) -> None:
        """The transaction could not be begun: wait a little, if trying again may help."""
        self._note(error, "onward")
        with suppress(Exception):  # of a connection that is lost; what led here says more
            await self.discard()
        if not (self.has_time and self.store.is_transient(error)):
            raise error
        self.store.observers.emit(events.StateError(doing=_OPENING, error=describe(error)))
        await self.store.driver.sleep(next(pauses))

    async def settle(self, settlement: Settlement) -> Settlement | None:
        """Settle in the open phase, in one commit with its writes; or say what is to be settled with others."""
        tx, job = self.tx, self._job
        self.stage = "ended"  # also for a block that the handler has left behind
        if tx is None:
            return settlement
        try:
            # Unless other operations of ours took part, nothing but this attempt has to do with its job.
            held = job if self._is_held and not tx.is_joined else None
            # What follows, unless more is heard of it: what changed for others has been told by nobody then.
            told = [Change(job.id, job.chain_id, job.type_name, "settled", JobStatus.COMPLETED)]
            follows = partial(self.store.effects_of.settlements, [settlement], told)
            settle = self.store.state.settle([settlement], held=held)
            if not (isinstance(settle, Command) and settle.needs == "count"):  # one of no rows settles, or fails
                settle = settle.then(partial(self._insist, told))
            try:
                await self._commit(settle, follows)
            except Exception as error:
                if self.store.fault(error) is Fault.POISONED:  # what COMMIT alone would have said
                    raise TransactionUnsuitable(POISONED) from error
                if not await self._went_through(error):
                    raise
                self.store.release(tx.effects)
                self.store.release(follows())
            self.stage, self.settled = "settled", settlement
        except _Cancelled:
            return settlement_of_cancel(job, self._workplace.worker)
        except BaseException as error:
            self._note(error, "onward", tx)
            raise
        return None

    def _insist(self, told: list[Change], changes: Sequence[Change]) -> Sequence[Change]:
        """Raise unless the job was settled as asked, before the commit; what follows from it is told after that."""
        for change in changes:
            if change.kind == "settled" and change.job_id == self._job.id:
                if change.status is JobStatus.FAILED:
                    raise _Cancelled
                break
        else:
            # It was this attempt's when the transaction began, and nobody else can have changed it since.
            raise PhaseError(
                "the transaction of this attempt has deleted its own job, or ended it: return an outcome instead, or "
                "do that after the block"
            )
        told[:] = changes
        return changes

    async def _commit(self, last: Operation[Any] | None = None, follows: Callable[[], Effects] = Effects) -> None:
        """Commit, perhaps with a last operation of ours, from which more `follows`."""
        tx, self.tx = self.tx, None
        assert tx is not None
        try:
            await tx.commit(last)
            self.store.release(tx.effects)
            self.store.release(follows())
        finally:
            await self._close()

    async def discard(self) -> None:
        """Roll back whatever is open; harmless when nothing is."""
        tx, self.tx = self.tx, None
        try:
            if tx is not None:
                await tx.rollback()
        finally:
            await self._close()

    async def _close(self) -> None:
        lending, self._lending, self._interrupt = self._lending, None, None
        if not self.store.state.locks_rows and (held := time.monotonic() - self._began) > _LONG_LOCK:
            logger.warning(
                "%s held SQLite's only write lock for %.1f s (job %s): do slow work between prepare() and complete()",
                self._job.type_name, held, self._job.id,
            )  # fmt: skip
        self._began = math.inf
        if lending is not None:
            await lending.__aexit__(None, None, None)

    def cut_off(self) -> None:
        """Have what is left of a phase, be it in another thread, wait no longer for the database."""
        interrupt = self._interrupt
        if interrupt is not None:
            interrupt()

    # -- what went wrong

    async def _went_through(self, error: Exception) -> bool:
        """Whether a COMMIT that failed has settled the job: perhaps only its answer was lost.

        Told to stop, there is no time to wait for the database: if it did, what is settled instead comes too late.
        """
        fault = self.store.fault(error)
        if fault is Fault.STALE:
            raise JobAlreadyCompleted(self._job.id, self._job.attempt) from error
        if fault is not Fault.LOST or not self.has_time:
            return False
        looking = self.store.read(self.store.state.find_jobs([self._job.id]), while_=lambda: self.has_time)
        found = await (self._interruptibly(looking) if self.store.driver.is_async else looking)
        return bool(found) and isinstance(found[0], CompletedJob) and found[0].completed_by == self._workplace.worker

    async def _interruptibly(self, work: Awaitable[T]) -> T:
        def interrupt() -> None:
            if not limit.expired():
                limit.reschedule(0)

        async with asyncio.timeout(None) as limit:
            self._interrupt = interrupt
            try:
                return await work
            finally:
                self._interrupt = None

    def _note(self, error: BaseException, party: Party, tx: OpenTransaction | None = None) -> None:
        self.failure = PhaseFailure(error, error, party)
        if tx is not None and self._is_poisoned(error):
            # The handler swallowed what failed first: what follows is the doing of that.
            before = [failed for failed in tx.errors if not self._is_poisoned(failed)]
            if before:
                self.failure = PhaseFailure(error, before[-1], "handler")

    def _is_poisoned(self, error: BaseException) -> bool:
        return isinstance(error, TransactionUnsuitable) or self.store.fault(error) is Fault.POISONED

    def is_transient(self, error: BaseException) -> bool:
        """Whether the database made the attempt fail, so that it does not count."""
        if self.failure is None or error is not self.failure.error:
            return False
        _, cause, party = self.failure
        # A statement of the handler's own that takes too long may do so every time; an OSError inside a phase may come
        # from what else the handler does there.
        timed_out = self.store.fault(cause) is Fault.TIMEOUT
        if party != "onward" and (timed_out or (party == "unknown" and isinstance(cause, OSError))):
            return self.store.is_said_to_be_transient(cause)
        was_closed = party == "onward" and isinstance(cause, ConfigurationError)  # before its worker
        return was_closed or self.store.is_transient(cause)

    def is_about_this(self, error: AttemptLost) -> bool:
        """Whether it was this attempt that lost its job: a handler may also have to do with the jobs of others."""
        is_ours = self.failure is not None and error is self.failure.error
        return is_ours and (error.job_id, error.attempt) == (self._job.id, self._job.attempt)


def check_order(stage: Stage, phase: PhaseKind) -> None:
    """Raise unless a phase may follow what has been."""
    what = "complete()" if phase == "complete" else "prepare()"
    if stage in _OVER:
        raise PhaseError(f"{what} after the attempt ended, or after complete() failed")
    if stage == "inside":
        raise PhaseError(f"{what} inside another phase: leave that block first")
    if stage == "completed":
        raise PhaseError(f"{what} after complete(): the outcome is already decided")
    if phase != "complete":
        raise PhaseError("a second prepare(): read everything in the first one")


class PhaseBlock(msgspec.Struct, eq=False):
    """`async with` for `async def` handlers, `with` for `def` handlers."""

    _attempt: Surrounded
    _phases: Phases
    _phase: PhaseKind
    _onion: AbstractAsyncContextManager[None] | None = None
    _mark: Token[Mark] | None = None

    __repr__ = object.__repr__  # likewise

    async def __aenter__(self) -> Any:
        tx = await self._phases.enter(self._phase)
        self._mark = open_here.set(tx)
        handed_out = self._phases.store.handed_out(tx)
        if self._attempt.kind.middleware:
            hook: Hook = "around_complete" if self._phase == "complete" else "around_prepare"
            surrounding = onion(self._attempt, hook, handed_out)
            try:
                await surrounding.__aenter__()
            except BaseException as error:
                await self.__aexit__(type(error), error, error.__traceback__)
                raise
            self._onion = surrounding
        return handed_out

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = error
        try:
            if self._onion is not None:
                await self._onion.__aexit__(kind, error, trace)
        except BaseException as changed:
            left = changed
            raise
        finally:
            if self._mark is not None:
                with suppress(ValueError):  # in another task than it was entered in, which has no mark to take away
                    open_here.reset(self._mark)
            await self._phases.leave(self._phase, left)

    def __enter__(self) -> Any:
        if self._attempt.kind.step.signature.is_async:
            raise PhaseError("use `async with` in an async def handler")
        return run_now(self.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run_now(self.__aexit__(kind, error, trace))

"""One attempt: what the handler holds, and the transactions of its phases."""

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Token
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Literal, TypeVar

from typing_extensions import Unpack

from onward.define.job_type import JobType, Step
from onward.define.outcome import Next, Outcome, Rescheduled
from onward.define.registry import Registered, Registry
from onward.define.request import BlockerSource, NewChain, StartedChain, StartOptions
from onward.errors import (
    AttemptLost,
    ConfigurationError,
    JobAlreadyCompleted,
    PayloadError,
    PhaseError,
    TransactionError,
    TransactionUnsuitable,
)
from onward.lifecycle.after_commit import describe
from onward.lifecycle.context import OpenMark, Origin, open_transaction, unmark
from onward.lifecycle.settle import cancelled, settlement_of
from onward.lifecycle.start import plan_chains, start_jobs
from onward.lifecycle.store import Store
from onward.lifecycle.transaction import OpenTransaction
from onward.model import Blocker, ChainId, CompletedJob, JobError, JobId, JobStatus, LossReason, WorkerId
from onward.observe import events
from onward.pacing import Pacing
from onward.state.contract import Change, NewJob, Settlement, TakenJob
from onward.state.driver import Connection, Fault, Statement, run_now
from onward.state.rows import read_errors
from onward.worker.middleware import Hook, find, onion
from onward.worker.progress import ProgressBoard

logger = logging.getLogger("onward.worker")
T = TypeVar("T")
Made = TypeVar("Made", bound=Outcome[Any])
PhaseKind = Literal["prepare", "atomic", "complete"]
Party = Literal["onward", "handler", "unknown"]
"""Whose statement failed: ours, the handler's through our transaction, or anybody's."""
_OPENING = "open a phase"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
"""Seconds between tries to open a phase."""
_LONG_LOCK = 1.0


class RunningAttempt:
    """The attempt that a handler is given. Keeps the promises of `onward.Attempt`."""

    def __init__(
        self,
        *,
        job: TakenJob,
        kind: Registered,
        registry: Registry,
        store: Store,
        worker: WorkerId,
        progress: ProgressBoard,
        blockers: Sequence[Blocker] = (),
        provided: tuple[object, ...] = (),
        on_cancel: Callable[["RunningAttempt"], object] = bool,
        queueing: set["RunningAttempt"] | None = None,
    ) -> None:
        self._queueing = set[RunningAttempt]() if queueing is None else queueing
        self._on_cancel = on_cancel
        self.job, self.kind, self.worker = job, kind, worker
        self.blockers = blockers
        self.provided = provided
        """What `get` finds, the innermost last."""
        self.input: Any = None
        self.cancelled: LossReason | None = None
        self.phase_error: BaseException | None = None
        """What went wrong in a phase, to tell the database's troubles from the handler's."""
        self._cause: BaseException | None = None
        self._at_fault: Party = "unknown"
        self._outcome: Outcome[Any] | None = None
        """What the handler made to return."""
        self.settled = False
        """Whether the handler's own commit settled the job."""
        self.is_running = False
        """Whether the handler has begun and not ended."""
        self.has_returned = False
        """Whether the handler has ended, one way or the other: what is left is to settle the job."""
        self._registry, self._store, self._progress = registry, store, progress
        self._task: asyncio.Task[Any] | None = None
        self._stage: Literal["fresh", "prepared", "atomic", "completed", "ended"] = "fresh"
        self._inside: PhaseKind | None = None
        self._tx: OpenTransaction | None = None
        self._began = 0.0
        self._lending: AbstractAsyncContextManager[Any] | None = None
        """Gives back the connection of the open phase."""
        self._link: Connection | None = None
        """That connection."""
        self._limit: asyncio.Timeout | None = None
        """Of a look whether the job has been settled."""
        self._mark: Token[OpenMark | None] | None = None

    # -- what the handler reads

    @property
    def job_id(self) -> JobId:
        return self.job.id

    @property
    def chain_id(self) -> ChainId:
        return self.job.chain_id

    @property
    def root_id(self) -> JobId:
        return self.job.root_id

    @property
    def job_type(self) -> str:
        return self.job.type_name

    @property
    def number(self) -> int:
        return self.job.attempt

    @property
    def failures(self) -> int:
        return self.job.failures

    @property
    def last_error(self) -> JobError | None:
        errors, guard = read_errors(self.job.errors), self.kind.guard
        if not errors or guard is None:
            return errors[-1] if errors else None
        return guard.error(errors[-1], self.job.id)

    def outputs_of(self, job_type: JobType[Any, Any]) -> list[Any]:
        self.kind.may_be_blocked_by(self._registry.step(job_type).name)
        return [
            self._registry.find(blocker.current_type_name).read_output(
                blocker.output or "null", blocker.payload_version, blocker.chain_id
            )
            for blocker in self.blockers
            if blocker.type_name == job_type.name and blocker.status is JobStatus.COMPLETED
        ]

    def get(self, kind: type[T]) -> T:
        return find(self, kind)

    def progress(self, fraction: float, note: str | None = None) -> None:
        guard = self.kind.guard
        keep = None if guard is None else partial(guard.note, job_id=self.job.id, input=self.input)
        self._progress.report(self.job.id, self.job.attempt, fraction, note, keep)

    def secrets(self) -> set[str]:
        """Those of the input of a type with a guard, as it is stored and as the handler has it."""
        assert self.kind.guard is not None
        inputs = [] if self.input is None else [self.input]
        with suppress(PayloadError):  # then it is also why the attempt failed
            inputs.append(self.kind.input.plain(self.job.input, self.job.id))
        return self.kind.guard.secrets_in(*inputs)

    # -- how it may end

    def continue_with(
        self,
        step: Step[Any, Any],
        input: Any,
        *,
        delay: timedelta | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        blockers: Sequence[BlockerSource] = (),
    ) -> Next[Any]:
        return self._made(Next(step, input, delay=delay, at=at, priority=priority, blockers=blockers))

    def reschedule(self, *, delay: timedelta | None = None, at: datetime | None = None) -> Outcome[Any]:
        return self._made(Rescheduled(delay=delay, at=at))

    def _made(self, outcome: Made) -> Made:
        if self._outcome is not None:
            raise PhaseError(
                f"{_spelled(outcome)} after {_spelled(self._outcome)}: an attempt ends once; return the first, or "
                "start the second as a chain of its own with attempt.start(…)"
            )
        self._outcome = outcome
        return outcome

    # -- other chains

    def start(self, job_type: JobType[Any, Any], input: Any, **options: Unpack[StartOptions]) -> Any:
        """In the phase that is open, or else at once; `async def` handlers await it."""
        chain = NewChain(job_type=job_type, input=input, **options)
        jobs = plan_chains(self._registry, [chain], origin=Origin(self.job.id, self.job.root_id))
        starting = self._start(job_type, jobs)
        return run_now(starting) if self.kind.runs_in_thread else starting

    async def _start(self, job_type: JobType[Any, Any], jobs: Sequence[NewJob]) -> StartedChain[Any]:
        started = (await start_jobs(self._store, jobs, tx=self._tx))[0]
        return StartedChain(job_type=job_type, id=started.id, duplicate=started.duplicate)

    # -- phases

    def prepare(self, *, atomic: bool = False) -> "PhaseBlock":
        return PhaseBlock(self, "atomic" if atomic else "prepare")

    def complete(self) -> "PhaseBlock":
        return PhaseBlock(self, "complete")

    async def enter(self, phase: PhaseKind) -> Any:
        """Begin a phase; what the handler gets as `tx`."""
        self._check_order(phase)
        if self._tx is None:
            await self._open(locked=phase != "prepare")
        tx = self._tx
        assert tx is not None
        tx.resume()
        self._inside = phase
        self._mark = open_transaction.set(tx)
        return self._store.handed_out(tx)

    async def leave(self, phase: PhaseKind, error: BaseException | None) -> None:
        """End a phase: staged prepare commits here, the others stay open until the job is settled."""
        self._inside = None
        if self._mark is not None:
            unmark(self._mark)
            self._mark = None
        if error is not None:
            own = self._tx is not None and any(failed is error for failed in self._tx.errors)
            self._note(error, "handler" if own else "unknown")
            self._stage = "ended" if phase == "complete" else "prepared"
            await self.discard()
            return
        assert self._tx is not None
        try:
            self._tx.check()
        except TransactionError as ended:
            self._stage = "ended" if phase == "complete" else "prepared"
            self._note(ended, "handler", self._tx)
            await self.discard()
            raise
        self._tx.suspend()
        if phase == "prepare":
            self._stage = "prepared"
            tx = self._tx
            try:
                await self._commit()
            except BaseException as failed:
                self._note(failed, "onward", tx)
                raise
        else:
            self._stage = "atomic" if phase == "atomic" else "completed"

    def _note(self, error: BaseException, at_fault: Party, tx: OpenTransaction | None = None) -> None:
        self.phase_error, self._cause, self._at_fault = error, error, at_fault
        if tx is not None and self._is_poisoned(error):
            # The handler swallowed what failed first: what follows is the doing of that.
            before = [failed for failed in tx.errors if not self._is_poisoned(failed)]
            if before:
                self._cause, self._at_fault = before[-1], "handler"

    def _is_poisoned(self, error: BaseException) -> bool:
        return isinstance(error, TransactionUnsuitable) or self._store.fault(error) is Fault.POISONED

    def _check_order(self, phase: PhaseKind) -> None:
        what = "complete()" if phase == "complete" else "prepare()"
        if self._stage == "ended":
            raise PhaseError(f"{what} after the attempt ended, or after complete() failed")
        if self._inside is not None:
            raise PhaseError(f"{what} inside another phase: leave that block first")
        if self._stage == "completed":
            raise PhaseError(f"{what} after complete(): the outcome is already decided")
        if phase != "complete" and self._stage != "fresh":
            raise PhaseError("a second prepare(): read everything in the first one")

    async def _open(self, *, locked: bool) -> None:
        """Begin the transaction, however often it takes: what the handler has done so far need not be done again."""
        store, pauses = self._store, None
        fence: Any = {"job_id": self.job.id, "attempt": self.job.attempt, "holder": self.worker}
        while True:
            try:
                link = await self._borrow()
                self._tx = await store.begin(link, store.state.hold_attempt(**fence) if locked else None)
                self._began = time.monotonic()
                if locked and not self._tx.found:
                    await store.state.lock_attempt(link, **fence)
                if pauses is not None:
                    store.observers.database_works(_OPENING)
                return
            except BaseException as error:
                self._note(error, "onward")
                await self._discard_quietly()
                if self.cancelled is not None or not store.is_transient(error):
                    raise
                store.observers.emit(events.StateError(doing=_OPENING, error=describe(error)))
            pauses = pauses or Pacing(_FIRST_PAUSE, _LONGEST_PAUSE)
            await store.driver.sleep(next(pauses))

    async def _borrow(self) -> Connection:
        lending = self._store.driver.connection()
        self._queueing.add(self)
        try:
            link = await lending.__aenter__()
        finally:
            self._queueing.discard(self)
        self._lending, self._link = lending, link
        return link

    # -- the end, called by the worker

    @property
    def facts(self) -> dict[str, Any]:
        """What every event about this attempt says."""
        job = self.job
        return {"job_id": job.id, "chain_id": job.chain_id, "type_name": job.type_name, "attempt": job.attempt}

    def is_transient(self, error: BaseException) -> bool:
        """Whether the database made the attempt fail, so that it does not count."""
        if error is not self.phase_error or self._cause is None:
            return False
        if self._at_fault != "onward" and self._may_be_handlers(self._cause):
            return self._store.is_said_to_be_transient(self._cause)
        was_closed = self._at_fault == "onward" and isinstance(self._cause, ConfigurationError)  # before its worker
        return was_closed or self._store.is_transient(self._cause)

    def _may_be_handlers(self, error: BaseException) -> bool:
        """A statement of its own that takes too long may do so every time; an OSError inside a phase may come from what
        else the handler does there."""
        timed_out = self._store.fault(error) is Fault.TIMEOUT
        return timed_out or (self._at_fault == "unknown" and isinstance(error, OSError))

    def is_about_this(self, error: AttemptLost) -> bool:
        """Whether it was this attempt that lost its job: a handler may also have to do with the jobs of others."""
        return error is self.phase_error and (error.job_id, error.attempt) == (self.job.id, self.job.attempt)

    async def call(self, run: Callable[["RunningAttempt"], Any] | None = None) -> Any:
        """Run the handler, or `run` in its place: awaited here, or to its end in this thread."""
        run = run or self.kind.step.run
        assert run is not None
        self.is_running = True
        try:
            if self.kind.middleware:
                returned = self._run_surrounded(run)
            else:
                returned = self._begin(run) if self.kind.runs_in_thread else run(self)
            if inspect.isawaitable(returned):
                self._task = asyncio.current_task()
                if self.cancelled is not None:
                    assert self._task is not None
                    self._task.cancel()
                returned = await returned
        finally:
            self._task, self.is_running, self.has_returned = None, False, True
        return returned

    def _begin(self, run: Callable[..., Any]) -> Any:
        returned = run(self)
        if self.kind.runs_in_thread and inspect.iscoroutine(returned):
            returned.close()
            raise PhaseError(f"{self.kind.name!r} is a def handler and returned a coroutine: write it as async def")
        return returned

    def _run_surrounded(self, run: Callable[..., Any]) -> Any:
        async def surrounded() -> Any:
            async with onion(self, "around_handler"):
                returned = self._begin(run)
                return await returned if inspect.isawaitable(returned) else returned

        return run_now(surrounded()) if self.kind.runs_in_thread else surrounded()

    def runs_in(self, task: asyncio.Task[Any]) -> bool:
        """Whether this task runs the handler."""
        return self._task is task

    def cancel(self, reason: LossReason) -> None:
        """Tell the handler to stop. Nothing is delivered once it has returned."""
        if self.cancelled is None:
            self.cancelled = reason
            self._on_cancel(self)
            if self._task is not None:
                self._task.cancel(str(reason))

    def cut_off(self) -> None:
        """Have what is left of a phase, be it in another thread, wait no longer for the database."""
        link, limit = self._link, self._limit
        if link is not None:
            link.cut_off()
        if limit is not None and not limit.expired():
            limit.reschedule(0)

    async def finish(self, returned: Any) -> Settlement | None:
        """Settle in the open phase, in one commit with its writes; or say what is to be settled with others."""
        if self._stage == "ended" and self.phase_error is not None:
            raise self.phase_error
        if self._outcome is not None and returned is not self._outcome:
            raise PhaseError(
                f"{self.kind.name!r} called {_spelled(self._outcome)} and returned something else: write "
                f"`return {_spelled(self._outcome)}`"
            )
        settlement = settlement_of(self._registry, self.kind, self.job, self.worker, returned)
        tx = self._tx
        if tx is None:
            self._stage = "ended"
            return settlement
        try:
            settlement = self._progress.last_word(settlement)
            last = self._store.state.end_attempt(self.job, settlement) if self._is_held(tx) else None
            if last is None:
                changes = await self._store.state.settle(tx.link, [settlement])
                own = [change for change in changes if change.kind == "settled" and change.job_id == self.job.id]
                if not own:
                    raise JobAlreadyCompleted(self.job.id, self.job.attempt)
                if own[0].status is JobStatus.FAILED:
                    # It was to be cancelled, and neither goes on nor comes back: nor does what the phase has written.
                    await self.discard()
                    return cancelled(self.job, self.worker)
            else:
                changes = [Change(self.job.id, self.job.chain_id, self.job.type_name, "settled", JobStatus.COMPLETED)]
            effects = self._store.consequences.of_settlements([settlement], changes)
            tx.after_commit(lambda: self._store.release(effects))
            await self._commit_settlement(last)
            self.settled = True
        except BaseException as error:
            self._note(error, "onward", tx)
            raise
        return None

    @staticmethod
    def _is_held(tx: OpenTransaction) -> bool:
        """Whether nothing but this attempt has to do with its job: others of our operations may have changed that."""
        return tx.found > 0 and not tx.is_joined

    async def _commit_settlement(self, last: Statement | None) -> None:
        try:
            await self._commit(last)
        except Exception as error:
            fault = self._store.fault(error)
            if fault is Fault.STALE:
                raise JobAlreadyCompleted(self.job.id, self.job.attempt) from error
            if not (fault is Fault.LOST and await self._was_settled()):
                raise

    async def _was_settled(self) -> bool:
        """The connection was lost at COMMIT: look whether it went through.

        Told to stop, there is no time to wait for the database: if it did, what is settled instead comes too late.
        """

        async def look(connection: Any) -> Any:
            return await self._store.state.find_jobs(connection, [self.job.id])

        if self.cancelled is not None:
            return False
        found = await self._looked(self._store.read(look, while_=lambda: self.cancelled is None))
        return bool(found) and isinstance(found[0], CompletedJob) and found[0].completed_by == self.worker

    async def _looked(self, look: Awaitable[T]) -> T:
        if not self._store.driver.is_async:
            return await look
        async with asyncio.timeout(None) as self._limit:
            try:
                return await look
            finally:
                self._limit = None

    async def _commit(self, last: Statement | None = None) -> None:
        tx, self._tx = self._tx, None
        assert tx is not None
        try:
            await self._store.commit(tx, last)
        finally:
            await self._release(tx)

    async def _discard_quietly(self) -> None:
        with suppress(Exception):  # of a connection that is lost; what led here says more
            await self.discard()

    async def discard(self) -> None:
        """Roll back whatever is open; harmless when nothing is."""
        tx, self._tx = self._tx, None
        if tx is None:
            await self._close()
            return
        try:
            await self._store.abandon(tx)
        finally:
            await self._release(tx)

    async def _release(self, tx: OpenTransaction) -> None:
        if self._store.state.dialect == "sqlite" and (held := time.monotonic() - self._began) > _LONG_LOCK:
            logger.warning(
                "%s held SQLite's only write lock for %.1f s (job %s): do slow work between prepare() and complete()",
                self.job.type_name, held, self.job.id,
            )  # fmt: skip
        await self._close()

    async def _close(self) -> None:
        lending, self._lending, self._link = self._lending, None, None
        if lending is not None:
            await lending.__aexit__(None, None, None)


def _spelled(outcome: Outcome[Any]) -> str:
    if isinstance(outcome, Next):
        return f"attempt.continue_with({outcome.step.name}, …)"
    return "attempt.reschedule(…)"


class PhaseBlock:
    """`async with` for `async def` handlers, `with` for `def` handlers."""

    def __init__(self, attempt: RunningAttempt, phase: PhaseKind) -> None:
        self._attempt = attempt
        self._phase: PhaseKind = phase
        self._onion: AbstractAsyncContextManager[None] | None = None

    async def __aenter__(self) -> Any:
        tx = await self._attempt.enter(self._phase)
        if self._attempt.kind.middleware:
            await self._enter_onion(tx)
        return tx

    async def _enter_onion(self, tx: Any) -> None:
        hook: Hook = "around_complete" if self._phase == "complete" else "around_prepare"
        self._onion = onion(self._attempt, hook, tx)
        try:
            await self._onion.__aenter__()
        except BaseException as error:
            await self._attempt.leave(self._phase, error)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._onion is not None:
            try:
                await self._onion.__aexit__(kind, error, trace)
            except BaseException as changed:
                await self._attempt.leave(self._phase, changed)
                raise
        await self._attempt.leave(self._phase, error)

    def __enter__(self) -> Any:
        if self._attempt.kind.step.signature.is_async:
            raise PhaseError("use `async with` in an async def handler")
        return run_now(self.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run_now(self.__aexit__(kind, error, trace))

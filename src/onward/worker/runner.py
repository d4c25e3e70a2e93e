"""RUN: an attempt comes in, what is to be settled goes out."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from onward.errors import AttemptLost, JobAlreadyCompleted
from onward.lifecycle import settle
from onward.lifecycle.effects import describe
from onward.lifecycle.settle import RetryPolicy
from onward.model import FailureReason, JobError, LossReason
from onward.observe import events
from onward.observe.observer import Observers
from onward.observe.running import current_attempt
from onward.run.threads import Threads, in_thread
from onward.state.contract import Settlement, TakenJob
from onward.state.driver import run_now
from onward.worker.attempt import RunningAttempt
from onward.worker.attempts import Attempts
from onward.worker.processes.pool import Processes
from onward.worker.worked_types import STARTING

logger = logging.getLogger("onward.worker")


class Runner:
    """Runs handlers, each to exactly one outcome."""

    def __init__(
        self,
        attempts: Attempts,
        observers: Observers,
        threads: Threads,
        processes: Processes,
        *,
        is_cancelled: Callable[[], bool],
    ) -> None:
        self._attempts, self._worker, self._observers = attempts, attempts.worker, observers
        self._threads, self._processes, self._is_cancelled = threads, processes, is_cancelled
        """Whether the worker itself is being cancelled, and with it the tasks in which handlers run."""
        self._limits = TimeLimits(attempts)

    async def run(self, attempt: RunningAttempt) -> None:
        """Run a handler and have its outcome settled.

        Total: whatever leaves the handler, its middleware or what they call ends this attempt and nothing else.
        """
        job, kind = attempt.job, attempt.kind
        settlement: Settlement | None = None
        """To join the next batch; None when the handler's own commit settled it, or it was lost."""
        try:
            current_attempt.set(attempt)
            if events.AttemptStarted in self._observers.wanted:
                self._observers.emit(events.AttemptStarted(**attempt.facts, worker=self._worker, meta=attempt.meta))
            try:
                attempt.input = kind.read_input(job.input, job.payload_version, job.id)
                self._limits.start(attempt, later=STARTING if kind.runs_in_process else 0.0)
                if kind.runs_in_process:
                    begun = partial(self._limits.start, attempt)
                    settlement = await attempt.perform(partial(self._processes.run, begun=begun))
                elif kind.runs_in_thread:
                    settlement = await self._perform_in_thread(attempt)
                else:
                    settlement = await attempt.perform()
            except BaseException as error:  # noqa: BLE001 - around the user's handler
                settlement = self._after_error(attempt, error)
            finally:
                attempt.deadline = math.inf
        except BaseException:
            # Nothing of the application's gets here: a mistake of ours costs this job its lease, and no other job.
            logger.exception("worker %s: attempt %d at job %s was lost", self._worker, job.attempt, job.id)
        if settlement is None:
            self._attempts.forget(attempt, attempt.phases.settled)
        else:
            if attempt.has_reported:
                settlement = self._attempts.workplace.progress.last_word(settlement)
            await self._attempts.settler.put(settlement)

    def _policy(self, job: TakenJob) -> RetryPolicy:
        return self._attempts.types[job.type_name].policy

    async def _perform_in_thread(self, attempt: RunningAttempt) -> Settlement | None:
        """In a thread. It cannot be cancelled: it is waited for; `attempt.cancelled` tells it."""

        def tell() -> bool:
            attempt.cancel(LossReason.STOPPING)  # heard only if it has not been told to stop yet
            return False

        return await in_thread(self._threads, lambda: run_now(attempt.perform()), leaves=tell)

    def after_cancel(self, attempt: RunningAttempt) -> Settlement | None:
        """What follows when a handler ended because it was told to."""
        job = attempt.job
        match attempt.cancelled:
            case LossReason.TIMEOUT:
                assert attempt.kind.timeout is not None
                limit = attempt.kind.timeout.total_seconds()
                if attempt.was_held_up:
                    held_up = TimeoutError(f"the database let the handler wait beyond its {limit:g} s")
                    settlement = settle.transient_failure(job, self._worker, held_up)
                    return self._failed(attempt, describe(held_up), settlement, counted=False)
                error = JobError(type="TimeoutError", message=f"the handler did not return within {limit:g} s")
                return self._failed(attempt, error, settle.counted_failure(job, self._worker, error, self._policy(job)))
            case LossReason.STOPPING | LossReason.ERROR:
                # Where the lease could not be renewed, it may still be ours when the database is back.
                return settle.given_back(job, self._worker)
            case LossReason.CANCELLED:
                return settle.settlement_of_cancel(job, self._worker)
            case _:
                return None

    def _after_error(self, attempt: RunningAttempt, error: BaseException) -> Settlement | None:
        if isinstance(error, AttemptLost) and attempt.phases.is_about_this(error):
            self._came_too_late(attempt, error)
            return None
        if attempt.cancelled is None and isinstance(error, asyncio.CancelledError) and self._is_cancelled():
            attempt.cancelled = LossReason.STOPPING
        if attempt.cancelled is not None:
            return self.after_cancel(attempt)
        if attempt.phases.is_transient(error):
            settlement = settle.transient_failure(attempt.job, self._worker, error)
            return self._failed(attempt, describe(error), settlement, counted=False)
        settlement = settle.settlement_of_error(attempt.job, self._worker, error, self._policy(attempt.job))
        return self._failed(attempt, describe(error), settlement) if settlement.errors else settlement

    def _failed(
        self, attempt: RunningAttempt, error: JobError, settlement: Settlement, *, counted: bool = True
    ) -> Settlement:
        guard = attempt.kind.guard
        # That an input could not be decrypted tells nothing of it, and all should be able to read that.
        is_known = attempt.handler == "ended" or settlement.reason is not FailureReason.UNREADABLE
        if guard is not None and is_known:
            secrets = attempt.secrets()
            error, settlement = guard.told(error, secrets), settle.guarded(settlement, guard, secrets)
        if self._observers.wants(events.AttemptFailed):
            retry_in = settlement.delay if settlement.kind == "requeue" else None
            error = msgspec.structs.replace(error, counted=counted)
            self._observers.emit(
                events.AttemptFailed(
                    **attempt.facts, worker=self._worker, error=error, retry_in=retry_in, counted=counted
                )
            )
        return settlement

    def _came_too_late(self, attempt: RunningAttempt, error: AttemptLost) -> None:
        if isinstance(error, JobAlreadyCompleted):
            self._observers.emit(events.AlreadyCompleted(**attempt.facts, worker=self._worker))
        else:
            reason = attempt.cancelled or LossReason.TAKEN_BY_ANOTHER_WORKER
            self._observers.emit(events.LeaseLost(**attempt.facts, worker=self._worker, reason=reason))


class TimeLimits:
    """Tells attempts to stop when the timeout of their type is reached. For the event loop's thread.

    One timer watches all: most attempts end long before their timeout.
    """

    def __init__(self, attempts: Iterable[RunningAttempt]) -> None:
        self._attempts = attempts
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = math.inf

    def start(self, attempt: RunningAttempt, *, later: float = 0.0) -> None:
        """From now on, or a little later; starting again begins anew."""
        limit = attempt.kind.time_limit
        if limit is not None:
            attempt.deadline = time.monotonic() + limit + later
            if attempt.deadline < self._fires_at:  # and stays when it ends: the timer looks whom it was for
                self._set_timer(attempt.deadline)

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fires_at = deadline
        self._timer = asyncio.get_running_loop().call_later(deadline - time.monotonic(), self._look)

    def _look(self) -> None:
        self._timer, self._fires_at = None, math.inf
        now = time.monotonic()
        for attempt in self._attempts:
            if attempt.deadline <= now:
                attempt.deadline = math.inf
                if attempt.handler != "ended":  # what is left is the database's to do
                    attempt.cancel(LossReason.TIMEOUT)
        earliest = min((attempt.deadline for attempt in self._attempts), default=math.inf)
        if earliest < math.inf:
            self._set_timer(earliest)

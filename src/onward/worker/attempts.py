"""RUN: what a worker runs, each attempt from when its job was taken until its outcome is settled.

An attempt comes in, what is to be settled goes out.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from onward.define.registry import Registry
from onward.errors import AttemptLost, JobAlreadyCompleted
from onward.lifecycle import settle
from onward.lifecycle.effects import describe, plain
from onward.lifecycle.settle import RetryPolicy
from onward.lifecycle.store import Store
from onward.model import Blocker, FailureReason, JobError, JobId, LossReason, WorkerId
from onward.notify.contract import NotifyAdapter
from onward.observe import events
from onward.observe.observer import Observers
from onward.observe.running import current_attempt
from onward.run.threads import Threads, in_thread
from onward.state.contract import Settlement, TakenJob
from onward.state.driver import run_now
from onward.worker.attempt import RunningAttempt
from onward.worker.figures import Figures
from onward.worker.guardian.blocked import End, Watch
from onward.worker.guardian.choose import choose_guardian
from onward.worker.options import WorkerOptions
from onward.worker.phases import Workplace
from onward.worker.presence import Presence
from onward.worker.processes.pool import Processes
from onward.worker.progress import ProgressBoard
from onward.worker.settler import Fate, Settler
from onward.worker.stuck import StuckHandlers
from onward.worker.worked_types import STARTING, WorkedType

logger = logging.getLogger("onward.worker")
_OF_ENDS = frozenset({events.AttemptCompleted, events.AttemptEnded})
_NAME_AT_MOST = 10


class Attempts:
    """The attempts of a worker, by job. One at a job: should it be taken again meanwhile, the older one is lost."""

    def __init__(
        self,
        worker: WorkerId,
        types: Mapping[str, WorkedType],
        registry: Registry,
        store: Store,
        notify: NotifyAdapter,
        progress: ProgressBoard,
        options: WorkerOptions,
        *,
        end: Callable[[], End | None],
        presence: Presence,
    ) -> None:
        self.worker, self.types = worker, types
        self.workplace = Workplace(worker=worker, registry=registry, progress=progress)
        self._observers = store.observers
        self._by_job: dict[JobId, RunningAttempt] = {}
        self.forgotten: Callable[[TakenJob], None] | None = None
        """Told of each attempt that is settled, or lost."""
        self.guardian = choose_guardian(
            options,
            store,
            notify,
            worker,
            leases=[worked.lease for worked in types.values()],
            lost=self.lost,
            watch=Watch(worker, has_returned=self.has_returned, end=end),
            presence=presence,
        )
        self._leases = self.guardian.leases
        self.stuck = StuckHandlers(self._by_job, grace=options.stuck_after, let_go=self._leases.let_go)
        self.workplace.was_told = self.stuck.was_told
        self._figures = Figures(store.state.figures, worker)
        self._crashed: dict[tuple[JobId, int], TakenJob] = {}
        """Whose outcomes are about to be settled, of attempts that others made."""
        self.settler = Settler(
            store,
            capacity=options.concurrency,
            settled=self.settled,
            substitute=self.unstorable,
            figures=self._figures,
        )

    def begin(
        self, jobs: Sequence[TakenJob], blockers: Mapping[JobId, Sequence[Blocker]], since: float
    ) -> Sequence[RunningAttempt]:
        """Jobs were taken, and leased from `since` (monotonic)."""
        begun = list[RunningAttempt]()
        for job in jobs:
            worked = self.types[job.type_name]
            blocking = blockers.get(job.id, ()) if blockers else ()  # to look for an id takes longer than it seems
            attempt = RunningAttempt(job, worked.registered, worked.store, self.workplace, blocking)
            stale = self._by_job.setdefault(job.id, attempt)
            if stale is not attempt:
                self._by_job[job.id] = attempt
                stale.cancel(LossReason.TAKEN_BY_ANOTHER_WORKER)
                if stale.handler == "ended":
                    self._tell_end(stale, None)  # what comes of it comes too late: the job is held by another
            if job.held_until is not None:
                attempt.waited = max(job.held_until - worked.lease, 0.0)
            self._leases.hold(job.id, job.attempt, worked.lease, since, worked.limit)
            begun.append(attempt)
        return begun

    def forget(self, attempt: RunningAttempt, settlement: Settlement | None) -> None:
        """An attempt is settled, or lost."""
        job = attempt.job
        if self.stuck.found.is_set():
            self.stuck.has_ended(attempt)
        self._leases.let_go(job.id, job.attempt)
        last = self._by_job.pop(job.id, attempt)
        if last is not attempt:
            self._by_job[job.id] = last  # it was taken again meanwhile
        if self.forgotten is not None:
            self.forgotten(job)
        if settlement is not None:
            self._figures.count(job, settlement, attempt.waited, attempt.ran)
        # Whoever tells of a commit has just asked who wants to know.
        if not self._observers.wanted.isdisjoint(_OF_ENDS):
            self._tell_end(attempt, settlement)

    def _tell_end(self, attempt: RunningAttempt, settlement: Settlement | None) -> None:
        """Once for each."""
        observers = self._observers
        if attempt.is_told:
            return
        attempt.is_told, outcome = True, settle.ended_as(settlement)
        said: dict[str, Any] = {**attempt.facts, "worker": self.worker}
        if outcome in ("completed", "continued") and events.AttemptCompleted in observers.wanted:
            observers.emit(events.AttemptCompleted(**said))
        if events.AttemptEnded in observers.wanted:
            observers.emit(events.AttemptEnded(**said, outcome=outcome, waited=attempt.waited, ran=attempt.ran))

    def __iter__(self) -> Iterator[RunningAttempt]:
        """Those of now, whatever becomes of them meanwhile."""
        return iter(list(self._by_job.values()))

    def _find(self, job_id: JobId, number: int) -> RunningAttempt | None:
        attempt = self._by_job.get(job_id)
        return attempt if attempt is not None and attempt.job.attempt == number else None

    # -- which jobs

    @property
    def jobs(self) -> list[JobId]:
        return list(self._by_job)

    def held_here(self) -> list[JobId]:
        """What this worker runs; not what is stuck here: the next reaper, be it this one, takes that back."""
        return [job_id for job_id, attempt in self._by_job.items() if not self.stuck.has_lost(attempt)]

    def run_any_of(self, lost: Collection[str]) -> bool:
        """Whether any of the jobs that hints tell of is run here."""
        return any(str(job_id) in lost for job_id in self._by_job)

    # -- for the settler

    def crashed(self, job: TakenJob) -> None:
        """The attempt of another worker that is gone is to be settled here."""
        self._crashed[job.id, job.attempt] = job

    def settled(self, settlement: Settlement, fate: Fate) -> None:
        """An outcome is stored, came too late, or is left to its lease."""
        attempt = self._by_job.get(settlement.job_id)
        if attempt is None or attempt.job.attempt != settlement.attempt:
            job = self._crashed.pop((settlement.job_id, settlement.attempt), None)
            if job is not None and fate == "stored":
                self._figures.count(job, settlement)
            return
        self.forget(attempt, settlement if fate == "stored" else None)
        if fate == "stale":
            self._observers.emit(events.AlreadyCompleted(**attempt.facts, worker=self.worker))

    def unstorable(self, settlement: Settlement, error: Exception) -> Settlement:
        """What to settle in place of an outcome that the database cannot store; of that again, if need be."""
        if (said := settle.in_ascii(settlement)) != settlement:
            return said
        attempt = self._find(settlement.job_id, settlement.attempt)
        if attempt is None:
            return settle.unstorable(settlement, error)
        policy, guard = self.types[attempt.job.type_name].policy, attempt.kind.guard
        if settlement.errors is not None:
            failure = settle.unstorable(settlement, error)
        else:
            failure = settle.counted_failure(attempt.job, self.worker, plain(describe(error)), policy)
        return failure if guard is None else settle.guarded(failure, guard, attempt.secrets())

    # -- for the guardian, and whoever watches the event loop

    def lost(self, job_id: JobId, number: int, reason: LossReason) -> None:
        """The job is no longer ours, or should end."""
        attempt = self._find(job_id, number)
        if attempt is None or attempt.handler == "ended":
            return  # it is being settled, and perhaps just was: settling tells whether it came in time
        if reason is not LossReason.CANCELLED:
            self._observers.emit(events.LeaseLost(**attempt.facts, worker=self.worker, reason=reason))
        attempt.cancel(reason)

    def has_returned(self, job_id: JobId, number: int) -> bool:
        """Whether the handler has ended; called from another thread."""
        attempt = self._find(job_id, number)
        return attempt is None or attempt.handler == "ended"

    def running_in(self, task: asyncio.Task[object] | None) -> str:
        """Names the handler of a task, or else all, for the log; called from another thread."""
        attempts = list(self._by_job.copy().values())
        found = [attempt for attempt in attempts if task is not None and attempt.runs_in(task)] or attempts
        named = [f"{attempt.job.type_name} (job {attempt.job.id})" for attempt in found[:_NAME_AT_MOST]]
        more = [f"{len(found) - len(named)} more"] if len(found) > len(named) else []
        return ", ".join(named + more) or "no handler"


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

        def had_to_wait() -> bool:
            # As others still do: once there are as few threads as connections, all who had to wait need not leave.
            return attempt.phases.had_to_wait and bool(self._attempts.workplace.queueing)

        return await in_thread(self._threads, lambda: run_now(attempt.perform()), leaves=tell, had_to_wait=had_to_wait)

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

"""What a worker runs: each attempt from when its job was taken until its outcome is settled."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from onward.define.registry import Registry
from onward.lifecycle import settle
from onward.lifecycle.effects import describe
from onward.lifecycle.store import Store
from onward.model import Blocker, JobId, LossReason, WorkerId
from onward.notify.contract import NotifyAdapter
from onward.observe import events
from onward.state.contract import Settlement, TakenJob
from onward.worker.attempt import RunningAttempt
from onward.worker.figures import Figures
from onward.worker.guardian.blocked import End, Watch
from onward.worker.guardian.choose import choose_guardian
from onward.worker.options import WorkerOptions
from onward.worker.phases import Workplace
from onward.worker.presence import Presence
from onward.worker.progress import ProgressBoard
from onward.worker.settler import Fate, Settler
from onward.worker.worked_types import WorkedType

logger = logging.getLogger("onward.worker")
_OF_ENDS = frozenset({events.AttemptCompleted, events.AttemptEnded})
_NAME_AT_MOST = 10
_LEAVE_WITHIN = 0.5
"""Seconds to settle the jobs of handlers that do not stop."""


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
        """What to settle in place of an outcome that the database cannot store."""
        attempt = self._find(settlement.job_id, settlement.attempt)
        if attempt is None or settlement.errors is not None:
            return settle.unstorable(settlement, error)
        policy, guard = self.types[attempt.job.type_name].policy, attempt.kind.guard
        failure = settle.counted_failure(attempt.job, self.worker, describe(error), policy)
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


class StuckHandlers:
    """Those among a worker's attempts whose handlers still run a grace period after they were told to stop."""

    def __init__(
        self,
        attempts: Mapping[JobId, RunningAttempt],
        *,
        grace: float,
        let_go: Callable[[JobId, int], object],
    ) -> None:
        self._attempts, self._let_go, self._grace = attempts, let_go, grace
        self._stuck: set[RunningAttempt] = set()
        self._changed = asyncio.Event()
        self.found = asyncio.Event()
        """Set with the first: its slot is lost to the process."""

    def was_told(self, attempt: RunningAttempt) -> None:
        """A handler was told to stop: look later whether it has."""
        asyncio.get_running_loop().call_later(self._grace, self._look, attempt)

    def _look(self, attempt: RunningAttempt) -> None:
        if attempt.handler == "running":
            self._let_go(attempt.job.id, attempt.job.attempt)
            attempt.phases.cut_off()
            logger.error(
                "the handler of %s (job %s) was told to stop (%s) and still runs; its slot is lost until it returns",
                attempt.job.type_name, attempt.job.id, attempt.cancelled,
            )  # fmt: skip
            self._stuck.add(attempt)
            self._changed.set()
            self.found.set()

    def has_lost(self, attempt: RunningAttempt) -> bool:
        """Whether a handler is stuck, so that its lease has been let go."""
        return attempt in self._stuck

    def has_ended(self, attempt: RunningAttempt) -> None:
        """An attempt, stuck or not, has come to its end."""
        self._stuck.discard(attempt)
        self._changed.set()

    async def wait_for_others(self) -> None:
        """Wait until everything else is done; once one was `found`."""
        while not self._stuck.issuperset(self._attempts.values()):
            self._changed.clear()
            await self._changed.wait()

    async def leave(self, settler: Settler, settlement_of: Callable[[RunningAttempt], Settlement | None]) -> list[str]:
        """Settle the jobs of handlers that do not stop as if they had, and name their types."""
        running = [attempt for attempt in self._attempts.values() if attempt.handler == "running" and attempt.cancelled]
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_WITHIN):
                for attempt in running:
                    settlement = settlement_of(attempt)
                    if settlement is not None:
                        await settler.put(settlement)
                await settler.idle.wait()
        return [attempt.job.type_name for attempt in running]

"""Where the slots of a worker get their work: jobs are taken, their handlers run, and outcomes go to the settler."""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from onward.lifecycle import settle
from onward.lifecycle.effects import Effects, describe
from onward.lifecycle.store import Store
from onward.model import Blocker, JobId
from onward.notify.contract import Hint, HintKind, Listener, NotifyAdapter
from onward.observe import events
from onward.pacing import pause_after
from onward.run.loop import SlotLoop
from onward.state.contract import TakenJob, TypeClaim
from onward.state.driver import Connection
from onward.worker.admission import Admission
from onward.worker.attempt import RunningAttempt
from onward.worker.attempts import Attempts
from onward.worker.chores import Chores
from onward.worker.connections import Reserved
from onward.worker.maintenance import POLL_WITHOUT_HINTS, Maintenance, Scans
from onward.worker.options import WorkerOptions
from onward.worker.runner import Runner
from onward.worker.take_cursor import TakeCursor
from onward.worker.timed_out import timeout_of

logger = logging.getLogger("onward.worker")
_POLL = 60.0
_RECOVER_WITHIN, _RECOVER_AT_LEAST_EVERY = 0.5, 10.0
_TAKING = "take jobs"
_JAMMED = 0.05
"""Seconds between looks whether handlers still wait for connections."""


class JobSource:
    """Keeps the promises of `run.loop.Source`."""

    runner: Runner
    """There while the worker runs."""

    def __init__(
        self,
        attempts: Attempts,
        store: Store,
        notify: NotifyAdapter,
        options: WorkerOptions,
        reserved: Reserved,
        scans: Scans,
        chores: Chores,
    ) -> None:
        self._attempts, self._store, self._notify, self._chores = attempts, store, notify, chores
        self._settler, self._types, self._worker = attempts.settler, attempts.types, attempts.worker
        limits = [limit for worked in self._types.values() for limit in worked.registered.limits]
        self._admission = Admission(store, frozenset(self._types), limits)
        self._limited = {limit.type_name for limit in limits}
        attempts.forgotten = self._freed if limits else None
        self._maintenance = self._plan_maintenance(options, reserved, scans)
        self._reserved, self._cursor = reserved, TakeCursor(self._maintenance.claims, by_rank=options.ageing is None)
        self._ageing = None if options.ageing is None else options.ageing.total_seconds()
        self._is_unsure = False
        """Whether jobs may have been taken that nobody was told of."""
        self.loop: SlotLoop[RunningAttempt] = SlotLoop(self, concurrency=options.concurrency, is_jammed=self._is_jammed)
        self.listener: Listener | None = None
        """There while the worker runs."""
        self._woken = False
        self._recovering = 0

    def _plan_maintenance(self, options: WorkerOptions, reserved: Reserved, scans: Scans) -> Maintenance:
        shortest = min(worked.lease for worked in self._types.values())
        poll = _POLL if self._notify.crosses_processes else POLL_WITHOUT_HINTS
        if options.poll is not None:
            poll = options.poll.total_seconds()
        return Maintenance(
            self._store,
            reserved,
            self._worker,
            tuple(self._types),
            crashed=self._crashed,
            held_here=self._attempts.held_here,
            every=min(shortest / 4, poll),
            lease=shortest,
            scans=scans,
            claims=[claim for worked in self._types.values() for claim in worked.claims],
            poll=poll,
        )

    async def fill(self, free: int) -> Sequence[RunningAttempt]:
        assert self.listener is not None
        # A hint that comes while the answer is on its way tells of a job that this look may not have seen.
        self.listener.has_room = True
        await self.settle_unanswered()
        await self._maintenance.scan()
        since = time.monotonic()
        self._is_unsure = True
        taken, blockers = await self._reserved.use(partial(self._take, limit=free))
        self._is_unsure = False
        if not self._store.state.locks_rows:
            since = time.monotonic()  # the leases count from when the only lock there is was granted
        self._recovering = 0
        self._store.observers.database_works(_TAKING)
        self._maintenance.took(len(taken), free=free, has_hints=self._notify.is_up)
        if taken and self._store.observers.wants(events.JobsTaken):
            counts = Counter(job.type_name for job in taken)
            self._store.observers.emit(events.JobsTaken(worker=self._worker, counts=counts))
        return [self._attempts.begin(job, blockers.get(job.id, ()), since) for job in taken]

    async def _take(
        self, connection: Connection, *, limit: int
    ) -> tuple[Sequence[TakenJob], Mapping[JobId, Sequence[Blocker]]]:
        async def take(*, types: Sequence[TypeClaim], limit: int) -> Sequence[TakenJob]:
            return await connection.run(state.take(types=types, limit=limit, worker=self._worker, ageing=self._ageing))

        state = self._store.state
        if self._admission.is_needed:
            await self._admit(connection, free=limit)
        taken = await self._cursor.take(take, limit)
        waited = [job.id for job in taken if job.blockers]
        return taken, await connection.run(state.blockers_of(waited)) if waited else {}

    async def settle_unanswered(self) -> None:
        """Jobs may have been taken although the answer did not arrive; nobody runs them, and that is no failure.

        Or they were reaped, and their crash is still to be settled.
        """
        if self._is_unsure or self._maintenance.is_unsure:
            known = [*self._attempts.jobs, *self._settler.jobs]
            find = self._store.state.unanswered_takes(worker=self._worker, held_here=known)
            for job in await self._reserved.run(find):
                await (self._give_back(job) if self._is_unsure else self._maintenance.take_back(job))
            self._is_unsure = self._maintenance.is_unsure = False

    async def hand_back(self, work: Sequence[RunningAttempt]) -> None:
        for attempt in work:
            await self._give_back(attempt.job)

    async def _give_back(self, job: TakenJob) -> None:
        await self._settler.put(settle.given_back(job, self._worker))

    def _is_jammed(self) -> bool:
        """Whether most of what runs waits for connections: what is not taken is there for other workers."""
        return len(self._attempts.queueing) * 2 > self.loop.busy

    async def _admit_for_others(self) -> bool:
        """Let jobs in when it is time, though there is no slot for them here; True if there is: a take will do so."""
        if time.monotonic() < self._admission.due:
            return False
        if self.loop.has_room:
            return True
        await self._reserved.use(partial(self._admit, free=0))
        return False

    async def _admit(self, connection: Connection, *, free: int) -> None:
        await self._admission.before_take(connection, free=free)
        self._attempts.forgotten = self._freed if self._admission.is_eager else None

    def _freed(self, job: TakenJob) -> None:
        """An attempt is settled: another may have its place."""
        if job.type_name in self._limited or not self._limited:
            self.wake()
            if self.loop.is_stopping:  # it looks no more
                self._store.release(Effects(hints=[Hint(HintKind.READY, job.type_name)]))

    async def wait(self) -> None:
        while not (await self._maintenance.look() or await self._admit_for_others()):
            expected = self._handle_hints(await self._next_hints())
            if expected is not None:
                self._maintenance.expected = expected
                break
            if self._woken:
                break
        self._woken = False

    async def _next_hints(self) -> Sequence[Hint]:
        """Wait for hints, or until something is due. Those about jobs that cannot be taken are left to others."""
        assert self.listener is not None
        self.listener.has_room = has_room = self.loop.has_room
        is_jammed = self.loop.free > 0 and not has_room
        left = max(min(self._maintenance.next_look, self._admission.due) - time.monotonic(), 0.0)
        hints = await self.listener.wait(min(left, _JAMMED) if is_jammed else left)
        self.listener.has_room = has_room = self.loop.has_room
        if not has_room:
            self.listener.decline(hints)
        elif is_jammed:
            self._woken = True  # what came meanwhile went to others, if there are any
        return hints

    def _handle_hints(self, hints: Sequence[Hint]) -> int | None:
        """Act on hints; how many jobs they tell of, or None if there is nothing to take."""
        expected: int | None = None
        lost: set[str] = set()
        if hints and self._store.observers.wants(events.HintsReceived):
            self._store.observers.emit(events.HintsReceived(worker=self._worker, count=len(hints)))
        for hint in hints:
            if hint.kind is HintKind.LOST:
                lost.add(hint.key)
            elif hint.kind is HintKind.AWAITED:
                self._store.awaited.add(hint.key)
            elif not self._chores.hear(hint):
                self._maintenance.scan_sooner(hint)
                expected = (expected or 0) + (hint.count if hint.kind is HintKind.READY else 0)
        if lost and self._attempts.run_any_of(lost):
            self._attempts.guardian.check_now()
        return expected

    def wake(self) -> None:
        self._woken = True
        if self.listener is not None:
            self.listener.wake()

    async def recover(self, error: Exception) -> None:
        self._recovering += 1
        self._admission.lost_touch()
        transient = self._store.is_transient(error)
        # A database that is away is tried often: whoever waits for its return should not sleep through it.
        longest = _RECOVER_WITHIN if transient else _RECOVER_AT_LEAST_EVERY
        pause = pause_after(self._recovering, longest=longest)
        if transient:
            self._store.observers.emit(events.StateError(doing=_TAKING, error=describe(error)))
        if self._recovering & (self._recovering - 1) == 0:  # the first, second, fourth … time
            self._store.observers.emit(events.WorkerFailed(worker=self._worker, error=describe(error), retry_in=pause))
            if not transient:
                logger.error("worker %s fails, and tries again: %s", self._worker, error, exc_info=error)
        assert self.listener is not None
        self._handle_hints(await self.listener.wait(pause))

    async def run_piece(self, piece: RunningAttempt) -> None:
        """Run a handler and have its outcome settled."""
        try:
            settlement = await self.runner.run(piece, self._types[piece.job.type_name].policy)
        except BaseException:
            # Nothing of the application's gets here: a mistake of ours costs this job its lease, and no other job.
            logger.exception("worker %s: attempt %d at job %s was lost", self._worker, piece.job.attempt, piece.job.id)
            settlement = None
        if settlement is None:
            self._attempts.forget(piece, piece.phases.settled)
        else:
            await self._settler.put(self._attempts.progress.last_word(settlement))

    async def _crashed(self, job: TakenJob) -> None:
        policy, timeout = self._types[job.type_name].policy, timeout_of(job)
        if timeout is None:
            await self._settler.put(settle.settlement_of_crash(job, self._worker, policy))
        else:
            job, error = timeout
            await self._settler.put(settle.counted_failure(job, self._worker, error, policy))

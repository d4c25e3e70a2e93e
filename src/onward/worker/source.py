"""Where the slots of a worker get their work: jobs are taken, their handlers run, and outcomes go to the settler."""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from onward.errors import SchemaMissing
from onward.lifecycle import settle
from onward.lifecycle.effects import Effects, describe
from onward.lifecycle.store import Store
from onward.model import JobError, JobId
from onward.notify.contract import Hint, HintKind, Listener, NotifyAdapter
from onward.observe import events
from onward.pacing import pause_after
from onward.run.loop import SlotLoop
from onward.state.contract import TakenJob
from onward.state.rows import read_errors, write_errors
from onward.worker.admission import Admission, LimitedTakes
from onward.worker.attempt import RunningAttempt
from onward.worker.attempts import Attempts
from onward.worker.chores import Chores
from onward.worker.connections import Reserved
from onward.worker.maintenance import POLL_WITHOUT_HINTS, Maintenance, Scans, TakeCursor
from onward.worker.options import WorkerOptions

logger = logging.getLogger("onward.worker")
_POLL = 60.0
_RECOVER_WITHIN, _RECOVER_AT_LEAST_EVERY = 0.5, 10.0
_TAKING = "take jobs"
_LAST_LOOK = 3.0
"""Seconds a look that is under way is waited for when the worker stops."""
_CANCELLED_AT_MOST_EVERY = 0.1
"""Seconds between looks whether running jobs are to be cancelled, in a stream of commits."""
_JAMMED = 0.05
"""Seconds between looks whether handlers still wait for connections."""


class JobSource:
    """Keeps the promises of `run.loop.Source`."""

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
        ageing = None if options.ageing is None else options.ageing.total_seconds()
        self._reserved = reserved
        self._cursor = TakeCursor(store.state, self._worker, self._maintenance.claims, ageing)
        self.limited = LimitedTakes(self._admission, self._cursor, looked=self._looked_for_places, wake=self.wake)
        self._is_unsure = False
        """Whether jobs may have been taken that nobody was told of."""
        self._look: asyncio.Timeout | None = None
        self.loop: SlotLoop[RunningAttempt] = SlotLoop(self, concurrency=options.concurrency, is_jammed=self._is_jammed)
        self.listener: Listener | None = None
        self.run_piece: Callable[[RunningAttempt], Awaitable[None]]
        """The runner's; both are there while the worker runs."""
        self._woken = False
        self._may_be_cancelled, self._look_for_cancelled_at = False, 0.0
        self._cancelled: set[tuple[JobId, int]] = set()
        """The attempts that run here of which it is known that somebody wants them cancelled."""
        self._recovering = 0
        """How many turns of the loop have failed in a row."""
        self.refusal: BaseException | None = None
        """Why no jobs could be taken, until they can."""
        self._looked_in_vain = 0

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
        try:
            async with asyncio.timeout(_LAST_LOOK if self.loop.is_stopping else None) as self._look:
                if self._recovering:
                    await self.settle_unanswered()
                if time.monotonic() >= self._maintenance.next_scan:
                    await self._maintenance.scan()
                since = time.monotonic()
                takes = self._cursor if since < self._admission.rests_until else self.limited
                self._is_unsure = True
                taken = await self._reserved.use(partial(takes.take, limit=free))
                waited = [job.id for job in taken if job.blockers]
                blockers = await self._reserved.run(self._store.state.blockers_of(waited)) if waited else {}
                self._is_unsure = False
        except TimeoutError:
            if self._look is not None and self._look.expired():
                return ()  # what it may have taken all the same is looked for next
            raise
        if not self._store.state.locks_rows:
            since = time.monotonic()  # the leases count from when the only lock there is was granted
        self._recovering, self.refusal = 0, None
        self._store.observers.database_works(_TAKING)
        self._maintenance.took(len(taken), free=free, has_hints=self._notify.is_up)
        if taken and self._store.observers.wants(events.JobsTaken):
            counts = Counter(job.type_name for job in taken)
            self._store.observers.emit(events.JobsTaken(worker=self._worker, counts=counts))
        return self._attempts.begin(taken, blockers, since)

    def stop(self) -> None:
        """Take nothing more. A look that is under way may bring something, but is not waited for without end: somebody
        may hold the write lock of a file for hours.
        """
        self.loop.stop()
        if self._look is not None:
            with suppress(RuntimeError):  # it has ended
                self._look.reschedule(asyncio.get_running_loop().time() + _LAST_LOOK)

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

    async def has_work(self) -> bool:
        """Whether something is left to do, here or for others who take the same types; if nobody can tell, there is.

        Raises SchemaMissing where the tables are gone: to wait for them would be to wait for ever.
        """
        try:
            left = await self._reserved.run(self._store.state.work_left(types=self._maintenance.claims))
        except Exception as error:  # noqa: BLE001 - one turn of a loop
            if not self._store.is_transient(error):  # of such troubles whoever takes jobs tells
                await self._look_again_later(error)
            return True
        self._looked_in_vain = 0
        return left

    async def _look_again_later(self, error: Exception) -> None:
        """After a pause, unless the tables are gone."""
        found, needed = None, self._store.state.newest_version
        with suppress(Exception):  # whatever it is, it may pass as well
            found = await self._reserved.run(self._store.state.schema_version())
        if found is not None and found < needed:
            raise SchemaMissing(found=found, needed=needed, where="the database") from error
        self._looked_in_vain += 1
        pause = pause_after(self._looked_in_vain, longest=_RECOVER_AT_LEAST_EVERY)
        if self._looked_in_vain & (self._looked_in_vain - 1) == 0:  # the first, second, fourth … time
            words = "worker %s cannot tell whether anything is left to do, and looks again: %s"
            logger.error(words, self._worker, error, exc_info=error)
        await asyncio.sleep(pause)

    async def hand_back(self, work: Sequence[RunningAttempt]) -> None:
        for attempt in work:
            await self._give_back(attempt.job)

    async def _give_back(self, job: TakenJob) -> None:
        await self._settler.put(settle.given_back(job, self._worker))

    def _is_jammed(self) -> bool:
        """Whether most of what runs waits for connections: what is not taken is there for other workers."""
        return len(self._attempts.workplace.queueing) * 2 > self.loop.busy

    def _looked_for_places(self) -> None:
        self._attempts.forgotten = self._freed if self._admission.is_eager else None

    def _freed(self, job: TakenJob) -> None:
        """An attempt is settled: another may have its place."""
        if job.type_name in self._limited or not self._limited:
            self.wake()
            if self.loop.is_stopping:  # it looks no more
                self._store.release(Effects(hints=[Hint(HintKind.READY, job.type_name)]))

    async def wait(self) -> None:
        maintenance = self._maintenance
        while True:
            if self._may_be_cancelled:
                await self._look_for_cancelled()
            if await maintenance.look():
                break
            places_due = self._admission.due if self.limited.has_looked_ahead.is_set() else math.inf
            if time.monotonic() >= places_due:
                if self.loop.has_room:  # a take lets jobs in
                    break
                await self._reserved.use(partial(self.limited.look, free=0))  # for others, who have room
                continue
            due = min(maintenance.next_scan, maintenance.next_poll, maintenance.next_leftovers, places_due)
            if self._may_be_cancelled:
                due = min(due, self._look_for_cancelled_at)
            expected = self._handle_hints(await self._next_hints(due))
            if expected is not None:
                maintenance.expected = expected
                break
            if self._woken:
                break
        self._woken = False

    async def _next_hints(self, due: float) -> Sequence[Hint]:
        """Wait for hints, or until something is due (monotonic).

        Hints about jobs that cannot be taken are left to others.
        """
        assert self.listener is not None
        self.listener.has_room = has_room = self.loop.has_room
        is_jammed = self.loop.free > 0 and not has_room
        left = max(due - time.monotonic(), 0.0)
        hints = await self.listener.wait(min(left, _JAMMED) if is_jammed else left)
        self.listener.has_room = has_room = self.loop.has_room
        if hints and not has_room:
            self.listener.decline(hints)
        if has_room and is_jammed:
            self._woken = True  # what came meanwhile went to others, if there are any
        return hints

    def _handle_hints(self, hints: Sequence[Hint]) -> int | None:
        """Act on hints; how many jobs they tell of, or None if there is nothing to take."""
        expected: int | None = None
        lost: set[str] = set()
        if hints and self._store.observers.wants(events.HintsReceived):
            self._store.observers.emit(events.HintsReceived(worker=self._worker, count=len(hints)))
        for hint in hints:
            match hint.kind:
                case HintKind.READY:
                    expected = (expected or 0) + hint.count
                case HintKind.LOST:
                    lost.add(hint.key)
                case HintKind.AWAITED:
                    self._store.awaited.add(hint.key)
                case HintKind.DEFERRED if self._chores.wake(hint.key):
                    pass
                case kind:
                    self._may_be_cancelled = self._may_be_cancelled or kind is HintKind.UNKNOWN
                    self._maintenance.scan_sooner(hint)
                    expected = expected or 0
        if lost and self._attempts.run_any_of(lost):
            self._attempts.guardian.check_now()
        return expected

    async def _look_for_cancelled(self) -> None:
        """A hint that does not say what was committed may mean that somebody wants a job cancelled which runs here."""
        if time.monotonic() < self._look_for_cancelled_at:
            return
        self._look_for_cancelled_at = time.monotonic() + _CANCELLED_AT_MOST_EVERY
        running = {(attempt.job.id, attempt.job.attempt) for attempt in self._attempts}
        self._cancelled &= running
        if asked := running - self._cancelled:
            wanted = await self._reserved.run(self._store.state.cancel_requests([job_id for job_id, _ in asked]))
            if wanted:
                self._cancelled |= {key for key in asked if key[0] in wanted}
                self._attempts.guardian.check_now()
        self._may_be_cancelled = False

    def wake(self) -> None:
        self._woken = True
        if self.listener is not None:
            self.listener.wake()

    async def recover(self, error: Exception) -> None:
        self._recovering, self.refusal = self._recovering + 1, error
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

    async def _crashed(self, job: TakenJob) -> None:
        policy, timeout = self._types[job.type_name].policy, _timeout_of(job)
        self._attempts.crashed(job)
        if timeout is None:
            await self._settler.put(settle.settlement_of_crash(job, self._worker, policy))
        else:
            job, error = timeout
            await self._settler.put(settle.counted_failure(job, self._worker, error, policy))


def _timeout_of(job: TakenJob) -> tuple[TakenJob, JobError] | None:
    """The job as it was before its guardian let go of it, and why that was; None for one that was not let go of.

    Nothing else is kept about an attempt before it has ended.
    """
    errors = read_errors(job.errors)
    if not errors or errors[-1].attempt != job.attempt:
        return None
    kept: str | None = None
    for error in errors[:-1]:
        kept = write_errors(kept, error)
    return msgspec.structs.replace(job, errors=kept), errors[-1]

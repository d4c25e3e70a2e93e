"""The worker: takes jobs for its free slots, runs their handlers, has their outcomes settled."""

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from functools import partial
from types import TracebackType

from onward.define.middleware import Middleware, Resource
from onward.define.registry import Registered, Registry
from onward.errands import to_the_end
from onward.errors import ConfigurationError
from onward.lifecycle import settle
from onward.lifecycle.after_commit import Effects, describe
from onward.lifecycle.settle import RetryPolicy
from onward.lifecycle.store import Store
from onward.model import Backoff, Blocker, JobId, LossReason, WorkerId
from onward.notify.contract import Hint, HintKind, Listener, NotifyAdapter
from onward.observe import events
from onward.pacing import pause_after
from onward.slots.loop import SlotLoop
from onward.state.contract import Settlement, TakenJob, TypeClaim
from onward.state.driver import NO_SYNC_DRIVER, Connection
from onward.worker.attempt import RunningAttempt
from onward.worker.connections import Reserved
from onward.worker.frontier import Frontier
from onward.worker.guardian.blocked import End, Watch
from onward.worker.guardian.choose import choose_guardian
from onward.worker.guardian.contract import GuardianKind
from onward.worker.leftovers import Leftovers
from onward.worker.middleware import check_required, opened
from onward.worker.phases import Phases
from onward.worker.processes.pool import Processes
from onward.worker.progress import ProgressBoard
from onward.worker.runner import Runner
from onward.worker.settler import Settler
from onward.worker.stall import StallWatch
from onward.worker.stragglers import Stragglers
from onward.worker.timed_out import timeout_of
from onward.worker.upkeep import Looks, Upkeep

logger = logging.getLogger("onward.worker")
DEFAULT_LEASE = timedelta(seconds=60)
DEFAULT_STALL = timedelta(seconds=1)
_POLL = timedelta(seconds=60)
_POLL_WITHOUT_HINTS = timedelta(seconds=1)
_SETTLE_AFTER_GRACE = 5.0
_CUT_OFF_AFTER_GRACE = 3.0
"""Seconds after which connections are cut off on which the database still has not answered."""
_LAST_LOOK = 1.0
_RECOVER_WITHIN, _RECOVER_AT_LEAST_EVERY = 0.5, 10.0
_NAME_AT_MOST = 10
_STARTING = 60.0
"""Seconds that a process may take to start and import the handler, beside the timeout."""
_TAKING = "take jobs"
_JAMMED = 0.05
"""Seconds between looks whether handlers still wait for connections."""


class Worker:
    """Runs the jobs of an app. Made by `app.worker(…)`; use it as `async with`, or `await worker.run()`."""

    def __init__(
        self,
        *,
        registry: Registry,
        store: Store,
        sync_store: Store | None,
        notify: NotifyAdapter,
        types: Sequence[Registered],
        concurrency: int = 1,
        name: str | None = None,
        poll: timedelta | None = None,
        grace: timedelta = timedelta(seconds=30),
        lease: timedelta = DEFAULT_LEASE,
        backoff: Backoff | None = None,
        guardian: GuardianKind = "thread",
        stall: timedelta | None = DEFAULT_STALL,
        resources: Sequence[Resource] = (),
        required_middleware: Sequence[Middleware] = (),
        looks: Looks | None = None,
    ) -> None:
        if concurrency < 1:
            raise ConfigurationError(f"concurrency={concurrency}: a worker needs at least one slot")
        if not types:
            raise ConfigurationError("no job type has a handler: a worker would have nothing to do")
        if sync_store is None and any(kind.runs_in_thread for kind in types):
            names = ", ".join(kind.name for kind in types if kind.runs_in_thread)
            raise ConfigurationError(
                f"def handlers ({names}) need a sync driver beside the async one: {NO_SYNC_DRIVER}"
            )
        check_required(types, required_middleware)
        self._resources, self._provided = resources, tuple[object, ...]()
        self.id: WorkerId = f"{name or f'{socket.gethostname()}-{os.getpid()}'}-{secrets.token_hex(4)}"
        self._registry, self._store, self._sync_store, self._notify = registry, store, sync_store, notify
        self._types = {kind.name: kind for kind in types}
        self._leases = {kind.name: (kind.lease or lease).total_seconds() for kind in types}
        self._policies = {
            kind.name: RetryPolicy(
                backoff=kind.backoff or backoff or Backoff(), max_attempts=kind.definition.max_attempts
            )
            for kind in types
        }
        claims = [TypeClaim(k.name, version, self._leases[k.name]) for k in types for version in k.versions]
        self._frontier = Frontier(claims)
        default = _POLL if notify.crosses_processes else _POLL_WITHOUT_HINTS
        self._concurrency, self._grace = concurrency, grace.total_seconds()
        self._poll = (default if poll is None else poll).total_seconds()
        self._attempts: dict[JobId, RunningAttempt] = {}
        self._listener: Listener | None = None
        self._taking = Reserved(store.driver)
        self._queueing: set[Phases] = set()
        """Attempts that wait for a connection of the pool."""
        self._loop: SlotLoop[RunningAttempt] = SlotLoop(self, concurrency=concurrency, is_jammed=self._is_jammed)
        self._progress = ProgressBoard(store, self.id, self._taking)
        self._settler = Settler(store, capacity=concurrency, settled=self._settled, substitute=self._unstorable)
        shortest = min(self._leases.values())
        self._guardian = choose_guardian(
            guardian,
            store,
            notify,
            self.id,
            shortest=shortest,
            longest=max(self._leases.values()),
            concurrency=concurrency,
            lost=self._lost,
            watch=Watch(self.id, has_returned=self._has_returned, end=lambda: self.when_blocked),
        )
        self.when_blocked: End | None = None
        """Ends the process, from another thread, when its event loop is blocked beyond the timeout of an attempt.

        None: it is not ours to end."""
        self._stall_watch = None if stall is None else StallWatch(stall.total_seconds(), self._running_in)
        self._processes = Processes(
            registry, types, started=self._guardian.add_process, ended=self._guardian.remove_process
        )
        self._upkeep = Upkeep(
            store,
            self._taking,
            self.id,
            tuple(self._types),
            crashed=self._crashed,
            held_here=self._held_here,
            every=min(shortest / 4, self._poll),
            lease=shortest,
            looks={} if looks is None else looks,
        )
        self._leftovers = Leftovers(self._are_left_behind)
        self._expected: int | None = None
        """How many jobs the next take is to bring if nobody else is faster; None: unknown."""
        self._next_poll = 0.0
        self._woken = False
        self._runner: Runner | None = None
        self._recovering = 0
        self._may_have_strays = False
        self._tasks: asyncio.TaskGroup | None = None
        self._stragglers = Stragglers(self._attempts, self._settler, grace=self._grace, let_go=self._guardian.let_go)
        self._limits = {kind.name: self._limit(kind) for kind in types}
        self.stuck = self._stragglers.found
        """Set when a handler that was told to stop still runs a grace period later: its slot is lost to the process."""

    # -- life

    async def __aenter__(self) -> "Worker":
        ready = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._tasks.create_task(self.run(ready=ready), name=f"onward worker {self.id}")
        try:
            await ready.wait()
        except BaseException as error:
            # Cancelled by the group, because the worker failed before it was ready: let the group say why.
            try:
                await self._tasks.__aexit__(type(error), error, error.__traceback__)
            except BaseExceptionGroup as group:
                if len(group.exceptions) == 1:
                    raise group.exceptions[0] from None
                raise
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        assert self._tasks is not None
        await self._tasks.__aexit__(None, None, None)

    def stop(self) -> None:
        """Take no more jobs and let those running finish; after the grace period they are given back."""
        if self._loop.is_stopping:
            return
        self._store.observers.emit(events.WorkerStopping(worker=self.id, running=self._loop.busy))
        self._loop.stop()
        asyncio.get_running_loop().call_later(self._grace, self.give_back)

    def give_back(self) -> None:
        """Stop working at once: cancel the handlers, so that other workers can take their jobs."""
        self._settler.give_up(within=_SETTLE_AFTER_GRACE)
        for attempt in list(self._attempts.values()):
            attempt.cancel(LossReason.STOPPING)
        asyncio.get_running_loop().call_later(_CUT_OFF_AFTER_GRACE, self._cut_off)

    def _cut_off(self) -> None:
        """What still waits for a database that does not answer is given up: the worker is to end."""
        self._taking.cut_off()
        for attempt in list(self._attempts.values()):
            attempt.phases.cut_off()

    async def run(self, *, ready: asyncio.Event | None = None) -> None:
        """Work until stopped."""
        async with opened(self._resources) as self._provided:
            await self._work(ready)

    async def _work(self, ready: asyncio.Event | None) -> None:
        async with AsyncExitStack() as stack:
            listening = self._notify.listen(scheduled=tuple(self._types), lost=True, awaited=True)
            self._listener = await stack.enter_async_context(listening)
            stack.push_async_callback(self._taking.close)
            threads = ThreadPoolExecutor(max_workers=self._concurrency, thread_name_prefix="onward-handler")
            stack.enter_context(threads)
            self._guardian.start()
            stack.push_async_callback(self._guardian.stop)
            await stack.enter_async_context(self._processes)
            self._runner = Runner(
                self.id,
                self._store.observers,
                threads,
                self._processes,
                is_cancelled=lambda: self._loop.is_cancelled,
            )
            if self._stall_watch is not None:
                stack.enter_context(self._stall_watch.watching())
            if self._store.observers.wants(events.WorkerStarted):
                names = tuple(self._types)
                started = events.WorkerStarted(worker=self.id, type_names=names, concurrency=self._concurrency)
                self._store.observers.emit(started)
            if ready is not None:
                ready.set()
            async with asyncio.TaskGroup() as tasks:
                settling = tasks.create_task(self._settler.run(whatever_comes=True))
                writing = tasks.create_task(self._progress.run())
                try:
                    await self._loop.run()
                finally:
                    writing.cancel()
                    # A group that is cancelled, perhaps once more, would cancel this task too, and leave what was given
                    # back leased.
                    await to_the_end(self._settle_the_rest(settling))
        # What was left to this worker, or only it had seen coming, is for others to look at.
        self._store.release(Effects(hints=[Hint(HintKind.DEFERRED, next(iter(self._types)))]))
        self._store.observers.emit(events.WorkerStopped(worker=self.id))

    async def _settle_the_rest(self, settling: asyncio.Task[None]) -> None:
        """Within seconds: what is not settled then is left to its lease."""
        with suppress(Exception):  # so are strays
            async with asyncio.timeout(_LAST_LOOK):
                await self._give_back_strays()
        self._settler.give_up(within=_SETTLE_AFTER_GRACE)
        self._settler.close()
        await asyncio.wait([settling])

    # -- handlers that do not stop

    async def wait_for_others(self) -> None:
        """Wait until everything but stuck handlers is done and settled."""
        await self._stragglers.wait_for_others()

    async def leave_stuck(self) -> list[str]:
        """Settle the jobs of handlers that do not stop as if they had, and name their types.

        The process must end next: they still run.
        """
        return await self._stragglers.leave(self._after_cancel)

    def _after_cancel(self, attempt: RunningAttempt) -> Settlement | None:
        assert self._runner is not None
        return self._runner.after_cancel(attempt, self._policies[attempt.job.type_name])

    # -- the source of the slot loop

    async def fill(self, free: int) -> Sequence[RunningAttempt]:
        if self._listener is not None:
            # A hint that comes while the answer is on its way tells of a job that this look may not have seen.
            self._listener.has_room = True
        await self._give_back_strays()
        await self._upkeep.look()
        since = time.monotonic()
        self._may_have_strays = True
        taken, blockers = await self._taking.use(partial(self._take, limit=free))
        self._may_have_strays = False
        if not self._store.state.locks_rows:
            since = time.monotonic()  # the leases count from when the only lock there is was granted
        self._recovering = 0
        self._store.observers.database_works(_TAKING)
        poll = self._poll if self._notify.is_up else min(self._poll, _POLL_WITHOUT_HINTS.total_seconds())
        self._next_poll = time.monotonic() + poll
        self._check_for_leftovers(len(taken), free)
        return [self._begin(job, blockers.get(job.id, ()), since) for job in taken]

    async def _take(
        self, connection: Connection, *, limit: int
    ) -> tuple[Sequence[TakenJob], dict[JobId, list[Blocker]]]:
        async def take(claims: Sequence[TypeClaim], count: int) -> Sequence[TakenJob]:
            return await connection.run(self._store.state.take(types=claims, limit=count, worker=self.id))

        taken = await self._frontier.take(take, limit)
        waited = [job.id for job in taken if job.blockers]
        return taken, await connection.run(self._store.state.blockers_of(waited)) if waited else {}

    def _check_for_leftovers(self, taken: int, free: int) -> None:
        expected, self._expected = free if self._expected is None else min(self._expected, free), None
        if taken >= expected or not self._store.state.locks_rows or self._poll <= _POLL_WITHOUT_HINTS.total_seconds():
            self._leftovers.took_enough()
        else:
            self._leftovers.took_too_few()

    async def _are_left_behind(self) -> bool:
        return await self._taking.run(self._store.state.left_behind(types=self._frontier.claims))

    async def _give_back_strays(self) -> None:
        """Jobs may have been taken although the answer did not arrive; nobody runs them, and that is no failure.

        Or they were reaped, and their crash is still to be settled.
        """
        if self._may_have_strays or self._upkeep.is_unsure:
            find = self._store.state.strays(worker=self.id, held_here=[*self._attempts, *self._settler.jobs])
            for job in await self._taking.run(find):
                if self._may_have_strays:
                    await self._settler.put(settle.given_back(job, self.id))
                else:
                    await self._upkeep.take_back(job)
            self._may_have_strays = self._upkeep.is_unsure = False

    def _begin(self, job: TakenJob, blockers: Sequence[Blocker], since: float) -> RunningAttempt:
        kind = self._types[job.type_name]
        is_async = kind.step.signature.is_async
        store = self._store if is_async or self._sync_store is None else self._sync_store
        attempt = RunningAttempt(
            job=job,
            kind=kind,
            registry=self._registry,
            store=store,
            worker=self.id,
            progress=self._progress,
            blockers=blockers,
            provided=self._provided,
            on_cancel=self._stragglers.was_told,
            queueing=self._queueing,
        )
        stale = self._attempts.get(job.id)
        if stale is not None:
            stale.cancel(LossReason.TAKEN_BY_ANOTHER_WORKER)
        self._attempts[job.id] = attempt
        self._guardian.hold(job.id, job.attempt, self._leases[job.type_name], since, self._limits[job.type_name])
        return attempt

    def _limit(self, kind: Registered) -> float | None:
        """Seconds after which an attempt has ended or been let go of."""
        if kind.time_limit is None:
            return None
        return kind.time_limit + self._stragglers.grace + (_STARTING if kind.runs_in_process else 0.0)

    def _held_here(self) -> list[JobId]:
        """What this worker runs; not what is stuck here: the next reaper, be it this one, takes that back."""
        return [job_id for job_id, attempt in self._attempts.items() if not self._stragglers.has_lost(attempt)]

    def _is_jammed(self) -> bool:
        """Whether most of what runs waits for connections: what is not taken is there for other workers."""
        return len(self._queueing) * 2 > self._loop.busy

    async def hand_back(self, work: Sequence[RunningAttempt]) -> None:
        for attempt in work:
            await self._settler.put(settle.given_back(attempt.job, self.id))

    async def wait(self) -> None:
        while not await self._is_time_to_look():
            hints = await self._next_hints()
            if self._heed(hints):
                self._expected = sum(hint.count for hint in hints if hint.kind is HintKind.SCHEDULED)
                break
            if self._woken:
                break
        self._woken = False

    async def _is_time_to_look(self) -> bool:
        return await self._upkeep.look() or time.monotonic() >= self._next_poll or await self._leftovers.look()

    async def _next_hints(self) -> Sequence[Hint]:
        """Wait for hints, or until something is due. Those about jobs that cannot be taken are left to others."""
        assert self._listener is not None
        self._listener.has_room = has_room = self._loop.has_room
        is_jammed = self._loop.free > 0 and not has_room
        until = min(self._upkeep.next_look, self._next_poll, self._leftovers.next_look)
        left = max(until - time.monotonic(), 0.0)
        hints = await self._listener.wait(min(left, _JAMMED) if is_jammed else left)
        self._listener.has_room = has_room = self._loop.has_room
        if not has_room:
            self._listener.decline(hints)
        elif is_jammed:
            self._woken = True  # what came meanwhile went to others, if there are any
        return hints

    def _heed(self, hints: Sequence[Hint]) -> bool:
        """Act on hints; whether there may be something to take."""
        worth_a_look = False
        lost = {hint.key for hint in hints if hint.kind is HintKind.LOST}
        if lost and any(str(job_id) in lost for job_id in self._attempts):
            self._guardian.check_now()
        for hint in hints:
            if hint.kind is HintKind.LOST:
                continue
            if hint.kind is HintKind.AWAITED:
                self._store.awaited.add(hint.key)
            else:
                self._upkeep.hasten(hint)
                worth_a_look = True
        return worth_a_look

    def wake(self) -> None:
        self._woken = True
        if self._listener is not None:
            self._listener.wake()

    async def recover(self, error: Exception) -> None:
        self._recovering += 1
        transient = self._store.is_transient(error)
        # A database that is away is tried often: whoever waits for its return should not sleep through it.
        longest = _RECOVER_WITHIN if transient else _RECOVER_AT_LEAST_EVERY
        pause = pause_after(self._recovering, longest=longest)
        if transient:
            self._store.observers.emit(events.StateError(doing=_TAKING, error=describe(error)))
        if self._recovering & (self._recovering - 1) == 0:  # the first, second, fourth … time
            self._store.observers.emit(events.WorkerFailed(worker=self.id, error=describe(error), retry_in=pause))
            if not transient:
                logger.error("worker %s fails, and tries again: %s", self.id, error, exc_info=error)
        assert self._listener is not None
        self._heed(await self._listener.wait(pause))

    # -- one slot

    async def run_piece(self, piece: RunningAttempt) -> None:
        """Run a handler and have its outcome settled."""
        assert self._runner is not None
        try:
            settlement = await self._runner.run(piece, self._policies[piece.job.type_name])
        except BaseException:
            # Nothing of the application's gets here: a mistake of ours costs this job its lease, and no other job.
            logger.exception("worker %s: attempt %d at job %s was lost", self.id, piece.job.attempt, piece.job.id)
            settlement = None
        if settlement is None:
            self._forget(piece)
            if piece.phases.stage == "settled":
                self._completed(piece)
        else:
            await self._settler.put(self._progress.last_word(settlement))

    async def _crashed(self, job: TakenJob) -> None:
        policy, timeout = self._policies[job.type_name], timeout_of(job)
        if timeout is None:
            await self._settler.put(settle.crash(job, self.id, policy))
        else:
            job, error = timeout
            await self._settler.put(settle.counted_failure(job, self.id, error, policy))

    def _unstorable(self, settlement: Settlement, error: Exception) -> Settlement:
        attempt = self._attempts.get(settlement.job_id)
        if attempt is None or attempt.job.attempt != settlement.attempt or settlement.errors is not None:
            return settle.unstorable(settlement, error)
        policy, guard = self._policies[attempt.job.type_name], attempt.kind.guard
        failure = settle.counted_failure(attempt.job, self.id, describe(error), policy)
        return failure if guard is None else settle.guarded(failure, guard, attempt.secrets())

    def _settled(self, settlement: Settlement, in_time: bool) -> None:
        attempt = self._attempts.get(settlement.job_id)
        if attempt is None or attempt.job.attempt != settlement.attempt:
            return
        self._forget(attempt)
        if not in_time:
            self._store.observers.emit(events.AlreadyCompleted(**attempt.facts, worker=self.id))
        elif settlement.kind in ("complete", "continue"):
            self._completed(attempt)

    def _completed(self, attempt: RunningAttempt) -> None:
        if self._store.observers.wants(events.AttemptCompleted):
            self._store.observers.emit(events.AttemptCompleted(**attempt.facts, worker=self.id))

    def _forget(self, attempt: RunningAttempt) -> None:
        self._stragglers.has_ended(attempt)
        self._guardian.let_go(attempt.job.id, attempt.job.attempt)
        last = self._attempts.pop(attempt.job.id, attempt)
        if last is not attempt:
            self._attempts[attempt.job.id] = last  # it was taken again meanwhile

    def _running_in(self, task: asyncio.Task[object] | None) -> str:
        """Names handlers, for the log; called from another thread."""
        attempts = list(self._attempts.copy().values())
        found = [attempt for attempt in attempts if task is not None and attempt.runs_in(task)] or attempts
        named = [f"{attempt.job.type_name} (job {attempt.job.id})" for attempt in found[:_NAME_AT_MOST]]
        more = [f"{len(found) - len(named)} more"] if len(found) > len(named) else []
        return ", ".join(named + more) or "no handler"

    def _has_returned(self, job_id: JobId, number: int) -> bool:
        """Called by the guardian, from another thread."""
        attempt = self._attempts.get(job_id)
        return attempt is None or attempt.job.attempt != number or attempt.handler == "ended"

    def _lost(self, job_id: JobId, number: int, reason: LossReason) -> None:
        """Called by the guardian: the job is no longer ours, or should end."""
        attempt = self._attempts.get(job_id)
        if attempt is None or attempt.job.attempt != number:
            return
        if attempt.handler == "ended":
            return  # it is being settled, and perhaps just was: settling tells whether it came in time
        if reason is not LossReason.CANCELLED:
            self._store.observers.emit(events.LeaseLost(**attempt.facts, worker=self.id, reason=reason))
        attempt.cancel(reason)

"""Group settle: whatever finished while the last commit was under way goes into the next one."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeAlias, TypeVar

import msgspec

from onward.lifecycle.effects import describe
from onward.lifecycle.settle import unstorable
from onward.lifecycle.store import Store
from onward.model import CompletedJob, FailedJob, FailureReason, Job, JobId
from onward.observe import events
from onward.pacing import Pacing
from onward.state.command import Operation, Steps
from onward.state.contract import Change, Settlement
from onward.state.driver import Connection, Fault, transaction
from onward.worker.connections import Reserved
from onward.worker.figures import Figures, Taken

logger = logging.getLogger("onward.worker")
T = TypeVar("T")
Fate: TypeAlias = Literal["stored", "stale", "abandoned"]
"""Of an outcome. A stale one came too late and has changed nothing; an abandoned one is left to its lease, because the
database did not take it before the worker had to end."""
Settled = Callable[[Settlement, Fate], None]
Substitute = Callable[[Settlement, Exception], Settlement]
_SHORTEST_PAUSE, _LONGEST_PAUSE, _LONGEST_PAUSE_ASIDE = 0.05, 2.0, 0.5
"""Seconds between tries."""
_LAST_FIGURES = 1.0
"""Seconds to write what is left of the figures."""
_LENT_WITHIN = 0.2
"""Seconds for which they wait for a connection of the pool, before one is made for them."""
_RECORDING = "write figures"
_LAST_CHANCE = 2.0
"""Seconds for an outcome that comes when all others have been given up."""


class Settler:
    """Settles outcomes that need no transaction of the user's own. Nothing counts as done before its commit returned.

    Invariant: an outcome is reported stored, stale or abandoned exactly once, and its lease is renewed until then. It
    is tried again whatever the database says, until it is settled, or stale, or the worker ends. One that waits for
    somebody's lock, or fails for a reason of its own, goes on in a lane beside the main one and holds nobody up.
    """

    def __init__(
        self,
        store: Store,
        *,
        capacity: int,
        settled: Settled,
        substitute: Substitute = unstorable,
        figures: Figures | None = None,
    ) -> None:
        """`substitute` makes what to settle in place of an outcome that the database cannot store, and of what it made.

        `figures` are written along with outcomes.
        """
        self._store = store
        self._capacity = capacity
        self._settled = settled
        self._substitute = substitute
        self._waiting: list[Settlement] = []
        self._batch: list[Settlement] = []
        self._aside: list[Settlement] = []
        self._unsettled = 0
        self._ready = asyncio.Event()
        self._ready_aside = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self.idle = asyncio.Event()
        """Set while no outcome waits or is on its way."""
        self.idle.set()
        self._closing = False
        self._give_up_at: float | None = None
        self._limits: set[asyncio.Timeout] = set()
        """Of the tries under way."""
        self._reserved, self._reserved_aside = Reserved(store.driver), Reserved(store.driver)
        self._figures = figures
        if figures is not None:
            figures.due = self._ready.set

    @property
    def jobs(self) -> list[JobId]:
        """Whose outcomes wait or are on their way."""
        return [settlement.job_id for settlement in (*self._batch, *self._waiting, *self._aside)]

    async def put(self, settlement: Settlement) -> None:
        """Have an outcome settled; waits only while too many others do. Who brings it may be cancelled meanwhile."""
        try:
            while self._unsettled >= self._capacity and self._is_full:
                self._room.clear()
                await self._room.wait()
        finally:
            if not self._unsettled:
                self.idle.clear()
            self._unsettled += 1
            if self._give_up_at is not None:
                self._give_up_at = max(self._give_up_at, time.monotonic() + _LAST_CHANCE)
            self._waiting.append(settlement)
            if len(self._waiting) == 1:
                self._ready.set()

    @property
    def _is_full(self) -> bool:
        # As many again may wait aside: a few chains that somebody has locked must not stop all others.
        return self._unsettled - min(len(self._aside), self._capacity) >= self._capacity

    def give_up(self, *, within: float) -> None:
        """Try no longer than this: what is then unsettled is left to its lease."""
        if self._give_up_at is None:
            self._give_up_at = time.monotonic() + within
            for limit in self._limits:
                limit.reschedule(asyncio.get_running_loop().time() + within)

    @property
    def _has_given_up(self) -> bool:
        return self._give_up_at is not None and time.monotonic() > self._give_up_at

    def close(self) -> None:
        """Settle what is left, then end."""
        self._closing = True
        self._ready.set()

    async def run(self, *, whatever_comes: bool = False) -> None:
        """Settle until closed.

        `whatever_comes`: also if cancelled before, by an owner who closes it all the same. Who ends an event loop
        cancels all that is in it at once, and then the handlers' attempts are still to be given back.
        """
        cancelled: asyncio.CancelledError | None = None
        task = asyncio.current_task()
        assert task is not None
        try:
            while True:
                try:
                    await self._run_lanes()
                    break
                except asyncio.CancelledError as error:
                    if not whatever_comes:
                        raise
                    cancelled = error
                    task.uncancel()
                    self._take_up_again()
            if cancelled is None:
                await self._write_figures(within=_LAST_FIGURES)
        finally:
            if self._figures is not None:
                self._figures.close()
            await self._reserved.close()
            await self._reserved_aside.close()
        if cancelled is not None:
            raise cancelled

    async def _run_lanes(self) -> None:
        async with asyncio.TaskGroup() as lanes:
            beside = lanes.create_task(self._run_aside(), name="onward settler, beside")
            await self._run_main()
            while self._aside:
                self._room.clear()
                await self._room.wait()
            beside.cancel()

    def _take_up_again(self) -> None:
        """What was cancelled on its way may be settled, which only the lane beside looks up."""
        self._aside += self._batch
        self._batch = []
        self._unsettled = len(self._aside) + len(self._waiting)
        self._ready_aside.set()

    async def _run_main(self) -> None:
        while not (self._closing and not self._waiting):
            await self._ready.wait()
            self._ready.clear()
            self._batch, self._waiting = self._waiting, []
            if self._batch:
                left = await self._settle(self._batch)
                self._batch = []
                self._aside.extend(left)
                self._ready_aside.set()
            elif self._figures is not None and self._figures.is_due:
                await self._write_figures()

    async def _run_aside(self) -> None:
        while True:
            await self._ready_aside.wait()
            self._ready_aside.clear()
            pauses = Pacing(_SHORTEST_PAUSE, _LONGEST_PAUSE_ASIDE)
            while self._aside:
                tried = len(self._aside)
                left = await self._settle_unlocked(self._reserved_aside, self._aside[:])
                if self._has_given_up:
                    left = self._abandon(left)
                self._aside[:tried] = left
                self._room.set()
                if left:
                    await asyncio.sleep(next(pauses))

    # -- one batch

    async def _settle(self, batch: list[Settlement]) -> list[Settlement]:
        """Settle a batch, however often the database makes us try; what is better settled apart from others."""
        pauses, repeated = Pacing(_SHORTEST_PAUSE, _LONGEST_PAUSE), False
        while True:
            error = await self._try(self._reserved, batch, repeated=repeated)
            if error is None:
                return []
            if self._has_given_up:
                return self._abandon(batch)
            if not self._concerns_all(error):
                return await self._settle_unlocked(self._reserved, batch, apart=False)
            repeated = True
            await asyncio.sleep(next(pauses))

    async def _settle_unlocked(
        self, reserved: Reserved, batch: list[Settlement], *, apart: bool = True
    ) -> list[Settlement]:
        """Settle those that nobody has locked; the others. If that fails, each `apart`."""

        state = self._store.state

        async def settle(connection: Connection) -> tuple[list[Settlement], Sequence[Change]]:
            async with transaction(connection):
                locked = await connection.run(state.lock_or_skip([s.job_id for s in batch]))
                free = [settlement for settlement in batch if settlement.job_id not in locked]
                return free, await connection.run(state.settle(free, impatient=True)) if free else ()

        try:
            free, changes = await self._limited(reserved.run(Steps(settle)))
            if free:
                await self._report(reserved, free, changes, repeated=True)
        except Exception as error:  # noqa: BLE001 - one turn of a loop
            self._tell(error)
            return await self._settle_apart(reserved, batch) if apart and not self._concerns_all(error) else batch
        done = {settlement.job_id for settlement in free}
        return [settlement for settlement in batch if settlement.job_id not in done]

    async def _settle_apart(self, reserved: Reserved, batch: list[Settlement]) -> list[Settlement]:
        """Settle each by itself; those to try again."""
        left: list[Settlement] = []
        for settlement in batch:
            error = await self._try(reserved, [settlement], repeated=True)
            if error is not None:
                left.append(self._storable(settlement, error))
        return left

    async def _limited(self, work: Awaitable[T]) -> T:
        """Not for longer than there is time when the worker ends."""
        left = None if self._give_up_at is None else max(self._give_up_at - time.monotonic(), 0.0)
        async with asyncio.timeout(left) as limit:
            self._limits.add(limit)
            try:
                return await work
            finally:
                self._limits.discard(limit)

    def _storable(self, settlement: Settlement, error: Exception) -> Settlement:
        """The outcome, or what is settled in its place if the database will never take it."""
        return self._substitute(settlement, error) if self._store.fault(error) is Fault.VALUE else settlement

    async def _try(self, reserved: Reserved, batch: list[Settlement], *, repeated: bool) -> Exception | None:
        """Settle a batch once; what went wrong."""
        settle = self._store.state.settle(batch, impatient=True)
        # What went wrong may be the figures' fault: a second try goes without them.
        taken = self._figures.take() if self._figures is not None and self._figures.is_due and not repeated else None
        try:
            if taken is None:
                changes = await self._limited(reserved.run(settle))
            else:
                changes = await self._limited(self._settle_with(reserved, settle, taken))
            await self._report(reserved, batch, changes, repeated=repeated)
        except Exception as error:  # noqa: BLE001 - one turn of a loop
            self._tell(error)
            return error
        return None

    # -- figures

    async def _settle_with(
        self, reserved: Reserved, settle: Operation[Sequence[Change]], taken: Taken
    ) -> Sequence[Change]:
        """Settle, and write figures in the same commit."""

        async def both(connection: Connection) -> tuple[Sequence[Change], float]:
            async with transaction(connection):
                return await connection.run(settle), await connection.run(taken.command)

        assert self._figures is not None
        try:
            changes, now = await reserved.run(Steps(both))
        except BaseException:
            self._figures.rest()
            raise
        self._figures.wrote(taken, now)
        return changes

    async def _write_figures(self, within: float | None = None) -> None:
        """Alone, since no outcome comes to take them along. Not to be able to is no reason to fail."""
        taken = None if self._figures is None else self._figures.take()
        if self._figures is None or taken is None:
            return
        run = self._reserved.run if within is None else self._run_at_the_end
        try:
            async with asyncio.timeout(within):
                now = await self._limited(run(taken.command))
            self._figures.wrote(taken, now)
            self._store.observers.database_works(_RECORDING)
        except BaseException as error:
            self._figures.rest()  # also when cancelled: who goes on whatever comes tries again
            if not isinstance(error, Exception):
                raise
            self._store.observers.emit(events.StateError(doing=_RECORDING, error=describe(error)))

    async def _run_at_the_end(self, command: Operation[T]) -> T:
        """As a rule the pool is free by then: to connect for them alone would be too much."""
        try:
            async with asyncio.timeout(_LENT_WITHIN):
                return await self._reserved.borrow(command)
        except TimeoutError:
            return await self._reserved.run(command)

    def _concerns_all(self, error: Exception) -> bool:
        """Whether an error has nothing to do with what was to be settled: the database is away, or in trouble."""
        return self._store.fault(error) in (Fault.LOST, Fault.READ_ONLY, Fault.TROUBLE)

    def _tell(self, error: Exception) -> None:
        if self._store.fault(error) is not Fault.TIMEOUT:  # as a rule somebody's lock
            self._store.observers.emit(events.StateError(doing="settle", error=describe(error)))

    async def _report(
        self, reserved: Reserved, batch: list[Settlement], changes: Sequence[Change], *, repeated: bool
    ) -> None:
        observers = self._store.observers
        self._store.release(self._store.effects_of.settlements(batch, changes))
        if observers.wants(events.BatchSettled):
            observers.emit(events.BatchSettled(worker=batch[0].holder or "", size=len(batch)))
        told = [change.job_id for change in changes if change.kind == "settled"]
        all_settled = len(told) == len(batch)
        settled = set[JobId]() if all_settled else set(told)
        if repeated and not all_settled:
            missing = [settlement for settlement in batch if settlement.job_id not in settled]
            before = await self._settled_before(reserved, missing)
            self._store.release(self._store.effects_of.settlements(missing, [c for c in before.values() if c]))
            settled.update(before)
        if all_settled or settled:
            observers.database_works("settle")
        cancelled = [c.job_id for c in changes if c.reason is FailureReason.CANCELLED]
        for settlement in batch:
            if cancelled and settlement.kind != "fail" and settlement.job_id in cancelled:
                settlement = msgspec.structs.replace(settlement, kind="fail", reason=FailureReason.CANCELLED)
            self._settled(settlement, "stored" if all_settled or settlement.job_id in settled else "stale")
        self._done(batch)

    async def _settled_before(self, reserved: Reserved, missing: list[Settlement]) -> dict[JobId, Change | None]:
        """After a commit of unknown outcome, what looks stale may be our own first try: look it up.

        What it changed nobody has told. Of whom it unblocked nothing is known here: their workers look by themselves.
        """
        look = self._store.state.find_jobs([s.job_id for s in missing])
        found = {job.id: job for job in await self._limited(reserved.run(look))}
        done = [s.job_id for s in missing if _is_done(s, found.get(s.job_id))]
        return {job_id: _change_of(found.get(job_id)) for job_id in done}

    def _abandon(self, batch: list[Settlement]) -> list[Settlement]:
        for settlement in batch:
            logger.error("job %s could not be settled in time and is left to its lease", settlement.job_id)
            self._settled(settlement, "abandoned")
        self._done(batch)
        return []

    def _done(self, batch: list[Settlement]) -> None:
        self._unsettled -= len(batch)
        if not self._unsettled:
            self.idle.set()
        self._room.set()


def _change_of(job: Job | None) -> Change | None:
    if job is None:
        return None  # removed when it had ended
    return Change(job.id, job.chain_id, job.type_name, "settled", job.status, getattr(job, "reason", None))


def _is_done(settlement: Settlement, job: Job | None) -> bool:
    """Whether the job is as this settlement leaves it."""
    if job is None:
        return settlement.remove
    if isinstance(job, CompletedJob):
        return settlement.kind in ("complete", "continue") and job.completed_by == settlement.completed_by
    return isinstance(job, FailedJob) and settlement.kind == "fail" and job.attempt == settlement.attempt

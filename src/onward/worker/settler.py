"""Group settle: whatever finished while the last commit was under way goes into the next one."""

import asyncio
import logging
import random
import time
from collections.abc import Callable

from onward.lifecycle.after_commit import describe
from onward.lifecycle.store import Store
from onward.model import CompletedJob, JobId
from onward.observe import events
from onward.state.contract import Settlement
from onward.state.driver import Connection, Fault
from onward.worker.connections import Reserved

logger = logging.getLogger("onward.worker")
Settled = Callable[[Settlement, bool], None]


class Settler:
    """Settles outcomes that need no transaction of the user's own. Nothing counts as done before its commit returned.

    Invariant: an outcome is reported settled, or stale, exactly once, and its lease is renewed until then.
    """

    def __init__(self, store: Store, *, capacity: int, settled: Settled) -> None:
        self._store = store
        self._capacity = capacity
        self._settled = settled
        self._waiting: list[Settlement] = []
        self._batch: list[Settlement] = []
        self._unsettled = 0
        self._ready = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self.idle = asyncio.Event()
        """Set while no outcome waits or is on its way."""
        self.idle.set()
        self._closing = False
        self._give_up_at: float | None = None
        self._reserved = Reserved(store.driver)

    @property
    def jobs(self) -> list[JobId]:
        """Whose outcomes wait or are on their way."""
        return [settlement.job_id for settlement in (*self._batch, *self._waiting)]

    async def put(self, settlement: Settlement) -> None:
        """Have an outcome settled; waits only while too many others do. Who brings it may be cancelled meanwhile."""
        try:
            while self._unsettled >= self._capacity:
                self._room.clear()
                await self._room.wait()
        finally:
            self._unsettled += 1
            self.idle.clear()
            self._waiting.append(settlement)
            self._ready.set()

    def give_up(self, *, within: float) -> None:
        """Try no longer than this: what is then unsettled is left to its lease."""
        if self._give_up_at is None:
            self._give_up_at = time.monotonic() + within

    def close(self) -> None:
        """Settle what is left, then end."""
        self._closing = True
        self._ready.set()

    async def run(self) -> None:
        try:
            while not (self._closing and not self._waiting):
                await self._ready.wait()
                self._ready.clear()
                self._batch, self._waiting = self._waiting, []
                if self._batch:
                    await self._settle(self._batch)
                    self._batch = []
        finally:
            await self._reserved.close()

    async def _settle(self, batch: list[Settlement]) -> None:
        """Settle a batch, however often it takes."""
        pause, repeated = 0.05, False
        while batch:
            error = await self._try(batch, repeated=repeated)
            if error is None:
                return
            self._store.observers.emit(events.StateError(doing="settle", error=describe(error)))
            if self._store.driver.fault(error) is not Fault.LOST:
                # One of them may be to blame, or wait for somebody's lock: the others need not.
                batch = await self._settle_apart(batch)
            if self._give_up_at is not None and time.monotonic() > self._give_up_at:
                self._abandon(batch, error)
                return
            repeated = True
            await asyncio.sleep(pause * (0.5 + random.random()))
            pause = min(pause * 2, 2.0)

    async def _try(self, batch: list[Settlement], *, repeated: bool) -> Exception | None:
        """Settle a batch once; what went wrong."""
        try:
            changes = await self._reserved.run(lambda connection: self._store.state.settle(connection, batch))
            self._store.release(self._store.consequences.of_settlements(batch, changes))
            settled = {change.job_id for change in changes if change.kind == "settled"}
            if repeated and len(settled) < len(batch):
                settled |= await self._settled_before([s for s in batch if s.job_id not in settled])
        except Exception as error:  # noqa: BLE001 - one turn of a loop
            return error
        all_settled = len(settled) == len(batch)
        for settlement in batch:
            self._settled(settlement, all_settled or settlement.job_id in settled)
        self._done(batch)
        return None

    async def _settle_apart(self, batch: list[Settlement]) -> list[Settlement]:
        """Settle each by itself; those worth another try."""
        left: list[Settlement] = []
        for settlement in batch:
            error = await self._try([settlement], repeated=True)
            if error is not None and self._store.is_transient(error):
                left.append(settlement)
            elif error is not None:
                self._abandon([settlement], error)
        return left

    def _abandon(self, batch: list[Settlement], error: Exception) -> None:
        for settlement in batch:
            logger.error("job %s cannot be settled and is left to its lease: %s", settlement.job_id, error)
            self._settled(settlement, False)
        self._done(batch)

    async def _settled_before(self, missing: list[Settlement]) -> set[JobId]:
        """After a commit of unknown outcome, what looks stale may be our own first try: look it up."""

        async def look(connection: Connection) -> set[JobId]:
            found = await self._store.state.find_jobs(connection, [s.job_id for s in missing])
            by_us = {s.job_id: s.completed_by for s in missing}
            completed = {j.id for j in found if isinstance(j, CompletedJob) and j.completed_by == by_us[j.id]}
            removed = {s.job_id for s in missing if s.remove} - {j.id for j in found}
            return completed | removed

        return await self._reserved.run(look)

    def _done(self, batch: list[Settlement]) -> None:
        self._unsettled -= len(batch)
        if not self._unsettled:
            self.idle.set()
        self._room.set()

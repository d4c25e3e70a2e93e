"""What a worker looks after beside its own jobs: scheduled ones that are due, and those whose holder is gone."""

import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from onward.lifecycle.after_commit import Effects
from onward.lifecycle.store import Store
from onward.model import JobId, WorkerId
from onward.notify.contract import Hint, HintKind
from onward.observe import events
from onward.state.contract import Promoted, Reaped, TakenJob
from onward.state.driver import Connection
from onward.worker.connections import Reserved

_REAP_LEASE = 30.0
_AT_MOST = 500
_AT_MOST_EVERY = 0.1
"""Where every commit looks like a possible change of schedule."""


@dataclass(slots=True)
class Upkeep:
    """Promotes and reaps whenever something is due, and often enough to learn what will be.

    Looking four times in the shortest lease sees every foreign lease before it expires, and wakes when it does.
    """

    store: Store
    reserved: Reserved
    worker: WorkerId
    type_names: Sequence[str]
    crashed: Callable[[TakenJob], Awaitable[None]]
    """Has the attempt of a reaped job, which is now this worker's, settled as a crash."""
    held_here: Callable[[], Collection[JobId]]
    every: float
    lease: float
    """The shortest there is. Should this worker die too before it has settled what it reaped, others do so then."""
    next_look: float = 0.0
    _last_look: float = 0.0

    def hasten(self, hint: Hint) -> None:
        """A hint may mean that something is due earlier than known."""
        if hint.kind in (HintKind.DEFERRED, HintKind.EXPIRED):
            self.next_look = 0.0
        elif hint.kind is HintKind.UNKNOWN:
            self.next_look = min(self.next_look, self._last_look + _AT_MOST_EVERY)

    async def look(self) -> bool:
        """Look, if it is time; whether there may be something to take now."""
        if time.monotonic() < self.next_look:
            return False
        self._last_look = time.monotonic()
        promoted, reaped = await self.reserved.run(self._promote_and_reap)
        for job in reaped.jobs:
            await self._take_back(job)
        due = [wait for wait in (promoted.next_in, reaped.next_in) if wait is not None]
        waits = [self.every * random.uniform(0.9, 1.1), *(max(wait, 0.0) + random.uniform(0.0, 0.02) for wait in due)]
        self.next_look = 0.0 if promoted.count == _AT_MOST else self._last_look + max(min(waits), 0.01)
        return promoted.count > 0

    async def _promote_and_reap(self, connection: Connection) -> tuple[Promoted, Reaped]:
        promoted = await self.store.state.promote(connection, type_names=self.type_names, limit=_AT_MOST)
        reaped = await self.store.state.reap(
            connection,
            worker=self.worker,
            type_names=self.type_names,
            held_here=list(self.held_here()),
            limit=_AT_MOST,
            lease=min(self.lease, _REAP_LEASE),
        )
        return promoted, reaped

    async def _take_back(self, job: TakenJob) -> None:
        """A crash, settled like any outcome; the old holder, should it live, is told."""
        reaped = events.JobReaped(job_id=job.id, chain_id=job.chain_id, type_name=job.type_name)
        self.store.release(Effects(hints=[Hint(HintKind.LOST, str(job.id))], events=[reaped]))
        await self.crashed(job)

"""What a worker looks after beside its own jobs: scheduled ones that are due, and those whose holder is gone."""

import math
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from onward.lifecycle.after_commit import Effects
from onward.lifecycle.store import Store
from onward.model import JobId, WorkerId
from onward.notify.contract import Hint, HintKind
from onward.observe import events
from onward.pacing import pause_after
from onward.state.contract import Promoted, Reaped, TakenJob
from onward.state.driver import Connection
from onward.worker.connections import Reserved

_REAP_LEASE = 30.0
_AT_MOST = 500
_AT_MOST_EVERY = 0.1
"""Where every commit looks like a possible change of schedule, or something is due and cannot be had."""
_AT_LEAST_EVERY = 1.0
"""The latter."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a worker saw."""

    at: float
    due: float
    """When it will be worth looking again, if something is known to become due."""


Looks: TypeAlias = dict[frozenset[str], Look]
"""The last look of the workers of an app, by the types they look for: one serves them all."""


@dataclass(slots=True)
class Upkeep:
    """Promotes and reaps whenever something is due, and often enough to learn what will be.

    Looking four times in the shortest lease sees every foreign lease before it expires, and wakes when it does.
    The workers of an app take turns: what the one that looked holds itself, it has not looked at.
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
    looks: Looks = field(default_factory=dict)
    next_look: float = 0.0
    is_unsure: bool = False
    """Whether jobs may have been reaped that nobody was told of, or not to the end."""
    _in_vain: int = 0
    """How many looks in a row have brought nothing of what was due."""
    _serves_from: float = 0.0
    """A look of another worker that began after this makes the next one superfluous."""

    def hasten(self, hint: Hint) -> None:
        """A hint may mean that something is due earlier than known."""
        if hint.kind in (HintKind.DEFERRED, HintKind.EXPIRED):
            self.next_look = self._serves_from = time.monotonic()
        elif hint.kind is HintKind.UNKNOWN:
            self.next_look = min(self.next_look, self._last.at + _AT_MOST_EVERY)
            self._serves_from = time.monotonic()

    async def look(self) -> bool:
        """Look, if it is time and nobody else has; whether there may be something to take now."""
        now = time.monotonic()
        if now < self.next_look:
            return False
        if self._last.at > self._serves_from:
            self._plan(self._last.at + self.every * random.uniform(0.85, 0.95))
            return False
        self.is_unsure = True
        promoted, reaped = await self.reserved.use(self._promote_and_reap)
        for job in reaped.jobs:
            await self.take_back(job)
        self.is_unsure = False
        waits = [wait for wait in (promoted.next_in, reaped.next_in) if wait is not None]
        wait = min(waits, default=math.inf)
        self._in_vain = self._in_vain + 1 if wait <= 0 and not (promoted.count or reaped.jobs) else 0
        due = now if promoted.count == _AT_MOST else now + self._soon(wait)
        self.looks[frozenset(self.type_names)] = Look(now, due)
        self._plan(now + self.every * random.uniform(1.0, 1.1))  # unless it is another's turn before
        return promoted.count > 0

    @property
    def _last(self) -> Look:
        return self.looks.get(frozenset(self.type_names), Look(0.0, math.inf))

    def _plan(self, regular: float) -> None:
        last = self._last
        due = last.due + random.uniform(0.0, 0.02)
        self.next_look, self._serves_from = (due, last.due) if due < regular else (regular, last.at)

    def _soon(self, wait: float) -> float:
        """When to look again for what is due then. If it is due already, somebody has locked it."""
        if wait > 0:
            return max(wait, 0.01)
        return pause_after(self._in_vain + 1, _AT_MOST_EVERY, _AT_LEAST_EVERY, jitter=0)

    async def _promote_and_reap(self, connection: Connection) -> tuple[Promoted, Reaped]:
        promoted = await connection.run(self.store.state.promote(type_names=self.type_names, limit=_AT_MOST))
        reap = self.store.state.reap(
            worker=self.worker,
            type_names=self.type_names,
            held_here=list(self.held_here()),
            limit=_AT_MOST,
            lease=min(self.lease, _REAP_LEASE),
        )
        return promoted, await connection.run(reap)

    async def take_back(self, job: TakenJob) -> None:
        """A crash, settled like any outcome; the old holder, should it live, is told."""
        reaped = events.JobReaped(job_id=job.id, chain_id=job.chain_id, type_name=job.type_name)
        self.store.release(Effects(hints=[Hint(HintKind.LOST, str(job.id))], events=[reaped]))
        await self.crashed(job)

"""What a worker looks after beside its own jobs: those that are due, that were passed over, whose holder is gone."""

import math
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from onward.lifecycle.effects import Effects
from onward.lifecycle.store import Store
from onward.model import JobId, WorkerId
from onward.notify.contract import Hint, HintKind
from onward.observe import events
from onward.pacing import pause_after
from onward.state.contract import Promoted, Reaped, TakenJob, TypeClaim
from onward.state.driver import Connection
from onward.worker.connections import Reserved

POLL_WITHOUT_HINTS = 1.0
_REAP_LEASE = 30.0
_AT_MOST = 500
_AT_MOST_EVERY = 0.1
"""Where every commit looks like a possible change of schedule, or something is due and cannot be had."""
_AT_LEAST_EVERY = 1.0
"""The latter."""
_LEFTOVERS_AFTER = 0.05


@dataclass(frozen=True, slots=True)
class Scan:
    """What a worker saw when it looked for what is due."""

    at: float
    due: float
    """When it will be worth scanning again, if something is known to become due."""


Scans: TypeAlias = dict[frozenset[str], Scan]
"""The last scan of the workers of an app, by the types they look for: one serves them all."""


@dataclass(slots=True)
class Maintenance:
    """Looks for three things, each when its time has come; `next_look` is the earliest of these times.

    A scan promotes and reaps whenever something is due, and often enough to learn what will be: four times in the
    shortest lease sees every foreign lease before it expires, and wakes when it does. The workers of an app take turns:
    what the one that scanned holds itself, it has not looked at.

    A poll takes again although no hint came. Leftovers are jobs that a take passed over because somebody had locked
    them: nobody tells when a lock ends without a change.
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
    scans: Scans = field(default_factory=dict)
    claims: Sequence[TypeClaim] = ()
    """What may be left over."""
    poll: float = math.inf
    expected: float = math.inf
    """How many jobs the next take is to bring if nobody else is faster; as many as there are slots, if unknown."""
    next_scan: float = 0.0
    """When to look next for what is due, unless a hint says sooner (monotonic)."""
    is_unsure: bool = False
    """Whether jobs may have been reaped that nobody was told of, or not to the end."""
    _next_poll: float = math.inf
    _next_leftovers: float = math.inf
    _scans_in_vain: int = 0
    """How many scans in a row have brought nothing of what was due."""
    _leftovers_after: float = _LEFTOVERS_AFTER
    """Seconds from a take that has brought too few until the look for them: longer, while there are some every time."""
    _serves_from: float = 0.0
    """A scan of another worker that began after this makes the next one superfluous."""

    # -- when to look

    @property
    def next_look(self) -> float:
        """When there will be something to look for (monotonic)."""
        return min(self.next_scan, self._next_poll, self._next_leftovers)

    async def look(self) -> bool:
        """Look for what is due; whether there may be something to take now."""
        if time.monotonic() >= self.next_scan and await self.scan():
            return True
        if time.monotonic() >= self._next_poll:
            return True
        if time.monotonic() < self._next_leftovers:
            return False
        are_there = await self.reserved.run(self.store.state.left_behind(types=self.claims))
        self._next_leftovers = math.inf
        self._leftovers_after = min(self._leftovers_after * 2, _AT_LEAST_EVERY) if are_there else _LEFTOVERS_AFTER
        return are_there

    def took(self, count: int, *, free: int, has_hints: bool) -> None:
        """A take brought so many jobs. If they are too few, others were faster, or have locked the rest.

        If they are as many as it was told of, it may still be too early for what an earlier one had to leave.
        """
        now = time.monotonic()
        self._next_poll = now + (self.poll if has_hints else min(self.poll, POLL_WITHOUT_HINTS))
        expected, self.expected = min(free, self.expected), math.inf
        if count >= free or not self.store.state.locks_rows or self.poll <= POLL_WITHOUT_HINTS:
            self._next_leftovers = math.inf  # who is full looks as soon as it is not
            self._leftovers_after = _LEFTOVERS_AFTER
        elif count < expected:
            self._next_leftovers = now + self._leftovers_after

    # -- scans

    def scan_sooner(self, hint: Hint) -> None:
        """A hint may mean that something is due earlier than known."""
        if hint.kind in (HintKind.DEFERRED, HintKind.EXPIRED):
            self.next_scan = self._serves_from = time.monotonic()
        elif hint.kind is HintKind.UNKNOWN:
            self.next_scan = min(self.next_scan, self._last.at + _AT_MOST_EVERY)
            self._serves_from = time.monotonic()

    async def scan(self) -> bool:
        """Promote and reap, unless somebody else just has; whether there may be something to take now."""
        now = time.monotonic()
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
        self._scans_in_vain = self._scans_in_vain + 1 if wait <= 0 and not (promoted.count or reaped.jobs) else 0
        # If it is due already, somebody has locked it.
        locked_for = pause_after(self._scans_in_vain + 1, _AT_MOST_EVERY, _AT_LEAST_EVERY, jitter=0)
        soon = max(wait, 0.01) if wait > 0 else locked_for
        due = now if promoted.count == _AT_MOST else now + soon
        self.scans[frozenset(self.type_names)] = Scan(now, due)
        self._plan(now + self.every * random.uniform(1.0, 1.1))  # unless it is another's turn before
        return promoted.count > 0

    @property
    def _last(self) -> Scan:
        return self.scans.get(frozenset(self.type_names), Scan(0.0, math.inf))

    def _plan(self, regular: float) -> None:
        last = self._last
        due = last.due + random.uniform(0.0, 0.02)
        self.next_scan, self._serves_from = (due, last.due) if due < regular else (regular, last.at)

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

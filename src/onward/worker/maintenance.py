"""When a worker looks beside its own jobs, for those that are due, that were passed over, whose holder is gone; and
where, in a long backlog, its takes go on.
"""

import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from onward.lifecycle.effects import Effects
from onward.lifecycle.store import Store
from onward.model import JobId, WorkerId
from onward.notify.contract import Hint, HintKind
from onward.observe import events
from onward.pacing import pause_after
from onward.state.command import Operation
from onward.state.contract import Position, Promoted, Reaped, StateAdapter, TakenJob, TypeClaim
from onward.state.driver import Connection
from onward.state.next_in_line import NextInLine
from onward.worker.connections import Reserved

POLL_WITHOUT_HINTS = 1.0
_REAP_LEASE = 30.0
_AT_MOST = 500
_AT_MOST_EVERY = 0.1
"""Where every commit looks like a possible change of schedule, or something is due and cannot be had."""
_AT_LEAST_EVERY = 1.0
"""The latter."""
_LEFTOVERS_AFTER = 0.05
_LOOK_BACK_EVERY = 0.25
_LOOK_BACK_FOR_AT_MOST = 0.05
"""Of the time: where looking back takes long, it is done less often."""

_LAST_COUNTS = 0.25
_FEW = 8
"""Types of which it does not pay to know how many jobs to expect."""


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
    """Looks for three things, each when its time has come.

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
    next_poll: float = math.inf
    next_leftovers: float = math.inf
    """When to look for each (monotonic), unless a hint says sooner."""
    is_unsure: bool = False
    """Whether jobs may have been reaped that nobody was told of, or not to the end."""
    _scans_in_vain: int = 0
    """How many scans in a row have brought nothing of what was due."""
    _leftovers_after: float = _LEFTOVERS_AFTER
    """Seconds from a take that has brought too few until the look for them: longer, while there are some every time."""
    _serves_from: float = 0.0
    """A scan of another worker that began after this makes the next one superfluous."""
    _left_behind: Operation[bool] = field(init=False)
    """Whether there are leftovers."""

    def __post_init__(self) -> None:
        self._left_behind = self.store.state.left_behind(types=self.claims)

    # -- when to look

    async def look(self) -> bool:
        """Look for what is due; whether there may be something to take now."""
        if time.monotonic() >= self.next_scan and await self.scan():
            return True
        if time.monotonic() >= self.next_poll:
            return True
        if time.monotonic() < self.next_leftovers:
            return False
        are_there = await self.reserved.run(self._left_behind)
        self.next_leftovers = math.inf
        self._leftovers_after = min(self._leftovers_after * 2, _AT_LEAST_EVERY) if are_there else _LEFTOVERS_AFTER
        return are_there

    def took(self, count: int, *, free: int, has_hints: bool) -> None:
        """A take brought so many jobs. If they are too few, others were faster, or have locked the rest.

        If they are as many as it was told of, it may still be too early for what an earlier one had to leave.
        """
        now = time.monotonic()
        self.next_poll = now + (self.poll if has_hints else min(self.poll, POLL_WITHOUT_HINTS))
        expected, self.expected = min(free, self.expected), math.inf
        if count >= free or not self.store.state.locks_rows or self.poll <= POLL_WITHOUT_HINTS:
            self.next_leftovers = math.inf  # who is full looks as soon as it is not
            self._leftovers_after = _LEFTOVERS_AFTER
        elif count < expected:
            self.next_leftovers = now + self._leftovers_after

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
        was_unsure, self.is_unsure = self.is_unsure, True
        promoted, reaped = await self.reserved.use(self._promote_and_reap)
        for job in reaped.jobs:
            await self.take_back(job)
        self.is_unsure = was_unsure
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


@dataclass(slots=True)
class TakeCursor:
    """The claims of a worker, and how far it has come with each: in a long backlog a take begins where the last ended.

    A job that was taken leaves a dead entry at the front of the index. As a rule the next take clears such entries
    away; while any transaction holds a snapshot from before, it cannot, and reads them all, again and again: a backup
    or a long report elsewhere would slow every worker down to a fraction. So a take seeks to where the last one ended.

    Jobs may come up behind that point: they were committed late, or are due earlier than others that wait. So a take
    that brings less than asked for is completed from the beginning, and one in so often begins there anyway.
    """

    state: StateAdapter
    worker: WorkerId
    claims: Sequence[TypeClaim]
    ageing: float | None = None
    """Where it counts how long jobs have waited, there is no one position that was reached."""
    _reached: dict[tuple[str, int], Position] = field(default_factory=dict)
    _shares: dict[tuple[str, int], float] = field(default_factory=dict)
    """What the last full takes were made of, the very last counting most."""
    _look_back_at: float = 0.0
    _next_in_line: NextInLine = field(default_factory=NextInLine)
    _keyed: Sequence[tuple[TypeClaim, tuple[str, int]]] = field(init=False)

    def __post_init__(self) -> None:
        self._keyed = [(claim, (claim.type_name, claim.payload_version)) for claim in self.claims]

    async def take(self, connection: Connection, limit: int) -> Sequence[TakenJob]:
        """At most `limit` jobs; fewer only if there are no more."""
        ahead: Sequence[TakenJob] = ()
        behind: Sequence[TakenJob] = ()
        began = time.monotonic()
        if self._reached and began < self._look_back_at:
            ahead = await connection.run(self._ask(limit))
        if left := limit - len(ahead):
            self._reached.clear()
            self._next_in_line.forget()
            began = time.monotonic()
            behind = await connection.run(self._ask(left))
            ended = time.monotonic()
            self._look_back_at = ended + max(_LOOK_BACK_EVERY, (ended - began) / _LOOK_BACK_FOR_AT_MOST)
        taken = [*ahead, *behind] if ahead and behind else ahead or behind
        if len(taken) < limit:
            self._reached.clear()
            self._shares.clear()
            return taken
        if len(self.claims) > _FEW:
            self._learn_shares(taken)
        if self.ageing is None:
            self._advance(behind)
            self._advance(ahead)
        return taken

    def _advance(self, taken: Sequence[TakenJob]) -> None:
        """To the last job of each type: the best come first."""
        last: dict[tuple[str, int], TakenJob] = {}
        for job in taken:
            last[job.type_name, job.payload_version] = job
        for key, job in last.items():
            position = Position(job.rank, job.scheduled_at)
            self._reached[key] = max(self._reached.get(key, position), position)

    def _learn_shares(self, taken: Sequence[TakenJob]) -> None:
        counts = Counter((job.type_name, job.payload_version) for job in taken)
        weight = _LAST_COUNTS if self._shares else 1.0
        for _, key in self._keyed:
            before = self._shares.get(key, 0.0)
            self._shares[key] = before + (counts[key] / len(taken) - before) * weight

    def _ask(self, limit: int) -> Operation[Sequence[TakenJob]]:
        """For jobs of the claims, from here on."""
        reached, shares = self._reached, self._shares
        claims = list[TypeClaim]()
        for claim, key in self._keyed if reached or shares else ():
            expected = shares[key] * limit if shares else None
            claims.append(TypeClaim(*key, claim.lease, reached.get(key), expected))
        return self.state.take(
            types=claims or self.claims,
            limit=limit,
            worker=self.worker,
            ageing=self.ageing,
            next_in_line=self._next_in_line,
        )

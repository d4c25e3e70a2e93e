"""Which leases that have run out may be taken back: time in which nobody could write counts for nobody.

Whoever holds the only write lock for long, a phase, a transaction of the application's, a process that was stopped,
keeps every guardian from renewing. The invariant: *a lease is taken back only after its holder could have renewed it,
and did not.* A guardian whose renewal is due waits for the lock and tries again within a millisecond. So a lease that
has run out is watched at first, and taken back when a reaper has since found the lock free several times, a while
apart, and the lease unchanged. That the lock was free once proves little: a reaper may come a moment after a long
transaction has ended, and before those who have waited for that. A look that had to wait proves nothing.

A lease that its own guardian has let go of, `leased_until` being 0, needs no watching.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

_LOOKS = 5
_APART = 0.08
LOOK_AGAIN = 0.1
"""Seconds until the next look at a lease that is being watched."""
_AT_ONCE = 0.05
"""Seconds: as long as that, a busy process may keep the lock from others in the ordinary course of things."""
_FORGET = 60.0


class ExpiredLease(NamedTuple):
    """A lease that has run out, as it is stored."""

    place: int
    attempt: int
    until: int


class _Seen(NamedTuple):
    times: int
    counted_at: float
    seen_at: float


class Watched:
    """Leases that have run out, and how often the lock has been free since. Used with the write lock held."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: dict[ExpiredLease, _Seen] = {}

    def ripe(self, leases: Sequence[ExpiredLease], *, waited: float) -> list[int]:
        """Where the jobs stand that may be taken back, by a reaper that waited so long for the lock."""
        now = self._now()
        for lease in leases:
            self._seen[lease] = self._look(self._seen.get(lease), now, counts=waited < _AT_ONCE)
        ripe = {lease for lease in leases if lease.until == 0 or self._seen[lease].times >= _LOOKS}
        self._seen = {
            lease: seen for lease, seen in self._seen.items() if seen.seen_at > now - _FORGET and lease not in ripe
        }
        return [lease.place for lease in leases if lease in ripe]

    @staticmethod
    def _look(before: _Seen | None, now: float, *, counts: bool) -> _Seen:
        if before is None:
            return _Seen(0, now, now)
        if counts and now >= before.counted_at + _APART:
            return _Seen(before.times + 1, now, now)
        return before._replace(seen_at=now)

"""What a worker does for limits: it lets held jobs in before it takes, and when the next slot of a rate comes."""

import logging
import math
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from onward.define.limit import TypeLimit, shown_name
from onward.lifecycle.effects import Effects, describe
from onward.lifecycle.limits import rule_of
from onward.lifecycle.store import Store
from onward.notify.contract import Hint, HintKind
from onward.observe import events
from onward.pacing import pause_after
from onward.state.driver import Connection

logger = logging.getLogger("onward.worker")
_AT_LEAST_EVERY = 30.0
"""Seconds: the net under wakes that were lost."""
_WITHOUT_ROOM = 0.05
"""Seconds between looks on behalf of others, while this worker could not take what it lets in."""
_LOOK_BACK_EVERY = 0.25
"""Seconds for which it goes on after what it has seen; see `worker/take_cursor.py`."""
_EAGER_FOR = 60.0
"""Seconds after jobs were let in for which a worker whose types have no limit looks before every take, too."""
_AT_MOST_AHEAD, _AT_MOST_AHEAD_ALONE = 0.05, 0.1
"""Seconds for which a worker that finds enough to take does so without a look: many places are given for less than one
at a time. And for which it goes on to do so while a look is under way beside its takes. A job with a better rank waits
for no longer than both, nor does one of another key. The latter where there is no look beside takes, which wait for it.
"""
_LONGEST_PAUSE = 0.5
"""Seconds between looks while somebody's lock is in the way."""
_PAST_LOCKS_FOR = 10.0
"""Seconds for which locked keys are passed over after one was in the way."""
_NONE_AHEAD_FOR, _NONE_AHEAD_AT_MOST_FOR = 1.0, 30.0
"""Seconds for which takes look themselves after a look beside them failed; the latter if that goes on."""
_LETTING_IN = "let jobs in"
_MOST_ROUNDS = 4
"""Where jobs go on from one limit to the next, or there is more to look at than fits into one."""


@dataclass(slots=True)
class Admission:
    """A worker whose types have no limit only looks now and then, unless it finds something: jobs that were started
    under one must not be stranded when its code has none any more, or none yet.
    """

    store: Store
    type_names: Collection[str]
    limits: Sequence[TypeLimit]
    due: float = 0.0
    """When there will be something to look for (monotonic)."""
    _is_declared: bool = False
    _sweep: bool = True
    _after: int = 0
    _look_back_at: float = 0.0
    _eager_until: float = 0.0
    """For ever where types have limits."""
    _enough_until: float = 0.0
    """For so long there is enough to take, as far as is known."""
    _is_paced: bool = False
    _locked_out: int = 0
    """How often in a row somebody had locked what it has to look at."""
    _not_before: float = 0.0
    _past_locks_until: float = 0.0
    """For so long keys that somebody has locked are passed over: one must not keep the jobs of all others out."""
    _failed_ahead: int = 0
    """How often in a row a look beside the takes failed."""
    _none_ahead_before: float = 0.0

    def __post_init__(self) -> None:
        if self.limits:
            self._eager_until = math.inf

    @property
    def _at_most_ahead(self) -> float:
        return _AT_MOST_AHEAD if self.store.state.locks_rows else _AT_MOST_AHEAD_ALONE

    @property
    def is_eager(self) -> bool:
        """Whether to look whenever there may be less to take than there could be, and after every attempt."""
        return time.monotonic() < self._eager_until

    @property
    def is_needed(self) -> bool:
        """Whether to look before the next take."""
        now = time.monotonic()
        return now >= self._not_before and (now >= self.due or self._enough_until <= now < self._eager_until)

    @property
    def can_wait(self) -> bool:
        """Whether there was enough to take until a moment ago, so that a take need not wait for the look."""
        return self._none_ahead_before <= time.monotonic() < self._enough_until + self._at_most_ahead

    def look_ahead(self) -> None:
        """A look begins beside the takes: it will say how things are."""
        self._enough_until = self.due = time.monotonic() + self._at_most_ahead

    def looked_ahead(self) -> None:
        """A look beside the takes was made."""
        self._failed_ahead = 0

    def failed_ahead(self, error: Exception) -> None:
        """A look beside the takes failed. The next take looks itself, and tells of what lasts; but it may be that only
        this connection is not to be had, for which takes should not wait again and again.
        """
        self._failed_ahead += 1
        pause = pause_after(self._failed_ahead, _NONE_AHEAD_FOR, _NONE_AHEAD_AT_MOST_FOR)
        self._none_ahead_before = time.monotonic() + pause
        self.lost_touch()
        self.store.observers.emit(events.StateError(doing=_LETTING_IN, error=describe(error)))

    def locked_out(self, error: Exception) -> None:
        """Somebody's lock was in the way, as a rule: look again in a while. Other jobs can be taken meanwhile."""
        self._locked_out += 1
        now = time.monotonic()
        self._past_locks_until = now + _PAST_LOCKS_FOR
        self._not_before = self.due = now + pause_after(self._locked_out, longest=_LONGEST_PAUSE)
        self.store.observers.emit(events.StateError(doing=_LETTING_IN, error=describe(error)))

    def took(self, *, is_full: bool, has_looked: bool) -> None:
        """A take was made. Where it filled all slots, places that were given up since the last look must not wait until
        one is free again here: others may have room.
        """
        if not is_full:
            self._enough_until = 0.0
        elif not has_looked and self.is_eager:
            self.due = min(self.due, self._enough_until)

    async def before_take(self, connection: Connection, *, free: int) -> None:
        """Let in what there are places for, and tell others of what this worker cannot take."""
        if not self._is_declared:
            await self._declare(connection)
        types, next_in = Counter[str](), None
        for _ in range(_MOST_ROUNDS):
            next_in = await self._admit(connection, types)
            if next_in != 0:
                break
        self._locked_out = 0
        self.store.observers.database_works(_LETTING_IN)
        wait = _AT_LEAST_EVERY if next_in is None else min(max(next_in, 0.001), _AT_LEAST_EVERY)
        now = time.monotonic()
        if self._after:  # what was committed late comes before it, and was passed over
            wait = min(wait, max(self._look_back_at - now, 0.001))
        self.due = now + (wait if free else max(wait, _WITHOUT_ROOM))
        self._enough_until = 0.0 if self._is_paced else now + self._at_most_ahead
        if types:
            self._eager_until = max(self._eager_until, now + _EAGER_FOR)
        ours = sum(count for name, count in types.items() if name in self.type_names)
        hints = [
            Hint(HintKind.READY, name, count)
            for name, count in types.items()
            if ours > free or name not in self.type_names
        ]
        if hints:
            self.store.release(Effects(hints=hints))

    async def _admit(self, connection: Connection, types: Counter[str]) -> float | None:
        now = time.monotonic()
        if now >= self._look_back_at:
            self._after, self._look_back_at = 0, now + _LOOK_BACK_EVERY
        sweep, self._sweep = self._sweep, False  # touch may be lost, on the other connection, before this is answered
        try:
            past_locks = now < self._past_locks_until
            admit = self.store.state.admit(after=self._after, sweep=sweep, past_locks=past_locks)
            admitted = await connection.run(admit)
        except BaseException:
            self._sweep = self._sweep or sweep
            raise
        self._after, self._is_paced = max(self._after, admitted.reached), admitted.is_paced
        types.update(admitted.types)
        return admitted.next_in

    async def _declare(self, connection: Connection) -> None:
        rules, state = list({limit.name: rule_of(limit) for limit in self.limits}.values()), self.store.state
        outcomes = await connection.run(state.set_limits(rules, declared=True)) if rules else ()
        for rule, outcome in zip(rules, outcomes, strict=True):
            if outcome == "outdated":
                logger.warning(
                    "limit %r stays as newer code declares it: what this code says was changed minutes ago. If "
                    "this code is the newer one, say so with app.limits.change(…)",
                    shown_name(rule.name),
                )
        self._is_declared = True

    def lost_touch(self) -> None:
        """The database was away, and with it perhaps what it knew of keys to look at."""
        self._sweep = True
        self._after = 0
        self.due = self._enough_until = 0.0

"""What a worker does for limits: it lets held jobs in before it takes, and when the next slot of a rate comes."""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from onward.define.limit import TypeLimit, shown_name
from onward.errands import to_the_end
from onward.lifecycle.effects import Effects, describe
from onward.lifecycle.limits import rule_of
from onward.lifecycle.store import Store
from onward.notify.contract import Hint, HintKind
from onward.observe import events
from onward.pacing import pause_after
from onward.state.contract import TakenJob
from onward.state.driver import Connection, Fault
from onward.worker.connections import Reserved
from onward.worker.maintenance import TakeCursor

logger = logging.getLogger("onward.worker")
_AT_LEAST_EVERY = 30.0
"""Seconds: the net under wakes that were lost."""
_WITHOUT_ROOM = 0.05
"""Seconds between looks on behalf of others, while this worker could not take what it lets in."""
_LOOK_BACK_EVERY = 0.25
"""Seconds for which it goes on after what it has seen; see `TakeCursor`."""
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
_AHEAD_WITHIN = 1.0
"""Seconds that takes wait for a look beside them."""
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
    rests_until: float = 0.0
    """For so long a take need neither begin with a look nor tell what it has brought."""
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
        self.rests_until = 0.0 if self.is_eager else max(self.due, self._not_before)

    async def before_take(self, connection: Connection, *, free: int) -> None:
        """Let in what there are places for, and tell others of what this worker cannot take."""
        self.rests_until = 0.0
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
        self.due = self.rests_until = self._enough_until = 0.0


class LimitedTakes:
    """Takes, and the looks for places that they begin with, or that are made beside them."""

    def __init__(
        self, admission: Admission, cursor: TakeCursor, *, looked: Callable[[], object], wake: Callable[[], object]
    ) -> None:
        """`looked` is called after every look; `wake` when a look beside takes has said when to look next."""
        self._admission, self._cursor, self._store = admission, cursor, admission.store
        self._looked, self._wake = looked, wake
        self._to_look_ahead = asyncio.Event()
        self.has_looked_ahead = asyncio.Event()
        """Not while a look is under way beside takes, which is to say when to look next."""
        self.has_looked_ahead.set()
        self._ahead_hangs = False

    async def take(self, connection: Connection, limit: int) -> Sequence[TakenJob]:
        taken = list[TakenJob]()
        has_looked = False
        while True:
            if self._admission.is_needed and not self._looks_ahead():
                free, has_taken = limit - len(taken), bool(taken)
                if not self.has_looked_ahead.is_set():
                    await self.has_looked_ahead.wait()
                elif not await self.look(connection, free=free, has_taken=has_taken):
                    break
                has_looked = True
            taken.extend(await self._cursor.take(connection, limit - len(taken)))
            is_full = len(taken) == limit
            self._admission.took(is_full=is_full, has_looked=has_looked)
            if is_full or has_looked or not self._admission.is_needed:
                break
        return taken

    async def look(self, connection: Connection, *, free: int, has_taken: bool = False) -> bool:
        """Let jobs in; False: the database is in trouble, for which those that were taken before are not given back."""
        try:
            await self._admission.before_take(connection, free=free)
            self._looked()
        except Exception as error:
            fault = self._store.fault(error)
            if fault is Fault.TIMEOUT:  # somebody has locked a key, which concerns no job but those that wait for it
                self._admission.locked_out(error)
            elif not has_taken or fault is not Fault.TROUBLE:
                raise
            else:
                self._admission.lost_touch()  # the next take begins with a look, which tells of what lasts
                return False
        return True

    # -- beside takes

    def _looks_ahead(self) -> bool:
        """Whether places are looked for while jobs are taken: it takes as long as all else, and another connection of
        the server's can do so meanwhile. A file has only one who writes.
        """
        if self._ahead_hangs:
            return False
        if not (self._admission.can_wait and self._store.state.locks_rows and self._store.driver.is_async):
            return False
        if self.has_looked_ahead.is_set():
            self._admission.look_ahead()
            self.has_looked_ahead.clear()
            self._to_look_ahead.set()
        return True

    async def look_ahead(self, connections: list[Reserved]) -> None:
        """Look for places whenever a take need not wait for it; until cancelled. Its connection is told."""
        reserved = Reserved(self._store.driver)
        connections.append(reserved)
        try:
            while True:
                await self._to_look_ahead.wait()
                self._to_look_ahead.clear()
                hangs = asyncio.get_running_loop().call_later(_AHEAD_WITHIN, self._go_on_without)
                try:
                    await reserved.use(partial(self.look, free=0))
                except Exception as error:  # noqa: BLE001 - one turn of a loop
                    self._admission.failed_ahead(error)
                else:
                    self._admission.looked_ahead()
                finally:
                    hangs.cancel()
                    self._ahead_hangs = False
                    self.has_looked_ahead.set()
                    self._wake()
        finally:
            await to_the_end(reserved.close())

    def _go_on_without(self) -> None:
        """The look beside the takes has no answer: until it has, they look themselves."""
        self._ahead_hangs = True
        self.has_looked_ahead.set()
        self._wake()

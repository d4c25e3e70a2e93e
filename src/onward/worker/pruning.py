"""The chore of pruning what has ended: a small batch, then a pause, by one process at a time."""

import binascii
import logging
import math
import os
import random
import socket
import time
from collections.abc import Callable, Sequence
from datetime import UTC
from operator import attrgetter
from typing import NamedTuple

import msgspec

from onward.lifecycle.store import Store
from onward.state.contract import Keeping, Pruned
from onward.worker.connections import Reserved

logger = logging.getLogger("onward.worker")
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0
_EVERY = _MINUTE
"""Seconds between rounds, once everything is pruned."""
_LEASE = 3 * _EVERY
_LONGEST_PAUSE = 30.0


class _Size(NamedTuple):
    """Of a batch: the seconds it is to take, the rows that it has at least and at most, and for how many times as long
    to leave the database alone after it, as a rule.
    """

    seconds: float
    fewest: int
    most: int
    pause: float


_SIZE, _SIZE_UNDER_ONE_LOCK = _Size(0.05, 100, 500, 79.0), _Size(0.01, 100, 200, 29.0)
"""The latter where all writers wait for one another, so that what one takes is taken from all. With twice the pace on
Postgres, jobs were drained at 0.93 of their rate while there was much to prune.
"""
_SHORTEST_REST = 4.0
"""The same where chains end faster than they are pruned: a fifth of one connection's time."""


class Walks(msgspec.Struct, kw_only=True):
    """How far the walks through the ids have come; kept in the database for whoever prunes next.

    Ids are in the order of time, as a rule: chains that are kept for a week are found by going on from where the last
    look ended to what began a week ago. So each is read about once. What this cannot find (a chain that ran for long,
    an id of the application's own making) is found by a walk through everything, now and then.
    """

    by_age: dict[str, str] = {}
    """The place each has come to, by the seconds after which chains are pruned."""
    whole: str | None = None
    """That of the walk through everything, while it is under way."""
    whole_at: float = 0.0
    """When it began."""


class Pace:
    """For how many times as long as a batch took to leave the database alone after it.

    What has piled up may take its time, however much it is. But who prunes more slowly than chains end never catches
    up: for as long as the walks fall further behind from one round to the next, the rests become shorter.
    """

    def __init__(self, longest: float) -> None:
        self.rest = self._longest = longest
        self._lag = math.inf

    def after_round(self, *, lag: float, is_done: bool) -> None:
        """`lag`: seconds by which the walks are behind, infinite where nobody knows."""
        if is_done:
            self.rest = self._longest
        elif lag > self._lag:
            self.rest = max(self.rest / 2, _SHORTEST_REST)
        self._lag = lag


class Pruning:
    """Prunes by the rules of an app. Every look is a batch."""

    name = "prune what has ended"

    def __init__(
        self,
        store: Store,
        rules: Callable[[], Sequence[Keeping]],
        *,
        first_after: tuple[float, float] = (5.0, 15.0),
    ) -> None:
        """`first_after`: between how many seconds it first looks: whoever has just begun has better things to do."""
        self._store, self._rules, self._first_after = store, rules, first_after
        self._id = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        self._begins_at: float | None = None
        self._whose = ""
        self._walks: Walks | None = None
        """None: another's turn, as far as is known."""
        self._todo: list[float | None] = []
        """The ages to walk for in this round; None: through everything."""
        self._round_ends = 0.0
        self._size = _SIZE if store.state.locks_rows else _SIZE_UNDER_ONE_LOCK
        self._rows, self._pace = self._size.fewest, Pace(self._size.pause)
        self._told = ""
        """Why a part of the history could not be dropped."""

    async def look(self, reserved: Reserved) -> float:
        if self._begins_at is None:
            self._begins_at = time.monotonic() + random.uniform(*self._first_after)
        if (left := self._begins_at - time.monotonic()) > 0:
            return left  # asked again by the next worker of the app, if this one ends
        rules = self._rules()
        walks, wait = await self._turn(reserved, rules)
        if walks is None:
            await reserved.close()  # one connection less where others prune, or nothing is left to do
            return wait
        began = time.monotonic()
        pruned = await self._prune(reserved, rules, walks)
        took = time.monotonic() - began
        self._adapt(took)
        self._store.release(self._store.effects_of.pruned(pruned))
        return min(took * self._pace.rest, _LONGEST_PAUSE) if self._todo else 0.0

    async def _turn(self, reserved: Reserved, rules: Sequence[Keeping]) -> tuple[Walks | None, float]:
        """How far whoever prunes has come, if it is this process's turn and there is something to do; else how long to
        wait.
        """
        if not rules:
            return None, _EVERY
        if (whose := _whose(rules)) != self._whose:  # types were registered
            self._whose, self._walks, self._todo = whose, None, []
        if self._walks is not None and self._todo and time.monotonic() < self._round_ends:
            return self._walks, 0.0  # asked for once in a round, and left behind at its end
        left = None if self._walks is None else msgspec.json.encode(self._walks).decode()
        turn = await reserved.run(
            self._store.state.take_pruning_turn(worker=self._id, lease=_LEASE, walks=left, whose=whose)
        )
        if turn.walks is None:
            self._walks, self._todo = None, []
            return None, turn.next_in * random.uniform(1.0, 1.1)
        if turn.has_old_history:
            await self._drop_history(reserved)
        is_new = self._walks is None
        self._walks = _read(turn.walks)
        if is_new:
            self._pace = Pace(self._size.pause)
        rest = self._round_ends - time.monotonic()
        if not self._todo and rest > 0 and not is_new:
            return None, rest
        if not self._todo or rest <= 0:
            self._begin_round(self._walks, rules, turn.now)
        return self._walks, 0.0

    async def _drop_history(self, reserved: Reserved) -> None:
        """One part in a round; where somebody looks at the history at this moment, in a later one. One that cannot be
        dropped, say because a view needs it, keeps nobody from pruning; it is told once.
        """
        history = self._store.state.history
        try:
            began_at = None if history is None else await reserved.run(history.drop())
        except Exception as error:
            if self._store.is_transient(error):
                raise
            if (problem := str(error)) != self._told:
                self._told = problem
                logger.exception("a worker could not drop a part of the history that nobody wants any more")
            return
        self._told = ""
        if began_at is not None:
            logger.info("dropped the history of %s: nobody wants it any more", f"{began_at.astimezone(UTC):%Y-%m}")

    def _begin_round(self, walks: Walks, rules: Sequence[Keeping], now: float) -> None:
        ages = sorted({age for rule in rules for age in (rule.completed, rule.failed) if age is not None})
        lag = max(now - age - _trail(age) - _time_of(walks.by_age.get(str(age), "")) for age in ages)
        self._pace.after_round(lag=lag, is_done=not self._todo)
        self._todo = [*ages]
        if walks.whole is not None or abs(now - walks.whole_at) >= min(max(ages[0], _HOUR), _DAY):
            self._todo.append(None)
            if walks.whole is None:
                walks.whole, walks.whole_at = "", now
        self._round_ends = time.monotonic() + _EVERY

    async def _prune(self, reserved: Reserved, rules: Sequence[Keeping], walks: Walks) -> Pruned:
        age = self._todo[0]
        place = (walks.whole or "") if age is None else walks.by_age.get(str(age), "")
        before = None if age is None else age + _trail(age)
        prune = self._store.state.prune(rules, place=place, before=before, chains=self._rows, rows=self._rows)
        pruned = await reserved.run(prune)
        if age is None:
            walks.whole = None if pruned.is_end else pruned.reached
        else:
            walks.by_age[str(age)] = pruned.reached
        if pruned.is_end:
            self._todo.pop(0)
        return pruned

    def _adapt(self, took: float) -> None:
        factor = min(max(self._size.seconds / max(took, 0.001), 0.25), 1.5)
        self._rows = round(min(max(self._rows * factor, self._size.fewest), self._size.most))


def _whose(rules: Sequence[Keeping]) -> str:
    """The same for all who prune by these rules. No digest, which would load OpenSSL."""
    return f"{binascii.crc32(msgspec.json.encode(sorted(rules, key=attrgetter('type_name')))):08x}"


def _trail(age: float) -> float:
    """Seconds that chains may have taken to be found by their ids once they are old enough."""
    return min(max(age / 8, _MINUTE), _HOUR)


def _time_of(place: str) -> float:
    """When chains began whose ids are about this one, in seconds since 1970; long ago, where nobody knows."""
    try:
        return int(place.replace("-", "")[:12], 16) / 1000
    except ValueError:
        return -math.inf


def _read(walks: str) -> Walks:
    try:
        return msgspec.json.decode(walks, type=Walks)
    except msgspec.MsgspecError:  # of a program that is newer, or older; it only costs a walk more
        return Walks()

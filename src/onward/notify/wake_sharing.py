"""Who wakes for a hint that every process hears: each finds out for itself, and about as many wake as there are jobs.

Processes tell each other now and again how many of their listeners could take a job (a *heartbeat*). Whoever sends a
hint gives it a nonce (a random word) and need know nothing of listeners. Whoever receives it lays all the places that
it believes in (n listeners of a process are its places 0 to n-1) in an order that depends on the nonce only, by number
and then by a digest of nonce and process; the first places, as many as there are jobs, wake. A process judges itself by
what is, and others by what they told. All hear everything in the same order, so they differ only in what each knows of
itself:

- It can do more than it told: perhaps one wakes too many.
- It can do less than it told: then it was believed to wake for the rest, knows that, and passes the rest on, together
  with the true number. That happens once per heartbeat at most, and comes to an end: every round takes a false belief
  away.
- It is gone, or does not get to run: then nothing is heard of it for two and a half heartbeats, or it said farewell;
  all others share out what they had left to it since its last heartbeat but one.

So, of those who hear a hint, the owner of the first place of all that anybody believes in wakes, or passes on, or is
missed. A job waits for a process that died without a word for at most two and a half heartbeats and a second: six
seconds with up to forty processes, longer with more, and never longer than a worker's `poll`.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from onward.notify.contract import Hint, HintKind

_SHORTEST_HEARTBEAT, _HEARTBEAT_PER_PROCESS = 2.0, 0.05
_MISSED_AFTER = 2.5
"""Heartbeats."""
_MOST_TYPES = 1_000
"""Of which one process is believed that it takes them."""


@dataclass(slots=True)
class _Other:
    """What is believed of another process."""

    heard: float
    room: dict[str, int] = field(default_factory=dict)
    left_to_it: Counter[str] = field(default_factory=Counter)
    """Jobs by type that it was believed to wake for, since its last heartbeat."""
    before: Counter[str] = field(default_factory=Counter)
    """The same between its last heartbeat but one and its last, which may have been on its way when the hint came."""


class WakeSharing:
    """What one process believes of the others. No I/O, and nothing here waits."""

    def __init__(self, me: str, now: Callable[[], float] = time.monotonic) -> None:
        self.me, self._now = me, now
        self._told: dict[str, int] = {}
        """What others believe of this process: what the channel has carried, not what was sent."""
        self._others: dict[str, _Other] = {}
        self._heartbeat_at = 0.0

    @property
    def heartbeat(self) -> float:
        """Seconds between heartbeats: fewer of each where there are many."""
        return max(_SHORTEST_HEARTBEAT, _HEARTBEAT_PER_PROCESS * (len(self._others) + 1))

    @property
    def is_known(self) -> bool:
        """Whether others believe anything of this process."""
        return bool(self._told)

    def become(self, me: str) -> None:
        """Go by another name from now on: whoever remembers the old one finds out that it is gone."""
        self.me, self._told, self._heartbeat_at = me, {}, 0.0

    # -- what is told

    def is_due(self) -> bool:
        """Whether it is time to tell."""
        return self._now() >= self._heartbeat_at

    def news(self, room: Mapping[str, int]) -> list[Hint]:
        """What to tell others; the next time is a heartbeat later."""
        self._heartbeat_at = self._now() + self.heartbeat * random.uniform(0.8, 1.0)  # not all at once
        over = {name: 0 for name, number in self._told.items() if number and name not in room}
        return [Hint(HintKind.ROOM, name, number) for name, number in {**over, **room}.items()]

    def hear(self, process: str, news: Sequence[Hint]) -> None:
        """A process, this one too, has told."""
        told = {hint.key: hint.count for hint in news if hint.kind is HintKind.ROOM}
        if process == self.me:
            self._told.update(told)
            return
        if process not in self._others:
            self._heartbeat_at = 0.0  # a newcomer should know us too
        other = self._others.setdefault(process, _Other(0.0))
        other.heard = self._now()
        if len(other.room.keys() | told.keys()) <= _MOST_TYPES:
            other.room.update(told)
        other.before, other.left_to_it = other.left_to_it, Counter()

    # -- who is gone

    def forget(self, process: str) -> list[Hint]:
        """A process is gone: what had been left to it and has to be shared out again."""
        other = self._others.pop(process, _Other(0.0))
        return [Hint(HintKind.READY, name, count) for name, count in (other.left_to_it + other.before).items()]

    def missed(self) -> list[str]:
        """The processes that have been silent for too long."""
        latest = self._now() - _MISSED_AFTER * self.heartbeat
        return [process for process, other in self._others.items() if other.heard < latest]

    # -- who wakes

    def share(self, nonce: str, hint: Hint, here: int) -> tuple[int, int]:
        """How many wake here, where so many can, and for how many more jobs others believe that they do."""
        of_me = max(self._told.get(hint.key, 0), here)
        mine = min(hint.count, of_me) if not self._others else self._share_with_others(nonce, hint, of_me)
        return min(mine, here), mine - min(mine, here)

    def _share_with_others(self, nonce: str, hint: Hint, of_me: int) -> int:
        """How many wake here, where so many are believed to."""
        believed = {process: other.room.get(hint.key, 0) for process, other in self._others.items()}
        shares = share_out(nonce, hint.count, {**believed, self.me: of_me})
        mine = shares.pop(self.me, 0)
        for process, count in shares.items():
            self._others[process].left_to_it[hint.key] += count
        return mine


def share_out(nonce: str, count: int, room: Mapping[str, int]) -> dict[str, int]:
    """So many jobs among processes that can do so much each: one for everybody, another for everybody that can …

    >>> share_out("word", 5, {"a": 1, "b": 9, "c": 1})
    {'a': 1, 'b': 3, 'c': 1}
    """
    whole, rest = _level(count, sorted(filter(None, room.values())))
    # Not in rounds: a hint can speak of any number of jobs, and this must not take longer for it.
    shares, with_more = dict[str, int](), list[tuple[int, str]]()
    for name, number in room.items():
        if whole and number:
            shares[name] = min(number, whole)
        if number > whole:
            with_more.append((crc32(f"{nonce} {name}".encode()), name))
    for _, name in sorted(with_more)[:rest]:
        shares[name] = whole + 1
    return shares


def _level(count: int, room: Sequence[int]) -> tuple[int, int]:
    """How many whole rounds so many jobs last among these, the smallest first, and how many are left over."""
    level = 0
    for position, number in enumerate(room):
        with_room = len(room) - position
        if count < (number - level) * with_room:
            rounds, left = divmod(count, with_room)
            return level + rounds, left
        count -= (number - level) * with_room
        level = number
    return level, 0

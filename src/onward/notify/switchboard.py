"""Brings the hints that reach this process to its listeners: the part that every adapter shares."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager

from onward.notify.contract import Hint, HintKind

PassOn = Callable[[Sequence[Hint]], None]
_MOST_UNHEARD = 5_000
"""Hints that wait for a listener who is busy; with more than that he had better look at everything."""


class _Line:
    """A listener of one process."""

    def __init__(
        self, *, scheduled: Collection[str], ended: Collection[str], lost: bool, awaited: bool, give_back: PassOn
    ) -> None:
        self.scheduled, self.ended = frozenset(scheduled), ended
        self.kinds = {HintKind.LOST: lost, HintKind.AWAITED: awaited}
        self.is_waiting, self.has_room = False, True
        self._hints: list[Hint] = []
        self._ready = asyncio.Event()
        self._give_back = give_back

    @property
    def is_idle(self) -> bool:
        """Whether a hint would wake it, and to some use."""
        return self.is_waiting and self.has_room and not self._ready.is_set()

    def wants(self, hint: Hint) -> bool:
        if hint.kind in (HintKind.SCHEDULED, HintKind.DEFERRED):
            return hint.key in self.scheduled
        if hint.kind is HintKind.EXPIRED:
            return bool(self.scheduled) and (not hint.key or hint.key in self.scheduled)
        if hint.kind is HintKind.ENDED:
            return hint.key in self.ended
        return self.kinds.get(hint.kind, True)

    def give(self, hint: Hint) -> None:
        if len(self._hints) >= _MOST_UNHEARD:
            self._hints = [Hint(HintKind.UNKNOWN, "")]
        self._hints.append(hint)
        self._ready.set()

    def wake(self) -> None:
        self._ready.set()

    def decline(self, hints: Sequence[Hint]) -> None:
        """Give back the jobs that were meant for this listener, who cannot take them; each hint stood for one."""
        declined = [Hint(hint.kind, hint.key) for hint in hints if hint.kind is HintKind.SCHEDULED]
        if declined:
            self._give_back(declined)

    def decline_all(self) -> None:
        """The same for what it has not heard yet."""
        hints, self._hints = self._hints, [hint for hint in self._hints if hint.kind is not HintKind.SCHEDULED]
        self.decline(hints)

    async def wait(self, timeout: float | None) -> Sequence[Hint]:
        if not self.has_room:
            self.decline_all()  # they came while it was filling up
        self.is_waiting = True
        try:
            async with asyncio.timeout(timeout):
                await self._ready.wait()
        except TimeoutError:
            pass
        finally:
            self.is_waiting = False
        self._ready.clear()
        hints, self._hints = self._hints, []
        return hints


class Switchboard:
    """The listeners of this process. Belongs to one event loop; nothing here waits.

    `pass_on` gets hints about scheduled jobs that were given to a listener here, who could not follow them after all,
    when no other listener here can.
    """

    def __init__(self, pass_on: PassOn | None = None) -> None:
        self._lines: list[_Line] = []
        self._pass_on = pass_on

    @property
    def is_used(self) -> bool:
        """Whether anybody listens."""
        return bool(self._lines)

    @asynccontextmanager
    async def listen(
        self, *, scheduled: Collection[str] = (), ended: Collection[str] = (), lost: bool = False, awaited: bool = False
    ) -> AsyncIterator[_Line]:
        line = _Line(scheduled=scheduled, ended=ended, lost=lost, awaited=awaited, give_back=self._redeliver)
        self._lines.append(line)
        try:
            yield line
        finally:
            self._lines.remove(line)
            line.decline_all()
            line.wake()

    def deliver(self, hints: Sequence[Hint]) -> None:
        """Give every hint to those it concerns."""
        for hint in hints:
            lines = [line for line in self._lines if line.wants(hint)]
            if hint.kind is HintKind.SCHEDULED:
                # One that is full looks for more by itself as soon as it has room.
                lines = self._choose([line for line in lines if line.has_room], hint.count)
            elif hint.kind is HintKind.DEFERRED:
                lines = self._choose(lines, hint.count)
            for line in lines:
                line.give(hint)

    def idle(self, hint: Hint) -> int:
        """How many of those whom a hint concerns it would wake, and to some use."""
        return sum(line.is_idle for line in self._lines if line.wants(hint))

    def able(self, hint: Hint) -> int:
        """How many of those whom a hint concerns could take a job, be they idle, or awake and about to look."""
        return sum(line.has_room for line in self._lines if line.wants(hint))

    def able_by_type(self) -> dict[str, int]:
        """How many could take a job, for every type that somebody here takes."""
        types = {name for line in self._lines for name in line.scheduled}
        return {name: self.able(Hint(HintKind.SCHEDULED, name)) for name in types}

    def wake_all(self) -> None:
        """Something has changed, and it is not known what."""
        for line in self._lines:
            line.give(Hint(HintKind.UNKNOWN, ""))

    def _choose(self, lines: list[_Line], count: int) -> list[_Line]:
        """As many as that: those that are idle, then those that are awake, last those that are full."""
        chosen = sorted(lines, key=lambda line: (not line.has_room, not line.is_idle))[:count]
        for line in chosen:
            # The next hint is another's turn.
            self._lines.remove(line)
            self._lines.append(line)
        return chosen

    def _redeliver(self, hints: Sequence[Hint]) -> None:
        for hint in hints:
            if self.able(hint):
                self.deliver([hint])
            elif self._pass_on is not None:
                self._pass_on([hint])

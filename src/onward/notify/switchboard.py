"""Brings the hints that reach this process to its listeners: the part that every adapter shares."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

from onward.notify.contract import Hint, HintKind


class _Line:
    """A listener of one process."""

    def __init__(self, *, scheduled: Collection[str], ended: Collection[str], lost: bool, awaited: bool) -> None:
        self.scheduled, self.ended = frozenset(scheduled), frozenset(ended)
        self.kinds = {HintKind.LOST: lost, HintKind.AWAITED: awaited}
        self.is_waiting, self.has_room = False, True
        self._hints: list[Hint] = []
        self._ready = asyncio.Event()

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
        self._hints.append(hint)
        self._ready.set()

    def wake(self) -> None:
        self._ready.set()

    async def wait(self, timeout: float | None) -> Sequence[Hint]:
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
    """The listeners of this process. Belongs to one event loop; nothing here waits."""

    def __init__(self) -> None:
        self._lines: list[_Line] = []

    @asynccontextmanager
    async def listen(
        self, *, scheduled: Collection[str] = (), ended: Collection[str] = (), lost: bool = False, awaited: bool = False
    ) -> AsyncIterator[_Line]:
        line = _Line(scheduled=scheduled, ended=ended, lost=lost, awaited=awaited)
        self._lines.append(line)
        try:
            yield line
        finally:
            self._lines.remove(line)
            line.wake()

    def deliver(self, hints: Sequence[Hint]) -> None:
        """Give every hint to those it concerns."""
        for hint in hints:
            lines = [line for line in self._lines if line.wants(hint)]
            if hint.kind in (HintKind.SCHEDULED, HintKind.DEFERRED):
                lines = self._budget(lines, hint.count)
            for line in lines:
                line.give(hint)

    def idle(self, hint: Hint) -> int:
        """How many of those whom a hint concerns it would wake, and to some use."""
        return sum(line.is_idle for line in self._lines if line.wants(hint))

    def concerned(self, hint: Hint) -> int:
        """How many a hint concerns."""
        return sum(line.wants(hint) for line in self._lines)

    def wake_all(self) -> None:
        """Something has changed, and it is not known what."""
        for line in self._lines:
            line.give(Hint(HintKind.UNKNOWN, ""))

    def _budget(self, lines: list[_Line], count: int) -> list[_Line]:
        """As many as there are jobs: those that wait, then those that are awake, last those that are full."""
        chosen = sorted(lines, key=lambda line: (not line.has_room, not line.is_idle))[:count]
        for line in chosen:
            # The next hint is another's turn.
            self._lines.remove(line)
            self._lines.append(line)
        return chosen

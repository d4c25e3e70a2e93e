"""Brings the hints that reach this process to its listeners: the part that every adapter shares."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from operator import attrgetter

from onward.notify.contract import Hint, HintKind

PassOn = Callable[[Sequence[Hint]], None]
_MOST_UNHEARD = 5_000
"""Hints that wait for a listener who is busy; with more than that he had better look at everything."""
_FOR_ONE_EACH = (HintKind.READY, HintKind.DEFERRED)
"""For as many listeners as there are jobs; all other hints are for every one whom they concern."""


class _Listener:
    """A listener of one process."""

    def __init__(
        self, *, types: Collection[str], ended: Collection[str], lost: bool, awaited: bool, give_back: PassOn
    ) -> None:
        self.types, self.ended = frozenset(types), ended
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
        """Whether a hint concerns it, now."""
        if hint.kind is HintKind.READY:
            # One that is full looks for more by itself as soon as it has room.
            return self.has_room and hint.key in self.types
        if hint.kind is HintKind.DEFERRED:
            return hint.key in self.types
        if hint.kind is HintKind.EXPIRED:
            return bool(self.types) and (not hint.key or hint.key in self.types)
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
        declined = [Hint(hint.kind, hint.key) for hint in hints if hint.kind is HintKind.READY]
        if declined:
            self._give_back(declined)

    def decline_all(self) -> None:
        """The same for what it has not heard yet."""
        hints, self._hints = self._hints, [hint for hint in self._hints if hint.kind is not HintKind.READY]
        self.decline(hints)

    async def wait(self, timeout: float | None) -> Sequence[Hint]:
        if self._hints and not self.has_room:
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


class Listeners:
    """The listeners of this process. Belongs to one event loop; nothing here waits.

    `pass_on` gets hints about ready jobs that were given to a listener here, who could not follow them after all,
    when no other listener here can.
    """

    def __init__(self, pass_on: PassOn | None = None) -> None:
        self._listeners: list[_Listener] = []
        self._pass_on = pass_on

    @property
    def is_used(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners)

    @asynccontextmanager
    async def listen(
        self, *, types: Collection[str] = (), ended: Collection[str] = (), lost: bool = False, awaited: bool = False
    ) -> AsyncIterator[_Listener]:
        listener = _Listener(types=types, ended=ended, lost=lost, awaited=awaited, give_back=self._redeliver)
        self._listeners.append(listener)
        try:
            yield listener
        finally:
            self._listeners.remove(listener)
            listener.decline_all()
            listener.wake()

    def deliver(self, hints: Sequence[Hint]) -> None:
        """Give every hint to those it concerns."""
        for hint in hints:
            self.give(hint, self.concerned(hint))

    def concerned(self, hint: Hint) -> list[_Listener]:
        """Those whom a hint concerns, now. Of one about ready jobs, they are those who could take one: be they idle, or
        awake and about to look.
        """
        concerned = list[_Listener]()
        for listener in self._listeners:
            if listener.wants(hint):
                concerned.append(listener)
        return concerned

    def give(self, hint: Hint, concerned: list[_Listener]) -> None:
        """Give a hint to those it concerns, or to as many of them as there are jobs."""
        if hint.kind in _FOR_ONE_EACH and hint.count < len(concerned):
            # Those that are idle, then those that are awake, last those that are full.
            concerned.sort(key=attrgetter("is_idle", "has_room"), reverse=True)
            del concerned[hint.count :]
            for listener in concerned:  # the next hint is another's turn
                self._listeners.remove(listener)
                self._listeners.append(listener)
        for listener in concerned:
            listener.give(hint)

    def idle(self, hint: Hint) -> int:
        """How many of those whom a hint concerns it would wake, and to some use."""
        return sum(listener.is_idle for listener in self.concerned(hint))

    def room(self, hint: Hint) -> int:
        """How many could take a job that is ready."""
        return len(self.concerned(hint))

    def room_by_type(self) -> dict[str, int]:
        """How many could take a job, for every type that somebody here takes."""
        names = {name for listener in self._listeners for name in listener.types}
        return {name: self.room(Hint(HintKind.READY, name)) for name in names}

    def wake_all(self) -> None:
        """Something has changed, and it is not known what."""
        for listener in self._listeners:
            listener.give(Hint(HintKind.UNKNOWN, ""))

    def _redeliver(self, hints: Sequence[Hint]) -> None:
        for hint in hints:
            if self.concerned(hint):
                self.deliver([hint])
            elif self._pass_on is not None:
                self._pass_on([hint])

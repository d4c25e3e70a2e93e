"""What tests of several kinds use."""

import asyncio
from datetime import timedelta
from typing import TypeVar

from onward.observe.events import Event

T = TypeVar("T")
SOON = timedelta(seconds=10)
"""Long enough for anything that should happen at once, even on a busy machine."""


class Recorder:
    """An observer that keeps every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._news = asyncio.Event()

    def wants(self, kind: type[Event]) -> bool:
        return True

    def observe(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]

    async def next(self, kind: type[T], *, count: int = 1) -> T:
        """The `count`th event of a kind, waiting for it."""
        async with asyncio.timeout(SOON.total_seconds()):
            while len(self.of(kind)) < count:
                self._news.clear()
                await self._news.wait()
        return self.of(kind)[count - 1]

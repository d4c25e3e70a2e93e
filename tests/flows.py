"""What tests of flows use."""

import asyncio
from datetime import timedelta
from typing import Any, TypeVar

from onward.flow import FlowEvent

T = TypeVar("T")
QUICK = timedelta(milliseconds=200)
SOON = timedelta(seconds=20)


class FlowRecorder:
    """An observer of a flow that keeps every event."""

    def __init__(self) -> None:
        self.events: list[FlowEvent] = []
        self._news = asyncio.Event()

    def __call__(self, event: FlowEvent) -> None:
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


def places(positions: Any) -> dict[str, tuple[str | None, str]]:
    """Where each job is: its stage and place; fails when a job is in two places."""
    found: dict[str, tuple[str | None, str]] = {}
    for position in positions.jobs:
        assert position.job_id not in found, f"{position.job_id} is in two places"
        found[position.job_id] = (position.stage, position.place)
    return found

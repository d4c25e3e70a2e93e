"""What tests of several kinds use."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from onward.observe.events import Event

T = TypeVar("T")
SOON = timedelta(seconds=20)
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


@asynccontextmanager
async def fleet(processes: int, *arguments: object) -> AsyncIterator[None]:
    """Processes of programs/fleet.py, whose workers all wait; killed at the end, by their own ids."""
    program = Path(__file__).parent / "programs" / "fleet.py"
    with ExitStack() as stack:
        started = [stack.enter_context(_launched(program, *arguments)) for _ in range(processes)]
        for one in started:
            assert one.stdout is not None
            assert await asyncio.to_thread(one.stdout.readline) == b"ready\n"
        yield


@contextmanager
def _launched(program: Path, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(program), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()

"""What tests of several kinds use."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import astuple
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from onward.observe.events import Event
from onward.state.command import Command, Operation, Steps
from onward.state.contract import StateAdapter
from onward.state.driver import PlainConnection
from onward.state.postgres.asyncpg_connection import AsyncpgConnection

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


# -- operations

Run = Callable[[], Awaitable[Any]]
"""Runs an operation as it would have been run, with BEGIN and COMMIT if they belong to it."""


class ClockOf:
    """Says what a function makes of the time."""

    def __init__(self, read: Callable[[], datetime]) -> None:
        self._read = read

    @property
    def now(self) -> datetime:
        return self._read()


def intercept(
    monkeypatch: pytest.MonkeyPatch, state: StateAdapter, name: str, around: Callable[..., Awaitable[Any]]
) -> None:
    """Have whatever a method of the state returns be run by `around(run, *arguments of the method)`.

    Where the connection is asked: in the event loop, although SQLite's own work is done in a thread. Only an operation
    that is a step of another runs where that runs; there `around` may do anything but wait.
    """
    method = getattr(state, name)

    @wraps(method)
    def asked(*arguments: Any, **options: Any) -> Any:
        return _marked(method(*arguments, **options), lambda run: around(run, *arguments, **options))

    monkeypatch.setattr(state, name, asked)
    kinds: list[Any] = [AsyncpgConnection, PlainConnection, *PlainConnection.__subclasses__()]
    for kind in kinds:
        if "run" in vars(kind):
            monkeypatch.setattr(kind, "run", _heeding_marks(kind.run))


class _MarkedCommand(Command[Any], frozen=True, gc=False, kw_only=True):
    around: Callable[[Run], Awaitable[Any]]

    def then(self, look: Callable[[Any], Any]) -> Any:
        return _marked(Command.then(self, look), self.around)


class _MarkedSteps(Steps[Any], frozen=True, gc=False, kw_only=True):
    around: Callable[[Run], Awaitable[Any]]

    def then(self, look: Callable[[Any], Any]) -> Any:
        return _marked(Steps.then(self, look), self.around)


def _marked(operation: Operation[Any], around: Callable[[Run], Awaitable[Any]]) -> Any:
    kind = _MarkedCommand if isinstance(operation, Command) else _MarkedSteps
    return kind(*astuple(operation), around=around)


def _heeding_marks(run: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(run)
    async def heeding(self: Any, first: Operation[Any], *more: Command[Any], **options: Any) -> Any:
        if not isinstance(first, _MarkedCommand | _MarkedSteps):
            return await run(self, first, *more, **options)
        kind = Command if isinstance(first, Command) else Steps
        return await first.around(partial(run, self, kind(*astuple(first)[:-1]), *more, **options))

    return heeding


# -- figures

_LABELS = ("type", "status", "outcome", "direction", "le")


def scraped(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """What a scrape says: values by name and labels."""
    text = generate_latest(registry).decode()
    return {
        (sample.name, *(sample.labels[name] for name in _LABELS if name in sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }

"""What the tests of the suite hold in their hands: an adapter, a driver, a clock, and values to store."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar

from onward.conformance.state.session import Session
from onward.model import new_id
from onward.state.contract import NewJob, StateAdapter
from onward.state.driver import Driver, run_now

T = TypeVar("T")


class MovableClock:
    """The time, which passes only when told to."""

    now = datetime(2030, 1, 1, tzinfo=UTC)

    def advance(self, duration: timedelta) -> None:
        self.now += duration


class Signal(Protocol):
    """What one of several operations under way says to the others."""

    def set(self) -> None: ...
    async def wait(self) -> object: ...


class Store:
    """An adapter on a driver, and a clock that tests move."""

    def __init__(self, *, state: StateAdapter, driver: Driver, rounds: int = 25) -> None:
        self.state, self.driver = state, driver
        self.rounds = rounds
        """How often a race is run."""
        self.clock = MovableClock()
        self.state.clock = self.clock

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Session]:
        """The adapter on a connection of the pool."""
        async with self.driver.connection() as connection:
            yield Session(self.state, connection)

    @asynccontextmanager
    async def reserve(self) -> AsyncIterator[Session]:
        """The adapter on a connection beside the pool, as workers have it."""
        async with self.driver.reserved() as connection:
            yield Session(self.state, connection)

    def job(self, type_name: str = "work", *, input: str = "null", payload_version: int = 1, **fields: Any) -> NewJob:
        """The first job of a new chain."""
        id = fields.pop("id", None) or new_id()
        fields = {"chain_id": id, "root_id": id, **fields}
        return NewJob(id=id, type_name=type_name, payload_version=payload_version, input=input, **fields)

    def promptly(self) -> AbstractAsyncContextManager[object]:
        """A block that must not wait for locks of others: a test that would wait for ever fails instead."""
        return asyncio.timeout(30)

    def signal(self) -> Signal:
        """For operations that run `together`."""
        return asyncio.Event() if self.driver.is_async else _ThreadSignal()

    async def together(self, *operations: Callable[[], Coroutine[Any, Any, T]]) -> list[T]:
        """Run operations at the same time, each on connections of its own; their answers in order.

        Those on a sync driver run in a thread each, since they would not let one another go on.
        """
        async with self.promptly(), asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._begin(operation)) for operation in operations]
        return [task.result() for task in tasks]

    async def _begin(self, operation: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self.driver.is_async:
            return await operation()
        return await asyncio.to_thread(lambda: run_now(operation()))


class _ThreadSignal:
    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> object:
        return self._event.wait()

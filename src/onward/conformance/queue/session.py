"""A queue under test: its adding side, providers as several processes would have them, and ways to wait."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, cast

import pytest

from onward.queue.contract import Pulls, TakenJob
from onward.queue.model import Capabilities, QueueJob
from onward.queue.options import JobOptions, UnsupportedFeature
from onward.queue.provider import Provider, ProviderFactory
from onward.queue.queue import Queue
from onward.queue.worker import QueueWorker

LONG = 30.0
"""Seconds in which what must happen has happened."""
A_WHILE = timedelta(seconds=1)
"""A delay that every backend can keep."""
KEPT = 3
"""How many finished jobs of each kind a brief factory keeps."""


class FetchingProvider(Provider, Pulls):
    """What the suite asks of providers: there is no type for one that is both."""


class Session:
    """Everything a test does with one queue."""

    def __init__(self, name: str, make_factory: Callable[..., ProviderFactory[Any]], stack: AsyncExitStack) -> None:
        self.name, self._make_factory, self._stack = name, make_factory, stack
        self.warnings: list[UnsupportedFeature] = []
        self.queue = self.new_queue()

    @property
    def capabilities(self) -> Capabilities:
        return self.queue.capabilities

    def new_queue(self, defaults: JobOptions | None = None, *, name: str | None = None, **options: Any) -> Queue[Any]:
        """One more queue object, on a connection of its own."""
        return Queue(
            name or self.name,
            provider=self._make_factory(),
            on_unsupported_feature=self.warnings.append,
            defaults=defaults,
            **options,
        )

    async def close(self) -> None:
        """Close workers and providers; the queue stays."""
        await self._stack.aclose()

    async def provider(self, *, brief: bool = False) -> FetchingProvider:
        """One more provider, as another process would have it."""
        provider = cast(FetchingProvider, self._make_factory(brief=brief).for_queue(self.name))
        await provider.connect()
        self._stack.push_async_callback(provider.disconnect)
        return provider

    async def worker(self, handler: Callable[..., Any], **options: Any) -> QueueWorker[Any]:
        """A worker that runs."""
        worker: QueueWorker[Any] = self.idle_worker(handler, **options)
        await worker.start()
        return worker

    def idle_worker(
        self, handler: Callable[..., Any], *, queues: Any = None, brief: bool = False, **options: Any
    ) -> QueueWorker[Any]:
        """A worker that was not started; it is closed at the end of the test."""
        factory = self._make_factory(brief=brief)
        worker: QueueWorker[Any] = QueueWorker(queues or self.name, handler, provider=factory, **options)
        self._stack.push_async_callback(worker.close, timeout=timedelta(seconds=5))
        return worker

    async def add(self, *names: str, **options: Any) -> list[QueueJob[Any]]:
        """Jobs of these names whose data is their name."""
        return [await self.queue.add(name, name, **options) for name in names]


@pytest.fixture
async def session(queue_name: str, make_factory: Callable[..., ProviderFactory[Any]]) -> AsyncIterator[Session]:
    """The queue is deleted at the end."""
    async with AsyncExitStack() as stack:
        session = Session(queue_name, make_factory, stack)
        await session.queue.connect()
        try:
            yield session
        finally:
            await stack.aclose()
            cleaner = session.new_queue()
            await cleaner.delete()
            await cleaner.disconnect()
            await session.queue.disconnect()


async def arrived(provider: Pulls, count: int) -> list[TakenJob]:
    """That many jobs, fetched as they come."""
    jobs: list[TakenJob] = []
    async with asyncio.timeout(LONG):
        while len(jobs) < count:
            jobs += await provider.fetch(count - len(jobs), min(provider.long_poll, timedelta(seconds=1)))
            if len(jobs) < count:
                await asyncio.sleep(0.02)
    return jobs


async def until(true: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(LONG):
        while True:
            answer = true()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.01)


def names(jobs: Sequence[QueueJob[Any]]) -> list[str]:
    return [job.name for job in jobs]

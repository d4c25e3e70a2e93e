"""Waiting until there may be a job."""

import asyncio
from typing import Any

from onward.errands import Errands
from onward.pacing import happens
from onward.redis.connection import Redis, exceptions

_LEAST = 0.002
"""Seconds: Redis before 7.0.8 took less for ever."""


class Wakeup:
    """Sleeps until the marker comes or until it is woken; on a connection of its own, which may carry a name."""

    def __init__(self, client: Redis, marker: str, *, name: str | None = None) -> None:
        self._client, self._marker, self._name = client, marker, name
        self._woken = asyncio.Event()
        self._errands = Errands()
        self._asking: asyncio.Task[None] | None = None
        """The question to Redis under way; one that outlives its wait is left, and answers the next one."""
        self._line: Any = None

    async def sleep(self, seconds: float | None) -> None:
        """Until woken, or that long."""
        await happens(self._woken, within=seconds)
        self._woken.clear()

    async def listen(self, seconds: float) -> None:
        """Until the marker comes, or woken, or that long."""
        asking = self._asking
        if asking is None:
            asking = self._asking = self._errands.begin(self._ask(max(seconds, _LEAST)))
            asking.add_done_callback(lambda _: self._woken.set())
        if not asking.done():
            await self.sleep(seconds)
        if asking.done():
            self._asking = None
            if not asking.cancelled():
                asking.result()

    def wake(self) -> None:
        """End the wait under way, or the next one."""
        self._woken.set()

    async def _ask(self, seconds: float) -> None:
        if self._line is None:
            line = self._client.client()
            await line.initialize()
            self._line = line
            await self._introduce()
        await self._line.bzpopmin(self._marker, seconds)

    async def _introduce(self) -> None:
        if self._name is None:
            return
        try:
            await self._line.client_setname(self._name)
        except exceptions.ResponseError:
            return  # a server, or a user's rights, without it: only the number of workers is not known then
        self._line.connection.client_name = self._name  # and again whenever it reconnects

    async def close(self) -> None:
        asking, self._asking = self._asking, None
        if asking is not None:
            await end(asking)
        line, self._line = self._line, None
        if line is not None:
            # Back to the pool, closed and without its name.
            line.connection.client_name = None
            await line.connection.disconnect()
            await line.aclose()


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for it; again and again, because redis-py loses a cancellation while it connects."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.1)
    if not task.cancelled():
        task.exception()  # seen

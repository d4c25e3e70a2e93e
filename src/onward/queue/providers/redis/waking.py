"""Waiting for jobs: on a list in Redis that gets a token when there is something to take."""

import asyncio
from typing import Any


class Waking:
    """Lets those who found nothing sleep until a token comes.

    The call that blocks at the server goes on when a sleeper leaves, because one that was cancelled might take a token
    with it. A token that nobody here wants any more goes back, for a worker elsewhere.
    """

    def __init__(self, client: Any, key: bytes, *, longest: float) -> None:
        self._client, self._key = client, key
        self._longest = longest
        """Seconds a sleeper sleeps at most: a worker that died with a token in its hands delays others by no more."""
        self._sleepers: list[asyncio.Future[None]] = []
        self._listening: asyncio.Task[None] | None = None
        self.interruptions = 0

    async def sleep(self, seconds: float) -> None:
        """Return when a token came, after that time, or when interrupted; raises when the server is lost."""
        loop = asyncio.get_running_loop()
        sleeper: asyncio.Future[None] = loop.create_future()
        self._sleepers.append(sleeper)
        if self._listening is None:
            # Owned by this object: it ends when nobody sleeps, or with `close`.
            self._listening = loop.create_task(self._listen())
        try:
            async with asyncio.timeout(min(seconds, self._longest)):
                await sleeper
        except TimeoutError:
            if sleeper.done() and not sleeper.cancelled():
                raise  # the server's, not ours
        finally:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)

    def interrupt(self) -> None:
        """Wake everybody."""
        self.interruptions += 1
        self._wake(len(self._sleepers))

    async def close(self) -> None:
        """Wake everybody, and let go of the server."""
        self.interrupt()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])

    async def _listen(self) -> None:
        try:
            while self._sleepers:
                token = await self._client.execute_command("BLPOP", self._key, self._longest)
                if token is not None and not self._wake(1):
                    await self._client.execute_command("RPUSH", self._key, 1)
        except Exception as error:  # noqa: BLE001 - given to those who wait; without any, the next call meets it, too
            sleepers, self._sleepers = self._sleepers, []
            for sleeper in sleepers:
                if not sleeper.done():
                    sleeper.set_exception(error)
        finally:
            self._listening = None

    def _wake(self, count: int) -> int:
        """Wake so many of those who still sleep; how many those were."""
        woken = 0
        while self._sleepers and woken < count:
            sleeper = self._sleepers.pop(0)
            if not sleeper.done():
                sleeper.set_result(None)
                woken += 1
        return woken

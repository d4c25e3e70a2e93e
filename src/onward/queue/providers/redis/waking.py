"""Waiting for jobs: on a list in Redis that gets a token when there is something to take."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from onward.errands import Errands
from onward.queue.contract import TakenJob

Taken = tuple[list[TakenJob], int]
"""The jobs, or none and the microseconds until one is due by itself (-1: none is)."""


class _Wait:
    """A call that waits at the server, and whoever waits for it here."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.answer: asyncio.Future[Taken | None] | None = None

    def wake(self) -> None:
        """Let go whoever waits."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(None)


class Waking:
    """Waits for a token and takes jobs, in one round trip: the script stands in line behind the call that blocks.

    That goes on when a sleeper leaves, because one that was cancelled might take jobs with it. The next sleeper has it;
    what comes for nobody goes back, for a worker elsewhere.
    """

    def __init__(
        self,
        take: Callable[[int, float], Awaitable[Taken]],
        give_back: Callable[[Sequence[TakenJob]], Awaitable[None]],
        *,
        longest: float,
    ) -> None:
        self._take, self._give_back = take, give_back
        self._longest = longest
        """Seconds of a wait at most: a worker that died with a token in its hands delays others by no more."""
        self.waits: list[_Wait] = []
        self._errands = Errands()
        self.interruptions = 0

    async def take(self, count: int, seconds: float) -> Taken | None:
        """At most that many jobs when a token comes, or what there is after that time; `None` when it is time to look,
        or when interrupted."""
        loop = asyncio.get_running_loop()
        wait = next((left for left in self.waits if left.answer is None and left.count <= count), None)
        if wait is None:
            wait, timer = self._begin(count, min(seconds, self._longest)), None
        else:
            timer = loop.call_later(seconds, wait.wake)  # it was begun for another length of time
        answer: asyncio.Future[Taken | None] = loop.create_future()
        wait.answer = answer
        try:
            return await answer
        finally:
            wait.answer = None
            if timer is not None:
                timer.cancel()

    def interrupt(self) -> None:
        """Wake everybody."""
        self.interruptions += 1
        for wait in self.waits:
            wait.wake()

    async def close(self) -> None:
        """Wake everybody, and let go of the server."""
        self.interrupt()
        await self._errands.end()

    def _begin(self, count: int, seconds: float) -> _Wait:
        wait = _Wait(count)
        self.waits.append(wait)
        self._errands.start(self._run(wait, seconds))
        return wait

    async def _run(self, wait: _Wait, seconds: float) -> None:
        taken: Taken = [], -1
        failure: Exception | None = None
        try:
            taken = await self._take(wait.count, seconds)
        except Exception as error:  # noqa: BLE001 - given to who waits; without anybody, the next call meets it, too
            failure = error
        finally:
            self.waits.remove(wait)
        if wait.answer is None or wait.answer.done():
            if taken[0]:
                await self._give_back(taken[0])
        elif failure is not None:
            wait.answer.set_exception(failure)
        else:
            wait.answer.set_result(taken)

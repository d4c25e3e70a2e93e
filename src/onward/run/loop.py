"""Fill, wait, drain: one page, shared by every kind of worker."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from onward.errands import to_the_end

W = TypeVar("W")
_BETWEEN_FILLS = 0.005
"""Seconds between fills that bring little: when slots become free one by one, it is cheaper to fill several at once."""
_LAST_TRY = 2.0
"""Seconds in which a loop that was cancelled gives back what it has not begun."""


class Source(Protocol[W]):
    """Where the work comes from, and what is done with it."""

    async def fill(self, free: int) -> Sequence[W]:
        """At most `free` pieces of work; fewer when there is no more at the moment."""
        ...

    async def hand_back(self, work: Sequence[W]) -> None:
        """What came while the loop was being stopped, or cancelled, is not begun."""
        ...

    def run_piece(self, piece: W, /) -> Awaitable[None]:
        """Do one piece; must not raise."""
        ...

    async def wait(self) -> None:
        """Return when it is worth looking again: a hint, something due, or `wake`."""
        ...

    def wake(self) -> None:
        """End the wait under way, or the next one."""
        ...

    async def recover(self, error: Exception) -> None:
        """A turn of the loop failed: say so, and wait a little."""
        ...


class SlotLoop(Generic[W]):
    """Keeps up to `concurrency` pieces of work going. `stop` means: take nothing more, let what runs finish."""

    def __init__(self, source: Source[W], *, concurrency: int, is_jammed: Callable[[], bool] = bool) -> None:
        self._source = source
        self._is_jammed = is_jammed
        """Whether the pieces that run wait for each other, so that one more would only wait as well."""
        self.free = self._concurrency = concurrency
        """How many slots are free; fewer than none as long as there were more when those that run began."""
        self._stopping = self._was_cancelled = False
        self._task: asyncio.Task[object] | None = None
        self._idle = asyncio.Event()
        self._wants_slot = False
        self._filled_at = 0.0
        self._unbegun = deque[W]()
        """Whose tasks have been made and not begun: in this order they will, unless they are cancelled before."""

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled rather than stopped: then so is every piece that runs.

        Who ends an event loop cancels all tasks at once, and a piece may hear of it before the loop does.
        """
        return self._was_cancelled or (self._task is not None and self._task.cancelling() > 0)

    def set_concurrency(self, concurrency: int) -> None:
        """From now on; when there are fewer slots than before, what runs in the others still finishes."""
        self.free += concurrency - self._concurrency
        self._concurrency = concurrency
        self._source.wake()

    @property
    def busy(self) -> int:
        """How many slots are taken."""
        return self._concurrency - self.free

    @property
    def has_room(self) -> bool:
        """Whether it is worth looking for more."""
        return self.free * 2 >= self._concurrency or (self.free > 0 and not self._is_jammed())

    def stop(self) -> None:
        self._stopping = True
        self._source.wake()

    async def run(self) -> None:
        """Until stopped; returns when the last slot is free."""
        self._task = asyncio.current_task()
        try:
            async with asyncio.TaskGroup() as slots:
                try:
                    await self._fill_until_stopped(slots)
                    await self._drain()
                except asyncio.CancelledError:
                    self._was_cancelled = True
                    raise
        finally:
            if self._unbegun:
                await to_the_end(self._hand_back_unbegun())

    async def _hand_back_unbegun(self) -> None:
        with suppress(Exception):  # whoever held it lets it go in time
            async with asyncio.timeout(_LAST_TRY):
                await self._source.hand_back(list(self._unbegun))

    async def _fill_until_stopped(self, slots: asyncio.TaskGroup) -> None:
        more = True
        while not self._stopping:
            try:
                if more and self.has_room:
                    if self.free * 4 < self._concurrency:
                        await self._pause()
                    free, self._filled_at = max(self.free, 0), time.monotonic()
                    work = await self._source.fill(free)
                    if self.is_stopping:
                        await self._source.hand_back(work)
                        break
                    more = len(work) == free
                    self._unbegun.extend(work)
                    for piece in work:
                        self.free -= 1
                        slots.create_task(self._occupy(piece))
                    await asyncio.sleep(0)
                elif more and self.free > 0:
                    await self._wait_a_little()  # those that run wait for each other
                else:
                    self._wants_slot = more
                    await self._source.wait()
                    self._wants_slot, more = False, True
            except Exception as error:  # noqa: BLE001 - one turn of a loop
                await self._source.recover(error)
                more = True

    async def _drain(self) -> None:
        while self.busy:
            self._idle.clear()
            await self._idle.wait()

    async def _pause(self) -> None:
        left = self._filled_at + _BETWEEN_FILLS - time.monotonic()
        if left > 0:
            await asyncio.sleep(left)

    async def _wait_a_little(self) -> None:
        timer = asyncio.get_running_loop().call_later(_BETWEEN_FILLS, self._source.wake)
        await self._source.wait()
        timer.cancel()

    async def _occupy(self, piece: W) -> None:
        self._unbegun.popleft()
        try:
            await self._source.run_piece(piece)
        finally:
            self.free += 1
            if self.free == self._concurrency:
                self._idle.set()
            if self._wants_slot:
                self._source.wake()

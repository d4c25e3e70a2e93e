"""Work that must be done to its end, and work that nobody waits for: each has an owner."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

logger = logging.getLogger("onward")
T = TypeVar("T")


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Do what must not be left half done, such as giving back a connection: whoever is cancelled meanwhile is told
    when it is done.
    """
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # seen: what came out is of no interest any more
    raise cancelled


class Errands:
    """Small things to do on the side, until their owner ends."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, errand: Coroutine[Any, Any, None]) -> None:
        """Do it soon; an error is logged, since there is nobody to be told."""
        task = asyncio.get_running_loop().create_task(errand)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("an errand of a driver failed", exc_info=task.exception())

    async def settle(self, within: float) -> None:
        """Wait for what is under way in this event loop; for so many seconds."""
        here, current = asyncio.get_running_loop(), asyncio.current_task()
        tasks = [task for task in self._tasks if task.get_loop() is here and task is not current]
        if tasks:
            await asyncio.wait(tasks, timeout=within)

    async def end(self) -> None:
        """Give up what is not done yet."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

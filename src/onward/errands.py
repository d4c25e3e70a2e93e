"""Work that must be done to its end, and work that nobody waits for: each has an owner."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

logger = logging.getLogger("onward")
T = TypeVar("T")
_MOMENT = 0.1
"""Seconds: as a rule a connection that is being made is there by then."""


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


async def after_a_moment(work: Coroutine[Any, Any, T], *, undo: Callable[[T], object]) -> T:
    """Do what leaves something behind if it is cancelled at a bad moment, such as making a connection: whoever is
    cancelled meanwhile leaves it a moment to end by itself. What it has made then is undone.
    """
    task = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        await to_the_end(_end(task, undo))
        raise
    return task.result()


async def _end(task: asyncio.Task[T], undo: Callable[[T], object]) -> None:
    await asyncio.wait((task,), timeout=_MOMENT)
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled() and task.exception() is None:
        undo(task.result())


class Errands:
    """Things to do on the side, until their owner ends. Not a task group: an owner may be opened by one task and closed
    by another."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, errand: Coroutine[Any, Any, None]) -> None:
        """Do it soon; an error is logged, since there is nobody to be told."""
        self.begin(errand).add_done_callback(_log_failure)

    def begin(
        self, work: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        """Do it soon, for whoever awaits the answer; one that nobody does is not missed."""
        task = asyncio.get_running_loop().create_task(work, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def within(self, seconds: float, work: Coroutine[Any, Any, T]) -> T:
        """What comes of it in time. Then it is cancelled, and TimeoutError raised at once: it may take long to end, as
        where a connection has to be given back whose server is silent.
        """
        task = self.begin(work)
        try:
            done, _ = await asyncio.wait((task,), timeout=seconds)
        finally:
            task.cancel()
        if not done:
            raise TimeoutError
        return task.result()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen

    async def settle(self, within: float | None = None) -> None:
        """Wait for what is not done yet; for so many seconds."""
        if tasks := self._running():
            await asyncio.wait(tasks, timeout=within)

    async def end(self) -> None:
        """Give up what is not done yet."""
        for task in (tasks := self._running()):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _running(self) -> list[asyncio.Task[Any]]:
        """Those of this event loop: what another one left behind has ended with it. An errand may end the others."""
        here, this = asyncio.get_running_loop(), asyncio.current_task()
        return [task for task in self._tasks if task.get_loop() is here and task is not this]


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("an errand of a driver failed", exc_info=task.exception())

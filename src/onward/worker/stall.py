"""Notices that the event loop does not turn, and says which handler keeps it."""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

logger = logging.getLogger("onward.worker")
_FRAMES = 20
Running = Callable[["asyncio.Task[Any] | None"], str]
"""Names the handler that runs in a task, or else all that run."""


class StallWatch:
    """A thread that asks the loop for a sign of life, four times within the limit, and logs once when none comes."""

    def __init__(self, limit: float, running: Running) -> None:
        self._limit, self._running = limit, running
        self._stopped = threading.Event()
        self._answered = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the running loop, in whose thread this is called."""
        arguments = asyncio.get_running_loop(), threading.get_ident()
        thread = threading.Thread(target=self._watch, args=arguments, name="onward-stall-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            self._answered.set()
            # Not joined: it may be busy with a stack, and this loop with other things. It ends by itself.

    def _watch(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        with suppress(RuntimeError):  # the loop was closed
            while not self._stopped.wait(self._limit / 4):
                asked = time.monotonic()
                self._answered.clear()
                loop.call_soon_threadsafe(self._answered.set)
                if not self._answered.wait(self._limit):
                    self._report(loop, thread_id, asked)
                    self._answered.wait()
                    if not self._stopped.is_set():
                        logger.warning("the event loop turns again after %.1f s", time.monotonic() - asked)
                elif time.monotonic() - asked > self._limit:
                    # This thread could not run either: there is no stack to show any more.
                    logger.warning(
                        "the event loop did not turn for %.1f s: something held the GIL; handlers: %s",
                        time.monotonic() - asked, self._running(None),
                    )  # fmt: skip

    def _report(self, loop: asyncio.AbstractEventLoop, thread_id: int, asked: float) -> None:
        logger.warning(
            "the event loop has not turned for %.1f s, kept by %s; a def handler would not block it. Its stack:\n%s",
            time.monotonic() - asked, self._running(_task_of(loop)), stack_of(thread_id).rstrip(),
        )  # fmt: skip


def stack_of(thread_id: int) -> str:
    """What a thread is doing."""
    frame = sys._current_frames().get(thread_id)
    return "".join(traceback.format_stack(frame, limit=_FRAMES)) if frame is not None else "(its thread has ended)\n"


def _task_of(loop: asyncio.AbstractEventLoop) -> "asyncio.Task[Any] | None":
    """The task that the loop is in the middle of."""
    try:
        return asyncio.current_task(loop)
    except RuntimeError:
        return None

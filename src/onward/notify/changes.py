"""Hints through a change counter: a file database that says only that something changed, to every process that asks."""

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager

from onward.notify.contract import Hint, Listener
from onward.notify.local import LocalNotify

logger = logging.getLogger("onward.notify")


class ChangeNotify(LocalNotify):
    """Hints within this process directly; what other processes change is seen by a thread that reads the counter.

    The thread runs only while somebody listens.
    """

    sees_commits = True
    crosses_processes = True

    def __init__(
        self, open_counter: Callable[[], AbstractContextManager[Callable[[], int]]], *, interval: float = 0.01
    ) -> None:
        super().__init__()
        self._open_counter = open_counter
        self._interval = interval
        self._watcher: threading.Thread | None = None
        self._stop = threading.Event()

    async def close(self) -> None:
        self._stop.set()
        await super().close()
        if self._watcher is not None:
            watcher, self._watcher = self._watcher, None
            await asyncio.to_thread(watcher.join)

    async def announce(self, hints: Sequence[Hint]) -> None:
        self._switchboard.deliver(hints)

    def listen(
        self, *, scheduled: Collection[str] = (), ended: Collection[str] = (), lost: bool = False, awaited: bool = False
    ) -> AbstractAsyncContextManager[Listener]:
        if self._watcher is None:
            self._stop.clear()
            loop = asyncio.get_running_loop()
            self._watcher = threading.Thread(target=self._watch, args=(loop,), name="onward-changes", daemon=True)
            self._watcher.start()
        return super().listen(scheduled=scheduled, ended=ended, lost=lost, awaited=awaited)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            with self._open_counter() as read:
                seen = read()
                while not self._stop.wait(self._interval):
                    now = read()
                    if now != seen:
                        seen = now
                        loop.call_soon_threadsafe(self._switchboard.wake_all)
        except RuntimeError:
            if not loop.is_closed():
                raise
        except Exception:
            logger.exception("the change counter cannot be read; other processes are noticed by polling")

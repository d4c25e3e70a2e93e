"""Hints about a file: that something was committed, and not what, is seen by every process that watches the file."""

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from onward.notify.contract import Hint, Listener
from onward.notify.local import LocalNotify

logger = logging.getLogger("onward.notify")


class Commits(Protocol):
    """The commits to a file, whosever they are."""

    def seen(self) -> Iterable[None]:
        """A turn for one or several of them; waits for the next in the thread that asks."""
        ...

    def stop(self) -> None:
        """Have no more turns; for other threads."""
        ...


class ChangeNotify(LocalNotify):
    """Hints within this process directly; what other processes commit is seen by a thread.

    The thread runs only while somebody listens.
    """

    sees_commits = True
    crosses_processes = True

    def __init__(self, watch: Callable[[], Commits]) -> None:
        super().__init__()
        self._watch = watch
        self._commits: Commits | None = None
        self._watcher: threading.Thread | None = None

    async def close(self) -> None:
        await super().close()
        if self._commits is not None and self._watcher is not None:
            self._commits.stop()
            watcher, self._commits, self._watcher = self._watcher, None, None
            await asyncio.to_thread(watcher.join)

    async def announce(self, hints: Sequence[Hint]) -> None:
        self._listeners.deliver(hints)

    def listen(
        self, *, types: Collection[str] = (), ended: Collection[str] = (), lost: bool = False, awaited: bool = False
    ) -> AbstractAsyncContextManager[Listener]:
        if self._watcher is None:
            self._commits, loop = self._watch(), asyncio.get_running_loop()
            self._watcher = threading.Thread(
                target=self._tell, args=(self._commits, loop), name="onward-changes", daemon=True
            )
            self._watcher.start()
        return super().listen(types=types, ended=ended, lost=lost, awaited=awaited)

    def _tell(self, commits: Commits, loop: asyncio.AbstractEventLoop) -> None:
        try:
            for _ in commits.seen():
                loop.call_soon_threadsafe(self._listeners.wake_all)
        except RuntimeError:
            if not loop.is_closed():
                raise
        except Exception:
            logger.exception("the change counter cannot be read; other processes are noticed by polling")

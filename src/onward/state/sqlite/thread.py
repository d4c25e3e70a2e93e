"""One thread for one connection: work goes in, and its result comes back to the event loop that asked."""

import asyncio
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Call(Generic[T]):
    """One piece of work and its outcome."""

    __slots__ = ("_error", "_future", "_loop", "_result", "_work", "finished", "is_abandoned")

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._future = self._loop.create_future()
        self._result: T
        self._error: BaseException | None = None
        self.finished = False
        self.is_abandoned = False
        """Set by the loop when nobody waits any more; work that can still be given up looks here."""

    def run(self) -> None:
        """In the thread: do it and tell the loop."""
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
            self._error = error
        try:  # noqa: SIM105 - suppress() is slower, and this is on every statement's way
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            pass  # the loop was closed: nobody is left to be told

    def _deliver(self) -> None:
        self.finished = True
        if not self._future.done():
            self._future.set_result(None)

    async def outcome(self) -> T:
        """Wait until it is done, also when cancelled: what a connection is doing must be over before it is used again.

        Cancelled: the cancellation is raised afterwards, whatever came out.
        """
        cancelled: asyncio.CancelledError | None = None
        while not self.finished:
            try:
                await self._future
            except asyncio.CancelledError as error:
                cancelled, self.is_abandoned = error, True
                self._future = self._loop.create_future()
        if cancelled is not None:
            raise cancelled
        if self._error is not None:
            raise self._error
        return self._result


class ConnectionThread:
    """Runs calls one after another until it is stopped."""

    def __init__(self) -> None:
        self._inbox: SimpleQueue[Call[Any] | None] = SimpleQueue()
        self._call: Call[Any] | None = None
        # A daemon: a process that ends without closing its app must not hang.
        self._thread = Thread(target=self._work, name="onward-sqlite", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (call := self._inbox.get()) is not None:
            self._call = call
            call.run()
            self._call = None
            del call  # else the last result lives as long as the connection is idle

    def is_abandoned(self) -> bool:
        """In the thread: whether nobody waits any more for what it is doing."""
        return self._call is not None and self._call.is_abandoned

    def run(self, work: Callable[[], T]) -> Coroutine[Any, Any, T]:
        """Run `work` in the thread."""
        call = Call(work)
        self._inbox.put(call)
        return call.outcome()

    def stop(self) -> None:
        """End after what was asked before."""
        self._inbox.put(None)

"""Functions that block, in threads: whoever waits for one knows for certain when it has ended, and how."""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, TypeVar

from onward.define.called import YIELDS, is_unrun

T = TypeVar("T")


class Threads:
    """Threads for functions that block, and the way back to an event loop.

    To wake a thread for each function, and the event loop whenever one has ended, would cost more than all else that we
    do for a short one. So a thread that is awake goes on with what waits, and what has ended is told together.
    Invariant: while something waits, a thread is on its way to it; none has to wait for a function that blocks.
    """

    def __init__(self, most: int, *, name: str) -> None:
        """At most so many threads, which are made when they are needed."""
        self._threads = ThreadPoolExecutor(max_workers=most, thread_name_prefix=name)
        self._waiting: deque[tuple[Callable[[], object], Callable[[], object]]] = deque()
        self._is_coming = False
        """Whether a thread is on its way to what waits."""
        self._ended: deque[Callable[[], object]] = deque()
        self._is_told = False
        """Whether the event loop was told that something has ended, and has not looked yet."""
        self._is_closed = False

    def begin(self, run: Callable[[], object], then: Callable[[], object]) -> None:
        """Have the one called in a thread and then the other on the running event loop. Neither may raise."""
        if self._is_closed:
            raise RuntimeError("nothing more is begun: these threads were closed")
        self._loop = asyncio.get_running_loop()
        self._waiting.append(piece := (run, then))
        try:
            self._call_thread()
        except RuntimeError:  # there are no more threads to be had, nor will one of those there are come to it later
            try:
                self._waiting.remove(piece)
            except ValueError:
                return  # one just has
            raise

    def close(self, *, wait: bool = True) -> None:
        """Begin nothing more; what waits is still run. `wait` for all of it."""
        self._is_closed = True
        self._threads.shutdown(wait=wait)

    def _call_thread(self) -> None:
        if not self._is_coming:
            self._is_coming = True
            try:
                self._threads.submit(self._work)
            except RuntimeError:
                self._is_coming = False
                raise

    def _work(self) -> None:
        """In a thread, until nothing waits."""
        self._is_coming = False
        while self._waiting:
            try:
                run, then = self._waiting.popleft()
            except IndexError:  # another thread was faster
                break
            if self._waiting:
                with suppress(RuntimeError):  # closed, or there are no more threads to be had: this one does it all
                    self._call_thread()
            run()
            self._ended.append(then)
            if not self._is_told:
                self._is_told = True
                with suppress(RuntimeError):  # the event loop has ended without waiting
                    self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        """On the event loop."""
        self._is_told = False
        while self._ended:
            self._ended.popleft()()


class _Ended(Generic[T]):
    """How a function in a thread ended. Futures would take some exceptions, such as a cancellation, for their own."""

    result: T
    error: BaseException | None = None
    waiter: asyncio.Future[None] | None = None
    """Of whoever waits on the event loop."""
    is_over = False

    def come_to(self, function: Callable[..., T], *arguments: Any) -> None:
        try:
            self.result = function(*arguments)
        except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
            self.error = error

    def tell(self) -> None:
        """On the event loop."""
        self.is_over = True
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


async def in_thread(
    threads: Threads, function: Callable[..., T], *arguments: Any, leaves: Callable[[], bool] = lambda: False
) -> T:
    """What a function returns or raises, whatever that is, that runs in a thread with a copy of this context.

    It cannot be cancelled: it is waited for, unless `leaves`, asked when whoever waits is cancelled, says to leave it.
    """
    ended: _Ended[T] = _Ended()
    loop = asyncio.get_running_loop()
    threads.begin(partial(copy_context().run, ended.come_to, function, *arguments), ended.tell)
    while not ended.is_over:
        ended.waiter = loop.create_future()
        try:
            await ended.waiter
        except asyncio.CancelledError:
            if leaves():
                raise
    if ended.error is not None:
        raise ended.error
    return ended.result


async def call_handler(
    threads: Threads,
    handler: Callable[..., Any],
    *arguments: Any,
    is_async: bool,
    leaves: Callable[[], bool] = lambda: False,
) -> Any:
    """What a handler returns: a coroutine function on the event loop, all else in a thread.

    What comes from a thread is awaited here where it can be: a function around a coroutine function does not look like
    one. If the caller was cancelled meanwhile, a coroutine that has not begun never does.
    """
    if is_async:
        return await handler(*arguments)
    was_cancelled = False

    def note() -> bool:
        nonlocal was_cancelled
        was_cancelled = True
        return leaves()

    returned = await in_thread(threads, handler, *arguments, leaves=note)
    if is_unrun(returned):
        raise TypeError(YIELDS)
    if was_cancelled and inspect.iscoroutine(returned):
        returned.close()
        raise asyncio.CancelledError
    return await returned if inspect.isawaitable(returned) else returned

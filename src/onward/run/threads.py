"""Functions that block, in threads: whoever waits for one knows for certain when it has ended, and how."""

import asyncio
import inspect
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from threading import Lock
from typing import Any, Generic, TypeVar

from onward.define.called import YIELDS, is_unrun

T = TypeVar("T")
_LOOK = 0.01
"""Seconds between looks whether more threads are wanted, where some had to wait for others."""


class Threads:
    """Threads for functions that block, and the way back to an event loop.

    To wake a thread for each function, and the event loop whenever one has ended, would cost more than all else that we
    do for a short one. So a thread that is awake goes on with what waits, and what has ended is told together. Nor does
    it help to wake more where they wait for each other, as for the connections of a pool: one that had to wait goes to
    sleep, and comes back a little later to see.
    Invariant: while something waits, a thread is awake or on its way to it. It does not have to wait for a function
    that blocks: where nothing was begun for `_LOOK`, as many are woken as there may be.
    """

    def __init__(self, most: int, *, name: str) -> None:
        """At most so many threads, which are made when they are needed."""
        self._threads = ThreadPoolExecutor(max_workers=most, thread_name_prefix=name)
        self._waiting: deque[tuple[Callable[[], object], Callable[[], object]]] = deque()
        self._lock = Lock()
        """Around what the invariant speaks of."""
        self._awake = 0
        self._is_coming = False
        """Whether a thread is on its way to what waits."""
        self._most = self._wanted = most
        """How many there may be, and how many are to be awake: fewer after some had to wait for others."""
        self._begun_at = 0.0
        """When the last function was begun (monotonic)."""
        self._timer: asyncio.TimerHandle | None = None
        """Of the next look; there is one as long as fewer are wanted than there may be."""
        self._ended: deque[Callable[[], object]] = deque()
        self._is_told = False
        """Whether the event loop was told that something has ended, and has not looked yet."""
        self._is_closed = False

    def begin(self, run: Callable[[], object], then: Callable[[], object]) -> None:
        """Have the one called in a thread and then the other on the running event loop. Neither may raise.

        `run` returns True if it had to wait for others.
        """
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
        with self._lock:
            if self._is_coming or self._awake >= self._wanted < self._most:
                return
            self._is_coming = True
        try:
            self._threads.submit(self._work)
        except RuntimeError:
            self._is_coming = False
            raise

    def _work(self) -> None:
        """In a thread, until nothing waits or others are to do it."""
        with self._lock:
            self._is_coming = False
            self._awake += 1
        is_awake = True
        while is_awake:
            try:
                run, then = self._waiting.popleft()
            except IndexError:
                is_awake = not self._sleeps(if_others=False)
                continue
            if self._waiting:
                with suppress(RuntimeError):  # closed, or there are no more threads to be had: this one does it all
                    self._call_thread()
            self._begun_at = time.monotonic()
            had_to_wait = run() is True
            is_awake = not (had_to_wait and self._sleeps(if_others=True))
            self._ended.append(then)
            if not self._is_told:
                self._is_told = True
                with suppress(RuntimeError):  # the event loop has ended without waiting
                    self._loop.call_soon_threadsafe(self._tell)

    def _sleeps(self, *, if_others: bool) -> bool:
        """In a thread, to which nothing is left to do, or to `if_others` are awake to do it; whether that is so."""
        with self._lock:
            if self._waiting:
                if self._awake == 1 or not if_others:
                    return False
                self._wanted = self._awake - 1
            self._awake -= 1
            return True

    def _tell(self) -> None:
        """On the event loop."""
        self._is_told = False
        while self._ended:
            self._ended.popleft()()
        if self._wanted < self._most and self._timer is None:
            self._timer = self._loop.call_later(_LOOK, self._look)

    def _look(self) -> None:
        """On the event loop, while fewer threads are wanted than there may be."""
        self._timer = None
        is_stuck = time.monotonic() - self._begun_at > _LOOK
        with self._lock:
            self._wanted = self._wanted + 1 if self._waiting and not is_stuck else self._most
        if self._waiting:
            with suppress(RuntimeError):  # as where one thread calls another
                self._call_thread()
            if self._wanted < self._most:
                self._timer = self._loop.call_later(_LOOK, self._look)


class _Ended(Generic[T]):
    """How a function in a thread ended. Futures would take some exceptions, such as a cancellation, for their own."""

    result: T
    error: BaseException | None = None
    waiter: asyncio.Future[None] | None = None
    """Of whoever waits on the event loop."""
    is_over = False

    def __init__(self, had_to_wait: Callable[[], bool]) -> None:
        self._had_to_wait = had_to_wait

    def come_to(self, function: Callable[..., T], *arguments: Any) -> bool:
        try:
            self.result = function(*arguments)
        except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
            self.error = error
        return self._had_to_wait()

    def tell(self) -> None:
        """On the event loop."""
        self.is_over = True
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


async def in_thread(
    threads: Threads,
    function: Callable[..., T],
    *arguments: Any,
    leaves: Callable[[], bool] = lambda: False,
    had_to_wait: Callable[[], bool] = lambda: False,
) -> T:
    """What a function returns or raises, whatever that is, that runs in a thread with a copy of this context.

    It cannot be cancelled: it is waited for, unless `leaves`, asked when whoever waits is cancelled, says to leave it.
    `had_to_wait`, asked in the thread when it has ended: whether it had to wait for others who run here.
    """
    ended: _Ended[T] = _Ended(had_to_wait)
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

"""Functions that block, in threads: whoever waits for one knows for certain when it has ended, and how."""

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Generic, TypeVar

from onward.define.called import YIELDS, is_unrun

T = TypeVar("T")


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
    threads: Executor, function: Callable[..., T], *arguments: Any, leaves: Callable[[], bool] = lambda: False
) -> T:
    """What a function returns or raises, whatever that is, that runs in a thread with a copy of this context.

    It cannot be cancelled: it is waited for, unless `leaves`, asked when whoever waits is cancelled, says to leave it.
    """
    ended, loop, context = _Ended[T](), asyncio.get_running_loop(), copy_context()

    def tell(_: object) -> None:
        with suppress(RuntimeError):  # the event loop has ended without waiting
            loop.call_soon_threadsafe(ended.tell)

    threads.submit(context.run, ended.come_to, function, *arguments).add_done_callback(tell)
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
    threads: Executor,
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

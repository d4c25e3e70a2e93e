"""A look at a database that may be away, or silent: what comes of it is a value, and comes in time."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from onward.notify.contract import NotifyAdapter
from onward.state.driver import Connection, Driver, run_now

T = TypeVar("T")
Look: TypeAlias = Callable[[Connection], Awaitable[T]]
Hints: TypeAlias = Literal["up", "down", "local", "unknown"]
"""`local`: they stay in each process. `unknown`: nobody here listens."""
_ASKED_TO_STOP = 0.8
"""Of the time, after which the server is asked to end the look: where that waits for somebody's lock, it would wait on
for nobody when its connection is cut off.
"""
_CUT = 0.9
"""Of the time, after which a connection that does not answer is cut off: to give it back takes a moment."""
_HINTS = 2.0
"""Seconds that hints have to come up in."""


class Unreached(msgspec.Struct, frozen=True):
    """The database could not be looked at."""

    reason: str
    is_silent: bool = False
    """It let us in, and then did not answer: it is there, and something keeps it from looking."""


async def reach(driver: Driver, look: Look[T], *, seconds: float, is_open: bool) -> T | Unreached:
    """What a look gives. A driver that is not open is opened for it."""
    late, loop = _Late(seconds), asyncio.get_running_loop()
    ends = loop.time() + seconds * _CUT
    try:
        async with asyncio.timeout(seconds), _opened(driver, is_open), driver.connection() as connection:
            late.is_in = True
            timer = loop.call_at(ends, late.cut_off, connection)
            try:
                async with asyncio.timeout(seconds * _ASKED_TO_STOP):
                    return await look(connection)
            finally:
                timer.cancel()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        return late.reason(error)


def reach_now(driver: Driver, look: Look[T], *, seconds: float) -> T | Unreached:
    """The same with a sync driver. In a thread of its own: nothing else ends the wait for a server that never answers.

    That thread is left behind if it has not even connected by then; its client gives up by itself within seconds.
    """
    late, found = _Late(seconds), list[Any]()

    async def ask() -> T:
        async with driver.connection() as connection:
            late.is_in = True
            with _timed(seconds * _CUT, lambda: late.cut_off(connection)):
                return await look(connection)

    def work() -> None:
        try:
            found.append(run_now(ask()))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is told, or raised where it was asked for
            found.append(late.reason(error) if isinstance(error, Exception) else error)

    thread = threading.Thread(target=work, name="onward health", daemon=True)
    thread.start()
    thread.join(seconds)
    if not found:
        return late.reason(TimeoutError())
    if isinstance(found[0], BaseException):
        raise found[0]
    answer: T | Unreached = found[0]
    return answer


async def hints_of(notify: NotifyAdapter, *, is_open: bool) -> Hints:
    """Whether hints arrive. One that is not connected yet is, for the answer."""
    if not notify.crosses_processes:
        return "local"
    if is_open:
        return "up" if notify.is_up or await _announced(notify) else "down"
    async with asyncio.TaskGroup() as tasks:
        await notify.open(tasks)
        try:
            return "up" if await _announced(notify) else "down"
        finally:
            await notify.close()


async def _announced(notify: NotifyAdapter) -> bool:
    try:
        async with asyncio.timeout(_HINTS):
            await notify.announce([])
    except Exception:  # noqa: BLE001 - a hint may always be lost
        return False
    return notify.is_up


@asynccontextmanager
async def _opened(driver: Driver, is_open: bool) -> AsyncIterator[None]:
    if is_open:
        yield
        return
    try:
        await driver.open()
        yield
    finally:
        await driver.close()


@contextmanager
def _timed(seconds: float, act: Callable[[], object]) -> Iterator[None]:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _Late:
    """Remembers that an answer did not come in time, of which the client would only say that a connection was lost."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._is_cut = seconds, False
        self.is_in = False
        """Whether a connection was to be had."""

    def cut_off(self, connection: Connection) -> None:
        self._is_cut = True
        connection.cut_off()

    def reason(self, error: Exception) -> Unreached:
        if self._is_cut or isinstance(error, TimeoutError):
            return Unreached(f"no answer within {self._seconds:g} s", self.is_in)
        while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        return Unreached(" ".join(str(error).split())[:500] or type(error).__name__)

"""Tasks driven step by step, so that every wait is a point."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import onward
from sweep.points import TAP, Blow, under_test

_HOUSE = str(Path(onward.__file__).parent)
Victim = Callable[[Blow], None]
"""Does what a blow means to whoever is hit by it."""


class Stepped(Coroutine[Any, Any, Any]):
    """A coroutine that says of each of its waits where it is."""

    def __init__(self, inner: Any, victim: Victim) -> None:
        self._inner, self._victim = inner, victim
        self.__name__ = getattr(inner, "__name__", "coroutine")
        self.__qualname__ = getattr(inner, "__qualname__", "coroutine")

    def send(self, value: Any) -> Any:
        return self._pass(self._inner.send(value))

    def throw(self, *error: Any) -> Any:
        return self._pass(self._inner.throw(*error))

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield from self._inner.__await__())

    def _pass(self, waits_for: Any) -> Any:
        blow = TAP.suspension(where(self._inner))
        if blow in (Blow.CANCELLED_WAITING, Blow.STOPPED_WAITING):
            self._victim(blow)
        elif blow is Blow.CANCELLED_ANSWERED:
            if isinstance(waits_for, asyncio.Future):
                # Before the task's own: it is woken, and finds itself cancelled.
                waits_for.add_done_callback(lambda _: self._victim(blow))
            else:
                self._victim(blow)
        return waits_for


def where(coroutine: Any) -> str:
    """The innermost line of ours in which a coroutine waits, and what it waits in."""
    ours, innermost = "", ""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            code = frame.f_code
            innermost = code.co_name
            if code.co_filename.startswith(_HOUSE):
                ours = f"{code.co_filename.removeprefix(_HOUSE)[1:]}:{frame.f_lineno} {code.co_name}"
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return ours if ours.endswith(f" {innermost}") else f"{ours or 'elsewhere'} > {innermost}"


async def stepped(operation: Coroutine[Any, Any, Any], *, cancel_first: bool = False) -> Any:
    """Run an operation in a task of its own whose waits are points; cancelled if it is hit."""
    loop = asyncio.get_running_loop()
    token = under_test.set(True)
    task: asyncio.Task[Any] = asyncio.Task(Stepped(operation, lambda _: _cancel(task)), loop=loop)
    under_test.reset(token)
    if cancel_first:
        task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        if task.cancelled():
            raise Cancelled from None
        raise


class Cancelled(Exception):
    """The operation was cancelled, and said so."""


def _cancel(task: "asyncio.Task[Any]") -> None:
    task.cancel()


def all_tasks_stepped(victim: Victim) -> Callable[..., Any]:
    """A factory of tasks that makes every wait of those under test a point."""

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        if under_test.get():
            coroutine = Stepped(coroutine, victim)
        return asyncio.Task(coroutine, loop=loop, **options)

    return make

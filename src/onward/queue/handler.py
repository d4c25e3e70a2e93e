"""The user's function behind a queue worker, whatever its kind."""

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextvars import copy_context
from typing import Any, Generic, TypeVar, cast

import msgspec

from onward.define.called import YIELDS, called, is_unrun, yields
from onward.errors import QueueDataError
from onward.model import Progress
from onward.queue.checks import Arguments
from onward.queue.contract import TakenJob
from onward.queue.model import ActiveJob
from onward.queue.payload import Payload

T = TypeVar("T")
Reporter = Callable[[TakenJob, Progress], None]


class Left(Exception):
    """A handler in a thread was given up: the thread goes on by itself."""


class Handler(Generic[T]):
    """Calls `handler(data, job)`, or with a batch `handler([data, …], [job, …])`: a coroutine function on the event
    loop, all else in a thread. What it returns is awaited there, too, where it can be: a function around a coroutine
    function does not look like one.

    The annotation of its first parameter says what the data is decoded to; without one it stays plain JSON data.
    """

    def __init__(self, function: Callable[..., Any], queue_name: str, arguments: Arguments, *, batch: bool) -> None:
        arguments.function("handler", function)
        try:
            inspect.signature(function).bind(None, None)
        except (TypeError, ValueError):  # the latter for what is built in and does not say
            expected = "([data, …], [job, …])" if batch else "(data, job)"
            arguments.refuse("handler", f"a function of two parameters, {expected}", function)
        if yields(function):
            arguments.refuse_because(f"handler: {YIELDS}")
        self._function, self._is_async = function, inspect.iscoroutinefunction(called(function))
        self._payload = Payload[T](_data_type(function, batch), queue_name=queue_name)

    def read(self, jobs: Sequence[TakenJob], report: Reporter) -> "list[ActiveJob[T] | QueueDataError]":
        """The jobs as the handler gets them. One whose data does not fit fails, and trying again does not help."""
        return [self._read(job, report) for job in jobs]

    def _read(self, job: TakenJob, report: Reporter) -> "ActiveJob[T] | QueueDataError":
        try:
            decoded = self._payload.decoded(job)
        except QueueDataError as error:
            return error
        active = cast(ActiveJob[T], decoded)
        return msgspec.structs.replace(active, reporter=lambda progress: report(job, progress))

    async def __call__(
        self, data: object, job: object, threads: Executor, *, is_given_up: Callable[[], bool]
    ) -> object:
        """What it returns. A thread cannot be cancelled: it is waited for, unless it is given up."""
        if self._is_async:
            result: object = await self._function(data, job)
            return result
        result = await self._in_thread(data, job, threads, is_given_up=is_given_up)
        if is_unrun(result):
            raise TypeError(YIELDS)
        return await result if inspect.isawaitable(result) else result

    async def _in_thread(
        self, data: object, job: object, threads: Executor, *, is_given_up: Callable[[], bool]
    ) -> "object | Awaitable[object]":
        ended, cancellation = _Ended(), None
        context = copy_context()
        work = asyncio.get_running_loop().run_in_executor(
            threads, lambda: context.run(ended.come_to, self._function, data, job)
        )
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError as error:
                # A job that is given back must not still run here.
                if is_given_up():
                    raise Left from None
                cancellation = error
        if ended.error is not None:
            raise ended.error
        if cancellation is not None and inspect.iscoroutine(ended.result):
            ended.result.close()  # it was to be cancelled, and has not begun
            raise cancellation
        return ended.result


class _Ended:
    """How a function in a thread ended. Futures would take some exceptions, such as a cancellation, for their own."""

    result: object = None
    error: BaseException | None = None

    def come_to(self, function: Callable[..., object], data: object, job: object) -> None:
        try:
            self.result = function(data, job)
        except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
            self.error = error


def _data_type(function: Callable[..., Any], batch: bool) -> Any:
    first = next(iter(inspect.signature(function).parameters))
    try:
        hint = typing.get_type_hints(called(function)).get(first, Any)
    except (NameError, TypeError):  # a name only a type checker sees; what is not written in Python
        return Any
    if not batch:
        return hint
    inner = typing.get_args(hint)
    return inner[0] if len(inner) == 1 else Any

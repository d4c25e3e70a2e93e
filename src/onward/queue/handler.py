"""The user's function behind a queue worker, whatever its kind."""

import asyncio
import inspect
import typing
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextvars import copy_context
from typing import Any, Generic, TypeVar, cast

import msgspec

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
    loop, a plain one in a thread.

    The annotation of its first parameter says what the data is decoded to; without one it stays plain JSON data.
    """

    def __init__(self, function: Callable[..., Any], queue_name: str, arguments: Arguments, *, batch: bool) -> None:
        arguments.function("handler", function)
        try:
            inspect.signature(function).bind(None, None)
        except TypeError:
            expected = "([data, …], [job, …])" if batch else "(data, job)"
            arguments.refuse("handler", f"a function of two parameters, {expected}", function)
        self._function = function
        called = function if inspect.isroutine(function) else type(function).__call__
        self.is_async = inspect.iscoroutinefunction(called)
        self._payload = Payload[T](_data_type(called, batch), queue_name=queue_name)

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
        if self.is_async:
            result: object = await self._function(data, job)
            return result
        ended = _Ended()
        context = copy_context()
        work = asyncio.get_running_loop().run_in_executor(
            threads, lambda: context.run(ended.come_to, self._function, data, job)
        )
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError:
                # A job that is given back must not still run here.
                if is_given_up():
                    raise Left from None
        if ended.error is not None:
            raise ended.error
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
    parameters = [name for name in inspect.signature(function).parameters if name != "self"]
    try:
        hint = typing.get_type_hints(function).get(parameters[0], Any)
    except NameError:  # a name only a type checker sees
        return Any
    if not batch:
        return hint
    inner = typing.get_args(hint)
    return inner[0] if len(inner) == 1 else Any

"""The user's function behind a queue worker, whatever its kind."""

import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

import msgspec

from onward.define.called import YIELDS, called, yields
from onward.errors import QueueDataError
from onward.model import Progress
from onward.queue.checks import Arguments
from onward.queue.contract import TakenJob
from onward.queue.model import ActiveJob
from onward.queue.payload import Payload
from onward.run.threads import Threads, call_handler

T = TypeVar("T")
Reporter = Callable[[TakenJob, Progress], None]


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

    async def __call__(self, data: object, job: object, threads: Threads, *, is_given_up: Callable[[], bool]) -> object:
        """What it returns. A thread cannot be cancelled: it is waited for, unless it is given up."""
        given = (data, job)
        return await call_handler(threads, self._function, *given, is_async=self._is_async, leaves=is_given_up)


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

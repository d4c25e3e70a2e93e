"""The user's function behind a queue worker, whatever its kind."""

import asyncio
import inspect
import typing
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Generic, TypeVar

from onward.queue.checks import Arguments
from onward.queue.contract import TakenJob
from onward.queue.model import QueueJob
from onward.queue.payload import Payload

T = TypeVar("T")


class Handler(Generic[T]):
    """Calls `handler(data, job)`: a coroutine function on the event loop, a plain one in a thread.

    The annotation of its first parameter says what the data is decoded to; without one it stays plain JSON data.
    """

    def __init__(self, function: Callable[..., Any], queue_name: str, arguments: Arguments) -> None:
        arguments.function("handler", function)
        try:
            inspect.signature(function).bind(None, None)
        except TypeError:
            arguments.refuse("handler", "a function of two parameters, (data, job)", function)
        self._function = function
        called = function if inspect.isroutine(function) else type(function).__call__
        self.is_async = inspect.iscoroutinefunction(called)
        self._payload = Payload[T](_data_type(called), queue_name=queue_name)

    async def __call__(self, job: TakenJob, threads: Executor) -> object:
        """Its result; data of the wrong shape is an error like any other, and trying again does not help."""
        active = self._payload.decoded(job)
        if self.is_async:
            result: object = await self._function(active.data, active)
            return result
        return await _in_thread(threads, self._function, active)


async def _in_thread(threads: Executor, function: Callable[..., Any], active: QueueJob[Any]) -> object:
    """A thread cannot be cancelled: it is waited for, since a job that is given back must not still run here."""
    work = asyncio.get_running_loop().run_in_executor(threads, function, active.data, active)
    while True:
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if work.cancelled():
                raise


def _data_type(function: Callable[..., Any]) -> Any:
    parameters = [name for name in inspect.signature(function).parameters if name != "self"]
    try:
        return typing.get_type_hints(function).get(parameters[0], Any)
    except NameError:  # a name only a type checker sees
        return Any

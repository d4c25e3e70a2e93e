"""Many calls under way at once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from onward.queue.contract import StoredJob, TakenJob
from onward.queue.provider import Provider

I = TypeVar("I")  # noqa: E741 - an item
A = TypeVar("A")
_AT_A_TIME = 500


async def each(call: Callable[[I], Awaitable[A]], items: Sequence[I]) -> list[A]:
    """What the call answers for each of them, in their order, some hundred at a time; the first error ends it."""
    if len(items) == 1:
        return [await call(items[0])]
    answers: list[A] = []
    for first in range(0, len(items), _AT_A_TIME):
        try:
            async with asyncio.TaskGroup() as tasks:
                asking = [tasks.create_task(_run(call, item)) for item in items[first : first + _AT_A_TIME]]
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        answers += [task.result() for task in asking]
    return answers


async def _run(call: Callable[[I], Awaitable[A]], item: I) -> A:
    return await call(item)


async def add_each(provider: Provider, add: Callable[[I], Awaitable[StoredJob]], items: Sequence[I]) -> list[StoredJob]:
    """Add jobs one by one; where some were taken and others were not, each got its answer, and the error says which."""
    return await provider.add_in_parts(items, _AT_A_TIME, partial(each, partial(_answer, add)))


async def _answer(call: Callable[[I], Awaitable[A]], item: I) -> A | Exception:
    try:
        return await call(item)
    except Exception as error:  # noqa: BLE001 - the others are to be added all the same
        return error


async def one_by_one(take: Callable[[], Awaitable[TakenJob | None]], count: int) -> list[TakenJob]:
    """At most so many jobs of a backend that gives one at a time. Those that came before an error are not forgotten:
    the next call will say what is wrong."""
    taken: list[TakenJob] = []
    while len(taken) < count:
        try:
            job = await take()
        except Exception:
            if not taken:
                raise
            break
        if job is None:
            break
        taken.append(job)
    return taken

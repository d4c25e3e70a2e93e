"""What the tests of the suite use: adapters in pairs, listeners, and all that they hear of an announcement."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

from onward.notify.contract import Hint, HintKind, Listener, NotifyAdapter

Connect: TypeAlias = Callable[[], Awaitable[NotifyAdapter]]
LONG = 10.0
"""Seconds that are enough for anything that should happen at once, even on a busy machine."""
_QUIET = 0.1
_FENCE = "after everything else"


async def two(connect: Connect) -> tuple[NotifyAdapter, NotifyAdapter]:
    """The adapters of two processes; the same one twice where hints themselves do not cross processes."""
    first = await connect()
    carries = first.crosses_processes and not first.sees_commits
    return first, await connect() if carries else first


def listen(
    notify: NotifyAdapter,
    *,
    types: Collection[str] = (),
    ended: Collection[str] = (),
    lost: bool = False,
    awaited: bool = False,
) -> AbstractAsyncContextManager[Listener]:
    """A listener for `hear`."""
    return notify.listen(types=types, ended=[*ended, _FENCE], lost=lost, awaited=awaited)


async def hear(listeners: Sequence[Listener], sender: NotifyAdapter, *rounds: Sequence[Hint]) -> list[list[Hint]]:
    """Announce while they all wait; what each of them heard until it was quiet again."""
    async with asyncio.TaskGroup() as tasks:
        hearing = [tasks.create_task(_collect(listener)) for listener in listeners]
        for _ in range(5):
            await asyncio.sleep(0)  # until each of them waits
        for hints in [*rounds, [Hint(HintKind.ENDED, _FENCE)]]:
            await sender.announce(hints)
    return [one.result() for one in hearing]


async def _collect(listener: Listener) -> list[Hint]:
    heard: list[Hint] = []
    fence = Hint(HintKind.ENDED, _FENCE)
    async with asyncio.timeout(LONG):
        while fence not in heard:
            heard.extend(await listener.wait(LONG))
    while hints := await listener.wait(_QUIET):
        heard.extend(hints)
    # That something may have changed can be said at any time, say when a connection was made.
    return [hint for hint in heard if hint != fence and hint.kind is not HintKind.UNKNOWN]

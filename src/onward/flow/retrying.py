"""Asking Redis again: when, how often, and whether."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from onward.flow.server import is_transient

T = TypeVar("T")
_FIRST, _LONGEST = 0.05, 2.0
_PATIENCE = 2.0


class Pauses:
    """Seconds that double up to a bound, each a little random, so that workers do not all come back at once."""

    def __init__(self) -> None:
        self._count = 0

    def next(self) -> float:
        self._count += 1
        return min(_FIRST * 2.0 ** min(self._count - 1, 10), _LONGEST) * random.uniform(0.75, 1.25)


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """For callers of a flow: a connection that died while idle, or a restart, is not their business; an outage is.

    What is asked must be harmless to ask twice.
    """
    pauses, end = Pauses(), time.monotonic() + _PATIENCE
    while True:
        try:
            return await ask()
        except Exception as error:
            pause = pauses.next()
            if not is_transient(error) or time.monotonic() + pause > end:
                raise
            await asyncio.sleep(pause)

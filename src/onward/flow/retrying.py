"""Asking Redis again: when, how often, and whether."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from onward.errors import FlowUnavailable
from onward.flow.server import is_transient
from onward.pacing import Pacing
from onward.redis.connection import exceptions

T = TypeVar("T")
PATIENCE = 2.0
"""Seconds that callers of a flow wait for a Redis that comes back."""


def cancellations() -> int:
    """How often the current task has been told to end."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def heed_cancellation(*, before: int = 0) -> None:
    """The client of Redis may turn our cancellation into an error, or an answer, of its own: it still stands."""
    if cancellations() > before:
        raise asyncio.CancelledError


async def ask(flow: str, doing: str, question: Callable[[], Awaitable[T]], *, patience: float = PATIENCE) -> T:
    """For callers of a flow: a connection that died while idle, or a restart, is not their business; an outage is.

    What is asked must be harmless to ask twice, or have no patience. What the client of Redis raises becomes a
    FlowUnavailable.
    """
    pacing, end, before = Pacing(), time.monotonic() + patience, cancellations()
    while True:
        try:
            return await question()
        except (exceptions.RedisError, OSError) as error:
            heed_cancellation(before=before)
            pause = next(pacing)
            if not is_transient(error) or time.monotonic() + pause > end:
                raise FlowUnavailable(flow, doing=doing, retryable=is_transient(error), cause=error) from error
            await asyncio.sleep(pause)

"""How long to wait, before the next try or for what may happen sooner."""

import asyncio
import random

_MOST_DOUBLINGS = 60
"""More would no longer be a number, and is longer than anybody waits."""


def pause_after(
    tries: int, shortest: float = 0.05, longest: float = 2.0, *, factor: float = 2.0, jitter: float = 0.25
) -> float:
    """Seconds to wait after so many tries in a row: each pause `factor` times the one before, up to the longest, and
    a little off, so that many do not come together.

    >>> [pause_after(tries, 1.0, 4.0, jitter=0) for tries in (1, 2, 3, 4)]
    [1.0, 2.0, 4.0, 4.0]
    """
    pause = min(shortest * factor ** min(tries - 1, _MOST_DOUBLINGS), longest)
    return pause * random.uniform(1 - jitter, 1 + jitter)


async def happens(event: asyncio.Event, *, within: float | None) -> bool:
    """Wait for it, for so many seconds; whether it has happened."""
    try:
        async with asyncio.timeout(within):
            return await event.wait()
    except TimeoutError:
        return False


class Pacing:
    """The pauses of one loop, by `next(pacing)`; they begin anew with `reset()`, when a try has succeeded.

    >>> pacing = Pacing(1.0, 4.0, factor=3.0, jitter=0)
    >>> next(pacing), next(pacing), next(pacing), pacing.reset(), next(pacing)
    (1.0, 3.0, 4.0, None, 1.0)
    """

    def __init__(
        self, shortest: float = 0.05, longest: float = 2.0, *, factor: float = 2.0, jitter: float = 0.25
    ) -> None:
        self._shortest, self._longest, self._factor, self._jitter = shortest, longest, factor, jitter
        self._tries = 0

    def __next__(self) -> float:
        self._tries += 1
        return pause_after(self._tries, self._shortest, self._longest, factor=self._factor, jitter=self._jitter)

    def reset(self) -> None:
        self._tries = 0

"""How long to wait before the next try."""

import random
from collections.abc import Iterator


def backoff(shortest: float, longest: float) -> Iterator[float]:
    """Seconds, doubled from one to the next up to the longest, each a little off so that many do not come together.

    >>> pauses = backoff(1.0, 4.0)
    >>> [round(next(pauses) / expected, 1) in (0.8, 0.9, 1.0, 1.1, 1.2) for expected in (1, 2, 4, 4)]
    [True, True, True, True]
    """
    pause = shortest
    while True:
        yield pause * random.uniform(0.75, 1.25)
        pause = min(pause * 2, longest)

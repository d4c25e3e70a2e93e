"""How long to wait before Redis is asked again."""

import random

_FIRST, _LONGEST = 0.05, 2.0


class Pauses:
    """Seconds that double up to a bound, each a little random, so that workers do not all come back at once."""

    def __init__(self) -> None:
        self._count = 0

    def next(self) -> float:
        self._count += 1
        return min(_FIRST * 2.0 ** min(self._count - 1, 10), _LONGEST) * random.uniform(0.75, 1.25)

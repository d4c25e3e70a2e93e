"""Jobs that a take passed over because somebody had locked them: nobody tells when a lock ends without a change."""

import math
import time
from collections.abc import Awaitable, Callable

_FIRST, _LONGEST = 0.05, 1.0


class Leftovers:
    """Says when to take again after a take that brought too few: soon at first, as long as there is something left."""

    def __init__(self, are_there: Callable[[], Awaitable[bool]]) -> None:
        self._are_there = are_there
        self._pause = _FIRST
        self.next_look = math.inf

    def took_enough(self) -> None:
        """A take brought what was to be expected."""
        self._pause, self.next_look = _FIRST, math.inf

    def took_too_few(self) -> None:
        """A take brought less: somebody else may have been faster, or have locked the rest."""
        self.next_look = time.monotonic() + self._pause

    async def look(self) -> bool:
        """Whether it is time to take again."""
        if time.monotonic() < self.next_look:
            return False
        if not await self._are_there():
            self.took_enough()
            return False
        self.next_look, self._pause = math.inf, min(self._pause * 2, _LONGEST)
        return True

"""What a take has seen in line behind the jobs it brought."""

from collections.abc import Sequence
from datetime import datetime

from onward.model import JobId

_TAKES_AHEAD = 8
"""For how many takes one looks at many types, where the next ones find what it saw."""
_FEW_OF_OTHERS = 50
"""So many may always be passed over: that takes less time than a look."""
_MOST_IN_VAIN = 6


class NextInLine:
    """The jobs that come next, as far as a take of many types has looked: all of one rank, in order. The takes after it
    claim these, and need not look at every type again.

    Others take them too. If they take much more than this one does it was in vain to look so far, and for some takes it
    is not done again: twice as many each time.

    >>> line = NextInLine()
    >>> line.saw(["b", "c", "d"], rank=0, until=datetime(2030, 1, 1), limit=1)
    >>> line.to_try(1)
    ['b', 'c']
    >>> line.tried(["b", "c"], last="b", limit=1)
    >>> line.to_try(1)
    ['c', 'd']
    """

    def __init__(self) -> None:
        self._ids: Sequence[JobId] = ()
        self.rank = 0
        self.until: datetime | None = None
        """When the last of them was scheduled."""
        self._others = 0
        """How many of them others take meanwhile."""
        self._in_vain = self._rests = 0

    def forget(self) -> None:
        """Of what was seen is not known any more whether it comes next."""
        self._ids = ()

    @property
    def takes_ahead(self) -> int:
        """For how many takes it is worth while to look."""
        return 1 if self._rests else _TAKES_AHEAD

    def saw(self, ids: Sequence[JobId], *, rank: int, until: datetime, limit: int) -> None:
        """A take of at most `limit` jobs has looked, and seen these behind those it brought."""
        if self._rests:
            self._rests -= 1
        elif len(ids) >= limit + self._others:
            self._ids, self.rank, self.until = ids, rank, until
        else:
            self._others //= 2
            self._rest()

    def to_try(self, limit: int) -> Sequence[JobId]:
        """Those among which a take should find as many as that; none, if they are too few."""
        needed, ids = limit + self._others, self._ids
        if len(ids) < needed:
            self._ids = ()
        return ids[: 2 * needed] if self._ids else ()

    def tried(self, ids: Sequence[JobId], *, last: JobId | None, limit: int) -> None:
        """Of these it has claimed `limit`, up to the last; None: too few were left."""
        place = len(ids) if last is None else ids.index(last) + 1
        self._ids, self._others = self._ids[place:], place - limit
        if last is None or self._others > 2 * limit + _FEW_OF_OTHERS:
            self._ids = ()
            self._rest()
        else:
            self._in_vain = 0

    def _rest(self) -> None:
        self._in_vain = min(self._in_vain + 1, _MOST_IN_VAIN)
        self._rests = 1 << self._in_vain

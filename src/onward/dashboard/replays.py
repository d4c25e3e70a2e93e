"""Groups of chains that were retried here, so that one can see what has come of them. Known to this process only."""

import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from onward.model import ChainId

_MOST_KEPT = 100


@dataclass(slots=True, kw_only=True)
class Replay:
    """Chains that were retried together."""

    id: str
    words: str
    """Which they are."""
    by: str
    at: datetime
    chain_ids: Sequence[ChainId]
    done: int = 0
    """How many have been seen to, so far."""
    refused: int = 0

    def advance(self, count: int) -> None:
        """So many more."""
        self.done += count


class Replays:
    """The last ones."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Replay] = OrderedDict()

    def begin(self, chain_ids: Sequence[ChainId], *, words: str, by: str) -> Replay:
        """Remember one."""
        replay = Replay(id=secrets.token_hex(8), words=words, by=by, at=datetime.now(UTC), chain_ids=chain_ids)
        self._kept[replay.id] = replay
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return replay

    def find(self, id: str) -> Replay | None:
        return self._kept.get(id)

    def newest_first(self) -> list[Replay]:
        return [*self._kept.values()][::-1]

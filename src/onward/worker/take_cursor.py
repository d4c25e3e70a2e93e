"""Where taking goes on: in a long backlog each take begins where the last one ended.

A job that was taken leaves a dead entry at the front of the index. As a rule the next take clears such entries away;
while any transaction holds a snapshot from before, it cannot, and reads them all, again and again: a backup or a long
report elsewhere would slow every worker down to a fraction. So a take seeks to where the last one ended.

Jobs may come up behind that point: they were committed late, or are due earlier than others that wait. So a take that
brings less than asked for is completed from the beginning, and one in so often begins there anyway.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from onward.model import WorkerId
from onward.state.command import Operation
from onward.state.contract import Position, StateAdapter, TakenJob, TypeClaim
from onward.state.driver import Connection

_LOOK_BACK_EVERY = 0.25
_LOOK_BACK_FOR_AT_MOST = 0.05
"""Of the time: where looking back takes long, it is done less often."""

_LAST_COUNTS = 0.25
_FEW = 8
"""Types of which it does not pay to know how many jobs to expect."""


@dataclass(slots=True)
class TakeCursor:
    """The claims of a worker, and how far it has come with each."""

    state: StateAdapter
    worker: WorkerId
    claims: Sequence[TypeClaim]
    ageing: float | None = None
    """Where it counts how long jobs have waited, there is no one position that was reached."""
    _reached: dict[tuple[str, int], Position] = field(default_factory=dict)
    _shares: dict[tuple[str, int], float] = field(default_factory=dict)
    """What the last full takes were made of, the very last counting most."""
    _look_back_at: float = 0.0
    _keyed: Sequence[tuple[TypeClaim, tuple[str, int]]] = field(init=False)

    def __post_init__(self) -> None:
        self._keyed = [(claim, (claim.type_name, claim.payload_version)) for claim in self.claims]

    async def take(self, connection: Connection, limit: int) -> Sequence[TakenJob]:
        """At most `limit` jobs; fewer only if there are no more."""
        ahead: Sequence[TakenJob] = ()
        behind: Sequence[TakenJob] = ()
        began = time.monotonic()
        if self._reached and began < self._look_back_at:
            ahead = await connection.run(self._ask(limit))
        if left := limit - len(ahead):
            self._reached.clear()
            began = time.monotonic()
            behind = await connection.run(self._ask(left))
            ended = time.monotonic()
            self._look_back_at = ended + max(_LOOK_BACK_EVERY, (ended - began) / _LOOK_BACK_FOR_AT_MOST)
        taken = [*ahead, *behind] if ahead and behind else ahead or behind
        if len(taken) < limit:
            self._reached.clear()
            self._shares.clear()
            return taken
        if len(self.claims) > _FEW:
            self._learn_shares(taken)
        if self.ageing is None:
            self._advance(behind)
            self._advance(ahead)
        return taken

    def _advance(self, taken: Sequence[TakenJob]) -> None:
        """To the last job of each type: the best come first."""
        last: dict[tuple[str, int], TakenJob] = {}
        for job in taken:
            last[job.type_name, job.payload_version] = job
        for key, job in last.items():
            position = Position(job.rank, job.scheduled_at)
            self._reached[key] = max(self._reached.get(key, position), position)

    def _learn_shares(self, taken: Sequence[TakenJob]) -> None:
        counts = Counter((job.type_name, job.payload_version) for job in taken)
        weight = _LAST_COUNTS if self._shares else 1.0
        for _, key in self._keyed:
            before = self._shares.get(key, 0.0)
            self._shares[key] = before + (counts[key] / len(taken) - before) * weight

    def _ask(self, limit: int) -> Operation[Sequence[TakenJob]]:
        """For jobs of the claims, from here on."""
        claims, reached, shares = self.claims, self._reached, self._shares
        if reached or shares:
            claims = [
                TypeClaim(
                    claim.type_name,
                    claim.payload_version,
                    claim.lease,
                    reached.get(key),
                    shares[key] * limit if shares else None,
                )
                for claim, key in self._keyed
            ]
        return self.state.take(types=claims, limit=limit, worker=self.worker, ageing=self.ageing)

"""The leases a worker holds, and when each has to be given up for lost."""

import time
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from onward.model import JobId


class Lease(msgspec.Struct):
    """One attempt's."""

    attempt: int
    seconds: float
    held_at: float
    """When it was handed to the guardian (monotonic, as are all times here)."""
    until: float
    """When others may take the job if no renewal succeeds."""
    place: int = -1
    """Where it stands in the table of a child process."""
    is_given_up: bool = False
    """Its handler has been told."""
    deadline: float = 0.0
    """When the attempt should have ended; 0.0: whenever it likes."""

    def renewed_at(self, begun: float) -> None:
        """A renewal of everything held at `begun` has succeeded."""
        if self.held_at <= begun:
            self.until = max(self.until, begun + self.seconds)


Leases: TypeAlias = dict[JobId, Lease]
"""Changed in the worker's loop, read in a guardian's thread: copy before iterating."""


def let_go(leases: Leases, job_id: JobId, attempt: int) -> Lease | None:
    """Take out the lease of an attempt, unless it is another attempt's by now."""
    lease = leases.get(job_id)
    if lease is None or lease.attempt != attempt:
        return None
    return leases.pop(job_id)


class Deadlines:
    """Says which leases have to be given up, early enough for their handlers to stop."""

    def __init__(self, leases: Leases, *, shortest: float) -> None:
        self._leases = leases
        self._margin = shortest / 6
        self.look_every = shortest / 12

    def overdue(self) -> Iterator[tuple[JobId, int]]:
        """Job and attempt of the leases that will run out within the margin; each once."""
        limit = time.monotonic() + self._margin
        for job_id, lease in self._leases.copy().items():
            if lease.until <= limit and not lease.is_given_up:
                lease.is_given_up = True
                yield job_id, lease.attempt

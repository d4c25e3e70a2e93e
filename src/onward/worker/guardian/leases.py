"""The leases a worker holds, and when each has to be given up for lost."""

import time
from collections.abc import Callable, Iterator

import msgspec

from onward.model import JobId
from onward.worker.guardian.table import TableFull, Writer


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


class Leases(dict[JobId, Lease]):
    """By job. Changed in the worker's loop, read in a guardian's thread: copy before iterating."""

    table: Writer | None = None
    """Where a child process sees them too; None: there is none, or it has been stopped."""

    def __init__(self, *, table_is_full: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._table_is_full = table_is_full

    def hold(self, job_id: JobId, attempt: int, seconds: float, since: float, limit: float | None = None) -> None:
        """Keep a lease that was taken at `since`.

        `limit`: seconds after which the worker will have ended the attempt and let it go, if its event loop turns.
        """
        deadline, place = 0.0 if limit is None else since + limit, -1
        if self.table is not None:
            replaced = self.get(job_id)
            if replaced is not None and replaced.place >= 0:
                self.table.clear(replaced.place)
            try:
                place = self.table.put(job_id.bytes, attempt, seconds, deadline)
            except TableFull:
                self._table_is_full()
        # Held since now and not since before: a renewal begun in between may not have seen it in the table.
        self[job_id] = Lease(attempt, seconds, time.monotonic(), since + seconds, place, deadline=deadline)

    def let_go(self, job_id: JobId, attempt: int) -> bool:
        """The attempt is settled, or lost; whether its lease was still held, and is not another attempt's by now."""
        lease = self.get(job_id)
        if lease is None or lease.attempt != attempt:
            return False
        del self[job_id]
        if lease.place >= 0 and self.table is not None:
            self.table.clear(lease.place)
        return True


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

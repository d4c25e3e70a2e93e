"""The jobs that are here, and until when."""

import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from onward.queue.contract import TakenJob


class Held:
    """Receipts and when the backend gives their messages to others, by our own clock.

    The backend itself cannot be asked. With an old receipt, some calls of SQS are refused and some are not; JetStream
    takes an acknowledgement for that of the latest delivery.
    """

    def __init__(self, visibility: timedelta) -> None:
        self._visibility = visibility.total_seconds()
        self._until: dict[str, float] = {}
        self.mourned: set[str] = set()
        """Those whose failure is among the dead letters already, while removing them here has yet to succeed."""

    def take(self, receipts: Iterable[str], came_at: float | None = None) -> None:
        """They have just come, or did at that time."""
        now = time.monotonic()
        # What was lost long ago, and not settled since, is forgotten.
        self._until = {receipt: until for receipt, until in self._until.items() if until > now - self._visibility}
        self.mourned &= self._until.keys()
        self._until |= dict.fromkeys(receipts, (now if came_at is None else came_at) + self._visibility)

    @property
    def receipts(self) -> Collection[str]:
        """Of all that came and were not settled."""
        return self._until.keys()

    def renewed(self, job: TakenJob, asked_at: float) -> None:
        self._until[_receipt(job)] = asked_at + self._visibility

    def drop(self, job: TakenJob) -> bool:
        """Whether it was known."""
        return self._until.pop(_receipt(job), None) is not None

    def knows(self, job: TakenJob) -> bool:
        """It came and was not settled, be it too late or not."""
        return _receipt(job) in self._until

    def has(self, job: TakenJob) -> bool:
        """It is here and nobody else can have it."""
        return self._until.get(_receipt(job), 0.0) > time.monotonic()

    @contextmanager
    def settling(self, job: TakenJob) -> Iterator[float]:
        """Out of our hands, unless that fails: then it may be tried again. Until when nobody else can have it."""
        until = self._until.pop(_receipt(job))
        try:
            yield until
        except BaseException:
            self._until[_receipt(job)] = until
            raise


def _receipt(job: TakenJob) -> str:
    return job.receipt_handle or ""

"""The jobs that are here, and until when."""

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from onward.queue.contract import TakenJob
from onward.queue.provider import Provider


class HeldReceipts:
    """Receipts and when the backend gives their messages to others, by our own clock.

    The backend itself cannot be asked. With an old receipt, some calls of SQS are refused and some are not; JetStream
    takes an acknowledgement for that of the latest delivery.
    """

    def __init__(self, provider: Provider, visibility: timedelta) -> None:
        self._provider, self._visibility = provider, visibility.total_seconds()
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

    def drop(self, job: TakenJob) -> bool:
        """Whether it was known."""
        return self._until.pop(_receipt(job), None) is not None

    def knows(self, job: TakenJob) -> bool:
        """It came and was not settled, be it too late or not."""
        return _receipt(job) in self._until

    def has(self, job: TakenJob) -> bool:
        """It is here and nobody else can have it."""
        return self._until.get(_receipt(job), 0.0) > time.monotonic()

    async def renew(
        self, jobs: Sequence[TakenJob], ask: Callable[[Sequence[TakenJob]], Awaitable[Sequence[bool | None]]]
    ) -> list[TakenJob]:
        """Those that are no longer ours. `ask` for more time: whether each has it, or `None` where nobody knows."""
        asked_at, ours = time.monotonic(), [job for job in jobs if self.has(job)]
        answers = {_receipt(job): answer for job, answer in zip(ours, await ask(ours), strict=True)}
        known = [job for job in jobs if self.knows(job)]  # else it was settled meanwhile
        self._until |= {_receipt(job): asked_at + self._visibility for job in known if answers.get(_receipt(job))}
        lost = [job for job in known if answers.get(_receipt(job)) is False or not self.has(job)]
        for job in lost:
            self.drop(job)
        return lost

    @contextmanager
    def settling(self, job: TakenJob) -> Iterator[float]:
        """Out of our hands, unless that fails: then it may be tried again. Until when nobody else can have it."""
        if job.receipt_handle is None:
            raise self._provider.not_found(job.id)
        if not self.has(job):
            raise self._provider.not_active(job.id)
        until = self._until.pop(_receipt(job))
        try:
            yield until
        except BaseException:
            self._until[_receipt(job)] = until
            raise


def _receipt(job: TakenJob) -> str:
    return job.receipt_handle or ""

"""The worker's event loop, as the threads of a guardian reach it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from onward.model import JobId, LossReason
from onward.observe.events import Event
from onward.observe.observer import Observers
from onward.worker.guardian.contract import Told


class WorkerLoop:
    """Brings news to the loop, where leases are held and let go: one thread changes them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        let_go: Callable[[JobId, int], bool],
        lost: Told,
        observers: Observers,
    ) -> None:
        self.loop = loop
        self._let_go, self._lost, self._observers = let_go, lost, observers

    def lost(self, job_id: JobId, attempt: int, reason: LossReason) -> None:
        """A job is no longer the attempt's, or should end. Said more than once, it is heard once."""
        self._call(self._hear, job_id, attempt, reason)

    def emit(self, event: Event) -> None:
        """Tell the observers."""
        self._call(self._observers.emit, event)

    def database_works(self, doing: str) -> None:
        """Tell the observers that something succeeded that may have failed before."""
        self._call(self._observers.database_works, doing)

    def _hear(self, job_id: JobId, attempt: int, reason: LossReason) -> None:
        # A job to be cancelled is still the attempt's, and its lease is needed until the handler has stopped.
        if reason is LossReason.CANCELLED or self._let_go(job_id, attempt):
            self._lost(job_id, attempt, reason)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # closed: nobody is left to be told
            self.loop.call_soon_threadsafe(function, *arguments)

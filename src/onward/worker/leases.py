"""The guardian: renews the leases of all running jobs with one statement, outside the event loop that runs handlers."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from onward.lifecycle.after_commit import describe
from onward.lifecycle.store import Store
from onward.model import JobId, LossReason, WorkerId
from onward.observe import events
from onward.observe.events import Event
from onward.state.contract import Held, Renewal
from onward.state.driver import Connection
from onward.worker.connections import Reserved

logger = logging.getLogger("onward.worker")
Told = Callable[[JobId, int, LossReason], None]


@dataclass(slots=True)
class _Lease:
    attempt: int
    seconds: float
    until: float
    """On this machine's monotonic clock: when others may take the job if no renewal succeeds."""


class Guardian:
    """A thread with an event loop and a connection of its own, so that a busy handler cannot make leases run out.

    Invariant: a handler is told to stop before its lease has run out on this machine's monotonic clock.
    """

    def __init__(self, store: Store, worker: WorkerId, *, shortest: float, lost: Told) -> None:
        self._store, self._worker = store, worker
        self._interval = shortest / 3
        self._lost = lost
        self._leases: dict[JobId, _Lease] = {}
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._home: asyncio.AbstractEventLoop | None = None
        self._away: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None

    # -- called from the worker's loop

    def hold(self, job_id: JobId, attempt: int, seconds: float, since: float) -> None:
        """Keep a lease that was taken at `since` (monotonic)."""
        self._leases[job_id] = _Lease(attempt, seconds, since + seconds)

    def let_go(self, job_id: JobId, attempt: int) -> None:
        """The attempt is settled."""
        lease = self._leases.get(job_id)
        if lease is not None and lease.attempt == attempt:
            del self._leases[job_id]

    def check_now(self) -> None:
        """Something may have happened to a job: renew at once."""
        if self._away is not None and self._wake is not None and not self._away.is_closed():
            self._away.call_soon_threadsafe(self._wake.set)

    def start(self) -> None:
        self._home = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name=f"onward-guardian-{self._worker}", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        self._stopping = True
        self.check_now()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    # -- in the thread

    def _run(self) -> None:
        try:
            asyncio.run(self._guard())
        except Exception:
            logger.exception("the guardian of worker %s has ended; leases are no longer renewed", self._worker)

    async def _guard(self) -> None:
        self._away, self._wake = asyncio.get_running_loop(), asyncio.Event()
        reserved = Reserved(self._store.driver)
        try:
            while not self._stopping:
                try:
                    async with asyncio.timeout(self._interval):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                self._wake.clear()
                await self._renew_all(reserved)
        finally:
            await reserved.close()

    async def _renew_all(self, reserved: Reserved) -> None:
        leases = dict(self._leases)
        if not leases:
            return
        held = [Held(job_id, lease.attempt, lease.seconds) for job_id, lease in leases.items()]
        begun = time.monotonic()

        async def renew(connection: Connection) -> list[Renewal]:
            return list(await self._store.state.renew(connection, worker=self._worker, held=held))

        try:
            # An answer after the first lease has run out would come too late to tell anybody.
            async with asyncio.timeout(max(self._interval, 0.5)):
                renewals = await reserved.run(renew)
        except Exception as error:  # noqa: BLE001 - one turn of a loop
            self._tell(events.StateError(doing="renew leases", error=describe(error)))
            self._give_up_expired(leases)
            return
        for renewal in renewals:
            if renewal.lost is not None:
                self._report(renewal.job_id, renewal.attempt, renewal.lost)
            else:
                lease = leases[renewal.job_id]
                lease.until = begun + lease.seconds
        if self._store.observers.wants(events.LeaseRenewed):
            self._tell(events.LeaseRenewed(worker=self._worker, count=len(renewals)))

    def _give_up_expired(self, leases: dict[JobId, _Lease]) -> None:
        for job_id, lease in leases.items():
            if time.monotonic() + self._interval >= lease.until:
                self._report(job_id, lease.attempt, LossReason.ERROR)

    def _report(self, job_id: JobId, attempt: int, reason: LossReason) -> None:
        if reason is not LossReason.CANCELLED:
            self.let_go(job_id, attempt)
        if self._home is not None and not self._home.is_closed():
            self._home.call_soon_threadsafe(self._lost, job_id, attempt, reason)

    def _tell(self, event: Event) -> None:
        if self._home is not None and not self._home.is_closed():
            self._home.call_soon_threadsafe(self._store.observers.emit, event)

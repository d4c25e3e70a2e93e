"""The janitor: puts due jobs where workers find them, and takes back those of workers that are gone."""

import asyncio
import time
from datetime import timedelta

from onward.flow import events
from onward.flow.events import Reporter
from onward.flow.retrying import Pauses
from onward.flow.store import Recovered, Store
from onward.lifecycle.after_commit import describe

_OPEN_AGAIN = 600.0
_SHORTEST = 0.01
"""Seconds between looks at what is delayed, however soon it is due."""


class Janitor:
    """Any number may run at once, in as many processes: what one has done, another finds done."""

    def __init__(self, flow: str, store: Store, reporter: Reporter, every: timedelta) -> None:
        self._flow, self._store, self._reporter = flow, store, reporter
        self._every = every.total_seconds()
        self._stopped = asyncio.Event()
        self._next_recovery = 0.0
        self._next_open = time.monotonic() + _OPEN_AGAIN

    def stop(self) -> None:
        self._stopped.set()

    async def run(self) -> None:
        """Until stopped."""
        pauses = Pauses()
        while not self._stopped.is_set():
            try:
                pause = await self._round()
                pauses = Pauses()
            except Exception as error:  # noqa: BLE001 - one turn of a loop
                pause = pauses.next()
                self._reporter.tell(
                    events.RedisError(flow=self._flow, doing="janitor", error=describe(error), retry_in=pause)
                )
            try:
                async with asyncio.timeout(pause):
                    await self._stopped.wait()
            except TimeoutError:
                continue

    async def _round(self) -> float:
        """The seconds until the next one."""
        due = await self._store.promote()
        if time.monotonic() >= self._next_recovery:
            for recovered in await self._store.recover(patience=self._every):
                self._tell(recovered)
            self._next_recovery = time.monotonic() + self._every
        if time.monotonic() >= self._next_open:
            await self._store.open()
            self._next_open = time.monotonic() + _OPEN_AGAIN
        until_recovery = max(self._next_recovery - time.monotonic(), 0.0)
        # Jobs may be delayed by others meanwhile, and be due before what we know of.
        return max(min(self._every / 4, until_recovery, self._every if due is None else due), _SHORTEST)

    def _tell(self, recovered: Recovered) -> None:
        facts = {
            "flow": self._flow,
            "stage": recovered.stage,
            "job_id": recovered.job_id,
            "correlation_id": recovered.correlation_id,
            "worker": recovered.worker,
        }
        match recovered.what:
            case "timeout":
                self._reporter.tell(events.LockExpired(**facts, will_retry=recovered.then == "retried"))
            case "taken-back":
                self._reporter.tell(events.JobTakenBack(**facts))
            case "missing":
                self._reporter.tell(events.JobMissing(**facts))

"""The janitor: puts due jobs where workers find them, and takes back those of workers that are gone."""

import asyncio
import time
from datetime import timedelta

from onward.flow import events
from onward.flow.events import Reporter
from onward.flow.store import FlowStore, Recovered
from onward.lifecycle.effects import describe
from onward.pacing import Pacing, happens

_OPEN_AGAIN = 600.0
_SHORTEST = 0.01
"""Seconds between looks at what is due, however soon it is."""


class Janitor:
    """Any number may run at once, in as many processes: what one has done, another finds done."""

    def __init__(self, flow: str, store: FlowStore, reporter: Reporter, every: timedelta) -> None:
        self._flow, self._store, self._reporter = flow, store, reporter
        self._every = every.total_seconds()
        self._is_stopped = False
        self._news = asyncio.Event()
        self._next_look = 0.0
        self._next_recovery = 0.0
        self._next_open = time.monotonic() + _OPEN_AGAIN

    def stop(self) -> None:
        self._is_stopped = True
        self._news.set()

    def expect(self, seconds: float) -> None:
        """Something will be due then: be there."""
        moment = time.monotonic() + max(seconds, _SHORTEST)
        if moment < self._next_look:
            self._next_look = moment
            self._news.set()

    async def run(self) -> None:
        """Until stopped."""
        pacing = Pacing()
        while not self._is_stopped:
            self._news.clear()
            self._next_look = float("inf")
            try:
                pause = await self._round()
                pacing.reset()
            except Exception as error:  # noqa: BLE001 - one turn of a loop
                pause = next(pacing)
                self._reporter.tell(
                    events.RedisError(flow=self._flow, doing="janitor", error=describe(error), retry_in=pause)
                )
            self._next_look = min(self._next_look, time.monotonic() + pause)
            await self._until_next_look()

    async def _until_next_look(self) -> None:
        while not self._is_stopped and (left := self._next_look - time.monotonic()) > 0:
            self._news.clear()
            if not await happens(self._news, within=left):
                return

    async def _round(self) -> float:
        """The seconds until the next one."""
        due = await self._store.promote()
        if time.monotonic() >= self._next_recovery:
            recovered, ended = await self._store.recover(patience=self._every)
            for one in recovered:
                self._tell(one)
            self._reporter.tell_ended(self._flow, ended)
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
            case "stalled":
                event = events.LockExpired(**facts, stalls=recovered.stalls, will_retry=bool(recovered.runs_again))
                self._reporter.tell(event)
            case "taken-back":
                self._reporter.tell(events.JobTakenBack(**facts))
            case "missing":
                self._reporter.tell(events.JobMissing(**facts))

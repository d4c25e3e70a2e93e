"""A worker's hold on a job: ends its handler when the lock has run out, and renews it where that is asked for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from onward.errors import FlowLockLost
from onward.flow.run import Run
from onward.flow.server import is_transient
from onward.flow.stage import Stage
from onward.flow.store import Lease, Store


class Lock:
    """The lock in Redis lives for the `timeout` of its stage, from when it was set or last renewed."""

    def __init__(self, flow: str, stage: Stage, store: Store, lease: Lease) -> None:
        self._flow, self._stage, self._store, self._lease = flow, stage, store, lease
        self._seconds = stage.timeout.total_seconds()
        self._limit: asyncio.Timeout | None = None
        self.is_lost = False
        """Known to be lost: the handler was ended because of it."""
        self.run = Run(
            flow=flow,
            stage=stage.name,
            job_id=lease.job_id,
            correlation_id=lease.correlation_id,
            worker=lease.worker,
            retries=lease.retries,
            _renew=self.renew,
        )

    @asynccontextmanager
    async def held(self, tasks: asyncio.TaskGroup) -> AsyncIterator[None]:
        """Around a handler. One in a thread is not ended: its result is dropped when it comes."""
        keeper = tasks.create_task(self._keep()) if self._stage.renew else None
        try:
            async with asyncio.timeout(self._seconds) as self._limit:
                yield
        finally:
            self.is_lost = self._limit is not None and self._limit.expired()
            self._limit = None
            if keeper is not None:
                keeper.cancel()

    async def renew(self) -> None:
        """From now on, for another timeout; raises FlowLockLost."""
        asked_at = asyncio.get_running_loop().time()
        if not await self._store.renew(self._lease, self._stage):
            raise FlowLockLost(self._flow, self._lease.job_id, stage=self._stage.name)
        self._ends_at(asked_at + self._seconds)

    async def _keep(self) -> None:
        """Renew three times in each timeout; while Redis does not answer, the time runs on."""
        while True:
            await asyncio.sleep(self._seconds / 3)
            try:
                await self.renew()
            except FlowLockLost:
                self._ends_at(asyncio.get_running_loop().time())
                return
            except Exception as error:
                if not is_transient(error):
                    raise

    def _ends_at(self, moment: float) -> None:
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(moment)

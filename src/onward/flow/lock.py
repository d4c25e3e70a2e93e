"""A worker's hold on a job: renewed for as long as it works on it, and known to be lost when that fails."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from onward.errors import FlowLockLost
from onward.flow.retrying import ask
from onward.flow.run import Run
from onward.flow.stage import Stage
from onward.flow.store import FlowStore, StageLease
from onward.pacing import Pacing


class Lock:
    """The lock in Redis lives for the `lock` of its stage, from when it was set or last renewed.

    It also has the time that the handler is given: handlers may ask for more, and that renews both.
    """

    def __init__(
        self, flow: str, stage: Stage, store: FlowStore, lease: StageLease, trouble: Callable[[Exception, float], None]
    ) -> None:
        """`trouble` is told of renewals that failed, and when they are tried again."""
        self._flow, self._stage, self._store, self._lease, self._trouble = flow, stage, store, lease, trouble
        self._loop = asyncio.get_running_loop()
        self._seconds = stage.lock.total_seconds()
        self.ends_at = lease.locked_at + self._seconds
        self.lost: asyncio.Future[None] = self._loop.create_future()
        """Done when it has run out, or is known to be gone."""
        self._time_is_up_at = self._limit()
        self._is_needed = True
        self._keeper: asyncio.Task[None] | None = None
        self.run = Run(
            flow=flow,
            stage=stage.name,
            job_id=lease.job_id,
            correlation_id=lease.correlation_id,
            worker=lease.worker,
            retries=lease.retries,
            stalls=lease.stalls,
            _renew=self._renew_for_handler,
        )

    @property
    def time_left(self) -> float | None:
        """The seconds that the handler still has; None when there is no limit."""
        return None if self._time_is_up_at is None else max(self._time_is_up_at - self._loop.time(), 0.0)

    @asynccontextmanager
    async def kept(self, tasks: asyncio.TaskGroup) -> AsyncIterator[None]:
        """Renewed three times in each life. Most jobs are done before the first time: no task is made for those."""
        timer = self._loop.call_later(self._seconds / 3, self._start_keeping, tasks)
        try:
            yield
        finally:
            timer.cancel()
            self._is_needed = False
            if self._keeper is not None:
                self._keeper.cancel()

    def _start_keeping(self, tasks: asyncio.TaskGroup) -> None:
        self._keeper = tasks.create_task(self._keep())

    async def _keep(self) -> None:
        """While Redis does not answer, the time runs on.

        It looks whether it is needed, since the client of Redis may turn a cancellation into an answer.
        """
        pacing = Pacing()
        while self._is_needed and not self.lost.done():
            pause = self._seconds / 3
            try:
                async with asyncio.timeout(max(self.ends_at - self._loop.time(), 0.0)):
                    await self._renew()
                pacing.reset()
            except FlowLockLost:
                self._lose()
            except Exception as error:  # noqa: BLE001 - whatever it is, the lock has its end
                pause = min(pause, next(pacing))
                self._trouble(error, pause)
            if self._loop.time() >= self.ends_at:
                self._lose()
            elif self._is_needed:
                await asyncio.sleep(pause)

    async def _renew(self) -> None:
        asked_at = self._loop.time()
        if not await self._store.renew(self._lease, self._stage):
            raise FlowLockLost(self._flow, self._lease.job_id, stage=self._stage.name)
        self.ends_at = asked_at + self._seconds

    async def _renew_for_handler(self) -> None:
        await ask(self._flow, "renew a lock", self._renew)
        self._time_is_up_at = self._limit()

    def _limit(self) -> float | None:
        return None if self._stage.timeout is None else self._loop.time() + self._stage.timeout.total_seconds()

    def _lose(self) -> None:
        if not self.lost.done():
            self.lost.set_result(None)

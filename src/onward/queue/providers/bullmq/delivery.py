"""Push: jobs are delivered to a handler as they come, and BullMQ's lock manager holds those that run."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from onward.errors import QueueError, QueueErrorCode, QueueRuntimeError
from onward.queue.contract import GivenBack, Provider, PushHandler, TakenJob
from onward.queue.providers.bullmq.bell import end
from onward.queue.providers.bullmq.taker import Taker
from onward.slots.loop import SlotLoop

_ERROR_BACKOFF = 1.0
_RENEWAL = "could not renew lock for job "


class Delivery:
    """A delivery under way, as `process` returns it."""

    def __init__(self, jobs: "Jobs", *, concurrency: int) -> None:
        self._loop = jobs.loop = SlotLoop(jobs, concurrency=concurrency)
        # Owned by this delivery: `wait` waits for it, and the provider ends it when it closes.
        self._task = asyncio.get_running_loop().create_task(jobs.run(), name=f"onward delivery {jobs.queue_name}")

    def set_concurrency(self, concurrency: int) -> None:
        self._loop.set_concurrency(concurrency)

    async def stop(self) -> None:
        self._loop.stop()

    async def wait(self) -> None:
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()

    @property
    def is_over(self) -> bool:
        return self._task.done()

    async def abandon(self) -> None:
        """The provider closes: what still runs is left to the recovery of stalled jobs."""
        self._loop.stop()
        await end(self._task)


class _Lost(Exception):
    """The lock of a job that runs here is gone."""


class Jobs:
    """The source of a delivery's slot loop."""

    loop: SlotLoop[TakenJob]

    def __init__(
        self,
        provider: Provider,
        taker: Taker,
        handler: PushHandler,
        *,
        on_error: Callable[[QueueError], None],
        on_settled: Callable[[TakenJob, timedelta | None], None] | None,
    ) -> None:
        self.queue_name = provider.queue_name
        self._provider, self._taker, self._handler = provider, taker, handler
        self._on_error, self._on_settled = on_error, on_settled
        self._running: dict[str, asyncio.Task[Any]] = {}
        self._lost: set[str] = set()
        self._over = asyncio.Event()
        taker.worker.on("error", self._report)
        taker.worker.on("lockRenewalFailed", self._lose)

    async def run(self) -> None:
        """Until the loop is stopped and the last job has ended."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._taker.worker.lockManager.start()
                tasks.create_task(self._check_stalled())
                try:
                    await self.loop.run()
                finally:
                    self._over.set()
        finally:
            await self._taker.worker.lockManager.close()
            await self._taker.close()

    async def _check_stalled(self) -> None:
        while not self._over.is_set():
            await self._taker.worker.runStalledJobsCheck()
            try:
                async with asyncio.timeout(self._taker.worker.opts["stalledInterval"] / 1000):
                    await self._over.wait()
            except TimeoutError:
                pass  # time to look

    # -- what the loop asks for

    async def fill(self, free: int) -> Sequence[TakenJob]:
        return await self._taker.take(free)

    async def hand_back(self, work: Sequence[TakenJob]) -> None:
        await self._provider.release(work)

    async def wait(self) -> None:
        if self.loop.free == 0:
            await self._taker.bell.sleep(None)
        else:
            await self._taker.wait()

    def wake(self) -> None:
        self._taker.bell.wake()

    async def recover(self, error: Exception) -> None:
        self._report(error)
        clock = asyncio.get_running_loop()
        until = clock.time() + _ERROR_BACKOFF
        while not self.loop.is_stopping and clock.time() < until:
            await self._taker.bell.sleep(until - clock.time())

    async def run_piece(self, piece: TakenJob) -> None:
        try:
            await self._deliver(piece)
        except QueueError as error:
            self._on_error(error)

    async def _deliver(self, job: TakenJob) -> None:
        retry_delay = None
        try:
            with self._held(job):
                result: Any = await self._handler(job)
        except GivenBack:
            await self._provider.release([job])
            return
        except _Lost:
            raise self._provider.not_active(job.id) from None
        except Exception as error:  # noqa: BLE001 - the handler's, whatever it is: the provider gets it
            retry_delay = await self._provider.nack(job, error)
        else:
            await self._provider.ack(job, result)
        self.wake()  # no marker comes when a limit for the whole queue has room again
        if self._on_settled is not None:
            self._on_settled(job, retry_delay)

    # -- locks

    @contextmanager
    def _held(self, job: TakenJob) -> Iterator[None]:
        """BullMQ renews its lock; when that fails, somebody else may have the job and the handler is cancelled."""
        locks, task = self._taker.worker.lockManager, asyncio.current_task()
        assert task is not None
        self._running[job.id] = task
        locks.track_job(job.id, job.lock_token, round(time.time() * 1000))
        try:
            yield
        except asyncio.CancelledError:
            if job.id not in self._lost:
                raise
            task.uncancel()
            raise _Lost from None
        finally:
            self._lost.discard(job.id)
            del self._running[job.id]
            locks.untrack_job(job.id)

    def _lose(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            task = self._running.get(job_id)
            if task is not None and job_id not in self._lost:
                self._lost.add(job_id)
                task.cancel()

    def _report(self, error: Exception, *_: object) -> None:
        if str(error).startswith(_RENEWAL):
            return  # `_lose` has been told
        if not isinstance(error, QueueError):
            error = QueueRuntimeError(
                f"bullmq could not deliver jobs: {type(error).__name__}: {error}",
                code=QueueErrorCode.CONNECTION,
                queue_name=self.queue_name,
                retryable=True,
                cause=error,
            )
        self._on_error(error)

"""A flow worker: one stage, one job at a time, on the loop that all workers share."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Literal, TypeVar

from onward.errors import FlowPayloadError, Permanent
from onward.flow import events
from onward.flow.events import Reporter
from onward.flow.handling import Handling
from onward.flow.lock import Lock
from onward.flow.retrying import Pauses
from onward.flow.server import is_transient
from onward.flow.stage import Stage
from onward.flow.store import Lease, Outcome, Store
from onward.lifecycle.after_commit import describe
from onward.slots.loop import SlotLoop

T = TypeVar("T")
Status = Literal["ready", "running", "stopping", "stopped"]
_INSIST_WHILE_STOPPING = 10.0
_RELEASE_WITHIN = 2.0


class FlowWorker:
    """Takes, locks, runs, settles. `stop` lets the job in hand finish."""

    def __init__(
        self, flow: str, stage: Stage, store: Store, threads: Executor, reporter: Reporter, *, wait: timedelta
    ) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}-{stage.name}-{secrets.token_hex(4)}"
        self.stage = stage
        self._flow, self._store, self._threads, self._reporter = flow, store, threads, reporter
        self._handling = Handling(flow, stage)
        self._wait = wait.total_seconds()
        self._loop: SlotLoop[Lease] = SlotLoop(self, concurrency=1)
        self._status: Status = "ready"
        self._woken = asyncio.Event()
        self._pauses = Pauses()
        self._tasks = asyncio.TaskGroup()
        self._job: asyncio.Task[object] | None = None
        self._insist_until: float | None = None

    @property
    def status(self) -> Status:
        return self._status

    async def run(self) -> None:
        """Until stopped."""
        self._status = "running"
        self._reporter.tell(events.WorkerStarted(flow=self._flow, stage=self.stage.name, worker=self.id))
        try:
            async with self._tasks:
                await self._loop.run()
        finally:
            self._status = "stopped"
            self._reporter.tell(events.WorkerStopped(flow=self._flow, stage=self.stage.name, worker=self.id))

    def stop(self) -> None:
        """Take no more jobs; the one in hand finishes."""
        if self._status in ("ready", "running"):
            self._status = "stopping"
            self._insist_until = time.monotonic() + _INSIST_WHILE_STOPPING
            self._loop.stop()

    def give_back(self) -> None:
        """Cancel the handler, so that another worker can run the job; nothing is counted."""
        if self._job is not None:
            self._job.cancel()

    # -- the source of the slot loop

    async def fill(self, free: int) -> Sequence[Lease]:
        job_id = await self._store.take(self.stage, self._wait)
        self._pauses = Pauses()
        if job_id is None:
            return ()
        answer = await self._insist(
            "claim", lambda: self._store.claim(self.stage, self._handling.names, job_id, self.id)
        )
        if isinstance(answer, Lease):
            return (answer,)
        facts = self._facts(job_id, "")
        if answer == "limited":
            self._reporter.tell(events.JobLimited(**facts))
        elif answer == "missing":
            self._reporter.tell(events.JobMissing(**facts))
        return ()

    async def hand_back(self, work: Sequence[Lease]) -> None:
        for lease in work:
            await self._insist("release", partial(self._store.release, lease))

    async def wait(self) -> None:
        """For the slot; without a job, Redis does the waiting."""
        if self._loop.busy:
            await self._woken.wait()
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()

    async def recover(self, error: Exception) -> None:
        _heed_cancellation()
        pause = self._pauses.next()
        self._tell_redis_error("take", error, pause)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._woken.wait()

    # -- one job

    async def run_piece(self, piece: Lease) -> None:
        self._job = asyncio.current_task()
        try:
            await self._work_on(piece)
        except asyncio.CancelledError:
            with suppress(Exception):
                async with asyncio.timeout(_RELEASE_WITHIN):
                    await self._store.release(piece)
            raise
        except Exception as error:  # noqa: BLE001 - Redis refused: the janitor has the job when the lock expires
            self._tell_redis_error("settle", error, self.stage.timeout.total_seconds())
        finally:
            self._job = None

    async def _work_on(self, lease: Lease) -> None:
        facts = self._facts(lease.job_id, lease.correlation_id)
        self._reporter.tell(events.HandlerStarted(**facts, retries=lease.retries))
        lock = Lock(self._flow, self.stage, self._store, lease)
        try:
            async with lock.held(self._tasks):
                outcome = await self._handling.perform(lease, lock.run, self._threads)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - around the user's handler
            if isinstance(error, asyncio.CancelledError):
                _heed_cancellation()  # else it is the handler's own
            if lock.is_lost:
                self._reporter.tell(events.ResultDropped(**facts))
            else:
                await self._fail(lease, error)
        else:
            await self._complete(lease, outcome)

    async def _complete(self, lease: Lease, outcome: Outcome) -> None:
        facts = self._facts(lease.job_id, lease.correlation_id)
        settled = await self._insist("complete", lambda: self._store.complete(lease, outcome))
        if settled == "lost":
            self._reporter.tell(events.ResultDropped(**facts))
        else:
            count = len(outcome.children or ())
            goes_to = None if count else outcome.next
            self._reporter.tell(events.StageCompleted(**facts, next=goes_to, children=count))

    async def _fail(self, lease: Lease, error: BaseException) -> None:
        facts = self._facts(lease.job_id, lease.correlation_id)
        permanent = isinstance(error, (Permanent, FlowPayloadError))
        told = describe(error)
        message = told.message if permanent else f"{told.type}: {told.message}"
        settled = await self._insist("fail", lambda: self._store.fail(lease, message, permanent=permanent))
        if settled == "lost":
            self._reporter.tell(events.ResultDropped(**facts))
        else:
            will_retry = settled == "retried"
            self._reporter.tell(events.StageFailed(**facts, error=told, will_retry=will_retry))

    async def _insist(self, doing: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until Redis answers. What is asked may be asked twice: it changes nothing the second time."""
        pauses = Pauses()
        while True:
            try:
                return await ask()
            except Exception as error:
                _heed_cancellation()
                gives_up = self._insist_until is not None and time.monotonic() > self._insist_until
                if gives_up or not is_transient(error):
                    raise
                pause = pauses.next()
                self._tell_redis_error(doing, error, pause)
                await asyncio.sleep(pause)

    def _facts(self, job_id: str, correlation_id: str) -> dict[str, Any]:
        return {
            "flow": self._flow,
            "stage": self.stage.name,
            "job_id": job_id,
            "correlation_id": correlation_id,
            "worker": self.id,
        }

    def _tell_redis_error(self, doing: str, error: Exception, retry_in: float) -> None:
        self._reporter.tell(events.RedisError(flow=self._flow, doing=doing, error=describe(error), retry_in=retry_in))


def _heed_cancellation() -> None:
    """The client of Redis may turn our cancellation into an error, or an answer, of its own: it still stands."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError

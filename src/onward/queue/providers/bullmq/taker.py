"""Taking jobs with BullMQ's worker, waiting until there may be one, and telling it how they ended."""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from onward.errands import Errands
from onward.queue.contract import StoredJob, TakenJob, in_words, is_permanent
from onward.queue.model import ActiveJob, Keep, QueueJobStatus
from onward.queue.providers.bullmq.native import GIVE_BACK, ResponseError, UnrecoverableError, Worker
from onward.queue.providers.bullmq.translation import from_native, kept, retry_backoff
from onward.queue.providers.redis.connection import longest_block
from onward.queue.providers.together import one_by_one
from onward.redis.scripts import run

if TYPE_CHECKING:
    from redis.asyncio import Redis


_LEAST = 0.002
"""Seconds: Redis before 7.0.8 took less for ever."""


class Wakeup:
    """Sleeps until the marker comes or until it is woken; on a connection of its own, which may carry a name."""

    def __init__(self, client: "Redis", marker: str, *, name: str | None = None) -> None:
        self._client, self._marker, self._name = client, marker, name
        self._woken = asyncio.Event()
        self._errands = Errands()
        self._asking: asyncio.Task[None] | None = None
        """The question to Redis under way; one that outlives its wait is left, and answers the next one."""
        self._line: Any = None

    async def sleep(self, seconds: float | None) -> None:
        """Until woken, or that long."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass  # slept enough
        self._woken.clear()

    async def listen(self, seconds: float) -> None:
        """Until the marker comes, or woken, or that long."""
        asking = self._asking
        if asking is None:
            asking = self._asking = self._errands.begin(self._ask(max(seconds, _LEAST)))
            asking.add_done_callback(lambda _: self._woken.set())
        if not asking.done():
            await self.sleep(seconds)
        if asking.done():
            self._asking = None
            if not asking.cancelled():
                asking.result()

    def wake(self) -> None:
        """End the wait under way, or the next one."""
        self._woken.set()

    async def _ask(self, seconds: float) -> None:
        if self._line is None:
            line = self._client.client()
            await line.initialize()
            self._line = line
            await self._introduce()
        await self._line.bzpopmin(self._marker, seconds)

    async def _introduce(self) -> None:
        if self._name is None:
            return
        try:
            await self._line.client_setname(self._name)
        except ResponseError:
            return  # a server, or a user's rights, without it: only the number of workers is not known then
        self._line.connection.client_name = self._name  # and again whenever it reconnects

    async def close(self) -> None:
        asking, self._asking = self._asking, None
        if asking is not None:
            await end(asking)
        line, self._line = self._line, None
        if line is not None:
            # Back to the pool, closed and without its name.
            line.connection.client_name = None
            await line.connection.disconnect()
            await line.aclose()


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for it; again and again, because redis-py loses a cancellation while it connects."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.1)
    if not task.cancelled():
        task.exception()  # seen


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What BullMQ's workers are told."""

    prefix: str
    lock: timedelta
    stalled_interval: timedelta
    max_stalled: int
    keep_completed: Keep
    keep_failed: Keep

    @property
    def lock_milliseconds(self) -> int:
        return round(self.lock / timedelta(milliseconds=1))


class Taker:
    """One who takes jobs of one queue. BullMQ's worker does it, without its loop: that one cannot be given more
    concurrency while it is busy, stops renewing locks when the first of several jobs ends after `close`, fails jobs
    whose completion did not get through, and prints."""

    def __init__(
        self,
        queue_name: str,
        client: "Redis",
        settings: Settings,
        *,
        workers: str,
        on_ended: Callable[[StoredJob], object],
    ) -> None:
        self._queue_name, self._client, self._settings = queue_name, client, settings
        self._on_ended = on_ended
        self.worker = Worker(
            queue_name,
            None,
            {
                "connection": client,
                "prefix": settings.prefix,
                "skipVersionCheck": True,
                "lockDuration": settings.lock_milliseconds,
                "stalledInterval": round(settings.stalled_interval / timedelta(milliseconds=1)),
                "maxStalledCount": settings.max_stalled,
                "runRetryDelay": 1000,
                "settings": {"backoffStrategy": _of_another},
            },
        )
        self.wakeup = Wakeup(client, self.worker.keys["marker"], name=f"{workers}:w:{self.worker.id}")
        self._block = longest_block(client)
        self._tokens = itertools.count(1)
        self._due = self._limited = 0.0
        self._checked = -inf
        self._lost: dict[str, float] = {}
        """Tokens of jobs that may have been taken although the answer did not come, and until when that may happen."""
        self._interrupted = self._closed = False

    async def close(self) -> None:
        self._closed = True
        await self.wakeup.close()

    # -- taking

    async def _next(self) -> TakenJob | None:
        while True:
            token = f"{self.worker.id}:{next(self._tokens)}"
            self._lost[token] = time.monotonic() + self._settings.lock.total_seconds()
            fields, job_id, limited, due = await self.worker.backend.moveToActive(token, self.worker.opts)
            del self._lost[token]
            job = await self.worker.nextJobFromJobData(fields, job_id, limited or 0, due or 0, token)
            self._limited, self._due = (limited or 0) / 1000, (due or 0) / 1000
            if job is None:
                return None
            job.opts.setdefault("removeOnComplete", kept(self._settings.keep_completed))
            job.opts.setdefault("removeOnFail", kept(self._settings.keep_failed))
            if not job.deferredFailure:
                stored = self._in_our_words(job, QueueJobStatus.ACTIVE)
                return ActiveJob(**msgspec.structs.asdict(stored), lock_token=token, native=job)
            # Stalled too often: BullMQ leaves it to whoever takes it next to say so.
            await job.moveToFailed(UnrecoverableError(job.deferredFailure), token)
            self._on_ended(self._in_our_words(job, QueueJobStatus.FAILED))

    def _in_our_words(self, job: Any, status: QueueJobStatus) -> StoredJob:
        return from_native(job, self._queue_name, status, max_stalls=self._settings.max_stalled)

    async def give_back_lost(self) -> None:
        """Put back what was taken although the answer did not come: nobody runs it."""
        now = time.monotonic()
        self._lost = {token: until for token, until in self._lost.items() if until > now}
        if not self._lost:
            return
        ids: list[Any] = await self._client.lrange(self.worker.keys["active"], 0, -1)
        locks = [f"{self.worker.backend.toKey(job_id)}:lock" for job_id in ids]
        held: list[Any] = await self._client.mget(locks) if locks else []
        for job_id, token in zip(ids, held, strict=True):
            if token in self._lost:
                await self._put_back(job_id, token)

    async def wait(self, longest: float = inf) -> None:
        """Until there may be a job, or woken, or some seconds: what comes without a marker is found after that."""
        longest = min(longest, self._block)
        if self._limited:
            await self.wakeup.sleep(min(longest, self._limited))
        elif self._due:
            await self.wakeup.listen(min(longest, self._due - time.time()))
        else:
            await self.wakeup.listen(longest)

    async def fetch(self, count: int, wait: timedelta) -> list[TakenJob]:
        """Take, and wait for something to take."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait.total_seconds()
        self._interrupted = False
        while not self._closed:
            await self.give_back_lost()
            await self._check_stalled_if_due()
            taken = await one_by_one(self._next, count)
            left = until - loop.time()
            if self._interrupted:
                await self.wakeup.close()  # and be no worker any more, unless somebody asks again
            if taken or left <= 0 or self._interrupted:
                return taken
            await self.wait(left)
        return []

    def interrupt(self) -> None:
        """End the wait of a `fetch` under way."""
        self._interrupted = True
        self.wakeup.wake()

    async def _check_stalled_if_due(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._checked >= self._settings.stalled_interval.total_seconds():
            self._checked = now
            await self.worker.backend.moveStalledJobsToWait(
                self.worker.opts["maxStalledCount"], self.worker.opts["stalledInterval"]
            )

    # -- settling

    async def complete(self, job: TakenJob, result: Raw | None) -> None:
        value = None if result is None else msgspec.json.decode(result)
        await job.native.moveToCompleted(value, job.lock_token)
        self.wakeup.wake()  # no marker comes when a limit for the whole queue has room again

    async def fail(self, job: TakenJob, error: BaseException) -> timedelta | None:
        """How long until the next attempt; `None`: there is none."""
        native = job.native
        native.opts["backoff"] = retry_backoff(native.opts.get("backoff"), native.attemptsMade + 1)
        message = in_words(error)
        told: Any = UnrecoverableError(message) if is_permanent(error) else RuntimeError(message)
        try:
            raise error  # BullMQ keeps the traceback of what is being handled
        except BaseException:  # noqa: BLE001 - whatever the handler raised
            await native.moveToFailed(told, job.lock_token)
        self.wakeup.wake()
        return None if native.finishedOn else timedelta(milliseconds=native.delay)

    async def give_back(self, job: TakenJob) -> bool:
        """Whether it was still ours. It goes to the front of the line, and the attempt is not counted."""
        return await self._put_back(job.id, job.lock_token or "")

    async def _put_back(self, job_id: str, token: str) -> bool:
        names = ("active", "wait", "stalled", "paused", "meta", "limiter", "prioritized", "marker", "events")
        keys = self.worker.keys
        words = [*(keys[name] for name in names), job_id, token, self.worker.backend.toKey(job_id)]
        answer = await run(self._client.execute_command, GIVE_BACK, len(names), *words)
        if answer < 0:
            return False
        await self._client.zadd(keys["marker"], {"0": 0})  # the script wakes nobody for a job with a priority
        return True

    async def renew(self, jobs: Sequence[TakenJob]) -> list[TakenJob]:
        """Those that are no longer ours."""
        lost = await self.worker.backend.extendLocks(
            [job.id for job in jobs], [job.lock_token for job in jobs], self._settings.lock_milliseconds
        )
        return [job for job in jobs if job.id in lost]


def _of_another(failures: int, kind: str, error: object, job: Any) -> int:
    """The wait for a strategy that a Node.js program has for itself: its delay, if it names one."""
    return int(job.opts["backoff"].get("delay") or 0)

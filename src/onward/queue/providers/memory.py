"""Queues in this process: for tests, for programs that need no more, and to begin with."""

import asyncio
import heapq
import itertools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec import Raw

from onward.errors import QueueErrorCode
from onward.queue.contract import Provider, ProviderFactory, StoredJob, TakenJob, is_permanent, reported
from onward.queue.events import Emitter
from onward.queue.model import ActiveJob, Capabilities, QueueJobStatus, QueueStats
from onward.queue.options import Options

_KEPT = 10_000


@dataclass(slots=True)
class _Kept:
    job: StoredJob
    options: Options
    lock: str | None = None


@dataclass(slots=True)
class _Contents:
    """What one queue holds; it outlives the providers that look at it."""

    jobs: dict[str, _Kept] = field(default_factory=dict)
    waiting: list[tuple[int, int, str]] = field(default_factory=list)
    """A heap: most urgent first, then first in, first out."""
    delayed: list[tuple[datetime, int, str]] = field(default_factory=list)
    order: "itertools.count[int]" = field(default_factory=itertools.count)
    finished: dict[str, None] = field(default_factory=dict)
    """Ids in the order they finished: the oldest are forgotten beyond `_KEPT`."""
    completed: int = 0
    failed: int = 0
    paused: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Memory(ProviderFactory[None]):
    """Queues in this process. They end with it.

    >>> Memory().for_queue("emails").capabilities.priority
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self._contents: dict[str, _Contents] = {}

    def for_queue(self, queue_name: str) -> "MemoryProvider":
        contents = self._contents.setdefault(queue_name, _Contents())
        return MemoryProvider(queue_name, contents, self.events_of(queue_name))


class MemoryProvider(Provider):
    """One queue in this process."""

    name = "memory"
    capabilities = Capabilities(
        delayed_jobs=True,
        priority=True,
        retries=True,
        backoff=True,
        removal=True,
        ordered=True,
        batching=True,
        long_polling=True,
        dead_letters=True,
        lookup=True,
        duplicates=True,
        pausing=True,
        pull=True,
    )
    long_poll = timedelta(seconds=30)

    def __init__(self, queue_name: str, contents: _Contents, events: Emitter) -> None:
        super().__init__(queue_name, events)
        self._contents = contents
        self._interrupted = False

    # -- adding

    @reported(QueueErrorCode.ENQUEUE)
    async def add(self, job: StoredJob, options: Options) -> StoredJob:
        contents = self._contents
        if job.id in contents.jobs:
            raise self.duplicate(job.id)
        contents.jobs[job.id] = _Kept(job, options)
        self._line_up(job, options.delay)
        return job

    def _line_up(self, job: StoredJob, delay: timedelta) -> None:
        contents, place = self._contents, next(self._contents.order)
        if delay:
            due = _now() + delay
            self._change(job, status=QueueJobStatus.DELAYED, scheduled_for=due)
            heapq.heappush(contents.delayed, (due, place, job.id))
        else:
            self._change(job, status=QueueJobStatus.WAITING)
            heapq.heappush(contents.waiting, (-job.priority, place, job.id))
        contents.changed.set()

    # -- taking and settling

    @reported(QueueErrorCode.CONNECTION)
    async def fetch(self, count: int, wait: timedelta = timedelta()) -> Sequence[TakenJob]:
        until = asyncio.get_running_loop().time() + wait.total_seconds()
        self._interrupted = False
        while True:
            self._contents.changed.clear()
            taken = self._take(count)
            left = until - asyncio.get_running_loop().time()
            if taken or count < 1 or left <= 0 or self._interrupted:
                return taken
            if self._contents.delayed:
                left = min(left, max((self._contents.delayed[0][0] - _now()).total_seconds(), 0.001))
            try:
                async with asyncio.timeout(left):
                    await self._contents.changed.wait()
            except TimeoutError:
                pass  # look once more: something may have come due

    def interrupt(self) -> None:
        self._interrupted = True
        self._contents.changed.set()

    def _take(self, count: int) -> list[TakenJob]:
        contents, now = self._contents, _now()
        while contents.delayed and contents.delayed[0][0] <= now:
            _, _, job_id = heapq.heappop(contents.delayed)
            if job_id in contents.jobs:
                self._line_up(contents.jobs[job_id].job, timedelta())
        taken: list[TakenJob] = []
        while contents.waiting and len(taken) < count and not contents.paused:
            _, _, job_id = heapq.heappop(contents.waiting)
            kept = contents.jobs[job_id]
            kept.lock = secrets.token_hex(8)
            job = self._change(kept.job, status=QueueJobStatus.ACTIVE, processed_at=now, scheduled_for=None)
            taken.append(ActiveJob(**msgspec.structs.asdict(job), lock_token=kept.lock))
        return taken

    @reported(QueueErrorCode.PROCESSING)
    async def ack(self, job: TakenJob, result: Raw | None = None) -> None:
        kept = self._held(job)
        self._contents.completed += 1
        self._finish(
            kept, removed=kept.options.remove_on_complete, status=QueueJobStatus.COMPLETED, completed_at=_now()
        )

    @reported(QueueErrorCode.PROCESSING)
    async def nack(self, job: TakenJob, error: BaseException) -> timedelta | None:
        if job.id not in self._contents.jobs:
            raise self.not_found(job.id)
        kept = self._held(job)
        attempts = kept.job.attempts + 1
        failed = self._change(kept.job, attempts=attempts, error=str(error))
        if attempts < kept.job.max_attempts and not is_permanent(error):
            delay = kept.options.retry_delay(attempts)
            self._line_up(failed, delay)
            return delay
        self._contents.failed += 1
        self._finish(kept, removed=kept.options.remove_on_fail, status=QueueJobStatus.FAILED, failed_at=_now())
        return None

    @reported(QueueErrorCode.PROCESSING)
    async def release(self, jobs: Sequence[TakenJob]) -> None:
        for job in jobs:
            kept = self._held(job)
            kept.lock = None
            self._line_up(kept.job, timedelta())

    def _held(self, job: TakenJob) -> _Kept:
        kept = self._contents.jobs.get(job.id)
        if kept is None or kept.lock is None or kept.lock != job.lock_token:
            raise self.not_active(job.id)
        return kept

    def _finish(self, kept: _Kept, *, removed: bool, **changes: object) -> None:
        contents, job_id = self._contents, kept.job.id
        kept.lock = None
        self._change(kept.job, **changes)
        if removed:
            del contents.jobs[job_id]
            return
        contents.finished[job_id] = None
        if len(contents.finished) > _KEPT:
            oldest = next(iter(contents.finished))
            del contents.finished[oldest], contents.jobs[oldest]

    def _change(self, job: StoredJob, **changes: object) -> StoredJob:
        kept = self._contents.jobs[job.id]
        kept.job = msgspec.structs.replace(kept.job, **changes)
        return kept.job

    # -- the queue

    @reported(QueueErrorCode.PROVIDER_ERROR)
    async def get_job(self, job_id: str) -> StoredJob | None:
        kept = self._contents.jobs.get(job_id)
        return None if kept is None else kept.job

    @reported(QueueErrorCode.PROVIDER_ERROR)
    async def pause(self) -> None:
        self._contents.paused = True

    @reported(QueueErrorCode.PROVIDER_ERROR)
    async def resume(self) -> None:
        self._contents.paused = False
        self._contents.changed.set()

    @reported(QueueErrorCode.PROVIDER_ERROR)
    async def delete(self) -> None:
        contents = self._contents
        for kept in (contents.jobs, contents.waiting, contents.delayed, contents.finished):
            kept.clear()
        contents.completed = contents.failed = 0
        contents.paused = False

    @reported(QueueErrorCode.PROVIDER_ERROR)
    async def stats(self) -> QueueStats:
        statuses = [kept.job.status for kept in self._contents.jobs.values()]
        return QueueStats(
            waiting=statuses.count(QueueJobStatus.WAITING),
            delayed=statuses.count(QueueJobStatus.DELAYED),
            active=statuses.count(QueueJobStatus.ACTIVE),
            completed=self._contents.completed,
            failed=statuses.count(QueueJobStatus.FAILED),
            paused=self._contents.paused,
        )

    @reported(QueueErrorCode.PROVIDER_ERROR)
    async def dead_letters(self, limit: int = 100) -> Sequence[StoredJob]:
        newest = (self._contents.jobs[job_id].job for job_id in reversed(self._contents.finished))
        return list(itertools.islice((job for job in newest if job.status is QueueJobStatus.FAILED), max(limit, 0)))

    @reported(QueueErrorCode.PROVIDER_ERROR)
    async def retry(self, job_id: str) -> None:
        kept = self._contents.jobs.get(job_id)
        if kept is None or kept.job.status is not QueueJobStatus.FAILED:
            raise self.not_found(job_id)
        del self._contents.finished[job_id]
        self._line_up(self._change(kept.job, attempts=0, failed_at=None, error=None), timedelta())


def _now() -> datetime:
    return datetime.now(UTC)

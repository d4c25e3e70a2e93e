"""Queues in this process: one of them, and what makes several."""

import asyncio
import functools
import itertools
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Raw

from onward.model import Progress
from onward.queue.checks import ProviderArguments
from onward.queue.contract import StoredJob, Stores, TakenJob, in_words, unfit, why_for_good
from onward.queue.events import Emitter
from onward.queue.model import (
    FULL,
    KEEP_COMPLETED,
    KEEP_FAILED,
    LARGEST_JOB,
    Keep,
    QueueHealth,
    QueueJobStatus,
    QueuePage,
    QueueStats,
)
from onward.queue.options import Options
from onward.queue.provider import Provider, ProviderFactory
from onward.queue.providers.memory.contents import FINISHED, Contents, Kept, now

C = TypeVar("C", bound=Callable[..., Coroutine[Any, Any, Any]])


def _alone(call: C) -> C:
    """Nothing is awaited in it, so no other task comes in between; and with this no other thread."""

    @functools.wraps(call)
    async def locked(provider: "MemoryProvider", *args: Any, **kwargs: Any) -> Any:
        with provider._contents.lock:
            return await call(provider, *args, **kwargs)

    return cast(C, locked)


class Memory(ProviderFactory[None]):
    """Queues in this process. They end with it.

    `keep_completed` and `keep_failed` say how many finished jobs of each queue are kept, and for how long,
    `max_job_size` how many bytes of JSON the data of a job may have.

    >>> Memory().for_queue("emails").capabilities.priority
    True
    """

    def __init__(
        self,
        *,
        keep_completed: Keep = KEEP_COMPLETED,
        keep_failed: Keep = KEEP_FAILED,
        max_job_size: int = LARGEST_JOB,
    ) -> None:
        super().__init__()
        arguments = ProviderArguments("Memory")
        arguments.keeps(keep_completed, keep_failed, max_job_size)
        self._max_job_size = max_job_size
        self._keep: dict[QueueJobStatus, Keep] = dict(zip(FINISHED, (keep_completed, keep_failed), strict=True))
        self._contents: dict[str, Contents] = {}

    def for_queue(self, queue_name: str) -> "MemoryProvider":
        contents = self._contents.setdefault(queue_name, Contents(keep=self._keep))
        provider = MemoryProvider(queue_name, contents, self.events_of(queue_name))
        return provider.declare(max_job_size=self._max_job_size)


class MemoryProvider(Provider, Stores):
    """One queue in this process."""

    name = "memory"
    capabilities = msgspec.structs.replace(FULL, max_job_size=LARGEST_JOB)
    long_poll = timedelta(seconds=30)
    is_bound_to_loop = False

    def __init__(self, queue_name: str, contents: Contents, events: Emitter) -> None:
        super().__init__(queue_name, events)
        self._contents = contents
        self._interrupted = False
        self._held: dict[str, str] = {}
        """What this holder has, with its locks."""

    async def _close(self) -> None:
        """What nobody has settled goes back: there is no lease that could run out."""
        with self._contents.lock:
            self._contents.workers.discard(id(self))
            for job_id, lock in self._held.items():
                kept = self._contents.jobs.get(job_id)
                if kept is not None and kept.lock == lock:
                    self._contents.put_back(kept)
            self._held.clear()

    # -- adding

    @_alone
    async def add(self, job: StoredJob, options: Options) -> StoredJob:
        self._check_new(job, options)
        self._contents.add(job, options)
        return job

    @_alone
    async def add_many(self, jobs: Sequence[tuple[StoredJob, Options]]) -> list[StoredJob]:
        """All of them or none."""
        seen = set[str]()
        for job, options in jobs:
            self._check_new(job, options)
            if job.id in seen:
                raise self.duplicate(job.id)
            seen.add(job.id)
        for job, options in jobs:
            self._contents.add(job, options)
        return [job for job, _ in jobs]

    def _check_new(self, job: StoredJob, options: Options) -> None:
        if options.native:
            raise unfit(job, f"provider_options: memory has none, got: {', '.join(options.native)}")
        if job.id in self._contents.jobs:
            raise self.duplicate(job.id)

    # -- taking and settling

    async def fetch(self, count: int, wait: timedelta = timedelta()) -> Sequence[TakenJob]:
        if count < 1:
            return []
        clock = asyncio.get_running_loop()
        until = clock.time() + wait.total_seconds()
        self._interrupted = False
        self._contents.workers.add(id(self))
        while True:
            with self._contents.lock:
                taken, expired = self._contents.take(count)
                seen, first = self._contents.changes, self._contents.delayed[:1]
            self._held |= {job.id: job.lock_token or "" for job in taken}
            for job in expired:
                self.on_ended(job)
            left = until - clock.time()
            if taken or left <= 0 or self._interrupted:
                return taken
            if first:
                left = min(left, max((first[0][0] - now()).total_seconds(), 0.001))
            await self._contents.sleep(left, seen)

    def interrupt(self) -> None:
        self._interrupted = True
        self._contents.wake()

    @_alone
    async def ack(self, job: TakenJob, result: Raw | None = None) -> None:
        self._contents.complete(self._ours(job), result)

    @_alone
    async def nack(self, job: TakenJob, error: BaseException) -> timedelta | None:
        if job.id not in self._contents.jobs:
            raise self.not_found(job.id)
        kept = self._ours(job)
        changes = {"attempts": kept.job.attempts + 1, "error": in_words(error)}
        reason = why_for_good(kept.job, error)
        if reason is not None:
            self._contents.fail(kept, reason, **changes)
            return None
        delay = kept.options.retry_delay(kept.job.attempts + 1)
        self._contents.change(kept, **changes)
        self._contents.line_up(kept, delay)
        return delay

    @_alone
    async def release(self, jobs: Sequence[TakenJob]) -> None:
        for job in jobs:
            self._contents.put_back(self._ours(job))

    @_alone
    async def report_progress(self, job: TakenJob, progress: Progress) -> None:
        kept = self._contents.jobs.get(job.id)
        if kept is not None and kept.lock == job.lock_token:
            self._contents.change(kept, progress=progress)

    def _ours(self, job: TakenJob) -> Kept:
        """It is ours, and no longer in our hands."""
        kept = self._contents.jobs.get(job.id)
        if kept is None or kept.lock is None or kept.lock != job.lock_token:
            raise self.not_active(job.id)
        self._held.pop(job.id, None)
        return kept

    # -- the queue

    @_alone
    async def get_job(self, job_id: str) -> StoredJob | None:
        kept = self._contents.jobs.get(job_id)
        return None if kept is None else kept.job

    @_alone
    async def pause(self) -> None:
        self._contents.paused = True

    @_alone
    async def resume(self) -> None:
        self._contents.paused = False
        self._contents.wake()

    @_alone
    async def delete(self) -> None:
        self._contents.clear()

    @_alone
    async def stats(self) -> QueueStats:
        counts = self._contents.counts
        return QueueStats(
            waiting=counts[QueueJobStatus.WAITING],
            delayed=counts[QueueJobStatus.DELAYED],
            active=counts[QueueJobStatus.ACTIVE],
            completed=self._contents.completed,
            failed=counts[QueueJobStatus.FAILED],
            paused=self._contents.paused,
        )

    @_alone
    async def health(self) -> QueueHealth:
        return QueueHealth.of(await self.stats(), active_workers=len(self._contents.workers))

    @_alone
    async def dead_letters(self, limit: int = 100) -> Sequence[StoredJob]:
        return list(itertools.islice(self._contents.all(QueueJobStatus.FAILED), max(limit, 0)))

    @_alone
    async def retry(self, job_id: str) -> None:
        kept = self._contents.jobs.get(job_id)
        if kept is None or kept.job.status is not QueueJobStatus.FAILED:
            raise self.not_found(job_id)
        del self._contents.finished[QueueJobStatus.FAILED][job_id]
        self._contents.change(kept, attempts=0, stalls=0, failed_at=None, error=None, reason=None, expires_at=None)
        self._contents.line_up(kept)

    @_alone
    async def jobs(self, status: QueueJobStatus, *, after: str | None, limit: int) -> QueuePage[Raw]:
        first = int(after or 0)
        found = list(itertools.islice(self._contents.all(status), first, first + limit + 1))
        return QueuePage(items=found[:limit], next=str(first + limit) if len(found) > limit else None)

    @_alone
    async def remove(self, job_id: str) -> None:
        kept = self._contents.jobs.get(job_id)
        if kept is None:
            raise self.not_found(job_id)
        if kept.lock is not None:
            raise self.held(job_id)
        self._contents.forget(kept)

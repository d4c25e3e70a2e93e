"""Queues in this process: for tests, for programs that need no more, and to begin with."""

import asyncio
import functools
import heapq
import itertools
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
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
    ActiveJob,
    Keep,
    QueueFailureReason,
    QueueHealth,
    QueueJobStatus,
    QueuePage,
    QueueStats,
)
from onward.queue.options import Options
from onward.queue.provider import Provider, ProviderFactory

C = TypeVar("C", bound=Callable[..., Coroutine[Any, Any, Any]])
_FINISHED = (QueueJobStatus.COMPLETED, QueueJobStatus.FAILED)


@dataclass(slots=True)
class _Kept:
    job: StoredJob
    options: Options
    place: int = 0
    """In the line; an entry of the line with another place is out of date."""
    lock: str | None = None


@dataclass(slots=True)
class _Contents:
    """What one queue holds; it outlives the providers that look at it, and the event loops that they run in."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    """For those of several threads."""
    changes: int = 0
    jobs: dict[str, _Kept] = field(default_factory=dict)
    waiting: list[tuple[int, int, str]] = field(default_factory=list)
    """A heap: most urgent first, then first in, first out."""
    delayed: list[tuple[datetime, int, str]] = field(default_factory=list)
    order: "itertools.count[int]" = field(default_factory=itertools.count)
    finished: dict[QueueJobStatus, dict[str, None]] = field(default_factory=lambda: {one: {} for one in _FINISHED})
    """Ids in the order they finished."""
    counts: "Counter[QueueJobStatus]" = field(default_factory=Counter)
    completed: int = 0
    paused: bool = False
    workers: set[int] = field(default_factory=set)
    sleepers: "set[asyncio.Future[None]]" = field(default_factory=set)
    keep: dict[QueueJobStatus, Keep] = field(
        default_factory=lambda: dict(zip(_FINISHED, (KEEP_COMPLETED, KEEP_FAILED), strict=True))
    )

    def wake(self) -> None:
        """Those who wait for jobs, in whichever loop."""
        with self.lock:
            self.changes += 1
            sleepers, self.sleepers = self.sleepers, set()
        here = asyncio.get_running_loop()
        for sleeper in sleepers:
            loop = sleeper.get_loop()
            if loop is here:
                _end(sleeper)
            else:
                with suppress(RuntimeError):  # it has ended since
                    loop.call_soon_threadsafe(_end, sleeper)


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
        self._keep: dict[QueueJobStatus, Keep] = dict(zip(_FINISHED, (keep_completed, keep_failed), strict=True))
        self._contents: dict[str, _Contents] = {}

    def for_queue(self, queue_name: str) -> "MemoryProvider":
        contents = self._contents.setdefault(queue_name, _Contents(keep=self._keep))
        provider = MemoryProvider(queue_name, contents, self.events_of(queue_name))
        return provider.declare(max_job_size=self._max_job_size)


class MemoryProvider(Provider, Stores):
    """One queue in this process."""

    name = "memory"
    capabilities = msgspec.structs.replace(FULL, max_job_size=LARGEST_JOB)
    long_poll = timedelta(seconds=30)
    is_bound_to_loop = False

    def __init__(self, queue_name: str, contents: _Contents, events: Emitter) -> None:
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
                    self._put_back(kept)
            self._held.clear()

    # -- adding

    @_alone
    async def add(self, job: StoredJob, options: Options) -> StoredJob:
        self._check_new(job, options)
        self._keep(job, options)
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
            self._keep(job, options)
        return [job for job, _ in jobs]

    def _check_new(self, job: StoredJob, options: Options) -> None:
        if options.native:
            raise unfit(job, f"provider_options: memory has none, got: {', '.join(options.native)}")
        if job.id in self._contents.jobs:
            raise self.duplicate(job.id)

    def _keep(self, job: StoredJob, options: Options) -> None:
        kept = self._contents.jobs[job.id] = _Kept(job, options)
        self._contents.counts[job.status] += 1
        self._line_up(kept, options.delay)

    def _line_up(self, kept: _Kept, delay: timedelta) -> None:
        kept.place = next(self._contents.order)
        if delay:
            due = _now() + delay
            self._change(kept, status=QueueJobStatus.DELAYED, scheduled_for=due)
            heapq.heappush(self._contents.delayed, (due, kept.place, kept.job.id))
            self._contents.wake()
        else:
            self._put_back(kept)

    def _put_back(self, kept: _Kept) -> None:
        """Into the line, at its place."""
        kept.lock = None
        self._change(kept, status=QueueJobStatus.WAITING, scheduled_for=None)
        heapq.heappush(self._contents.waiting, (-kept.job.priority, kept.place, kept.job.id))
        self._contents.wake()

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
                taken = self._take(count)
                seen, first = self._contents.changes, self._contents.delayed[:1]
            left = until - clock.time()
            if taken or left <= 0 or self._interrupted:
                return taken
            if first:
                left = min(left, max((first[0][0] - _now()).total_seconds(), 0.001))
            await self._sleep(left, seen)

    async def _sleep(self, seconds: float, seen: int) -> None:
        """Until something has changed since."""
        clock = asyncio.get_running_loop()
        sleeper: asyncio.Future[None] = clock.create_future()
        with self._contents.lock:
            if self._contents.changes != seen:
                return
            self._contents.sleepers.add(sleeper)
        timer = clock.call_later(seconds, _end, sleeper)
        try:
            await sleeper
        finally:
            timer.cancel()
            with self._contents.lock:
                self._contents.sleepers.discard(sleeper)

    def interrupt(self) -> None:
        self._interrupted = True
        self._contents.wake()

    def _take(self, count: int) -> list[TakenJob]:
        contents, now = self._contents, _now()
        while contents.delayed and contents.delayed[0][0] <= now:
            _, place, job_id = heapq.heappop(contents.delayed)
            kept = contents.jobs.get(job_id)
            if kept is not None and kept.place == place and kept.job.status is QueueJobStatus.DELAYED:
                self._line_up(kept, timedelta())
        taken: list[TakenJob] = []
        while contents.waiting and len(taken) < count and not contents.paused:
            _, place, job_id = heapq.heappop(contents.waiting)
            kept = contents.jobs.get(job_id)
            if kept is None or kept.place != place or kept.job.status is not QueueJobStatus.WAITING:
                continue  # it was removed since
            if kept.job.expires_at is not None and kept.job.expires_at <= now:
                self._expire(kept)
                continue
            kept.lock = self._held[job_id] = secrets.token_hex(8)
            job = self._change(kept, status=QueueJobStatus.ACTIVE, processed_at=now, scheduled_for=None)
            taken.append(ActiveJob(**msgspec.structs.asdict(job), lock_token=kept.lock))
        return taken

    def _expire(self, kept: _Kept) -> None:
        self._change(kept, error="it waited for longer than its time to live")
        failed = {"failed_at": _now(), "reason": QueueFailureReason.EXPIRED}
        ended = self._finish(kept, QueueJobStatus.FAILED, removed=kept.options.remove_on_fail, **failed)
        self.on_ended(ended)

    @_alone
    async def ack(self, job: TakenJob, result: Raw | None = None) -> None:
        kept = self._ours(job)
        self._contents.completed += 1
        done = {"completed_at": _now(), "result": result}
        self._finish(kept, QueueJobStatus.COMPLETED, removed=kept.options.remove_on_complete, **done)

    @_alone
    async def nack(self, job: TakenJob, error: BaseException) -> timedelta | None:
        if job.id not in self._contents.jobs:
            raise self.not_found(job.id)
        kept = self._ours(job)
        attempts, reason = kept.job.attempts + 1, why_for_good(kept.job, error)
        self._change(kept, attempts=attempts, error=in_words(error))
        if reason is None:
            delay = kept.options.retry_delay(attempts)
            self._line_up(kept, delay)
            return delay
        removed = kept.options.remove_on_fail
        self._finish(kept, QueueJobStatus.FAILED, removed=removed, failed_at=_now(), reason=reason)
        return None

    @_alone
    async def release(self, jobs: Sequence[TakenJob]) -> None:
        for job in jobs:
            self._put_back(self._ours(job))

    @_alone
    async def report_progress(self, job: TakenJob, progress: Progress) -> None:
        kept = self._contents.jobs.get(job.id)
        if kept is not None and kept.lock == job.lock_token:
            self._change(kept, progress=progress)

    def _ours(self, job: TakenJob) -> _Kept:
        """It is ours, and no longer in our hands."""
        kept = self._contents.jobs.get(job.id)
        if kept is None or kept.lock is None or kept.lock != job.lock_token:
            raise self.not_active(job.id)
        self._held.pop(job.id, None)
        return kept

    def _finish(self, kept: _Kept, status: QueueJobStatus, *, removed: bool, **changes: object) -> StoredJob:
        kept.lock = None
        ended = self._change(kept, status=status, **changes)
        if removed:
            self._forget(kept)
        else:
            self._contents.finished[status][kept.job.id] = None
            self._trim(status)
        return ended

    def _trim(self, status: QueueJobStatus) -> None:
        finished, keep = self._contents.finished[status], self._contents.keep[status]
        oldest = _now() - keep.age
        while finished:
            kept = self._contents.jobs[next(iter(finished))]
            if len(finished) <= keep.count and _finished_at(kept.job) > oldest:
                return
            self._forget(kept)

    def _forget(self, kept: _Kept) -> None:
        job = kept.job
        del self._contents.jobs[job.id]
        self._contents.counts[job.status] -= 1
        if job.status in _FINISHED:
            self._contents.finished[job.status].pop(job.id, None)

    def _change(self, kept: _Kept, **changes: object) -> StoredJob:
        before = kept.job
        kept.job = msgspec.structs.replace(before, **changes)
        self._contents.counts[before.status] -= 1
        self._contents.counts[kept.job.status] += 1
        return kept.job

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
        contents = self._contents
        contents.jobs.clear()
        contents.waiting.clear()
        contents.delayed.clear()
        contents.counts.clear()
        for finished in contents.finished.values():
            finished.clear()
        contents.completed = 0
        contents.paused = False

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
        return list(itertools.islice(self._all(QueueJobStatus.FAILED), max(limit, 0)))

    @_alone
    async def retry(self, job_id: str) -> None:
        kept = self._contents.jobs.get(job_id)
        if kept is None or kept.job.status is not QueueJobStatus.FAILED:
            raise self.not_found(job_id)
        del self._contents.finished[QueueJobStatus.FAILED][job_id]
        self._change(kept, attempts=0, stalls=0, failed_at=None, error=None, reason=None, expires_at=None)
        self._line_up(kept, timedelta())

    @_alone
    async def jobs(self, status: QueueJobStatus, *, after: str | None, limit: int) -> QueuePage[Raw]:
        first = int(after or 0)
        found = list(itertools.islice(self._all(status), first, first + limit + 1))
        return QueuePage(items=found[:limit], next=str(first + limit) if len(found) > limit else None)

    def _all(self, status: QueueJobStatus) -> Iterator[StoredJob]:
        contents = self._contents
        if status in _FINISHED:
            return (contents.jobs[job_id].job for job_id in reversed(contents.finished[status]))
        found = [kept for kept in contents.jobs.values() if kept.job.status is status]
        if status is QueueJobStatus.DELAYED:
            found.sort(key=lambda kept: (kept.job.scheduled_for or kept.job.created_at, kept.place))
        else:
            found.sort(key=lambda kept: (-kept.job.priority, kept.place))
        return (kept.job for kept in found)

    @_alone
    async def remove(self, job_id: str) -> None:
        kept = self._contents.jobs.get(job_id)
        if kept is None:
            raise self.not_found(job_id)
        if kept.lock is not None:
            raise self.held(job_id)
        self._forget(kept)


def _end(sleeper: "asyncio.Future[None]") -> None:
    if not sleeper.done():
        sleeper.set_result(None)


def _finished_at(job: StoredJob) -> datetime:
    return job.completed_at or job.failed_at or job.created_at


def _now() -> datetime:
    return datetime.now(UTC)

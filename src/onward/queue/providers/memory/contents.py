"""What a queue in this process holds, and how its jobs move from state to state. Whoever calls has the lock."""

import asyncio
import heapq
import itertools
import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import msgspec

from onward.queue.contract import StoredJob, TakenJob
from onward.queue.model import KEEP_COMPLETED, KEEP_FAILED, ActiveJob, Keep, QueueFailureReason, QueueJobStatus
from onward.queue.options import Options

FINISHED = (QueueJobStatus.COMPLETED, QueueJobStatus.FAILED)


@dataclass(slots=True)
class Kept:
    """One job."""

    job: StoredJob
    options: Options
    place: int = 0
    """In the line; an entry of the line with another place is out of date."""
    lock: str | None = None


@dataclass(slots=True)
class Contents:
    """What one queue holds; it outlives the providers that look at it, and the event loops that they run in."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    """For those of several threads."""
    changes: int = 0
    jobs: dict[str, Kept] = field(default_factory=dict)
    waiting: list[tuple[int, int, str]] = field(default_factory=list)
    """A heap: most urgent first, then first in, first out."""
    delayed: list[tuple[datetime, int, str]] = field(default_factory=list)
    order: "itertools.count[int]" = field(default_factory=itertools.count)
    finished: dict[QueueJobStatus, dict[str, None]] = field(default_factory=lambda: {one: {} for one in FINISHED})
    """Ids in the order they finished."""
    counts: "Counter[QueueJobStatus]" = field(default_factory=Counter)
    completed: int = 0
    paused: bool = False
    workers: set[int] = field(default_factory=set)
    sleepers: "set[asyncio.Future[None]]" = field(default_factory=set)
    keep: dict[QueueJobStatus, Keep] = field(
        default_factory=lambda: dict(zip(FINISHED, (KEEP_COMPLETED, KEEP_FAILED), strict=True))
    )

    # -- waiting for jobs

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

    async def sleep(self, seconds: float, seen: int) -> None:
        """Until something has changed since; without the lock."""
        clock = asyncio.get_running_loop()
        sleeper: asyncio.Future[None] = clock.create_future()
        with self.lock:
            if self.changes != seen:
                return
            self.sleepers.add(sleeper)
        timer = clock.call_later(seconds, _end, sleeper)
        try:
            await sleeper
        finally:
            timer.cancel()
            with self.lock:
                self.sleepers.discard(sleeper)

    # -- jobs that wait

    def add(self, job: StoredJob, options: Options) -> None:
        """One more."""
        kept = self.jobs[job.id] = Kept(job, options)
        self.counts[job.status] += 1
        self.line_up(kept, options.delay)

    def line_up(self, kept: Kept, delay: timedelta = timedelta()) -> None:
        """At the end of the line, now or when its time has come."""
        kept.place = next(self.order)
        if delay:
            due = now() + delay
            self.change(kept, status=QueueJobStatus.DELAYED, scheduled_for=due)
            heapq.heappush(self.delayed, (due, kept.place, kept.job.id))
            self.wake()
        else:
            self.put_back(kept)

    def put_back(self, kept: Kept) -> None:
        """Into the line, at its place."""
        kept.lock = None
        self.change(kept, status=QueueJobStatus.WAITING, scheduled_for=None)
        heapq.heappush(self.waiting, (-kept.job.priority, kept.place, kept.job.id))
        self.wake()

    def take(self, count: int) -> tuple[list[TakenJob], list[StoredJob]]:
        """At most so many, each with a lock of its own, and those that have expired instead."""
        at, taken, expired = now(), list[TakenJob](), list[StoredJob]()
        while self.delayed and self.delayed[0][0] <= at:
            _, place, job_id = heapq.heappop(self.delayed)
            kept = self._at(place, job_id, QueueJobStatus.DELAYED)
            if kept is not None:
                self.line_up(kept)
        while self.waiting and len(taken) < count and not self.paused:
            _, place, job_id = heapq.heappop(self.waiting)
            kept = self._at(place, job_id, QueueJobStatus.WAITING)
            if kept is None:
                continue
            if kept.job.expires_at is not None and kept.job.expires_at <= at:
                error = "it waited for longer than its time to live"
                expired.append(self.fail(kept, QueueFailureReason.EXPIRED, error=error))
                continue
            kept.lock = secrets.token_hex(8)
            job = self.change(kept, status=QueueJobStatus.ACTIVE, processed_at=at, scheduled_for=None)
            taken.append(ActiveJob(**msgspec.structs.asdict(job), lock_token=kept.lock))
        return taken, expired

    def _at(self, place: int, job_id: str, status: QueueJobStatus) -> Kept | None:
        """What stands there, unless it was removed since."""
        kept = self.jobs.get(job_id)
        return kept if kept is not None and kept.place == place and kept.job.status is status else None

    # -- jobs that have ended

    def complete(self, kept: Kept, result: object) -> None:
        self.completed += 1
        changes = {"status": QueueJobStatus.COMPLETED, "completed_at": now(), "result": result}
        self._finish(kept, removed=kept.options.remove_on_complete, **changes)

    def fail(self, kept: Kept, reason: QueueFailureReason, **changes: object) -> StoredJob:
        changes |= {"status": QueueJobStatus.FAILED, "failed_at": now(), "reason": reason}
        return self._finish(kept, removed=kept.options.remove_on_fail, **changes)

    def _finish(self, kept: Kept, *, removed: bool, **changes: object) -> StoredJob:
        kept.lock = None
        ended = self.change(kept, **changes)
        if removed:
            self.forget(kept)
        else:
            self.finished[ended.status][ended.id] = None
            self._trim(ended.status)
        return ended

    def _trim(self, status: QueueJobStatus) -> None:
        finished, keep = self.finished[status], self.keep[status]
        oldest = now() - keep.age
        while finished:
            kept = self.jobs[next(iter(finished))]
            if len(finished) <= keep.count and _finished_at(kept.job) > oldest:
                return
            self.forget(kept)

    # -- all jobs

    def change(self, kept: Kept, **changes: object) -> StoredJob:
        before = kept.job
        kept.job = msgspec.structs.replace(before, **changes)
        self.counts[before.status] -= 1
        self.counts[kept.job.status] += 1
        return kept.job

    def forget(self, kept: Kept) -> None:
        job = kept.job
        del self.jobs[job.id]
        self.counts[job.status] -= 1
        if job.status in FINISHED:
            self.finished[job.status].pop(job.id, None)

    def clear(self) -> None:
        self.jobs.clear()
        self.waiting.clear()
        self.delayed.clear()
        self.counts.clear()
        for finished in self.finished.values():
            finished.clear()
        self.completed = 0
        self.paused = False

    def all(self, status: QueueJobStatus) -> Iterator[StoredJob]:
        """Of one state, in their order."""
        if status in FINISHED:
            return (self.jobs[job_id].job for job_id in reversed(self.finished[status]))
        found = [kept for kept in self.jobs.values() if kept.job.status is status]
        if status is QueueJobStatus.DELAYED:
            found.sort(key=lambda kept: (kept.job.scheduled_for or kept.job.created_at, kept.place))
        else:
            found.sort(key=lambda kept: (-kept.job.priority, kept.place))
        return (kept.job for kept in found)


def _end(sleeper: "asyncio.Future[None]") -> None:
    if not sleeper.done():
        sleeper.set_result(None)


def _finished_at(job: StoredJob) -> datetime:
    return job.completed_at or job.failed_at or job.created_at


def now() -> datetime:
    return datetime.now(UTC)

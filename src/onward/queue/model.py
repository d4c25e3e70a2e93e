"""The words of queues as frozen values."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")


class QueueJobStatus(StrEnum):
    """Where a queue job is; every provider's own words are mapped to these five."""

    WAITING = "waiting"
    DELAYED = "delayed"
    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"


class QueueJob(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """What a provider keeps of a job.

    Users see `data` decoded. Inside providers it is `msgspec.Raw`: JSON, encoded and measured once, by the queue.
    """

    id: str
    name: str
    queue_name: str
    data: T
    status: QueueJobStatus = QueueJobStatus.WAITING
    attempts: int = 0
    """How many have ended, by an error or by a worker that died."""
    max_attempts: int = 1
    created_at: datetime
    processed_at: datetime | None = None
    """When it was last taken."""
    completed_at: datetime | None = None
    failed_at: datetime | None = None
    scheduled_for: datetime | None = None
    error: str | None = None
    """The message of the last error."""
    priority: int = 0
    """A higher number is more urgent, on every provider."""
    metadata: Mapping[str, Any] = {}


class ActiveJob(QueueJob[T], Generic[T], frozen=True, kw_only=True):
    """A job that a worker holds, with what it needs to give the job back: never stored."""

    receipt_handle: str | None = None
    lock_token: str | None = None
    native: Any = None
    """The provider's own object for it: an incoming message, a BullMQ job."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider can do. True statements: the conformance suite proves each one that is claimed.

    Options that a provider lacks are dropped with a warning; methods that it lacks raise, so ask here first.
    """

    delayed_jobs: bool = False
    """`delay=` is honoured."""
    priority: bool = False
    """`priority=` is honoured."""
    retries: bool = False
    """`attempts=` of each job is honoured; otherwise the backend's own policy for the whole queue decides."""
    backoff: bool = False
    """`backoff=` of each job is honoured."""
    removal: bool = False
    """`remove_on_complete=` and `remove_on_fail=` are honoured: finished jobs are otherwise kept."""
    ordered: bool = False
    """Jobs of one priority are fetched in the order they were added."""
    batching: bool = False
    """One call fetches several jobs."""
    long_polling: bool = False
    """`fetch(wait=…)` returns as soon as there is a job."""
    dead_letters: bool = False
    """`dead_letters()` and `retry()` exist."""
    lookup: bool = False
    """`get_job()` exists."""
    duplicates: bool = False
    """An id that is already there is refused."""
    pausing: bool = False
    """`pause()` and `resume()` exist and are seen by every worker."""
    transactions: bool = False
    """`add(tx=…)` is part of the caller's database transaction."""
    push: bool = False
    """The provider delivers jobs by itself: `process()`."""
    pull: bool = False
    """Jobs are asked for: `fetch()`, `ack()`, `nack()`."""
    max_job_size: int = 0
    """Bytes of JSON; 0 is unlimited."""
    max_batch_size: int = 0
    """Jobs per fetch; 0 is unlimited."""
    max_delay: timedelta = timedelta()
    """0 is unlimited."""


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs are where; `None` where the backend cannot know. Jobs with a priority count as waiting."""

    waiting: int | None = None
    delayed: int | None = None
    active: int | None = None
    completed: int | None = None
    failed: int | None = None
    paused: bool | None = None


class QueueHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the queue is being worked off; `None` where the backend cannot know."""

    active_workers: int | None = None
    queue_depth: int | None = None
    """Jobs that wait, delayed ones included where they are known."""
    error_rate: float | None = None
    """Failed jobs as a percentage of finished ones."""
    completed_count: int | None = None
    failed_count: int | None = None
    is_paused: bool | None = None

    @classmethod
    def of(cls, stats: QueueStats, *, active_workers: int | None = None) -> "QueueHealth":
        """The health that follows from the numbers."""
        finished = None if stats.completed is None or stats.failed is None else stats.completed + stats.failed
        known = [part for part in (stats.waiting, stats.delayed) if part is not None]
        return cls(
            active_workers=active_workers,
            queue_depth=sum(known) if known else None,
            error_rate=None if finished is None or stats.failed is None else 100 * stats.failed / (finished or 1),
            completed_count=stats.completed,
            failed_count=stats.failed,
            is_paused=stats.paused,
        )

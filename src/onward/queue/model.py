"""The words of queues as frozen values."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Generic, TypeVar

import msgspec

from onward.model import Progress
from onward.options import LONGEST_NOTE, cut

T = TypeVar("T")


class QueueJobStatus(StrEnum):
    """Where a queue job is; every provider's own words are mapped to these five."""

    WAITING = "waiting"
    DELAYED = "delayed"
    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"


class QueueFailureReason(StrEnum):
    """Why a queue job failed for good."""

    ATTEMPTS = "attempts"
    """Its handler raised, or took too long, as often as it may."""
    PERMANENT = "permanent"
    """By an error that says that trying again is pointless."""
    STALLED = "stalled"
    """More of its holders died, or let their lease run out, than may."""
    EXPIRED = "expired"
    """It waited for longer than its `ttl`."""


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """How many finished jobs are kept, and for how long: whichever ends first.

    >>> Keep(count=1_000, age=timedelta(days=1)).count
    1000
    """

    count: int
    """The newest so many of a queue; 0 keeps none."""
    age: timedelta
    """Since they finished. Older ones go when the next one finishes, a few at a time."""


LARGEST_JOB = 16 * 1024 * 1024
"""Bytes of JSON in the data of a job, where the server has no limit of its own and nothing else is said."""
KEEP_COMPLETED = Keep(count=1_000, age=timedelta(days=1))
"""What is kept of completed jobs where nothing else is said."""
KEEP_FAILED = Keep(count=10_000, age=timedelta(days=30))
"""What is kept of failed jobs where nothing else is said."""


class QueueJob(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """What a provider keeps of a job.

    Users see `data` and `result` decoded. Inside providers they are `msgspec.Raw`: JSON, encoded and measured once, by
    the queue and by the worker.
    """

    id: str
    name: str
    queue_name: str
    data: T
    status: QueueJobStatus = QueueJobStatus.WAITING
    attempts: int = 0
    """How many handlers have raised, taken too long, or were refused: a worker that died is no attempt, but a stall."""
    max_attempts: int = 1
    stalls: int = 0
    """How many holders died or let their lease run out."""
    max_stalls: int = 3
    """After one more than that it fails."""
    created_at: datetime
    processed_at: datetime | None = None
    """When it was last taken."""
    completed_at: datetime | None = None
    failed_at: datetime | None = None
    scheduled_for: datetime | None = None
    expires_at: datetime | None = None
    """From then on it is not begun any more, but fails."""
    error: str | None = None
    """The message of the last error."""
    reason: QueueFailureReason | None = None
    """Why it failed for good."""
    result: Any = None
    """What its handler returned."""
    progress: Progress | None = None
    """How far its handler said it had come."""
    priority: int = 0
    """A higher number is more urgent, on every provider."""
    metadata: Mapping[str, Any] = {}


class ActiveJob(QueueJob[T], Generic[T], frozen=True, kw_only=True):
    """A job that a worker holds, with what it needs to give the job back: never stored."""

    receipt_handle: str | None = None
    lock_token: str | None = None
    native: Any = None
    """The provider's own object for it: an incoming message, a BullMQ job."""
    reporter: Callable[[Progress], None] | None = None
    """Takes what is said with `report_progress`; set by the worker."""

    def report_progress(self, fraction: float, note: str | None = None) -> None:
        """Say how far the handler has come, from 0 to 1; readers of the job see it soon.

        It returns at once, from a thread as well; of what comes quickly, the last is stored.
        """
        given: object = fraction
        if not isinstance(given, int | float) or not 0 <= given <= 1:
            raise ValueError(f"progress is a fraction from 0 to 1, got: {fraction!r}")
        if self.reporter is not None:
            self.reporter(Progress(float(fraction), None if note is None else cut(note, LONGEST_NOTE)))


class QueuePage(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Some of the jobs of one state, and where the next page begins."""

    items: Sequence[QueueJob[T]]
    next: str | None = None
    """Pass it as `after=`; None on the last page."""


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
    stalls: bool = False
    """A holder's death is counted apart from attempts, and a job whose answer to a fetch was lost is not counted at
    all; otherwise the backend's own count of deliveries decides."""
    results: bool = False
    """What handlers return is kept: `get_job(id).result`, `wait()`."""
    progress: bool = False
    """`job.report_progress(…)` is kept: `get_job(id).progress`."""
    ttl: bool = False
    """`ttl=` is honoured."""
    remove: bool = False
    """`remove()` and `purge()` exist."""
    listing: bool = False
    """`jobs()` exists."""
    keeps: bool = False
    """Finished jobs are kept by count and age: `keep_completed=` and `keep_failed=` of the provider."""
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


FULL = Capabilities(
    delayed_jobs=True,
    priority=True,
    retries=True,
    backoff=True,
    removal=True,
    ordered=True,
    batching=True,
    long_polling=True,
    duplicates=True,
    stalls=True,
    results=True,
    ttl=True,
    keeps=True,
)
"""Of a provider that leaves nothing out; what is a role of its own follows from that."""


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

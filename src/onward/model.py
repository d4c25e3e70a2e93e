"""The words of Onward as frozen values: what every room passes on and none may change."""

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_args
from uuid import UUID

import msgspec

from onward.errors import require
from onward.options import LONGEST_KEY, wrong_choice, wrong_duration, wrong_ids, wrong_text

JobId: TypeAlias = UUID
ChainId: TypeAlias = UUID
WorkerId: TypeAlias = str
T = TypeVar("T")


class JobStatus(StrEnum):
    """Where a job is in its life."""

    BLOCKED = "blocked"
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class FailureReason(StrEnum):
    """Why a job, and with it its chain, failed for good."""

    ATTEMPTS = "attempts"
    PERMANENT = "permanent"
    CANCELLED = "cancelled"
    BLOCKER = "blocker"
    UNREADABLE = "unreadable"
    """The stored row cannot be read: only a hand can have written it; or the payload cannot be decrypted."""


class LossReason(StrEnum):
    """Why a running handler was told to stop."""

    TAKEN_BY_ANOTHER_WORKER = "taken_by_another_worker"
    NOT_FOUND = "not_found"
    ALREADY_COMPLETED = "already_completed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    STOPPING = "stopping"
    ERROR = "error"


class JobError(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong in an attempt, bounded in size so that it fits beside the job."""

    type: str
    message: str
    traceback: str = ""
    attempt: int | None = None
    counted: bool = True
    """Whether it was the job's fault; else the database's, which is not held against it."""
    at: datetime | None = None
    """When, by the clock of the worker that noticed; None where nobody wrote it down."""


class Progress(msgspec.Struct, frozen=True):
    """How far a handler says it has come."""

    fraction: float
    """From 0 to 1."""
    note: str | None = None


class _JobFields(msgspec.Struct, frozen=True, kw_only=True):
    id: JobId
    chain_id: ChainId
    chain_index: int
    """0 for the job that began the chain."""
    type_name: str
    payload_version: int
    """That of the input; once the job has completed, that of its output."""
    input: Any
    """The stored input as plain JSON data."""
    priority: int
    created_at: datetime
    scheduled_at: datetime
    origin_id: JobId | None
    """The job whose handler started this one."""
    root_id: JobId
    """The ultimate ancestor; the job itself if nobody started it."""
    attempt: int
    """How often the job was taken; never falls."""
    failures: int
    """Handler errors, timeouts and crashes so far."""
    errors: tuple[JobError, ...] = ()
    """Of the last attempts that failed, newest last."""
    progress: Progress | None = None
    """What the last handler to say so said."""
    deduplication_key: str | None = None
    limit_key: str | None = None
    meta: dict[str, Any] = {}
    """What travels with the job beside its input: what `meta=` said, and where its trace began."""
    problem: str | None = None
    """What of the stored row cannot be read, and is shown as well as it can be; None as a rule."""

    @property
    def last_error(self) -> JobError | None:
        """That of the last attempt that failed."""
        return self.errors[-1] if self.errors else None


class BlockedJob(_JobFields, frozen=True, kw_only=True, tag_field="status", tag="blocked"):
    """Waits for other chains to end."""

    open_blockers: int

    @property
    def status(self) -> Literal[JobStatus.BLOCKED]:
        return JobStatus.BLOCKED


class PendingJob(_JobFields, frozen=True, kw_only=True, tag_field="status", tag="pending"):
    """May be taken from `scheduled_at` on."""

    @property
    def status(self) -> Literal[JobStatus.PENDING]:
        return JobStatus.PENDING


class RunningJob(_JobFields, frozen=True, kw_only=True, tag_field="status", tag="running"):
    """Held by a worker until `leased_until`."""

    leased_by: WorkerId
    leased_until: datetime
    cancel_requested: bool

    @property
    def status(self) -> Literal[JobStatus.RUNNING]:
        return JobStatus.RUNNING


class CompletedJob(_JobFields, frozen=True, kw_only=True, tag_field="status", tag="completed"):
    """Ended well: with an output, or by continuing (then `output` is None)."""

    output: Any
    completed_at: datetime
    completed_by: WorkerId | None
    """None when no worker did."""

    @property
    def status(self) -> Literal[JobStatus.COMPLETED]:
        return JobStatus.COMPLETED


class FailedJob(_JobFields, frozen=True, kw_only=True, tag_field="status", tag="failed"):
    """Ended badly; `app.retry` brings it back."""

    reason: FailureReason
    failed_at: datetime

    @property
    def status(self) -> Literal[JobStatus.FAILED]:
        return JobStatus.FAILED


Job: TypeAlias = BlockedJob | PendingJob | RunningJob | CompletedJob | FailedJob
"""A stored job, narrowed by its status with `isinstance` or `match`."""


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """A chain as it is stored: its first job, and the job it has come to."""

    id: ChainId
    type_name: str
    """The type of the first job."""
    current: Job
    created_at: datetime
    ended_at: datetime | None

    @property
    def status(self) -> JobStatus:
        """That of the current job."""
        return self.current.status


class Blocker(msgspec.Struct, frozen=True, kw_only=True):
    """A chain that a job waits, or waited, for."""

    chain_id: ChainId
    type_name: str
    """The type of the chain's first job."""
    status: JobStatus
    """That of the chain's current job."""
    current_type_name: str
    payload_version: int
    """That of the chain's current job: once it completed, of the output."""
    output: str | None
    """The stored output, as JSON text, once the chain completed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """One page of jobs or chains and where the next one begins.

    >>> [*Page(items=[1, 2], next=None)]
    [1, 2]
    """

    items: Sequence[T]
    next: UUID | None
    """Pass it as `after=`; None on the last page."""

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


Scope: TypeAlias = Literal["incomplete", "any"]
_MICROSECOND = timedelta(microseconds=1)
_STEEPEST = 1000
"""Of a backoff: raised to the power of its tries, a larger factor would no longer be a number."""


@dataclass(frozen=True, slots=True)
class Deduplication:
    """Start a chain only if no other chain of the type has this key.

    >>> from datetime import timedelta
    >>> Deduplication("user-7", window=timedelta(hours=1)).scope
    'incomplete'
    """

    key: str
    scope: Scope = "incomplete"
    """Which chains count: those that have not ended, or all."""
    window: timedelta | None = None
    """Only chains started within this time count."""
    exclude: Sequence[ChainId] = ()
    """Chains that do not count though they have the key: for a handler that starts its successor, its own."""

    def __post_init__(self) -> None:
        require(
            wrong_text("Deduplication: key", self.key, most=LONGEST_KEY),
            wrong_choice("Deduplication: scope", self.scope, get_args(Scope)),
            None if self.window is None else wrong_duration("Deduplication: window", self.window, least=_MICROSECOND),
            wrong_ids("Deduplication: exclude", self.exclude),
        )
        for name in ("key", "scope"):  # plain text, where a subclass was given: not every encoder knows those
            object.__setattr__(self, name, str(getattr(self, name)))


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next attempt.

    >>> from datetime import timedelta
    >>> [Backoff().delay(n).total_seconds() for n in (1, 2, 3, 6, 7)]
    [10.0, 20.0, 40.0, 300.0, 300.0]
    """

    initial: timedelta = timedelta(seconds=10)
    factor: float = 2.0
    maximum: timedelta = timedelta(seconds=300)
    jitter: float = 0.0
    """The share of the delay that is random: 0.2 spreads it by a tenth either way."""

    def __post_init__(self) -> None:
        require(
            wrong_duration("Backoff: initial", self.initial, most=timedelta.max),
            wrong_duration("Backoff: maximum", self.maximum, most=timedelta.max),
            _wrong_share("Backoff: factor", self.factor),
            _wrong_share("Backoff: jitter", self.jitter),
        )

    def problem(self) -> str | None:
        """Why jobs cannot have it: their waits are stored."""
        if self.factor > _STEEPEST or self.jitter > 1:
            return f"backoff: a factor is at most {_STEEPEST}, a jitter at most 1"
        return wrong_duration("backoff: maximum", self.maximum) or wrong_duration("backoff: initial", self.initial)

    def delay(self, failures: int) -> timedelta:
        """The wait after that many failures."""
        exponent = min(max(failures - 1, 0), 64)
        seconds = min(self.initial.total_seconds() * self.factor**exponent, self.maximum.total_seconds())
        if self.jitter:
            seconds *= 1 + self.jitter * (random.random() - 0.5)
        return timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long chains are kept after their end; None keeps them.

    >>> Retention(completed=timedelta(days=1)).failed
    datetime.timedelta(days=30)
    """

    completed: timedelta | None = timedelta(days=7)
    failed: timedelta | None = timedelta(days=30)
    history: timedelta | None = None
    """How long after its end a chain is kept in the history, to which it is moved when its other time is over; None: it
    is deleted then."""

    def __post_init__(self) -> None:
        require(
            None if self.completed is None else wrong_duration("Retention: completed", self.completed),
            None if self.failed is None else wrong_duration("Retention: failed", self.failed),
            None if self.history is None else wrong_duration("Retention: history", self.history),
        )
        require(*(self._history_in_vain(each) for each in ("completed", "failed")))

    def _history_in_vain(self, name: str) -> str | None:
        kept: timedelta | None = getattr(self, name)
        if self.history is None or kept is None or kept < self.history:
            return None
        return (
            f"Retention: history={self.history} is not longer than {name}={kept}: it counts from the end of a chain too"
        )


def _wrong_share(option: str, value: object) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return None
    return f"{option}={value!r}: expected a number from 0 on"


def fresh_ids() -> Iterator[UUID]:
    """UUIDv7s in ascending order, as many as are taken: so jobs of one batch keep the caller's order.

    The twelve bits behind the milliseconds hold the fraction of the millisecond: ids of one process also sort by time.
    """
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    head = (milliseconds & 0xFFFF_FFFF_FFFF) << 80 | 0x7 << 76 | (rest * 4096 // 1_000_000) << 64 | 0b10 << 62
    number = head | random.getrandbits(61)
    while True:
        yield UUID(int=number)
        number += 1


def new_ids(count: int) -> list[UUID]:
    """So many fresh ones."""
    return list(islice(fresh_ids(), count))


def new_id() -> UUID:
    """A fresh UUIDv7.

    >>> new_id().version
    7
    """
    return next(fresh_ids())


class StoredSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it is stored: what `app.schedules.list()` shows."""

    name: str
    type_name: str
    cron: str | None
    every: timedelta | None
    tz: str
    start: datetime | None
    end: datetime | None
    is_changed: bool
    """Whether `cron`, `every` and `tz` were changed at run time."""
    missed: str
    overlap: str
    jitter: timedelta
    priority: int
    input: Any
    """As plain JSON data; None also where code makes it from the tick, or where it is encrypted or has secrets."""
    next_at: datetime | None
    """The next tick; None when it is over."""
    last_tick: datetime | None
    """The last one that has started a chain."""
    last_chain_id: ChainId | None
    skipped: int
    """Ticks that have started nothing: they were missed, or its last chain had not ended."""
    paused_at: datetime | None
    error: str | None
    """Why the tick that is due could not be started."""
    is_declared: bool
    """Whether a live worker's code declares it, as it is stored; if not, nothing is started."""
    declared_at: datetime
    """When one last said so."""

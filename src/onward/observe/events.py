"""One frozen class per fact. Events about stored things are emitted after the commit that made them true."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from onward.model import ChainId, FailureReason, JobError, JobId, LossReason, WorkerId

AttemptOutcome: TypeAlias = Literal[
    "completed", "continued", "rescheduled", "retrying", "failed", "cancelled", "given_back", "lost"
]
"""The first three as the handler said; retrying after an error, or failed for good; the rest was not its doing."""


class _Event(msgspec.Struct, frozen=True, kw_only=True):
    pass


class _WorkerEvent(_Event, frozen=True, kw_only=True):
    worker: WorkerId


class _ChainEvent(_Event, frozen=True, kw_only=True):
    chain_id: ChainId
    type_name: str
    """The type of the job the chain has come to."""


class _JobEvent(_Event, frozen=True, kw_only=True):
    job_id: JobId
    chain_id: ChainId
    type_name: str


class _AttemptEvent(_JobEvent, frozen=True, kw_only=True):
    attempt: int
    worker: WorkerId


class WorkerStarted(_WorkerEvent, frozen=True, kw_only=True):
    """A worker takes jobs now."""

    type_names: tuple[str, ...]
    concurrency: int


class WorkerStopping(_WorkerEvent, frozen=True, kw_only=True):
    """A worker takes no more jobs and lets those running finish."""

    running: int


class WorkerStopped(_WorkerEvent, frozen=True, kw_only=True):
    """A worker has ended; every job it had is settled or given back."""


class WorkerFailed(_WorkerEvent, frozen=True, kw_only=True):
    """A turn of the worker's loop failed; it tries again."""

    error: JobError
    retry_in: float


class ChainStarted(_ChainEvent, frozen=True, kw_only=True):
    """A chain exists."""


class ChainCompleted(_ChainEvent, frozen=True, kw_only=True):
    """A chain has ended with an output."""


class ChainFailed(_ChainEvent, frozen=True, kw_only=True):
    """A chain has ended without an output."""


class ChainDeleted(_ChainEvent, frozen=True, kw_only=True):
    """A chain is gone."""


class ChainsPruned(_Event, frozen=True, kw_only=True):
    """A batch of chains is gone that were kept for long enough; none of them is told by itself."""

    completed: int
    failed: int
    jobs: int
    moved: int = 0
    """How many of the chains are in the history now; the others were deleted."""


class JobCreated(_JobEvent, frozen=True, kw_only=True):
    """A job exists."""


class JobBlocked(_JobEvent, frozen=True, kw_only=True):
    """A job waits for other chains."""


class JobUnblocked(_JobEvent, frozen=True, kw_only=True):
    """The last chain that a job waited for has ended."""


class JobTriggered(_JobEvent, frozen=True, kw_only=True):
    """A scheduled or failed job may run now because somebody said so."""


class JobCompleted(_JobEvent, frozen=True, kw_only=True):
    """A job has ended well."""


class JobFailed(_JobEvent, frozen=True, kw_only=True):
    """A job has failed for good."""

    reason: FailureReason | None = None


class JobReaped(_JobEvent, frozen=True, kw_only=True):
    """A job was taken back from a holder that let its lease run out."""


class AttemptStarted(_AttemptEvent, frozen=True, kw_only=True):
    """A handler is about to run."""

    meta: Mapping[str, Any] = {}
    """What travels with the job."""


class AttemptCompleted(_AttemptEvent, frozen=True, kw_only=True):
    """A handler's outcome has been committed."""


class AttemptFailed(_AttemptEvent, frozen=True, kw_only=True):
    """A handler failed, or was stopped."""

    error: JobError
    retry_in: float | None
    """Seconds until the next attempt; None if there is none."""
    counted: bool = True
    """Whether it was the job's fault; else the database's, which is not held against it."""


class AttemptEnded(_AttemptEvent, frozen=True, kw_only=True):
    """What became of an attempt has been committed, or it came too late: one for each job that was taken."""

    outcome: AttemptOutcome
    waited: float
    """Seconds from when the job was due until it was taken, by the database's clock."""
    ran: float
    """Seconds in the handler."""


class LeaseRenewed(_WorkerEvent, frozen=True, kw_only=True):
    """A worker renewed the leases of its running jobs."""

    count: int


class LeaseLost(_AttemptEvent, frozen=True, kw_only=True):
    """A job no longer belongs to the attempt that runs it."""

    reason: LossReason


class AlreadyCompleted(_AttemptEvent, frozen=True, kw_only=True):
    """An outcome came too late and changed nothing."""


class _ScheduleEvent(_Event, frozen=True, kw_only=True):
    schedule: str
    type_name: str
    tick: datetime


class ScheduleTicked(_ScheduleEvent, frozen=True, kw_only=True):
    """A schedule has started a chain."""

    chain_id: ChainId


class ScheduleSkipped(_ScheduleEvent, frozen=True, kw_only=True):
    """A schedule has passed over ticks: they were missed, or its last chain had not ended."""

    count: int
    """The tick is the first of so many."""


class ScheduleFailed(_ScheduleEvent, frozen=True, kw_only=True):
    """A schedule could not start a chain; it is tried again."""

    error: JobError


class JobsTaken(_WorkerEvent, frozen=True, kw_only=True):
    """A worker holds these jobs now, by type: each is an attempt that ends."""

    counts: Mapping[str, int]


class BatchSettled(_WorkerEvent, frozen=True, kw_only=True):
    """Outcomes were settled with one commit."""

    size: int


class PoolWaited(_Event, frozen=True, kw_only=True):
    """A phase got its connection."""

    type_name: str
    seconds: float


class HintsSent(_Event, frozen=True, kw_only=True):
    """Others were told of changes."""

    count: int


class HintsReceived(_WorkerEvent, frozen=True, kw_only=True):
    """A worker was told of changes."""

    count: int


class StateError(_Event, frozen=True, kw_only=True):
    """The database did not answer as it should; Onward tries again."""

    doing: str
    error: JobError
    is_first: bool = True
    """Whether everything had worked before: others may follow until `StateRecovered`."""


class StateRecovered(_Event, frozen=True, kw_only=True):
    """What the database did not do works again."""

    seconds: float
    errors: int


class NotifyError(_Event, frozen=True, kw_only=True):
    """Hints could not be sent or received; everything still works, later."""

    doing: str
    error: JobError
    is_first: bool = True
    """Whether hints had been up before: others may follow until `NotifyRecovered`."""


class NotifyRecovered(_Event, frozen=True, kw_only=True):
    """Hints are back after they were down."""

    seconds: float = 0.0
    errors: int = 0


Event: TypeAlias = (
    WorkerStarted | WorkerStopping | WorkerStopped | WorkerFailed
    | ChainStarted | ChainCompleted | ChainFailed | ChainDeleted | ChainsPruned
    | JobCreated | JobBlocked | JobUnblocked | JobTriggered | JobCompleted | JobFailed | JobReaped
    | AttemptStarted | AttemptCompleted | AttemptFailed | AttemptEnded | LeaseRenewed | LeaseLost | AlreadyCompleted
    | JobsTaken | BatchSettled | PoolWaited | HintsSent | HintsReceived
    | ScheduleTicked | ScheduleSkipped | ScheduleFailed
    | StateError | StateRecovered | NotifyError | NotifyRecovered
)  # fmt: skip
"""Anything an observer may be told."""

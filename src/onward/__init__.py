"""Onward: background work that commits with your data.

Define jobs with `@job`, build an `Onward` on your database, start chains, run workers.

Errors are in `onward.errors`, queues in `onward.queue`, flows in `onward.flow`, encryption in `onward.crypto`.
"""

from onward.client.app import Onward
from onward.client.completion import Completion, SyncCompletion
from onward.client.handle import ChainHandle, SyncChainHandle
from onward.client.listing import Listing
from onward.client.sync import SyncOnward
from onward.define.attempt import Attempt, Phase, Row, SyncTransaction, Transaction
from onward.define.job_type import JobType, Required, Step, job, required
from onward.define.limit import Limit, Rate
from onward.define.middleware import Middleware, Resource
from onward.define.outcome import Done, Next, Outcome
from onward.define.request import NewChain, StartedChain
from onward.define.schedule import Schedule
from onward.define.slice import Slice
from onward.errors import AttemptLost, ChainFailed, OnwardError, Permanent, Reschedule, WaitTimeout
from onward.model import (
    Backoff,
    BlockedJob,
    Blocker,
    Chain,
    ChainId,
    CompletedJob,
    Deduplication,
    FailedJob,
    FailureReason,
    Job,
    JobError,
    JobId,
    JobStatus,
    LossReason,
    Page,
    PendingJob,
    Progress,
    Retention,
    RunningJob,
    StoredSchedule,
    WorkerId,
    new_id,
)
from onward.observe.logs import LogObserver
from onward.observe.observer import Observer
from onward.worker.worker import Worker

__all__ = [  # noqa: RUF022 - grouped like a table of contents
    # define
    "job", "JobType", "Step", "Slice", "Attempt", "Phase", "Transaction", "SyncTransaction", "Row",
    "Outcome", "Next", "Done", "Backoff", "Retention", "Middleware", "Resource", "required", "Required",
    "Schedule", "Limit", "Rate",
    # start and ask
    "Onward", "SyncOnward", "NewChain", "StartedChain", "Deduplication", "ChainHandle", "SyncChainHandle", "Completion",
    "SyncCompletion", "Listing", "Page", "new_id",
    # work
    "Worker", "Permanent", "Reschedule",
    # observe
    "Observer", "LogObserver",
    # what is stored
    "Chain", "Blocker", "Job", "BlockedJob", "PendingJob", "RunningJob", "CompletedJob", "FailedJob", "JobStatus",
    "FailureReason", "JobError", "LossReason", "Progress", "StoredSchedule", "JobId", "ChainId", "WorkerId",
    # errors that are caught every day; the others are in onward.errors
    "OnwardError", "AttemptLost", "ChainFailed", "WaitTimeout",
]  # fmt: skip

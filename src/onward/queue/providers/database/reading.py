"""From what the database has of a job to what a queue tells of it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Raw

from onward.model import CompletedJob, FailedJob, FailureReason, Job, JobStatus
from onward.queue.contract import StoredJob, TakenJob
from onward.queue.model import ActiveJob, QueueFailureReason, QueueJob, QueueJobStatus
from onward.queue.providers.database.forms import Facts, Form
from onward.state import contract as state
from onward.state.rows import read_errors

STALLED, EXPIRED = "Stalled", "Expired"
"""Types of errors that no handler raised."""
_UNLIMITED = 2**31 - 1
"""How `max_attempts` is told where there is no limit."""
_STATUS = {
    JobStatus.BLOCKED: QueueJobStatus.DELAYED,
    JobStatus.PENDING: QueueJobStatus.WAITING,
    JobStatus.RUNNING: QueueJobStatus.ACTIVE,
    JobStatus.COMPLETED: QueueJobStatus.COMPLETED,
    JobStatus.FAILED: QueueJobStatus.FAILED,
}


@dataclass(frozen=True, slots=True)
class Taken:
    """A job that was taken: `native` of an ActiveJob."""

    row: state.TakenJob
    facts: Facts
    holder: str

    @property
    def token(self) -> str:
        """The lock: it changes with every take."""
        return f"{self.row.attempt}/{self.holder}"


def active(form: Form, queue_name: str, row: state.TakenJob, *, holder: str) -> TakenJob:
    """A job that `holder` has taken. Raises PayloadError when it cannot be read."""
    facts, data = form.read(row.id, row.input, row.payload_version)
    errors = read_errors(row.errors) if row.failures else ()
    taken = Taken(row, facts, holder)
    return ActiveJob(
        id=facts.id,
        name=facts.name,
        queue_name=queue_name,
        data=data,
        status=QueueJobStatus.ACTIVE,
        attempts=row.failures,
        max_attempts=facts.attempts or _UNLIMITED,
        stalls=row.crashes,
        max_stalls=_most_stalls(facts),
        created_at=row.created_at,
        expires_at=facts.expires_at,
        processed_at=datetime.now(UTC),
        error=errors[-1].message if errors else None,
        priority=-row.rank,
        metadata=facts.metadata,
        lock_token=taken.token,
        native=taken,
    )


def stored(form: Form, queue_name: str, job: Job) -> StoredJob:
    """A job as it is stored. Raises PayloadError when it cannot be read."""
    facts, data = form.read(job.id, msgspec.json.encode(job.input).decode(), job.payload_version)
    is_late = job.status is JobStatus.PENDING and job.scheduled_at > datetime.now(UTC)
    stalls = sum(error.type == STALLED for error in job.errors)
    error = job.last_error if job.failures or stalls or isinstance(job, FailedJob) else None
    return QueueJob(
        id=facts.id,
        name=facts.name,
        queue_name=queue_name,
        data=data,
        status=QueueJobStatus.DELAYED if is_late else _STATUS[job.status],
        attempts=job.failures,
        max_attempts=facts.attempts or _UNLIMITED,
        stalls=stalls,
        max_stalls=_most_stalls(facts),
        created_at=job.created_at,
        expires_at=facts.expires_at,
        progress=job.progress,
        scheduled_for=job.scheduled_at if is_late else None,
        error=None if error is None else error.message,
        priority=job.priority,
        metadata=facts.metadata,
        **_end(form, job),
    )


def _end(form: Form, job: Job) -> dict[str, Any]:
    if isinstance(job, CompletedJob):
        result = form.read_result(job.output)
        return {
            "completed_at": job.completed_at,
            "processed_at": form.read_taken_at(job.output),
            "result": None if result is None else Raw(msgspec.json.encode(result)),
        }
    return {"failed_at": job.failed_at, "reason": _reason(job)} if isinstance(job, FailedJob) else {}


def _reason(job: FailedJob) -> QueueFailureReason:
    """The database knows attempts and all else; what ended a job that nobody ran is in its last error."""
    kind = job.last_error.type if job.last_error is not None else ""
    if kind in (STALLED, EXPIRED):
        return QueueFailureReason(kind.lower())
    return QueueFailureReason.ATTEMPTS if job.reason is FailureReason.ATTEMPTS else QueueFailureReason.PERMANENT


def _most_stalls(facts: Facts) -> int:
    return _UNLIMITED if facts.max_stalls is None else facts.max_stalls

"""From what the database has of a job to what a queue tells of it and back, and how its attempts end."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Raw

from onward.errors import PayloadError
from onward.lifecycle import settle
from onward.lifecycle.effects import describe
from onward.lifecycle.settle import RetryPolicy
from onward.model import CompletedJob, FailedJob, FailureReason, Job, JobError, JobStatus
from onward.observe.running import current_attempt
from onward.options import MOST_PRIORITY
from onward.queue.contract import StoredJob, TakenJob, is_permanent
from onward.queue.model import ActiveJob, QueueFailureReason, QueueJob, QueueJobStatus
from onward.queue.options import Options
from onward.queue.providers.database.forms import Form, JobFacts
from onward.state import contract as state
from onward.state.contract import NewJob, Settlement
from onward.state.rows import read_errors, write_errors

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
    facts: JobFacts
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
        **_common(facts, queue_name, data, row),
        status=QueueJobStatus.ACTIVE,
        stalls=row.crashes,
        processed_at=datetime.now(UTC),
        error=errors[-1].message if errors else None,
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
        **_common(facts, queue_name, data, job),
        status=QueueJobStatus.DELAYED if is_late else _STATUS[job.status],
        stalls=stalls,
        progress=job.progress,
        scheduled_for=job.scheduled_at if is_late else None,
        error=None if error is None else error.message,
        **_end(form, job),
    )


def _common(facts: JobFacts, queue_name: str, data: Raw, row: state.TakenJob | Job) -> dict[str, Any]:
    """What is known of a job, whoever has it."""
    return {
        "id": facts.id,
        "name": facts.name,
        "queue_name": queue_name,
        "data": data,
        "attempts": row.failures,
        "max_attempts": facts.attempts or _UNLIMITED,
        "max_stalls": _UNLIMITED if facts.max_stalls is None else facts.max_stalls,
        "created_at": row.created_at,
        "expires_at": facts.expires_at,
        "priority": row.priority,
        "metadata": facts.metadata,
    }


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


_DIED = "its worker died, or was stuck for longer than the lease"
_LATE = "it waited for longer than its time to live"


def new_chain(form: Form, job: StoredJob, options: Options) -> NewJob:
    """The chain that keeps a job. Raises PayloadError when it cannot be kept."""
    if options.native:
        names = ", ".join(options.native)
        raise _refused(form, "provider_options", f"this provider has no options of its own, got: {names}")
    if job.priority > MOST_PRIORITY:
        raise _refused(form, "priority", f"must be at most {MOST_PRIORITY}, got: {job.priority}")
    chain_id = form.id_of(job.id)
    if chain_id is None:
        raise _refused(form, "id", f"jobs of a job type have UUIDs for ids, got: {job.id!r}")
    origin = current_attempt.get()
    return NewJob(
        id=chain_id,
        chain_id=chain_id,
        type_name=form.type_name,
        payload_version=form.versions[0],
        input=form.write(job, options),
        priority=job.priority,
        delay=options.delay.total_seconds(),
        origin_id=origin.job_id if origin else None,
        root_id=origin.root_id if origin else chain_id,
        id_is_callers=True,
    )


def completed(form: Form, taken: Taken, result: Raw | None, taken_at: datetime | None) -> Settlement:
    """The attempt went well. Raises PayloadError when its result cannot be kept."""
    return Settlement(
        job_id=taken.row.id,
        attempt=taken.row.attempt,
        holder=taken.holder,
        kind="complete",
        output=form.write_result(result, taken_at),
        completed_by=taken.holder,
        remove=taken.facts.remove_on_complete,
    )


def failed(taken: Taken, error: BaseException) -> Settlement:
    """The attempt failed: tried again, or failed for good at the limit or by a permanent error."""
    policy, permanent = taken.facts.policy, is_permanent(error)
    if permanent:
        policy = RetryPolicy(backoff=policy.backoff, max_attempts=1)
    failure = settle.counted_failure(taken.row, taken.holder, describe(error), policy)
    reason = FailureReason.PERMANENT if permanent else failure.reason
    crashes = taken.row.crashes if taken.facts.max_stalls is not None else failure.crashes
    return msgspec.structs.replace(failure, reason=reason, crashes=crashes, remove=taken.facts.remove_on_fail)


def crashed(facts: JobFacts, row: state.TakenJob, holder: str) -> Settlement:
    """The lease of another holder ran out: one more stall, and no attempt."""
    if facts.max_stalls is None:
        return settle.settlement_of_crash(row, holder, facts.policy)
    if row.crashes < facts.max_stalls:
        return _ended(row, holder, STALLED, _DIED, kind="requeue", crashes=row.crashes + 1)
    return _ended(row, holder, STALLED, _DIED, kind="fail", reason=FailureReason.ATTEMPTS, remove=facts.remove_on_fail)


def expired(facts: JobFacts, row: state.TakenJob, holder: str) -> Settlement:
    """It waited for longer than its time to live."""
    remove = facts.remove_on_fail
    return _ended(row, holder, EXPIRED, _LATE, kind="fail", reason=FailureReason.PERMANENT, remove=remove)


def is_expired(facts: JobFacts, row: state.TakenJob) -> bool:
    """Whether it is too late to begin it; one that was retried has no end to its life."""
    if facts.expires_at is None or facts.expires_at > datetime.now(UTC):
        return False
    return all(error.type != EXPIRED for error in (read_errors(row.errors) if row.errors else ()))


def _ended(row: state.TakenJob, holder: str, kind_of_error: str, message: str, **how: Any) -> Settlement:
    error = JobError(type=kind_of_error, message=message, attempt=row.attempt)
    errors = write_errors(row.errors, error)
    return Settlement(job_id=row.id, attempt=row.attempt, holder=holder, errors=errors, **how)


def unreadable(row: state.TakenJob, holder: str, error: PayloadError) -> Settlement:
    """What something else has written under our name: it will not become readable."""
    return failed(Taken(row, JobFacts(id=str(row.id), name=""), holder), error)


def _refused(form: Form, part: str, problem: str) -> PayloadError:
    return PayloadError(job_type=form.type_name, part=part, field="$", problem=problem)

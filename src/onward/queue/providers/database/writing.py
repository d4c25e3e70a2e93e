"""From what a queue knows of a job to what the database keeps, and how its attempts end."""

from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Raw

from onward.errors import PayloadError
from onward.lifecycle import settle
from onward.lifecycle.after_commit import describe
from onward.lifecycle.context import current_origin
from onward.lifecycle.settle import RetryPolicy
from onward.model import FailureReason, JobError
from onward.options import MOST_PRIORITY
from onward.queue.contract import StoredJob, is_permanent
from onward.queue.options import Options
from onward.queue.providers.database.forms import Facts, Form
from onward.queue.providers.database.reading import EXPIRED, STALLED, Taken
from onward.state.contract import NewJob, Settlement, TakenJob
from onward.state.rows import read_errors, write_errors

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
    origin = current_origin.get()
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


def crashed(facts: Facts, row: TakenJob, holder: str) -> Settlement:
    """The lease of another holder ran out: one more stall, and no attempt."""
    if facts.max_stalls is None:
        return settle.crash(row, holder, facts.policy)
    if row.crashes < facts.max_stalls:
        return _ended(row, holder, STALLED, _DIED, kind="retry", crashes=row.crashes + 1)
    return _ended(row, holder, STALLED, _DIED, kind="fail", reason=FailureReason.ATTEMPTS, remove=facts.remove_on_fail)


def expired(facts: Facts, row: TakenJob, holder: str) -> Settlement:
    """It waited for longer than its time to live."""
    remove = facts.remove_on_fail
    return _ended(row, holder, EXPIRED, _LATE, kind="fail", reason=FailureReason.PERMANENT, remove=remove)


def is_expired(facts: Facts, row: TakenJob) -> bool:
    """Whether it is too late to begin it; one that was retried has no end to its life."""
    if facts.expires_at is None or facts.expires_at > datetime.now(UTC):
        return False
    return all(error.type != EXPIRED for error in (read_errors(row.errors) if row.errors else ()))


def _ended(row: TakenJob, holder: str, kind_of_error: str, message: str, **how: Any) -> Settlement:
    error = JobError(type=kind_of_error, message=message, attempt=row.attempt)
    errors = write_errors(row.errors, error)
    return Settlement(job_id=row.id, attempt=row.attempt, holder=holder, errors=errors, **how)


def unreadable(row: TakenJob, holder: str, error: PayloadError) -> Settlement:
    """What something else has written under our name: it will not become readable."""
    return failed(Taken(row, Facts(id=str(row.id), name=""), holder), error)


def _refused(form: Form, part: str, problem: str) -> PayloadError:
    return PayloadError(job_type=form.type_name, part=part, field="$", problem=problem)

"""SETTLE: how an attempt ended becomes what is written about it."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from onward.define.outcome import Done, Next, Outcome, Rescheduled
from onward.define.registry import RegisteredType, Registry
from onward.define.sealing import Guard
from onward.errors import DecryptionError, HandlerFailed, PayloadError, Permanent, PhaseError, Reschedule
from onward.lifecycle.effects import describe, escaped, plain
from onward.lifecycle.start import Predecessor, plan_continuation
from onward.model import Backoff, ChainId, FailureReason, JobError, WorkerId
from onward.observe.events import AttemptOutcome
from onward.pacing import pause_after
from onward.state.contract import Settlement, SettlementKind, TakenJob
from onward.state.rows import change_last_error, write_errors

_SHORTEST_WAIT, _LONGEST_WAIT = 0.1, 30.0
"""Seconds until an attempt that the database made fail is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a failed attempt is tried again."""

    backoff: Backoff
    max_attempts: int | None


def settlement_of(
    registry: Registry, job_type: RegisteredType, job: TakenJob, worker: WorkerId, returned: Any
) -> Settlement:
    """What a handler returned, encoded and validated. Raises PayloadError and UndeclaredStep."""
    is_done = isinstance(returned, Done)
    if is_done or not isinstance(returned, Outcome):
        output, version = returned.output if is_done else returned, job_type.definition.version
        return Settlement(
            job_id=job.id,
            attempt=job.attempt,
            holder=worker,
            kind="complete",
            output=encode_output(job_type, output, job.chain_id),
            payload_version=None if version == job.payload_version else version,
            completed_by=worker,
        )
    outcome: Outcome[Any] = returned
    if isinstance(outcome, Next):
        after = Predecessor(job.id, job.chain_id, job.chain_index, job.root_id, job.type_name, job.priority, job.meta)
        following = plan_continuation(registry, outcome, after)
        return _settlement(job, worker, "continue", completed_by=worker, next=following)
    if isinstance(outcome, Rescheduled):
        return rescheduled(job, worker, outcome)
    raise PhaseError(f"{job_type.name!r} returned {outcome!r}; return an output, Done(…) or attempt.continue_with(…)")


def encode_output(job_type: RegisteredType, output: Any, chain_id: ChainId) -> str:
    """The output as it is stored. Raises PayloadError."""
    if job_type.output is None:
        raise PayloadError(
            job_type=job_type.name,
            part="output",
            field="$",
            problem="its handler is declared to always continue (Next[…])",
        )
    return job_type.output.encode(output, chain_id)


def settlement_of_error(job: TakenJob, worker: WorkerId, error: BaseException, policy: RetryPolicy) -> Settlement:
    """What follows from an exception that left the handler."""
    if isinstance(error, Reschedule):
        return rescheduled(job, worker, error)
    if isinstance(error, Permanent) or (isinstance(error, HandlerFailed) and error.permanent):
        return _failed(job, worker, FailureReason.PERMANENT, describe(error))
    if isinstance(error, DecryptionError):
        return _failed(job, worker, FailureReason.UNREADABLE, describe(error))
    return counted_failure(job, worker, describe(error), policy)


def guarded(settlement: Settlement, guard: Guard, secrets: set[str]) -> Settlement:
    """With its last error as one may store it of a type with encryption or secrets."""

    def change(error: JobError) -> JobError:
        return guard.stored(guard.told(error, secrets), settlement.job_id)

    return msgspec.structs.replace(settlement, errors=change_last_error(settlement.errors, change))


def counted_failure(job: TakenJob, worker: WorkerId, error: JobError, policy: RetryPolicy) -> Settlement:
    """An error, timeout or wrong payload: tried again after the backoff, until the limit."""
    failures = job.failures + 1
    if policy.max_attempts is not None and failures >= policy.max_attempts:
        return _failed(job, worker, FailureReason.ATTEMPTS, error)
    delay = policy.backoff.delay(failures).total_seconds()
    return _settlement(job, worker, "requeue", delay=delay, failures=1, errors=_errors(job, error))


def transient_failure(job: TakenJob, worker: WorkerId, error: BaseException) -> Settlement:
    """The database stumbled in a phase: tried again without counting, soon at first, and ever later if it goes on."""
    return _settlement(
        job,
        worker,
        "requeue",
        delay=pause_after(job.transients + 1, _SHORTEST_WAIT, _LONGEST_WAIT),
        transients=job.transients + 1,
        errors=_errors(job, msgspec.structs.replace(describe(error), counted=False)),
    )


def settlement_of_crash(job: TakenJob, worker: WorkerId, policy: RetryPolicy) -> Settlement:
    """A reaped job: the first crash is pending at once, consecutive ones back off, the limit fails the job."""
    failures, crashes = job.failures + 1, job.crashes + 1
    error = JobError(type="WorkerCrashed", message=f"the worker of attempt {job.attempt} let its lease run out")
    if policy.max_attempts is not None and failures >= policy.max_attempts:
        return _failed(job, worker, FailureReason.ATTEMPTS, error)
    delay = policy.backoff.delay(crashes - 1).total_seconds() if crashes > 1 else 0.0
    errors = _errors(job, error)
    return _settlement(job, worker, "requeue", delay=delay, failures=1, crashes=crashes, keep_place=True, errors=errors)


def given_back(job: TakenJob, worker: WorkerId) -> Settlement:
    """The worker stops: pending at once, nothing counted."""
    return _settlement(job, worker, "requeue", transients=job.transients, crashes=job.crashes, keep_place=True)


def ended_as(settlement: Settlement | None) -> AttemptOutcome:
    """How an attempt ended that was settled like this; None: it came too late."""
    if settlement is None:
        return "lost"
    if settlement.kind == "requeue":
        if settlement.errors is not None:
            return "retrying"
        return "given_back" if settlement.keep_place else "rescheduled"
    if settlement.kind == "fail":
        return "cancelled" if settlement.reason is FailureReason.CANCELLED else "failed"
    return "continued" if settlement.kind == "continue" else "completed"


def in_ascii(settlement: Settlement) -> Settlement:
    """With an error and a note that can be told in every encoding."""
    progress = settlement.progress
    if progress is not None and progress.note is not None:
        progress = msgspec.structs.replace(progress, note=escaped(progress.note))
    errors = change_last_error(settlement.errors, plain)
    return msgspec.structs.replace(settlement, errors=errors, progress=progress)


def unstorable(settlement: Settlement, error: BaseException) -> Settlement:
    """In place of an outcome that the database will never take: it would be refused every time."""
    return Settlement(
        job_id=settlement.job_id,
        attempt=settlement.attempt,
        holder=settlement.holder,
        kind="fail",
        reason=FailureReason.PERMANENT,
        errors=write_errors(
            None, msgspec.structs.replace(plain(describe(error)), attempt=settlement.attempt, at=datetime.now(UTC))
        ),
    )


def settlement_of_cancel(job: TakenJob, worker: WorkerId) -> Settlement:
    """Somebody asked for the job to end."""
    error = JobError(type="Cancelled", message="the chain was cancelled")
    return _failed(job, worker, FailureReason.CANCELLED, error)


def _failed(job: TakenJob, worker: WorkerId, reason: FailureReason, error: JobError) -> Settlement:
    failures = 1 if reason is FailureReason.ATTEMPTS else 0
    return _settlement(job, worker, "fail", failures=failures, reason=reason, errors=_errors(job, error))


def rescheduled(job: TakenJob, worker: WorkerId, outcome: Rescheduled | Reschedule) -> Settlement:
    """The handler said when to run it again, by returning or by raising that."""
    delay = (outcome.delay or timedelta(0)).total_seconds()
    return _settlement(job, worker, "requeue", delay=max(delay, 0.0), at=outcome.at)


def _settlement(job: TakenJob, worker: WorkerId, kind: SettlementKind, **said: Any) -> Settlement:
    return Settlement(job_id=job.id, attempt=job.attempt, holder=worker, kind=kind, **said)


def _errors(job: TakenJob, error: JobError) -> str:
    return write_errors(job.errors, msgspec.structs.replace(error, attempt=job.attempt, at=datetime.now(UTC)))

"""Options and jobs, from our words to BullMQ's and back."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Raw

from onward.model import Backoff, Progress
from onward.queue.contract import StoredJob
from onward.queue.model import Keep, QueueFailureReason, QueueJob, QueueJobStatus
from onward.queue.options import Options

_LEAST_URGENT = 2**21 - 1
"""BullMQ's priorities end at 2**21; there its scores are beyond whole numbers, and jobs would lose their order."""
MOST_URGENT = _LEAST_URGENT - 1
"""Our highest priority, BullMQ's 1."""
METADATA = "onward.metadata"
"""Among the options of a job, as JSON text: Lua would turn an empty list into an object, and drop null."""
_STALLED = "job stalled more than allowable limit"
"""BullMQ's words."""
_WHOLE_NUMBER = re.compile(r"-?\d+")

STATUS = {
    "waiting": QueueJobStatus.WAITING,
    "prioritized": QueueJobStatus.WAITING,
    "waiting-children": QueueJobStatus.WAITING,
    "delayed": QueueJobStatus.DELAYED,
    "active": QueueJobStatus.ACTIVE,
    "completed": QueueJobStatus.COMPLETED,
    "failed": QueueJobStatus.FAILED,
}


def problem_with_id(job_id: str, reserved: Mapping[str, str]) -> str | None:
    """Why BullMQ cannot have a job of this id; `reserved` are the last words of the queue's own keys."""
    if _WHOLE_NUMBER.fullmatch(job_id):
        return f"the id of a job must not be a whole number: those are given by BullMQ itself, got: {job_id!r}"
    if ":" in job_id:
        return f"the id of a job must not contain ':', which parts the keys of BullMQ, got: {job_id!r}"
    if job_id in reserved:
        return f"the id of a job must not be the name of a key that BullMQ has for the queue, got: {job_id!r}"
    return None


def to_native(job: StoredJob, options: Options) -> dict[str, Any]:
    """The options of a BullMQ job.

    Every job has a priority: BullMQ runs those without one before all others.
    """
    native: dict[str, Any] = {
        "timestamp": milliseconds(job.created_at),
        "attempts": options.attempts,
        "priority": _LEAST_URGENT - options.priority,
    }
    if options.delay:
        native["delay"] = max(milliseconds_in(options.delay), 1)
    if options.backoff is not None:
        native["backoff"] = _backoff(options.backoff)
    # Left out rather than false: then what a Node.js worker keeps by default holds for these jobs too.
    if options.remove_on_complete:
        native["removeOnComplete"] = True
    if options.remove_on_fail:
        native["removeOnFail"] = True
    if options.metadata:
        native[METADATA] = msgspec.json.encode(options.metadata).decode()
    return {**native, **options.native, "jobId": job.id}


def _backoff(backoff: Backoff) -> dict[str, Any]:
    """BullMQ knows `type`, `delay` and, in Node.js, `jitter`; the rest is for workers of ours."""
    return {
        "type": "fixed" if backoff.factor == 1 else "exponential",
        "delay": milliseconds_in(min(backoff.initial, backoff.maximum)),
        "jitter": min(backoff.jitter, 1.0),
        "factor": backoff.factor,
        "maximum": milliseconds_in(backoff.maximum),
    }


def retry_backoff(asked: Any, failures: int) -> Any:
    """What BullMQ is told about the wait after that many failures: one of ours is worked out, others are its own."""
    if not isinstance(asked, dict) or "factor" not in asked or "maximum" not in asked:
        return asked
    backoff = Backoff(
        initial=timedelta(milliseconds=asked["delay"]),
        factor=asked["factor"],
        maximum=timedelta(milliseconds=asked["maximum"]),
        jitter=asked["jitter"],
    )
    return {"type": "fixed", "delay": milliseconds_in(backoff.delay(failures))}


def kept(keep: Keep) -> dict[str, int]:
    """What BullMQ is told about keeping finished jobs; it counts age in seconds."""
    return {"count": keep.count, "age": round(keep.age.total_seconds())}


def from_native(
    job: Any, queue_name: str, status: QueueJobStatus, due: float | None = None, *, max_stalls: int
) -> StoredJob:
    """A BullMQ job in our words; `due` is when a delayed one may be taken, in its milliseconds."""
    finished = moment(job.finishedOn)
    # BullMQ counts the attempt that succeeded, too, and the last word on a job that stalled.
    has_stalled = status is QueueJobStatus.FAILED and job.failedReason == _STALLED
    attempts = max(job.attemptsMade - (status is QueueJobStatus.COMPLETED or has_stalled), 0)
    max_attempts = max(int(job.opts.get("attempts") or 1), 1)
    return QueueJob(
        id=job.id,
        name=job.name,
        queue_name=queue_name,
        data=_data(job.data),
        status=status,
        attempts=attempts,
        max_attempts=max_attempts,
        stalls=job.stalledCounter,
        max_stalls=max_stalls,
        created_at=moment(job.timestamp) or datetime.now(UTC),
        processed_at=moment(job.processedOn),
        completed_at=finished if status is QueueJobStatus.COMPLETED else None,
        failed_at=finished if status is QueueJobStatus.FAILED else None,
        scheduled_for=moment(due or job.timestamp + job.delay) if status is QueueJobStatus.DELAYED else None,
        error=job.failedReason,
        reason=_reason(has_stalled, attempts >= max_attempts) if status is QueueJobStatus.FAILED else None,
        result=_data(job.returnvalue) if status is QueueJobStatus.COMPLETED and job.returnvalue is not None else None,
        progress=_progress(job.progress),
        priority=max(_LEAST_URGENT - job.priority, 0) if job.priority else 0,
        metadata=_metadata(job.opts.get(METADATA)),
    )


def _reason(has_stalled: bool, is_used_up: bool) -> QueueFailureReason:
    if has_stalled:
        return QueueFailureReason.STALLED
    return QueueFailureReason.ATTEMPTS if is_used_up else QueueFailureReason.PERMANENT


def _progress(value: Any) -> Progress | None:
    """Ours is an object; Node.js programs have a percentage, or anything."""
    if isinstance(value, dict) and isinstance(value.get("fraction"), int | float):
        note = value.get("note")
        return Progress(float(value["fraction"]), note if isinstance(note, str) else None)
    if isinstance(value, int | float) and value:
        return Progress(min(max(value / 100, 0.0), 1.0))
    return None


def _data(value: Any) -> Raw:
    try:
        return Raw(msgspec.json.encode(value))
    except (UnicodeEncodeError, OverflowError):  # half a surrogate pair, a very large number: from others
        return Raw(json.dumps(value).encode())


def _metadata(kept: Any) -> Mapping[str, Any]:
    if isinstance(kept, str):
        try:
            kept = msgspec.json.decode(kept)
        except msgspec.DecodeError:
            return {}  # not ours: another program uses that name for something else
    return kept if isinstance(kept, Mapping) else {}


def milliseconds(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)


def moment(value: float | None) -> datetime | None:
    """An instant in BullMQ's milliseconds; 0 is none."""
    return datetime.fromtimestamp(value / 1000, UTC) if value else None


def milliseconds_in(value: timedelta) -> int:
    return round(value / timedelta(milliseconds=1))

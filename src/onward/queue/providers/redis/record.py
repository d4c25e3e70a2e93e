"""What is stored of a job, and how it becomes the job that users see."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec
from msgspec import Raw

from onward.model import Backoff, Progress
from onward.queue.contract import StoredJob, TakenJob, unfit
from onward.queue.model import ActiveJob, QueueFailureReason, QueueJob, QueueJobStatus
from onward.queue.options import Options, problem_with

_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Record(msgspec.Struct, array_like=True, frozen=True):
    """A job as it was added: never changed. Scripts read the first three, so these stay where they are."""

    max_stalls: int
    priority: int
    remove_on_fail: bool
    max_attempts: int
    remove_on_complete: bool
    name: str
    data: Raw
    created_at: datetime
    backoff: Backoff | None = None
    metadata: dict[str, Any] = {}


class Addition(msgspec.Struct):
    """What the script that adds jobs is told of one."""

    id: str
    record: str
    """Text, as below: the MessagePack of Redis knows no bytes."""
    delay: int
    ttl: int
    priority: int

    @property
    def is_plain(self) -> bool:
        return not (self.delay or self.ttl or self.priority)


class Ending(msgspec.Struct):
    """What the script that settles jobs is told of one."""

    id: str
    lock: str | None
    outcome: Literal["completed", "waiting", "delayed", "failed", "released"]
    text: str = ""
    """Its result or its error."""
    reason: str = ""
    remove: bool = False
    delay: int = 0
    priority: int = 0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode
_UNREADABLE = Record(0, 0, False, 1, False, "(unreadable)", Raw(b"null"), _EPOCH)
"""Stands for a record that something else has changed."""


def overridden(job: StoredJob, options: Options) -> tuple[StoredJob, Options]:
    """With `provider_options["redis"]`, which has the names and the meanings of the ordinary options."""
    problem = problem_with(options.native)
    if problem is not None:
        raise unfit(job, f'provider_options["redis"]: {problem}')
    options = msgspec.structs.replace(options, native={}, **options.native)
    changed = msgspec.structs.replace(
        job,
        status=QueueJobStatus.DELAYED if options.delay else QueueJobStatus.WAITING,
        max_attempts=options.attempts,
        max_stalls=options.max_stalls,
        expires_at=job.created_at + options.ttl if options.ttl else None,
        scheduled_for=job.created_at + options.delay if options.delay else None,
        priority=options.priority,
        metadata=options.metadata,
    )
    return changed, options


def addition(job: StoredJob, options: Options) -> Addition:
    """A job as the script that adds jobs wants it."""
    record = Record(
        job.max_stalls,
        job.priority,
        options.remove_on_fail,
        job.max_attempts,
        options.remove_on_complete,
        job.name,
        job.data,
        job.created_at,
        options.backoff,
        dict(job.metadata),
    )
    try:
        job.id.encode()
        text = _encode(record).decode()
    except (TypeError, ValueError) as error:
        raise unfit(job, f"its id, name or metadata cannot be stored: {error}") from error
    ttl = microseconds(options.ttl) if options.ttl else 0
    return Addition(job.id, text, microseconds(options.delay), ttl, job.priority)


def taken(queue_name: str, lock_token: str, processed_at: datetime, row: Sequence[Any]) -> TakenJob:
    """A job as the script that takes jobs answers. Raises msgspec.MsgspecError when its record cannot be read."""
    id, stored, attempts, stalls, error = row
    record = _decode(stored)
    return ActiveJob(
        **_facts(record, queue_name, id, attempts, stalls, error),
        status=QueueJobStatus.ACTIVE,
        processed_at=processed_at,
        lock_token=lock_token,
        native=record,
    )


def unreadable(queue_name: str, lock_token: str, processed_at: datetime, id: bytes) -> TakenJob:
    """A job whose record something else has changed."""
    record = _UNREADABLE
    return ActiveJob(
        id=id.decode(errors="replace"),
        name=record.name,
        queue_name=queue_name,
        data=record.data,
        created_at=processed_at,
        lock_token=lock_token,
        native=record,
    )


def described(queue_name: str, description: Sequence[Any]) -> StoredJob:
    """A job as the scripts that look jobs up answer."""
    id, stored, status, at, attempts, stalls, error, reason, since, result, progress, expires = description
    record = _readable(stored)
    status, instant = QueueJobStatus(str(_text(status))), None if at is None else moment(at)
    return QueueJob(
        **_facts(record, queue_name, id, attempts, stalls, error),
        status=status,
        processed_at=None if since is None else moment(since),
        completed_at=instant if status is QueueJobStatus.COMPLETED else None,
        failed_at=instant if status is QueueJobStatus.FAILED else None,
        scheduled_for=instant if status is QueueJobStatus.DELAYED else None,
        expires_at=None if expires is None else moment(expires),
        reason=QueueFailureReason(reason.decode()) if reason and status is QueueJobStatus.FAILED else None,
        result=None if result is None else Raw(result),
        progress=None if progress is None else msgspec.json.decode(progress, type=Progress),
    )


def _facts(record: Record, queue_name: str, id: bytes, attempts: Any, stalls: Any, error: Any) -> dict[str, Any]:
    """What is known of a job, whoever has it."""
    return {
        "id": id.decode(),
        "name": record.name,
        "queue_name": queue_name,
        "data": record.data,
        "attempts": int(attempts or 0),
        "max_attempts": record.max_attempts,
        "stalls": int(stalls or 0),
        "max_stalls": record.max_stalls,
        "created_at": record.created_at,
        "error": _text(error),
        "priority": record.priority,
        "metadata": record.metadata,
    }


def _readable(stored: bytes) -> Record:
    try:
        return _decode(stored)
    except msgspec.MsgspecError:
        return _UNREADABLE


def microseconds(duration: timedelta) -> int:
    """As scripts count time."""
    return duration // _MICROSECOND


def moment(at: int | bytes) -> datetime:
    """The instant that a script means; exact, as a float would not be."""
    return _EPOCH + int(float(at)) * _MICROSECOND


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()

"""Jobs as messages and messages as jobs. The body is the data; everything else is in properties and headers."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from aio_pika import DeliveryMode, Message
from aio_pika.abc import AbstractIncomingMessage
from msgspec import Raw
from pamqp.frame import marshal
from pamqp.header import ContentHeader

from onward.errors import QueueDataError
from onward.model import Backoff, new_id
from onward.queue.contract import StoredJob, TakenJob, unfit
from onward.queue.model import ActiveJob, QueueFailureReason, QueueJob, QueueJobStatus
from onward.queue.options import Options

MAX_RETRIES, ATTEMPTS = "x-max-retries", "x-attempts"
MAX_STALLS, STALLS = "x-max-stalls", "x-stalls"
RETRY_DELAY, RETRY_FACTOR, RETRY_MAX_DELAY, RETRY_JITTER = (
    "x-retry-delay", "x-retry-factor", "x-retry-max-delay", "x-retry-jitter",
)  # fmt: skip
ERROR, REASON, FAILED_AT = "x-error", "x-reason", "x-failed-at"
CREATED_AT, EXPIRES_AT = "x-created-at", "x-expires-at"
METADATA, REMOVE_ON_FAIL = "x-metadata", "x-remove-on-fail"

COPIES = frozenset(("CC", "BCC"))
"""Where else RabbitMQ sends a message to."""
_OF_THE_BROKER = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count")
_LARGEST_HEAD = 100_000
"""Bytes: everything but the body must fit into one frame, with room for an error to come."""
_MILLISECOND = timedelta(milliseconds=1)


def new_message(job: StoredJob, options: Options) -> Message:
    """A job that is added; `options.native` may set any property of an aio-pika message, and adds headers."""
    headers: dict[str, Any] = {MAX_RETRIES: options.attempts - 1, CREATED_AT: job.created_at.isoformat()}
    headers[MAX_STALLS] = options.max_stalls
    if job.expires_at is not None:
        headers[EXPIRES_AT] = job.expires_at.isoformat()
    if options.backoff is not None:
        headers |= _backoff_headers(options.backoff)
    if options.remove_on_fail:
        headers[REMOVE_ON_FAIL] = True
    if job.metadata:
        headers[METADATA] = msgspec.json.encode(job.metadata).decode()
    native = dict(options.native)
    theirs = native.pop("headers", {})
    if not isinstance(theirs, Mapping):
        raise unsendable(job, f"its headers must be a mapping, got: {theirs!r}")
    headers |= theirs
    properties = {
        "message_id": job.id,
        "type": job.name,
        "timestamp": job.created_at,
        "content_type": "application/json",
        "priority": job.priority,
        "delivery_mode": DeliveryMode.PERSISTENT,
        **native,
    }
    try:
        message = Message(bytes(job.data), headers=headers, **properties)
        size = len(marshal(ContentHeader(properties=message.properties), 1))
    except Exception as error:
        raise unsendable(job, str(error)) from error
    if size > _LARGEST_HEAD:
        raise unsendable(job, f"metadata and headers take {size} bytes, the most is {_LARGEST_HEAD}")
    return message


def copy_of(message: AbstractIncomingMessage, job_id: str, changes: Mapping[str, Any]) -> Message:
    """The same job with other headers (`None` takes one away), for another round.

    Without what belonged to its first journey: the user who sent it, its expiration, where copies went, what the broker
    noted on it.
    """
    first = message.headers.items()
    headers = {name: value for name, value in first if not name.startswith(_OF_THE_BROKER) and name not in COPIES}
    headers = {name: value for name, value in {**headers, **changes}.items() if value is not None}
    return Message(
        message.body,
        headers=headers,
        message_id=job_id,
        type=message.type,
        timestamp=message.timestamp,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        correlation_id=message.correlation_id,
        reply_to=message.reply_to,
        app_id=message.app_id,
        priority=message.priority,
        delivery_mode=DeliveryMode.PERSISTENT,
    )


def taken_job(message: AbstractIncomingMessage, queue_name: str, *, lock_token: str) -> TakenJob:
    """The job of a message that came."""
    facts = _facts(message, queue_name)
    return ActiveJob(
        **{**facts, "stalls": facts["stalls"] + lost_deliveries(message)},
        status=QueueJobStatus.ACTIVE,
        processed_at=datetime.now(UTC),
        lock_token=lock_token,
        native=message,
    )


def failed_job(message: AbstractIncomingMessage, queue_name: str) -> StoredJob:
    """The job of a message in the queue of failed ones."""
    return QueueJob(
        **_facts(message, queue_name),
        status=QueueJobStatus.FAILED,
        reason=_reason(message.headers.get(REASON)),
        failed_at=_instant(message.headers.get(FAILED_AT)),
    )


def lost_deliveries(message: AbstractIncomingMessage) -> int:
    """How often it was delivered before to someone who then went away; at least so often where none counted."""
    counted = message.headers.get("x-delivery-count")
    return counted if isinstance(counted, int) and counted > 0 else int(bool(message.redelivered))


def counts(job: TakenJob) -> dict[str, Any]:
    """What a copy of its message says of a job: the broker counts anew for each."""
    return {ATTEMPTS: job.attempts or None, STALLS: job.stalls or None}


def retry_delay(message: AbstractIncomingMessage, failures: int) -> timedelta:
    """The wait after that many failures, as its headers say."""
    headers = message.headers
    initial = _number(headers.get(RETRY_DELAY)) * _MILLISECOND
    if not initial:
        return timedelta()
    backoff = Backoff(
        initial=initial,
        factor=_number(headers.get(RETRY_FACTOR), 1.0),
        maximum=_number(headers.get(RETRY_MAX_DELAY), initial / _MILLISECOND) * _MILLISECOND,
        jitter=_number(headers.get(RETRY_JITTER)),
    )
    return backoff.delay(failures)


def _backoff_headers(backoff: Backoff) -> dict[str, Any]:
    return {
        RETRY_DELAY: backoff.initial // _MILLISECOND,
        RETRY_FACTOR: float(backoff.factor),
        RETRY_MAX_DELAY: backoff.maximum // _MILLISECOND,
        RETRY_JITTER: float(backoff.jitter),
    }


def _facts(message: AbstractIncomingMessage, queue_name: str) -> dict[str, Any]:
    headers = message.headers
    sent = message.timestamp if isinstance(message.timestamp, datetime) else None
    error = headers.get(ERROR)
    return {
        "id": message.message_id or str(new_id()),
        "name": message.type or queue_name,
        "queue_name": queue_name,
        "data": Raw(message.body),
        "attempts": int(_number(headers.get(ATTEMPTS))),
        "max_attempts": int(_number(headers.get(MAX_RETRIES))) + 1,
        "stalls": int(_number(headers.get(STALLS))),
        "max_stalls": int(_number(headers.get(MAX_STALLS), Options().max_stalls)),
        "created_at": _instant(headers.get(CREATED_AT)) or sent or datetime.now(UTC),
        "expires_at": _instant(headers.get(EXPIRES_AT)),
        "error": error if isinstance(error, str) else _said_by_the_broker(headers),
        "priority": message.priority or 0,
        "metadata": _metadata(headers.get(METADATA)),
    }


def _said_by_the_broker(headers: Mapping[str, Any]) -> str | None:
    reason = headers.get("x-first-death-reason")
    return None if reason in (None, "expired") else f"RabbitMQ moved it here: {reason}"


def _reason(text: object) -> QueueFailureReason | None:
    return next((reason for reason in QueueFailureReason if reason == text), None)


def _metadata(text: object) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any]) if isinstance(text, str) else {}
    except msgspec.DecodeError:
        return {}


def _number(value: object, default: float = 0.0) -> float:
    """Headers may come from anyone: what is no number, or a negative one, does not count."""
    return float(value) if isinstance(value, int | float) and value >= 0 else default


def _instant(text: object) -> datetime | None:
    try:
        instant = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return instant if instant is None or instant.tzinfo else instant.replace(tzinfo=UTC)


def unsendable(job: StoredJob, problem: str) -> QueueDataError:
    return unfit(job, f"it cannot be sent as a message: {problem}")

"""Jobs as messages: the body is the data, all else is JSON in one header."""

import json
import re
from bisect import bisect_right
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeAlias, TypeVar
from urllib.parse import quote, unquote

import msgspec
from msgspec import Raw
from nats.aio.msg import Msg
from nats.js import api

from onward.model import Backoff, Progress
from onward.queue.contract import StoredJob, TakenJob
from onward.queue.model import ActiveJob, QueueFailureReason, QueueJob, QueueJobStatus
from onward.queue.options import Options
from onward.queue.providers.readable import as_json

MESSAGE_ID, LAST_NUMBER = "Nats-Msg-Id", "Nats-Expected-Last-Subject-Sequence"
ONLY_IF_NEW = {LAST_NUMBER: "0"}
Headers: TypeAlias = dict[str, str]
_HEADER, _RESERVED = re.compile("[!-9;-~]+"), ("nats-", "onward-")


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is said of a job when it is added. Other programs may say as much of it as they like, or nothing."""

    header: ClassVar[str] = "Onward-Job"
    id: str | None = None
    name: str | None = None
    created_at: datetime | None = None
    scheduled_for: datetime | None = None
    expires_at: datetime | None = None
    max_attempts: int = 1
    max_stalls: int = 3
    backoff: Backoff | None = None
    metadata: Mapping[str, Any] = {}
    remove_on_complete: bool = False
    remove_on_fail: bool = False


class State(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a job that was taken before, or has ended."""

    header: ClassVar[str] = "Onward-State"
    of: int = 0
    """The number of its message: what was left of an earlier job with the same id has another one."""
    delivery: int = 0
    """Which delivery of its consumer this is about: whoever had an earlier one, and is late, has no say any more."""
    attempts: int = 0
    stalls: int = 0
    is_open: bool = False
    """Whoever took it last has not said how that ended."""
    error: str | None = None
    reason: QueueFailureReason | None = None
    processed_at: datetime | None = None
    ended_at: datetime | None = None
    due_at: datetime | None = None
    """When it may be tried again."""
    progress: Progress | None = None
    result: Any = None


K = TypeVar("K", Record, State)


def token(text: str) -> str:
    """As a part of a subject or of a stream's name."""
    return quote(text, safe="").replace(".", "%2E")


def text_of(subject: str | None) -> str:
    """What the last part of a subject stands for."""
    return unquote((subject or "").rpartition(".")[2])


def record_of(job: StoredJob, options: Options) -> Record:
    return Record(
        id=job.id,
        name=job.name,
        created_at=job.created_at,
        scheduled_for=job.scheduled_for,
        expires_at=job.expires_at,
        max_attempts=options.attempts,
        max_stalls=options.max_stalls,
        backoff=options.backoff,
        metadata=job.metadata,
        remove_on_complete=options.remove_on_complete,
        remove_on_fail=options.remove_on_fail,
    )


def in_header(value: object) -> str:
    """JSON in ASCII, on one line."""
    return json.dumps(msgspec.to_builtins(value))


def read(kind: type[K], headers: Mapping[str, str] | None) -> K:
    """Of a header that cannot be read nothing is known: the job itself may be fine."""
    try:
        return msgspec.json.decode((headers or {}).get(kind.header, "{}"), type=kind)
    except (msgspec.DecodeError, UnicodeError):
        return kind()


def size_of(data: bytes, headers: Mapping[str, str]) -> int:
    """As the server counts, or a little more."""
    return len(data) + 16 + sum(len(name) + len(value.encode()) + 4 for name, value in headers.items())


def fitted(state: State, room: int) -> State:
    """In a header of so many bytes: what it says in words is cut, the progress before the error."""
    progress = state.progress
    if progress is not None and progress.note:
        note = _cut(progress.note, len(in_header(state)) - room)
        state = msgspec.structs.replace(state, progress=Progress(progress.fraction, note))
    if state.error:
        state = msgspec.structs.replace(state, error=_cut(state.error, len(in_header(state)) - room))
    return state


def _cut(text: str, excess: int) -> str:
    """By so many bytes as it is in a header, where a character may have twelve."""
    if excess <= 0:
        return text
    room = len(in_header(text)) - excess
    return text[: max(bisect_right(range(len(text)), room, key=lambda end: len(in_header(text[:end]))) - 1, 0)]


def problem_with(headers: object) -> str | None:
    """Why an application's own headers cannot be sent, in words."""
    if not isinstance(headers, Mapping):
        return f"headers must be a mapping, got: {headers!r}"
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER.fullmatch(name):
            return f"the name of a header is in ASCII, without spaces and colons, got: {name!r}"
        if name.lower().startswith(_RESERVED):
            return f"headers that begin with Nats- or Onward- are not the application's, got: {name}"
        if not isinstance(value, str) or not value.isprintable():
            return f"the header {name} must be a text of one line, got: {value!r:.100}"
    return None


def own_headers(headers: Mapping[str, str] | None) -> Headers:
    """Without what was said to the server, or by it, on an earlier way."""
    given = (headers or {}).items()
    return {str(name): value for name, value in given if not name.lower().startswith("nats-") and name != State.header}


def taken_job(message: Msg, queue_name: str, state: State) -> TakenJob:
    """The job of a message that came."""
    return ActiveJob(
        **_facts(message, message.data, queue_name, state),
        status=QueueJobStatus.ACTIVE,
        processed_at=datetime.now(UTC),
        receipt_handle=message.reply,
        lock_token=message.reply,
        native=message,
    )


def stored_job(found: Msg | api.RawStreamMsg, queue_name: str, status: QueueJobStatus, state: State) -> StoredJob:
    """A job that nobody here holds."""
    return QueueJob(
        **_facts(found, bytes(as_json(found.data or b"null")), queue_name, state),
        status=status,
        completed_at=state.ended_at if status is QueueJobStatus.COMPLETED else None,
        failed_at=state.ended_at if status is QueueJobStatus.FAILED else None,
        reason=state.reason,
        processed_at=state.processed_at,
        progress=state.progress,
        result=None if state.result is None else Raw(msgspec.json.encode(state.result)),
    )


def _facts(found: Msg | api.RawStreamMsg, data: bytes, queue_name: str, state: State) -> dict[str, Any]:
    """What is known of a job, whoever has it."""
    record = read(Record, found.headers)
    return {
        "id": record.id or text_of(found.subject),
        "name": record.name or queue_name,
        "queue_name": queue_name,
        "data": Raw(data),
        "created_at": record.created_at or datetime.now(UTC),
        "scheduled_for": record.scheduled_for,
        "expires_at": record.expires_at,
        "attempts": state.attempts,
        "max_attempts": record.max_attempts,
        "stalls": state.stalls,
        "max_stalls": record.max_stalls,
        "error": state.error,
        "metadata": record.metadata,
    }

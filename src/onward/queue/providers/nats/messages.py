"""Jobs as messages and messages as jobs. The body is the data; everything else is JSON in one header."""

import json
import re
from bisect import bisect_right
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw

from onward.model import Backoff, Progress
from onward.queue.contract import StoredJob, TakenJob, in_words
from onward.queue.model import ActiveJob, QueueFailureReason, QueueJob, QueueJobStatus
from onward.queue.options import Options
from onward.queue.providers.nats.native import Msg
from onward.queue.providers.nats.streams import text_of
from onward.queue.providers.readable import as_json

JOB, STATE = "Onward-Job", "Onward-State"
MESSAGE_ID, LAST_NUMBER = "Nats-Msg-Id", "Nats-Expected-Last-Subject-Sequence"
ONLY_IF_NEW = {LAST_NUMBER: "0"}
Headers: TypeAlias = dict[str, str]
_HEADER, _RESERVED = re.compile("[!-9;-~]+"), ("nats-", "onward-")
_LONGEST_ERROR = 4_000


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is said of a job when it is added. Other programs may say as much of it as they like, or nothing."""

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


def read_record(headers: Mapping[str, str] | None) -> Record:
    """Of a header that cannot be read nothing is known: the job itself may be fine."""
    try:
        return msgspec.json.decode((headers or {}).get(JOB, "{}"), type=Record)
    except (msgspec.DecodeError, UnicodeError):
        return Record()


def read_state(headers: Mapping[str, str] | None) -> State:
    try:
        return msgspec.json.decode((headers or {}).get(STATE, "{}"), type=State)
    except (msgspec.DecodeError, UnicodeError):
        return State()


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
    return {str(name): value for name, value in given if not name.lower().startswith("nats-") and name != STATE}


def taken_job(message: Msg, queue_name: str, state: State) -> TakenJob:
    """The job of a message that came."""
    record = read_record(message.headers)
    return ActiveJob(
        **_facts(record, text_of(message.subject), message.data, queue_name),
        status=QueueJobStatus.ACTIVE,
        attempts=state.attempts,
        stalls=state.stalls,
        error=state.error,
        processed_at=datetime.now(UTC),
        receipt_handle=message.reply,
        lock_token=message.reply,
        native=message,
    )


def stored_job(
    subject: str, headers: Mapping[str, str] | None, data: bytes | None, queue_name: str, status: QueueJobStatus,
    state: State,
) -> StoredJob:  # fmt: skip
    """A job that nobody here holds."""
    result = None if state.result is None else Raw(msgspec.json.encode(state.result))
    return QueueJob(
        **_facts(read_record(headers), text_of(subject), bytes(as_json(data or b"null")), queue_name),
        status=status,
        completed_at=state.ended_at if status is QueueJobStatus.COMPLETED else None,
        failed_at=state.ended_at if status is QueueJobStatus.FAILED else None,
        attempts=state.attempts,
        stalls=state.stalls,
        error=state.error,
        reason=state.reason,
        processed_at=state.processed_at,
        progress=state.progress,
        result=result,
    )


def words_of(error: BaseException) -> str:
    """What an error says, as far as there is room."""
    return in_words(error)[:_LONGEST_ERROR]


def _facts(record: Record, job_id: str, data: bytes, queue_name: str) -> dict[str, Any]:
    return {
        "id": record.id or job_id,
        "name": record.name or queue_name,
        "queue_name": queue_name,
        "data": Raw(data),
        "created_at": record.created_at or datetime.now(UTC),
        "scheduled_for": record.scheduled_for,
        "expires_at": record.expires_at,
        "max_attempts": record.max_attempts,
        "max_stalls": record.max_stalls,
        "metadata": record.metadata,
    }

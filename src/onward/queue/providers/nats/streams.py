"""The streams behind a queue, and jobs as messages in them: the body is the data, all else is JSON in one header."""

import json
import re
from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias
from urllib.parse import quote, unquote

import msgspec
from msgspec import Raw
from nats.aio.msg import Msg
from nats.js import JetStreamContext, api
from nats.js import errors as js_errors

from onward.errors import QueueConfigurationError
from onward.model import Backoff, Progress
from onward.queue.contract import StoredJob, TakenJob, in_words
from onward.queue.model import (
    KEEP_COMPLETED,
    KEEP_FAILED,
    ActiveJob,
    Keep,
    QueueFailureReason,
    QueueJob,
    QueueJobStatus,
)
from onward.queue.options import Options
from onward.queue.providers.readable import as_json

Storage: TypeAlias = Literal["file", "memory"]

LEASE = timedelta(seconds=30)
"""What a queue is made with where nothing else is said."""
_REMEMBERED = timedelta(minutes=2)
"""How long the server knows the ids it was given, whatever became of the jobs."""
_NAME_IN_USE = 10058
_NOT_AS_IT_IS_WANTED = (10052, 10074)
"""A configuration that cannot be, and more replicas than there are servers."""
_STATE_AGE = timedelta(days=60)
"""What is left behind by a worker that died in the wrong moment goes after this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How streams are made; `None` is as they are, or the default for new ones."""

    prefix: str = "onward"
    lease: timedelta | None = None
    keep_completed: Keep | None = None
    keep_failed: Keep | None = None
    replicas: int = 1
    storage: Storage = "file"


def token(text: str) -> str:
    """As a part of a subject or of a stream's name."""
    return quote(text, safe="").replace(".", "%2E")


def text_of(subject: str) -> str:
    """What the last part of a subject stands for."""
    return unquote(subject.rpartition(".")[2])


class Streams:
    """Of one queue: jobs that wait or run, those that are delayed, what is known of those that were taken before, and
    those that have ended."""

    def __init__(self, queue_name: str, settings: Settings) -> None:
        self._settings, self._queue = settings, token(queue_name)
        self.queue_name = queue_name
        self.jobs, self.state = self._stream("jobs"), self._stream("state")
        self.completed, self.failed = self._stream("completed"), self._stream("failed")

    def keeps(self, kind: Literal["completed", "failed"]) -> bool:
        keep = self._settings.keep_completed if kind == "completed" else self._settings.keep_failed
        return keep is None or keep.count > 0

    def _stream(self, kind: str) -> str:
        # NATS 2.9 takes the name of a stream for a format string: a percent sign breaks every acknowledgement.
        return f"{self._settings.prefix}-{kind}-{self._queue.replace('%', '=')}"

    def subject(self, kind: str, job_id: str) -> str:
        """Of one job: `job`, `later`, `state`, `completed` or `failed`."""
        return f"{self._settings.prefix}.{self._queue}.{kind}.{token(job_id)}"

    def subjects(self, kind: str) -> str:
        return f"{self._settings.prefix}.{self._queue}.{kind}.*"

    async def declare(self, jetstream: JetStreamContext) -> timedelta:
        """Have them all; how long the server gives a worker that is not heard of."""
        settings = self._settings
        await self._have(
            jetstream,
            self.jobs,
            subjects=[self.subjects("job"), self.subjects("later")],
            retention=api.RetentionPolicy.WORK_QUEUE,
            duplicate_window=_REMEMBERED.total_seconds(),
        )
        await self._have(
            jetstream,
            self.state,
            subjects=[self.subjects("state")],
            max_msgs_per_subject=1,
            max_age=_STATE_AGE.total_seconds(),
        )
        await self._have_kept(jetstream, self.completed, "completed", settings.keep_completed, KEEP_COMPLETED)
        await self._have_kept(jetstream, self.failed, "failed", settings.keep_failed, KEEP_FAILED)
        await self._have_consumer(jetstream, "later")
        return await self._have_consumer(jetstream, "job")

    async def _have_kept(
        self, jetstream: JetStreamContext, name: str, kind: str, keep: Keep | None, default: Keep
    ) -> None:
        wanted = keep or default
        limits = {"max_msgs": wanted.count, "max_age": wanted.age.total_seconds()}
        info = await self._have(
            jetstream, name, subjects=[self.subjects(kind)], max_msgs_per_subject=1, **_unlimited_is_not_zero(limits)
        )
        if keep is not None and not _keeps(info.config, limits):
            await jetstream.update_stream(info.config, **_unlimited_is_not_zero(limits))

    async def _have(self, jetstream: JetStreamContext, name: str, **config: Any) -> api.StreamInfo:
        try:
            return await jetstream.stream_info(name)
        except js_errors.NotFoundError:
            pass
        try:
            return await jetstream.add_stream(
                name=name,
                storage=api.StorageType(self._settings.storage),
                num_replicas=self._settings.replicas,
                allow_direct=True,
                **config,
            )
        except js_errors.APIError as error:
            if error.err_code == _NAME_IN_USE:  # somebody else was faster
                return await jetstream.stream_info(name)
            if isinstance(error, js_errors.BadRequestError) or error.err_code in _NOT_AS_IT_IS_WANTED:
                raise self._refused(name, error) from error
            raise

    async def _have_consumer(self, jetstream: JetStreamContext, kind: str) -> timedelta:
        lease = self._settings.lease
        try:
            config = (await jetstream.consumer_info(self.jobs, kind)).config
            if lease is None or config.ack_wait == lease.total_seconds():
                return timedelta(seconds=config.ack_wait or 0)
        except js_errors.NotFoundError:
            pass
        wanted = lease or LEASE
        await jetstream.add_consumer(
            self.jobs,
            durable_name=kind,
            filter_subject=self.subjects(kind),
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=wanted.total_seconds(),
            # How often a job is tried is counted per job; those that wait for an attempt are unacknowledged, too.
            max_deliver=-1,
            max_ack_pending=-1,
        )
        return wanted

    def _refused(self, name: str, error: js_errors.APIError) -> QueueConfigurationError:
        return QueueConfigurationError(
            f"NATS does not make the stream {name!r}: {error.description}",
            queue_name=self.queue_name,
            cause=error,
        )

    async def delete(self, jetstream: JetStreamContext) -> None:
        for name in (self.jobs, self.state, self.completed, self.failed):
            with suppress(js_errors.NotFoundError):
                await jetstream.delete_stream(name)


def _unlimited_is_not_zero(limits: dict[str, Any]) -> dict[str, Any]:
    """To JetStream 0 is no limit: who keeps none publishes none, and what is there goes with the next one.

    And it does not remember ids for longer than messages.
    """
    age = max(limits["max_age"], 0.1)
    return {
        "max_msgs": max(limits["max_msgs"], 1),
        "max_age": age,
        "duplicate_window": min(age, _REMEMBERED.total_seconds()),
    }


def _keeps(config: api.StreamConfig, limits: dict[str, Any]) -> bool:
    wanted = _unlimited_is_not_zero(limits)
    return (config.max_msgs, config.max_age) == (wanted["max_msgs"], wanted["max_age"])


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

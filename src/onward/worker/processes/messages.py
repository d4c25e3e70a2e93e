"""What crosses the border between a worker and its processes: names, ids and JSON text, never objects of the user's."""

from datetime import datetime, timedelta
from typing import Any, TypeAlias

import msgspec

from onward.define.codec import Limits
from onward.model import Blocker, ChainId, Deduplication, JobError, JobId, WorkerId

SIZE = 4
"""Bytes before each message that say how long it is."""


class HandlerName(msgspec.Struct, frozen=True):
    """Where another process finds a handler."""

    module: str
    name: str
    """Qualified: `render`, or `Frames.render`."""
    script: str | None = None
    """The file of the program that was started, when the handler is defined there."""


# -- to the process


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt to run."""

    handler: HandlerName
    job_type: str
    input: str
    job_id: JobId
    chain_id: ChainId
    root_id: JobId
    number: int
    failures: int
    last_error: JobError | None
    blockers: tuple[Blocker, ...]
    """Their outputs are brought up to the versions that this code has."""
    blocked_by: tuple[str, ...]
    limits: Limits
    worker: WorkerId
    meta: dict[str, Any]
    secrets: tuple[str, ...]
    """What log lines must not show of the input."""


# -- from the process


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """The handler is imported, the input decoded: now it runs."""


class Said(msgspec.Struct, frozen=True, tag="said"):
    """Progress."""

    fraction: float
    note: str | None


class Completed(msgspec.Struct, frozen=True, tag="completed"):
    output: str


class ExistingChain(msgspec.Struct, frozen=True, tag="existing"):
    """A blocker that was started before."""

    job_type: str
    id: ChainId


class ChainToStart(msgspec.Struct, frozen=True, kw_only=True, tag="new"):
    """A blocker to start with the continuation."""

    job_type: str
    input: str
    id: ChainId | None
    delay: timedelta | None
    at: datetime | None
    priority: int
    blockers: "tuple[ExistingChain | ChainToStart, ...]"
    deduplication: Deduplication | None
    meta: dict[str, Any] | None


class Continued(msgspec.Struct, frozen=True, kw_only=True, tag="continued"):
    step: str
    input: str
    delay: timedelta | None
    at: datetime | None
    priority: int | None
    meta: dict[str, Any] | None
    blockers: tuple[ExistingChain | ChainToStart, ...]


class Postponed(msgspec.Struct, frozen=True, kw_only=True, tag="postponed"):
    """Rescheduled, by returning it or by raising `Reschedule`."""

    delay: timedelta | None
    at: datetime | None
    raised: bool


class Raised(msgspec.Struct, frozen=True, kw_only=True, tag="raised"):
    error: JobError
    permanent: bool


Answer: TypeAlias = Completed | Continued | Postponed | Raised
FromProcess: TypeAlias = Begun | Said | Answer

_encode = msgspec.json.Encoder().encode
read_task = msgspec.json.Decoder(Task).decode
_from_process: msgspec.json.Decoder[Any] = msgspec.json.Decoder(FromProcess)


def framed(message: Task | FromProcess) -> bytes:
    """The bytes of a message, its length first."""
    data = _encode(message)
    return len(data).to_bytes(SIZE, "big") + data


def read_from_process(data: bytes) -> FromProcess:
    """What a process says."""
    message: FromProcess = _from_process.decode(data)
    return message

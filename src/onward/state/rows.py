"""Rows to values, the same for every adapter: the order of columns is the contract between the SQL and this file.

A row is read as if all was well. Where that fails, each of its columns is read by itself, and what is wrong is said.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from onward.model import (
    BlockedJob,
    Blocker,
    Chain,
    CompletedJob,
    FailedJob,
    FailureReason,
    Job,
    JobError,
    JobStatus,
    PendingJob,
    Progress,
    RunningJob,
)

JOB_COLUMNS = (
    "id", "chain_id", "chain_index", "type_name", "payload_version", "status", "rank", "limit_key", "input", "output",
    "created_at", "scheduled_at", "origin_id", "root_id", "attempt", "failures", "leased_by", "leased_until",
    "cancel_requested_at", "errors", "failure_reason", "ended_at", "completed_by", "open_blockers",
    "deduplication_key", "progress", "progress_note", "meta", "problem",
)  # fmt: skip
STATUS: dict[str, JobStatus] = {status.value: status for status in JobStatus}
"""By its name; the look-up costs a tenth of asking the enum."""
REASON: dict[str, FailureReason] = {reason.value: reason for reason in FailureReason}

ReadId: TypeAlias = Callable[[Any], UUID]
ReadTime: TypeAlias = Callable[[Any], datetime]
_NOWHERE = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_ERRORS = 5
_MOST_SHOWN = 60
_decode_errors = msgspec.json.Decoder(tuple[JobError, ...]).decode
_decode = msgspec.json.Decoder().decode
_decode_meta = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


def read_errors(text: str | None) -> tuple[JobError, ...]:
    """The stored errors of a job, newest last. What cannot be read is an error itself, in their place."""
    try:
        return () if text is None else _decode_errors(text)
    except Exception as error:  # noqa: BLE001 - whatever a hand has written there
        return (JobError(type="UnreadableErrors", message=f"errors holds {shown(text)}: {error}"),)


def read_meta(text: str | None) -> dict[str, Any]:
    """What travels with a job; nothing, where it cannot be read."""
    try:
        return {} if text is None else _decode_meta(text)
    except Exception:  # noqa: BLE001 - whatever a hand has written there
        return {}


def write_errors(before: str | None, error: JobError) -> str:
    """The errors to keep of a job: those of its last attempts and the new one."""
    return _encode((*read_errors(before), error)[-_MOST_ERRORS:]).decode()


def change_last_error(text: str | None, change: Callable[[JobError], JobError]) -> str | None:
    """The errors of a job with the newest one as another would have it."""
    errors = read_errors(text)
    return _encode((*errors[:-1], change(errors[-1]))).decode() if errors else text


def write_error(error: JobError) -> str:
    """One error, as it stands among the others."""
    return _encode(error).decode()


def shown(value: object) -> str:
    """What a column holds, for people, at no great length."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def read_job(row: Sequence[Any], read_id: ReadId, read_time: ReadTime, *, nearest_id: ReadId | None = None) -> Job:
    """The job in a row of JOB_COLUMNS. `nearest_id` stands in for an id that is none, at its place in the order."""
    r: dict[str, Any] = dict(zip(JOB_COLUMNS, row, strict=True))
    try:
        return _as_it_should_be(r, read_id, read_time)
    except Exception:  # noqa: BLE001 - whatever a hand has written there
        return _as_well_as_can_be(r, read_id, read_time, nearest_id or read_id)


def read_chain(row: Sequence[Any], read_id: ReadId, read_time: ReadTime, *, nearest_id: ReadId | None = None) -> Chain:
    """The chain in a row of (id, type_name, created_at, chain_ended_at) and JOB_COLUMNS."""
    job = read_job(tuple(row)[4:], read_id, read_time, nearest_id=nearest_id)
    column = Columns(dict(zip(("id", "type_name", "created_at", "chain_ended_at"), row, strict=False)))
    return Chain(
        id=column.read("id", read_id, nearest_id or read_id),
        type_name=column.read("type_name", as_text, shown),
        created_at=column.read("created_at", read_time, lambda value: _NOWHERE),
        ended_at=column.read("chain_ended_at", optional(read_time), lambda value: None),
        current=job,
    )


def _as_it_should_be(r: dict[str, Any], read_id: ReadId, read_time: ReadTime) -> Job:
    common: dict[str, Any] = {
        "id": read_id(r["id"]),
        "chain_id": read_id(r["chain_id"]),
        "chain_index": as_integer(r["chain_index"]),
        "type_name": as_text(r["type_name"]),
        "payload_version": as_integer(r["payload_version"]),
        "input": _decode(r["input"]),
        "priority": -as_integer(r["rank"]),
        "created_at": read_time(r["created_at"]),
        "scheduled_at": read_time(r["scheduled_at"]),
        "origin_id": None if r["origin_id"] is None else read_id(r["origin_id"]),
        "root_id": read_id(r["root_id"]),
        "attempt": as_integer(r["attempt"]),
        "failures": as_integer(r["failures"]),
        "errors": () if r["errors"] is None else _decode_errors(r["errors"]),
        "progress": _progress(r["progress"], r["progress_note"]),
        "deduplication_key": optional(as_text)(r["deduplication_key"]),
        "limit_key": optional(as_text)(r["limit_key"]),
        "meta": {} if r["meta"] is None else _decode_meta(r["meta"]),
        "problem": r["problem"],
    }
    match STATUS[r["status"]]:
        case JobStatus.BLOCKED:
            return BlockedJob(**common, open_blockers=as_integer(r["open_blockers"]))
        case JobStatus.PENDING:
            return PendingJob(**common)
        case JobStatus.RUNNING:
            return RunningJob(
                **common,
                leased_by=as_text(r["leased_by"]),
                leased_until=read_time(r["leased_until"]),
                cancel_requested=r["cancel_requested_at"] is not None,
            )
        case JobStatus.COMPLETED:
            output = None if r["output"] is None else _decode(r["output"])
            by = optional(as_text)(r["completed_by"])
            return CompletedJob(**common, output=output, completed_at=read_time(r["ended_at"]), completed_by=by)
        case JobStatus.FAILED:
            return FailedJob(**common, reason=REASON[r["failure_reason"]], failed_at=read_time(r["ended_at"]))


def _as_well_as_can_be(r: dict[str, Any], read_id: ReadId, read_time: ReadTime, nearest_id: ReadId) -> Job:
    """The same, column by column, with something in the place of each that cannot be read."""
    column = Columns(r)
    common: dict[str, Any] = {
        "id": column.read("id", read_id, nearest_id),
        "chain_id": column.read("chain_id", read_id, nearest_id),
        "chain_index": column.read("chain_index", as_integer, _zero),
        "type_name": column.read("type_name", as_text, shown),
        "payload_version": column.read("payload_version", as_integer, _zero),
        "input": column.read("input", _decode, _nothing),
        "priority": -column.read("rank", as_integer, _zero),
        "created_at": column.read("created_at", read_time, _nowhere),
        "scheduled_at": column.read("scheduled_at", read_time, _nowhere),
        "origin_id": column.read("origin_id", optional(read_id), _nothing),
        "root_id": column.read("root_id", read_id, nearest_id),
        "attempt": column.read("attempt", as_integer, _zero),
        "failures": column.read("failures", as_integer, _zero),
        "errors": column.read("errors", optional(_decode_errors), read_errors) or (),
        "progress": column.read("progress", lambda value: _progress(value, r["progress_note"]), _nothing),
        "deduplication_key": column.read("deduplication_key", optional(as_text), shown),
        "limit_key": column.read("limit_key", optional(as_text), shown),
        "meta": column.read("meta", optional(_decode_meta), _nothing) or {},
    }
    status = column.read("status", STATUS.__getitem__, lambda value: JobStatus.FAILED)
    own: dict[str, Any] = {}
    match status:
        case JobStatus.BLOCKED:
            own["open_blockers"] = column.read("open_blockers", as_integer, _zero)
        case JobStatus.RUNNING:
            own["leased_by"] = column.read("leased_by", as_text, shown)
            own["leased_until"] = column.read("leased_until", read_time, _nowhere)
            own["cancel_requested"] = r["cancel_requested_at"] is not None
        case JobStatus.COMPLETED:
            own["output"] = column.read("output", optional(_decode), _nothing)
            own["completed_at"] = column.read("ended_at", read_time, _nowhere)
            own["completed_by"] = column.read("completed_by", optional(as_text), shown)
        case JobStatus.FAILED:
            own["reason"] = column.read("failure_reason", REASON.__getitem__, lambda value: FailureReason.UNREADABLE)
            own["failed_at"] = column.read("ended_at", read_time, _nowhere)
        case _:
            pass
    problem = "; ".join(filter(None, [r["problem"], *column.problems]))
    return _KINDS[status](**common, **own, problem=problem)


_KINDS: dict[JobStatus, Callable[..., Job]] = {
    JobStatus.BLOCKED: BlockedJob,
    JobStatus.PENDING: PendingJob,
    JobStatus.RUNNING: RunningJob,
    JobStatus.COMPLETED: CompletedJob,
    JobStatus.FAILED: FailedJob,
}


class Columns:
    """Reads the columns of a row one by one and remembers what is wrong with them."""

    def __init__(self, row: dict[str, Any]) -> None:
        self._row = row
        self.problems: list[str] = []

    def read(self, name: str, read: Callable[[Any], Any], otherwise: Callable[[Any], Any]) -> Any:
        value = self._row[name]
        try:
            return read(value)
        except Exception:  # noqa: BLE001 - whatever a hand has written there
            self.problems.append(f"{name} holds {shown(value)}")
            return otherwise(value)


def optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def as_integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(value)
    return value


def as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _progress(fraction: Any, note: Any) -> Progress | None:
    if fraction is None:
        return None
    if not isinstance(fraction, int | float):
        raise TypeError(fraction)
    return Progress(fraction, optional(as_text)(note))


def _zero(value: Any) -> int:
    return 0


def _nothing(value: Any) -> None:
    return None


def _nowhere(value: Any) -> datetime:
    return _NOWHERE


def read_blocker(row: Sequence[Any], read_id: Callable[[Any], UUID]) -> Blocker:
    """The blocker in a row of `blockers_of.sql`, behind the job's id."""
    chain_id, type_name, status, current_type_name, payload_version, output = row
    return Blocker(
        chain_id=read_id(chain_id),
        type_name=type_name,
        status=JobStatus(status),
        current_type_name=current_type_name,
        payload_version=payload_version,
        output=output,
    )

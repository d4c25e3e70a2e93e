"""Rows to values, the same for every adapter: the order of columns is the contract between the SQL and this file."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from onward.model import (
    BlockedJob,
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
    "deduplication_key", "progress", "progress_note",
)  # fmt: skip
JSON_COLUMNS = frozenset({"input", "output", "errors"})
STATUS: dict[str, JobStatus] = {status.value: status for status in JobStatus}
"""By its name; the look-up costs a tenth of asking the enum."""

_MOST_ERRORS = 5
_decode_errors = msgspec.json.Decoder(tuple[JobError, ...]).decode
_encode = msgspec.json.Encoder().encode


def read_errors(text: str | None) -> tuple[JobError, ...]:
    """The stored errors of a job, newest last."""
    return () if text is None else _decode_errors(text)


def write_errors(before: str | None, error: JobError) -> str:
    """The errors to keep of a job: those of its last attempts and the new one."""
    return _encode((*read_errors(before), error)[-_MOST_ERRORS:]).decode()


def write_error(error: JobError) -> str:
    """One error, as it stands among the others."""
    return _encode(error).decode()


def read_job(row: Sequence[Any], read_id: Callable[[Any], UUID], read_time: Callable[[Any], datetime]) -> Job:
    """The job in a row of JOB_COLUMNS."""
    r = dict(zip(JOB_COLUMNS, row, strict=True))
    common: dict[str, Any] = {
        "id": read_id(r["id"]),
        "chain_id": read_id(r["chain_id"]),
        "chain_index": r["chain_index"],
        "type_name": r["type_name"],
        "payload_version": r["payload_version"],
        "input": msgspec.json.decode(r["input"]),
        "priority": -r["rank"],
        "created_at": read_time(r["created_at"]),
        "scheduled_at": read_time(r["scheduled_at"]),
        "origin_id": None if r["origin_id"] is None else read_id(r["origin_id"]),
        "root_id": read_id(r["root_id"]),
        "attempt": r["attempt"],
        "failures": r["failures"],
        "errors": read_errors(r["errors"]),
        "progress": None if r["progress"] is None else Progress(r["progress"], r["progress_note"]),
        "deduplication_key": r["deduplication_key"],
        "limit_key": r["limit_key"],
    }
    match JobStatus(r["status"]):
        case JobStatus.BLOCKED:
            return BlockedJob(**common, open_blockers=r["open_blockers"])
        case JobStatus.PENDING:
            return PendingJob(**common)
        case JobStatus.RUNNING:
            return RunningJob(
                **common,
                leased_by=r["leased_by"],
                leased_until=read_time(r["leased_until"]),
                cancel_requested=r["cancel_requested_at"] is not None,
            )
        case JobStatus.COMPLETED:
            output = None if r["output"] is None else msgspec.json.decode(r["output"])
            ended = read_time(r["ended_at"])
            return CompletedJob(**common, output=output, completed_at=ended, completed_by=r["completed_by"])
        case JobStatus.FAILED:
            reason = FailureReason(r["failure_reason"])
            return FailedJob(**common, reason=reason, failed_at=read_time(r["ended_at"]))


def read_chain(row: Sequence[Any], read_id: Callable[[Any], UUID], read_time: Callable[[Any], datetime]) -> Chain:
    """The chain in a row of (id, type_name, created_at, chain_ended_at) and JOB_COLUMNS."""
    return Chain(
        id=read_id(row[0]),
        type_name=row[1],
        created_at=read_time(row[2]),
        ended_at=None if row[3] is None else read_time(row[3]),
        current=read_job(tuple(row)[4:], read_id, read_time),
    )

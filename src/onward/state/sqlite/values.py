"""Values as SQLite keeps them: ids as text, instants as microseconds since 1970, many rows as one JSON text."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from onward.model import Blocker, Chain, Job
from onward.state.contract import NewJob, TakenJob
from onward.state.driver import Rows
from onward.state.rows import read_blocker, read_chain, read_job

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_encode = msgspec.json.Encoder().encode


def many(values: Any) -> str:
    """Rows as one parameter, for json_each; UUIDs become text."""
    return _encode(values).decode()


def some(values: Sequence[Any] | None) -> str | None:
    """The values of a filter, or NULL where there is none."""
    return None if values is None else many(values)


def texts(ids: Sequence[UUID]) -> list[str]:
    """Ids as they are stored; much faster than str() of each."""
    found: list[str] = msgspec.to_builtins(ids)
    return found


def read_ids(ids: Sequence[str]) -> list[UUID]:
    """The ids stored; much faster than UUID() of each."""
    return msgspec.convert(ids, list[UUID])


def text(value: UUID | None) -> str | None:
    """An id as it is stored."""
    return None if value is None else str(value)


def instant(value: datetime | None) -> int | None:
    """A time as it is stored, to the microsecond (a float would not do)."""
    return None if value is None else (value - _EPOCH) // _MICROSECOND


def duration(seconds: float) -> int:
    """Seconds in microseconds."""
    return round(seconds * 1_000_000)


def host_time() -> int:
    """The host's clock."""
    return time.time_ns() // 1000


def due(delay: float, at: datetime | None, now: int) -> int:
    """When a job may run."""
    return now + duration(delay) if at is None else (at - _EPOCH) // _MICROSECOND


def read_time(value: int) -> datetime:
    """The time stored."""
    return _EPOCH + timedelta(microseconds=value)


def new_row(job: NewJob, now: int) -> tuple[Any, ...]:
    """What `start.sql` reads of a job."""
    return (
        job.id,
        job.chain_id,
        job.chain_index,
        job.type_name,
        job.payload_version,
        -job.priority,
        due(job.delay, job.at, now),
        job.limit_key,
        job.input,
        job.origin_id,
        job.root_id,
    )


def taken(rows: Rows) -> list[TakenJob]:
    """The jobs in the rows that `take.sql` or `reap.sql` returns."""
    ids = read_ids([row[0] for row in rows])
    chain_ids = read_ids([row[1] for row in rows])
    root_ids = read_ids([row[11] for row in rows])
    return [
        _taken((id, chain_id, *row[2:11], root_id, *row[12:14], read_time(row[14]), read_time(row[15])))
        for row, id, chain_id, root_id in zip(rows, ids, chain_ids, root_ids, strict=True)
    ]


def _taken(fields: Sequence[Any]) -> TakenJob:
    return TakenJob(*fields)


def job(row: Sequence[Any]) -> Job:
    """The job in a row of JOB_COLUMNS."""
    return read_job(row, UUID, read_time)


def chain(row: Sequence[Any]) -> Chain:
    """The chain in a row of its header and JOB_COLUMNS."""
    return read_chain(row, UUID, read_time)


def blocker(row: Sequence[Any]) -> Blocker:
    """The blocker in a row of `blockers_of.sql`, behind the job's id."""
    return read_blocker(row, UUID)

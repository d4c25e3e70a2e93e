"""Values as SQLite keeps them: ids as text, instants as microseconds since 1970, many rows as one JSON text."""

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from onward.errors import ConfigurationError
from onward.model import Blocker, Chain, Job
from onward.state.command import Rows
from onward.state.contract import NewJob, TakenJob
from onward.state.rows import read_blocker, read_chain, read_job, shown

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = datetime(1, 1, 3, tzinfo=UTC)
_LAST = datetime(9999, 12, 29, tzinfo=UTC)
"""Times beyond these are shown as these, as on Postgres."""
_NO_ID = UUID(int=0)
TAKEN: dict[str, Any] = {
    "id": UUID, "chain_id": UUID, "chain_index": int, "type_name": str, "payload_version": int, "input": str,
    "attempt": int, "failures": int, "transients": int, "crashes": int, "rank": int, "root_id": UUID,
    "errors": str | None, "blockers": int, "scheduled_at": int, "created_at": int,
    "leased_until": int | float | None, "meta": str | None,
}  # fmt: skip
"""What `take.sql` returns of a job."""
_TakenRow: TypeAlias = tuple[
    UUID, UUID, int, str, int, str, int, int, int, int, int, UUID, str | None, int, int, int,
    int | float | None, str | None,
]  # fmt: skip
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
    """The ids stored, or stand-ins for what is none; as a rule much faster than UUID() of each."""
    try:
        return msgspec.convert(ids, list[UUID])
    except ValueError:
        return [some_id(id) for id in ids]


def cursor(after: UUID | None) -> str | None:
    """Where a page begins. What comes before the first of all UUIDs has that as its stand-in: nothing comes after."""
    return None if after is None else str(after) if after.int else ""


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
    if at is not None:
        return (at - _EPOCH) // _MICROSECOND
    return now + duration(delay) if delay else now


def read_time(value: int) -> datetime:
    """The time stored, or the nearest there is."""
    try:
        return _EPOCH + value * _MICROSECOND  # a third of what timedelta(microseconds=value) costs
    except OverflowError:
        return _FIRST if value < 0 else _LAST


def some_time(value: int | None) -> datetime | None:
    """The time stored, if there is one."""
    return None if value is None else read_time(value)


def _require_ids(*ids: Any) -> None:
    if not (isinstance(ids[0], UUID) and isinstance(ids[1], UUID) and isinstance(ids[2], UUID)):
        raise ConfigurationError(f"ids are UUIDs, not {shown(ids)}")  # the file would take anything


def new_job(job: NewJob, now: int) -> dict[str, Any]:
    """What `start_one.sql` reads of a job."""
    _require_ids(job.id, job.chain_id, job.root_id)
    id, chain_id, root_id = texts((job.id, job.chain_id, job.root_id))
    return {
        "id": id,
        "chain_id": chain_id,
        "chain_index": job.chain_index,
        "type_name": job.type_name,
        "payload_version": job.payload_version,
        "rank": -job.priority,
        "scheduled_at": due(job.delay, job.at, now),
        "limit_key": job.limit_key,
        "input": job.input,
        "origin_id": None if job.origin_id is None else str(job.origin_id),
        "root_id": root_id,
        "meta": job.meta,
        "now": now,
    }


def new_row(job: NewJob, now: int) -> tuple[Any, ...]:
    """What `start.sql` reads of a job."""
    _require_ids(job.id, job.chain_id, job.root_id)
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
        job.meta,
    )


def read_id(value: Any) -> UUID:
    """An id as we write it. In any other spelling it would not be found again."""
    id = UUID(value)
    if str(id) != value:
        raise ValueError(value)
    return id


def is_id(value: Any) -> bool:
    """Whether it is an id as we write it."""
    try:
        return read_id(value) is not None
    except Exception:  # noqa: BLE001 - whatever a hand has written there
        return False


def nearest_id(value: Any) -> UUID:
    """What stands in for an id that is none: the last UUID before it in the order of a listing, or the first of all."""
    if not isinstance(value, str):
        return UUID(int=2**128 - 1)  # a blob, which comes after every text
    digits, begun = "0123456789abcdef", ""
    for place, expected in enumerate("xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"):
        found = value[place : place + 1]
        allowed = digits if expected == "x" else "-"
        if found and found in allowed:
            begun += found
            continue
        before = [each for each in allowed if each < found]
        return _filled(begun + before[-1]) if before else _before(begun)
    return UUID(begun)


def _filled(begun: str) -> UUID:
    """The last UUID that begins so."""
    return UUID(begun + "ffffffff-ffff-ffff-ffff-ffffffffffff"[len(begun) :])


def _before(begun: str) -> UUID:
    """The last UUID before those that begin so."""
    kept = begun.rstrip("0-")
    return _filled(kept[:-1] + "0123456789abcdef"[int(kept[-1], 16) - 1]) if kept else _NO_ID


def some_id(value: Any) -> UUID:
    """An id to tell of: one that is none has a stand-in."""
    try:
        return UUID(value)
    except Exception:  # noqa: BLE001 - whatever a hand has written there
        return nearest_id(value)


def taken(rows: Rows) -> list[TakenJob]:
    """The jobs in the rows that `take.sql` or `reap.sql` returns. Raises ValueError if any cannot be read."""
    found = msgspec.convert(rows, list[_TakenRow])
    if texts([fields[0] for fields in found]) != [row[0] for row in rows]:
        raise ValueError("an id in another spelling than ours")
    return [
        TakenJob(
            *fields[:14],
            (scheduled_at := read_time(fields[14])),
            scheduled_at if fields[15] == fields[14] else read_time(fields[15]),  # as a rule it may run at once
            fields[16] and fields[16] / 1_000_000,
            fields[17],
        )
        for fields in found
    ]


def taken_apart(rows: Rows) -> list[TakenJob]:
    """Those of the jobs in the rows that can be read."""
    found: list[TakenJob] = []
    for row in rows:
        if problem(row) is None:
            found += taken([row])
    return found


def problem(row: Sequence[Any]) -> str | None:
    """What of a row that `take.sql` returns cannot be read."""
    wrong = [f"{name} holds {shown(value)}" for (name, kind), value in zip(TAKEN.items(), row, strict=True)
             if not _fits(value, kind)]  # fmt: skip
    return "; ".join(wrong) or None


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except ValueError:
        return False
    return kind is not UUID or is_id(value)


def apart(statement: str, columns: int) -> str:
    """A query that says of each cell what kind of value it is and shows its bytes: for text that is none in UTF-8, over
    which the reading of all rows would fail.
    """
    names = [f"c{n}" for n in range(columns)]
    cells = ", ".join(f"typeof({name}) || ':' || hex({name})" for name in names)
    return f"WITH page({', '.join(names)}) AS (\n{statement}\n) SELECT {cells} FROM page"  # noqa: S608 - ours


def put_together(rows: Rows) -> list[tuple[Any, ...]]:
    """The rows that `apart` took apart; a text that is none stays bytes."""
    return [tuple(map(_cell, row)) for row in rows]


def _cell(told: str) -> Any:
    kind, _, digits = told.partition(":")
    raw = bytes.fromhex(digits)
    match kind:
        case "integer":
            return int(raw)
        case "real":
            return float(raw)
        case "null":
            return None
        case "text":
            return _decoded(raw)
        case _:
            return raw


def _decoded(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def job(row: Sequence[Any]) -> Job:
    """The job in a row of JOB_COLUMNS."""
    return read_job(row, read_id, read_time, nearest_id=nearest_id)


def chain(row: Sequence[Any]) -> Chain:
    """The chain in a row of its header and JOB_COLUMNS."""
    return read_chain(row, read_id, read_time, nearest_id=nearest_id)


def jobs(rows: Iterable[Sequence[Any]]) -> list[Job]:
    """The jobs in rows of JOB_COLUMNS."""
    return [job(row) for row in rows]


def blocker(row: Sequence[Any]) -> Blocker:
    """The blocker in a row of `blockers_of.sql`, behind the job's id."""
    return read_blocker(row, some_id)

"""Jobs as they are stored, and where they are."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar, cast

import msgspec

from onward.flow.attributes import Attributes, as_json, is_reserved

T = TypeVar("T")
Place = Literal["waiting", "delayed", "processing", "parked", "done", "failed"]
"""`parked`: waits for its children. `waiting`: also in the line of a rate."""
FlowFailureReason = Literal["attempts", "permanent", "stalled", "child"]
"""Its handler failed as often as it may; by an error that says so; too many workers died on it; a child failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowJob:
    """A stored job."""

    id: str
    flow: str
    status: Literal["open", "done", "failed"]
    queue: str | None
    """The stage it is in; None when it has ended."""
    completed_queue: str | None
    """The last stage that it completed."""
    failed_queue: str | None
    error: str | None
    """Why it failed, or why it was tried again."""
    reason: FlowFailureReason | None
    """Of a failed job: which rule ended it."""
    worker: str | None
    """Who runs it at the moment."""
    retries: int
    """How many handlers of the stage it is in have failed."""
    stalls: int
    """How many workers have died on it at that stage, or lost their lock."""
    correlation_id: str
    parent_id: str | None
    created_at: datetime
    finished_at: datetime | None
    attributes: Mapping[str, Any]
    """As plain JSON data."""

    def read(self, kind: type[T]) -> T:
        """The attributes that are fields of `kind`, as such a value: `job.read(Granted)`."""
        stored = {name: msgspec.json.encode(value).decode() for name, value in self.attributes.items()}
        value: T = Attributes(kind, flow=self.flow, stage="", part=f"job {self.id}").read(stored)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where one job is."""

    job_id: str
    stage: str | None
    """None for jobs that have ended."""
    place: Place
    worker: str | None = None
    """Who holds the lock, of a job in processing; None in the moment before it is locked."""
    until: datetime | None = None
    """When a delayed job is due, or one that has ended expires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """Where every job is, at one moment."""

    counts: Mapping[tuple[str | None, Place], int]
    """How many jobs are at each stage and place; complete, whatever the limit."""
    jobs: tuple[Position, ...]
    """Up to the limit for each stage and place, next first."""

    def count(self, *, stage: str | None = None, place: Place | None = None) -> int:
        """How many jobs are there, of one stage, in one place, or of all."""
        chosen = (n for (at, where), n in self.counts.items() if stage in (None, at) and place in (None, where))
        return sum(chosen)


def read_job(flow: str, job_id: str, stored: Mapping[str, str]) -> FlowJob:
    """A job from the fields of its hash."""
    failed = stored.get("failed") == "true"
    return FlowJob(
        id=job_id,
        flow=flow,
        status="failed" if failed else "done" if stored.get("done") == "true" else "open",
        queue=stored.get("current-queue"),
        completed_queue=stored.get("completed-queue"),
        failed_queue=stored.get("failedQueue"),
        error=stored.get("failedErrorMsg") if failed else stored.get("last-error"),
        reason=cast(FlowFailureReason | None, stored.get("failed-reason")),
        worker=stored.get("held-by"),
        retries=int(stored.get("retry-count", 0)),
        stalls=int(stored.get("stall-count", 0)),
        correlation_id=stored.get("correlation-id", ""),
        parent_id=stored.get("parent-id"),
        created_at=_instant(stored.get("created-at", "0")),
        finished_at=_instant(stored["finished-at"]) if "finished-at" in stored else None,
        attributes={
            name: msgspec.json.decode(as_json(value)) for name, value in stored.items() if not is_reserved(name)
        },
    )


def read_positions(rows: list[Any]) -> Positions:
    """The answer of `positions.lua`."""
    counts: Counter[tuple[str | None, Place]] = Counter()
    jobs: list[Position] = []
    for stage, place, total, named in rows:
        counts[stage or None, place] += int(total)
        for job_id, detail in zip(named[::2], named[1::2], strict=True):
            is_time = place in ("delayed", "done", "failed")
            jobs.append(
                Position(
                    job_id=job_id,
                    stage=stage or None,
                    place=place,
                    worker=(detail or None) if not is_time else None,
                    until=_instant(detail) if is_time else None,
                )
            )
    return Positions(counts=counts, jobs=tuple(jobs))


def _instant(milliseconds: str) -> datetime:
    return datetime.fromtimestamp(float(milliseconds) / 1000, UTC)

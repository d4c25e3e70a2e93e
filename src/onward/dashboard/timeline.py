"""The steps of a chain on a time line, as far as their rows tell.

A row knows when its job was created, when it was last due, when it ended, and of what its last failed attempts died and
when. It does not know when an attempt began: that is not drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from markupsafe import Markup

from onward.client.words import in_short, lasted, moment
from onward.model import CompletedJob, FailedJob, Job, JobError, JobStatus

_WIDTH = 600
_MOST_TRIES = 12
_LOST = "WorkerCrashed"
"""The error of an attempt whose lease ran out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some of the time of a step."""

    kind: str
    words: str
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """An attempt, as far as it is known."""

    kind: str
    """ "failed", "lost", "uncounted", "completed", "running" or "unknown"."""
    words: str
    title: str
    at: datetime | None = None
    """When it failed, by its worker's clock, where that was written down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A step on the time line."""

    job: Job
    parts: Sequence[Part]
    tries: Sequence[Try]
    earlier: int
    """Attempts before those that are shown."""
    took: timedelta
    has_ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLine:
    """All steps, from the creation of the first to the end of the last, or till now."""

    start: datetime
    end: datetime
    rows: Sequence[Row]
    is_open: bool
    """Whether it ends only because it is now."""


def time_line(steps: Sequence[Job], now: datetime | None = None) -> TimeLine:
    """What is known of when the steps of a chain did what."""
    now = now or datetime.now(UTC)
    rows = [_row(step, now) for step in steps]
    start = min((row.job.created_at for row in rows), default=now)
    end = max((row.parts[-1].end for row in rows if row.parts), default=now)
    is_open = any(not row.has_ended for row in rows)
    return TimeLine(start=start, end=max(end, start), rows=rows, is_open=is_open)


def draw(row: Row, line: TimeLine) -> Markup:
    """A bar, on the scale of the whole line."""
    whole = (line.end - line.start).total_seconds() or 1.0
    drawn: list[Markup] = []
    for part in row.parts:
        left = (part.start - line.start).total_seconds() / whole * _WIDTH
        wide = max((part.end - part.start).total_seconds() / whole * _WIDTH, 3.0)
        drawn.append(
            Markup(
                '<g><title>{}</title><rect class="{}" x="{:.1f}" y="3" width="{:.1f}" height="12" rx="2"/></g>'
            ).format(part.words, part.kind, min(left, _WIDTH - wide), wide)
        )
    for one in row.tries:
        if one.at is not None:
            share = min(max((one.at - line.start).total_seconds() / whole, 0.0), 1.0)
            drawn.append(
                Markup('<g><title>{}</title><rect class="fell {}" x="{:.1f}" y="0" width="3" height="18"/></g>').format(
                    one.title, one.kind, min(share * _WIDTH, _WIDTH - 3.0)
                )
            )
    label = "; ".join(part.words for part in row.parts) or "Nothing is known."
    return Markup(
        '<svg class="line" viewBox="0 0 {0} 18" preserveAspectRatio="none" role="img" aria-label="{1}">'
        '<rect class="track" x="0" y="8" width="{0}" height="2"/>{2}</svg>'
    ).format(_WIDTH, label, Markup("").join(drawn))


def _row(job: Job, now: datetime) -> Row:
    ended = job.completed_at if isinstance(job, CompletedJob) else job.failed_at if isinstance(job, FailedJob) else None
    end = max(ended or now, job.created_at)
    due = min(max(job.scheduled_at, job.created_at), end)
    parts: list[Part] = []
    if due > job.created_at:
        kind, words = _before(job)
        parts.append(_part(kind, words, job.created_at, due))
    if due < end or not parts:
        kind, words = _after(job)
        parts.append(_part(kind, words, due, end))
    tries, earlier = _tries(job)
    return Row(
        job=job, parts=parts, tries=tries, earlier=earlier, took=end - job.created_at, has_ended=ended is not None
    )


def _part(kind: str, words: str, start: datetime, end: datetime) -> Part:
    return Part(kind=kind, words=f"{words}: {lasted(end - start)}", start=start, end=end)


def _before(job: Job) -> tuple[str, str]:
    """Up to the moment it was last due."""
    if job.status is JobStatus.BLOCKED:
        return "blocked", "waits for other chains"
    done = job.attempt - (job.status in (JobStatus.RUNNING, JobStatus.COMPLETED, JobStatus.FAILED))
    if done > 0:
        return "retried", f"{done:,} earlier attempt{'s' * (done != 1)}, and the waits between them"
    return "waited", "waited until it was due"


def _after(job: Job) -> tuple[str, str]:
    """Since then. When it was taken is not stored, so waiting for a worker and running are one."""
    match job.status:
        case JobStatus.BLOCKED:
            return "blocked", "waits for other chains"
        case JobStatus.PENDING:
            return "pending", "waits for a worker"
        case JobStatus.RUNNING:
            return "running", "due, taken, and running since"
        case JobStatus.COMPLETED:
            return "completed", "from due to completed" if job.attempt else "from due to completed, by no worker"
        case JobStatus.FAILED:
            return "failed", "from due to failed" if job.attempt else "from due to failed, without an attempt"


def _tries(job: Job) -> tuple[Sequence[Try], int]:
    by_number = {error.attempt: error for error in job.errors if error.attempt is not None}
    first = max(job.attempt - _MOST_TRIES + 1, 1)
    return [_try(job, number, by_number.get(number)) for number in range(first, job.attempt + 1)], first - 1


def _try(job: Job, number: int, error: JobError | None) -> Try:
    if error is not None:
        is_lost = error.type == _LOST
        told = "lease lost" if is_lost else error.type[:40] + ("" if error.counted else ", not counted")
        when = "" if error.at is None else f", {moment(error.at)}"
        return Try(
            kind="lost" if is_lost else "failed" if error.counted else "uncounted",
            words=f"{number} {told}",
            title=f"Attempt {number}{when}: {in_short(error)}",
            at=error.at,
        )
    if number == job.attempt and job.status is JobStatus.RUNNING:
        return Try(kind="running", words=f"{number} runs", title=f"Attempt {number} runs.")
    if number == job.attempt and job.status is JobStatus.COMPLETED:
        return Try(kind="completed", words=f"{number} completed", title=f"Attempt {number} completed it.")
    return Try(
        kind="unknown",
        words=f"{number} ended",
        title=f"Attempt {number} ended without an error that is kept: given back, put off, or too long ago.",
    )

"""Everything at a glance: what needs attention first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from onward.client.causes import Group, grouped
from onward.client.stats import cut_off
from onward.client.words import listed, sentence, several, span
from onward.dashboard.page import Ask, Data, Page
from onward.dashboard.pages.figures import TypeRow, hour_of, lately, rows_of
from onward.model import FailedJob, JobStatus, StoredSchedule
from onward.operating import Health

_OLD = timedelta(minutes=15)
_HOUR = timedelta(hours=1)
_MOST_FAILED = 200
"""Failed jobs that are looked at for their causes, the newest."""
_MOST_CAUSES = 3
_MOST_TYPES = 12
_MOST_WORKERS = 6
_WHERE = {"workers": "workers", "dead_workers": "workers", "blocked_workers": "workers", "types": "types"}
"""The page where more is seen of a finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Something that somebody should look at."""

    level: Literal["error", "warning"]
    words: str
    advice: str | None = None
    at: str | None = None
    """The page that tells more."""
    causes: Sequence[Group] = ()
    resume: str | None = None
    """The type that could be resumed."""


async def overview(ask: Ask) -> Data:
    """How everything is doing."""
    app = ask.app
    stats, health = await app.stats(), await app.health()
    workers, schedules = await app.workers(), await app.schedules.list()
    rows = rows_of(app, stats)
    hour = hour_of(stats.total.minutes)
    causes = await _causes(ask, stats.at - _HOUR) if hour.failed else ()
    found = [
        *_found_by_the_doctor(health),
        *_failures(hour.failed, causes),
        *_of_types(rows),
        *_of_schedules(schedules, stats.at),
    ]
    alive = [worker for worker in workers if worker.state == "alive"]
    busiest = sorted(rows, key=lambda row: (-row.busy, row.name))[:_MOST_TYPES]
    return {
        "attention": sorted(found, key=lambda one: one.level == "warning"),
        "checked": [finding for finding in health.findings if finding.level == "ok"],
        "stats": stats,
        "hour": hour,
        "most_failed": _MOST_FAILED,
        "lately": lately(stats.total.minutes),
        "cut_off": cut_off(stats.types.values(), stats.more_than),
        "rows": busiest,
        "more_types": len(rows) - len(busiest),
        "workers": workers[:_MOST_WORKERS],
        "more_workers": len(workers) - _MOST_WORKERS,
        "alive": len(alive),
        "places": sum(worker.concurrency for worker in alive),
    }


async def _causes(ask: Ask, since: datetime) -> list[Group]:
    newest = await ask.app.jobs(status=[JobStatus.FAILED], limit=_MOST_FAILED)
    return grouped(job for job in newest if isinstance(job, FailedJob) and job.failed_at >= since)


def _found_by_the_doctor(health: Health) -> Iterator[Attention]:
    for finding in health.findings:
        if finding.level != "ok":
            yield Attention(
                level=finding.level,
                words=sentence(finding.message),
                advice=finding.advice and sentence(finding.advice),
                at=_WHERE.get(finding.name),
            )


def _failures(count: int, causes: Sequence[Group]) -> Iterator[Attention]:
    if count:
        words = f"{several(count, 'job')} failed in the last hour."
        yield Attention(level="warning", words=words, at="failed", causes=causes[:_MOST_CAUSES])


def _of_types(rows: Sequence[TypeRow]) -> Iterator[Attention]:
    for row in rows:
        if row.stats.paused and row.stats.pending:
            waiting = f"{several(row.stats.pending, 'job')} of it wait{'s' * (row.stats.pending == 1)}"
            words = f"{row.name} is paused, and {waiting}."
            yield Attention(level="warning", words=words, resume=row.name)
    old = [
        f"{row.name} for {span(row.stats.oldest.total_seconds())}"
        for row in sorted(rows, key=lambda row: row.stats.oldest or timedelta(0), reverse=True)
        if row.stats.oldest is not None and row.stats.oldest > _OLD and not row.stats.paused and not _by_hand(row)
    ]
    if old:
        advice = "A job that waits says why on its own page."
        yield Attention(level="warning", words=f"Jobs wait long: {listed(old)}.", advice=advice, at="types")


def _by_hand(row: TypeRow) -> bool:
    """Whether somebody else completes its jobs."""
    return row.known is not None and row.known.step.run is None


def _of_schedules(schedules: Sequence[StoredSchedule], now: datetime) -> Iterator[Attention]:
    failing = [one for one in schedules if one.error]
    if failing:
        words = f"A tick could not be started of {listed([one.name for one in failing])}: {failing[0].error}"
        yield Attention(level="error", words=words, at="schedules")
    orphans = [one.name for one in schedules if _is_due(one, now) and not one.is_declared]
    if orphans:
        words = f"No live worker's code declares {listed(orphans)}, so nothing is started."
        yield Attention(level="warning", words=words, at="schedules")


def _is_due(schedule: StoredSchedule, now: datetime) -> bool:
    return schedule.paused_at is None and schedule.next_at is not None and schedule.next_at < now


PAGES = (
    Page(path="/", title="Overview", template="overview.html", look=overview, navigation="Overview", every=5.0, cost=9),
)

"""SCHEDULE: declarations become rows, ticks that are due become jobs to start. Time is the database's throughout."""

import random
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from onward.define.registry import Registry
from onward.define.request import NewChain
from onward.define.schedule import Declared, Rules
from onward.define.timing import Due, Timing
from onward.errors import ConfigurationError, require
from onward.lifecycle.start import plan_chains
from onward.model import StoredSchedule
from onward.observe import events
from onward.state.contract import NewJob
from onward.state.rows import shown as written
from onward.state.schedules import Declaration, FoundSchedules, Move, ScheduleRow

CHORE = "start what is scheduled"
"""What workers call it; also the key of the hint that has them look."""
REFRESH = timedelta(seconds=15)
_GONE_AFTER = timedelta(seconds=60)
"""A declaration that nobody has refreshed for so long is no live code's any more."""
_LATE = timedelta(minutes=1)
"""More than this is too late for who skips what was missed; a worker that is restarted is back by then."""
_FAR_AHEAD = timedelta(days=1)
_MOST_TICKS = 100
"""Of one schedule in one transaction."""
_MOST_REMEMBERED = 20


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was changed at run time."""

    cron: str | None = None
    every: timedelta | None = None
    tz: str | None = None

    def of(self, timing: Timing) -> Timing:
        """The ticks of a schedule that was changed like this."""
        when = {} if self.cron is None and self.every is None else {"cron": self.cron, "every": self.every}
        return msgspec.structs.replace(timing, **when, tz=timing.tz if self.tz is None else self.tz)

    def after(self, row: ScheduleRow) -> "Change":
        """What is changed in all: what this does not say stays as it was changed before."""
        try:
            earlier = msgspec.json.decode(row.changed or "", type=Change)
        except Exception:  # noqa: BLE001 - nothing, or whatever a hand has written there
            return self
        when = earlier if self.cron is None and self.every is None else self
        return Change(cron=when.cron, every=when.every, tz=earlier.tz if self.tz is None else self.tz)


def timing_of(rules: Rules, row: ScheduleRow) -> Timing:
    """The ticks of a schedule as it is stored. Raises ConfigurationError where nobody can go by what was changed."""
    if row.changed is None:
        return rules.timing
    try:
        timing = msgspec.json.decode(row.changed, type=Change).of(rules.timing)
    except Exception:  # noqa: BLE001 - whatever a hand has written there
        raise ConfigurationError(f"changed holds {written(row.changed)}: reset it") from None
    problem = timing.problem()
    require(problem and f"changed holds {written(row.changed)}: {problem}: reset it")
    return timing


def rules_of(row: ScheduleRow) -> Rules | None:
    """What was declared; None where that cannot be read, say because newer code has written it."""
    try:
        return msgspec.json.decode(row.definition, type=Rules)
    except Exception:  # noqa: BLE001 - or a hand
        return None


def _superseded(row: ScheduleRow) -> list[str]:
    try:
        return msgspec.json.decode(row.superseded, type=list[str])
    except Exception:  # noqa: BLE001 - whatever a hand has written there
        return []


def first_tick(timing: Timing, now: datetime, row: ScheduleRow | None = None) -> datetime | None:
    """With which a schedule begins, or begins anew: never one that was started before.

    Unless the clock was far ahead when that was.
    """
    last = row.last_tick if row is not None else None
    return timing.after(now if last is None or last - now > _FAR_AHEAD else max(now, last))


# -- declare


def declarations(ours: Iterable[Declared], found: FoundSchedules) -> list[Declaration]:
    """What of our schedules is to be stored.

    Old and new code may run side by side: what is new wins, and what it has replaced comes back only when nobody
    declares the new any more.
    """
    rows = {row.name: row for row in found.rows}
    said = (_declaration(one, rows.get(one.name), found.now) for one in ours)
    return [one for one in said if one is not None]


def _declaration(ours: Declared, row: ScheduleRow | None, now: datetime) -> Declaration | None:
    superseded: list[str] = []
    keeps = False
    if row is not None:
        superseded = _superseded(row)
        is_gone = now - row.declared_at > _GONE_AFTER
        if row.fingerprint == ours.fingerprint or (ours.fingerprint in superseded and not is_gone):
            return None
        superseded = [one for one in superseded if one != ours.fingerprint] + [row.fingerprint]
        theirs = rules_of(row)
        keeps = row.changed is None and theirs is not None and theirs.timing == ours.rules.timing
    return Declaration(
        name=ours.name,
        type_name=ours.type.name,
        definition=ours.definition,
        fingerprint=ours.fingerprint,
        superseded=msgspec.json.encode(superseded[-_MOST_REMEMBERED:]).decode(),
        next_at=first_tick(ours.rules.timing, now, row),
        instead_of=None if row is None else row.fingerprint,
        seen_at=None if row is None else row.next_at,
        keeps=keeps,
    )


# -- tick


class Tick(msgspec.Struct, frozen=True):
    """What a schedule that is due comes to: a row to move, and chains to start in the same transaction."""

    ours: Declared
    move: Move
    ticks: Sequence[datetime]
    jobs: Sequence[NewJob]
    """One for each tick."""

    @property
    def events(self) -> list[events.Event]:
        """What is told once it is committed."""
        facts = {"schedule": self.ours.name, "type_name": self.ours.type.name}
        told: list[events.Event] = [
            events.ScheduleTicked(**facts, tick=tick, chain_id=job.id)
            for tick, job in zip(self.ticks, self.jobs, strict=True)
        ]
        if self.move.skipped:
            told.append(events.ScheduleSkipped(**facts, tick=self.move.tick, count=self.move.skipped))
        return told


def plan_tick(registry: Registry, ours: Declared, row: ScheduleRow, now: datetime, *, most: int = _MOST_TICKS) -> Tick:
    """What is to be done about a schedule that is due. Raises what is wrong with its row, or the input of its tick."""
    require(row.problem and f"{row.problem}: forget it, and it is stored anew")
    assert row.next_at is not None
    rules = ours.rules
    due = timing_of(rules, row).due(row.next_at, now, most=most if rules.missed == "all" else None)
    ticks = _wanted(rules, due, row, now)
    try:
        jobs = _jobs(registry, ours, ticks, jitter=rules.jitter)
    except Exception:
        if len(due.ticks) == 1:
            raise
        return plan_tick(registry, ours, row, now, most=len(due.ticks) // 2)  # those before the one that cannot be
    if rules.overlap == "queue":
        jobs = _in_line(jobs, row)
    move = Move(
        name=row.name,
        fingerprint=row.fingerprint,
        changed=row.changed,
        tick=row.next_at,
        next_at=due.next_at,
        last_tick=ticks[-1] if ticks else None,
        last_chain_id=jobs[-1].id if jobs else None,
        skipped=due.passed_over + len(due.ticks) - len(ticks),
        behind=jobs[0].blockers[0] if jobs and jobs[0].blockers else None,
    )
    return Tick(ours, move, ticks, jobs)


def _wanted(rules: Rules, due: Due, row: ScheduleRow, now: datetime) -> list[datetime]:
    ticks = due.ticks
    if rules.missed == "skip":
        ticks = [tick for tick in ticks if now - tick <= _LATE]
    if rules.overlap == "skip":
        ticks = [] if row.is_running else ticks[:1]
    return ticks


def planned_now(registry: Registry, ours: Declared, now: datetime) -> list[NewJob]:
    """What is started when somebody does not want to wait for the next tick."""
    return _jobs(registry, ours, [now], jitter=timedelta(0))


def _jobs(registry: Registry, ours: Declared, ticks: Sequence[datetime], *, jitter: timedelta) -> list[NewJob]:
    chains: list[NewChain[Any]] = [
        NewChain(
            job_type=ours.job_type,
            input=ours.input_at(tick),
            priority=ours.rules.priority,
            at=tick + jitter * random.random() if jitter else None,
        )
        for tick in ticks
    ]
    return plan_chains(registry, chains) if chains else []


def _in_line(jobs: Sequence[NewJob], row: ScheduleRow) -> list[NewJob]:
    """Each after the one before, whatever becomes of that."""
    last, waiting = row.last_chain_id if row.is_running else None, list[NewJob]()
    for job in jobs:
        if last is not None:
            job = msgspec.structs.replace(job, blockers=(last,), blocker_types=(job.type_name,), runs_anyway=True)
        waiting.append(job)
        last = job.id
    return waiting


# -- show


def shown(row: ScheduleRow, now: datetime) -> StoredSchedule:
    """A row for people to look at."""
    known, error = rules_of(row), row.problem or row.error
    rules = known or Rules(timing=Timing())
    try:
        timing = timing_of(rules, row)
    except ConfigurationError as problem:
        timing, error = rules.timing, str(problem)
    return StoredSchedule(
        name=row.name,
        type_name=row.type_name,
        cron=timing.cron,
        every=timing.every,
        tz=timing.tz,
        start=timing.start,
        end=timing.end,
        is_changed=row.changed is not None,
        missed=rules.missed,
        overlap=rules.overlap,
        jitter=rules.jitter,
        priority=rules.priority,
        input=None if rules.input is None else _plain(rules.input),
        next_at=row.next_at,
        last_tick=row.last_tick,
        last_chain_id=row.last_chain_id,
        skipped=row.skipped,
        paused_at=row.paused_at,
        error=error if known else "its definition cannot be read",
        is_declared=now - row.declared_at <= _GONE_AFTER,
        declared_at=row.declared_at,
    )


def _plain(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except Exception:  # noqa: BLE001 - whatever a hand has written there
        return None

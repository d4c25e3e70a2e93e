"""How everything is doing: the counts of all types, and the figures of the last hour."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from onward.operating import Minute, Stats, TypeStats
from onward.state.command import Operation, Steps
from onward.state.contract import StateAdapter
from onward.state.driver import Connection
from onward.state.figures import Figure
from onward.state.histogram import Histogram, add_up, spread_of
from onward.state.survey import Survey, Whereabouts

MOST, WITHIN = 10_000, 0.02
"""Where counting ends, unless told: there, or after so many seconds."""
MINUTES = 60
COUNTS = ("blocked", "pending", "scheduled", "running", "failed")
"""Of what is counted, as it is called in `TypeStats`."""


def stats(state: StateAdapter, known: Iterable[str], *, more_than: int | None) -> Operation[Stats]:
    """Of the types that are known, and of those that there are."""
    survey_of = state.figures.survey(most=more_than or MOST, within=None if more_than else WITHIN)

    async def look(connection: Connection) -> Stats:
        survey = await connection.run(state.at_one_moment(survey_of))
        figures = await connection.run(state.figures.read(first=int(survey.now // 60) - MINUTES + 1))
        return stats_of(survey, figures, await connection.run(state.paused()), known)

    return Steps(look)


def cut_off(types: Iterable[TypeStats], more_than: int) -> set[str]:
    """Of what there are more than were counted, so that a figure says "at least"."""
    return {name for one in types for name in COUNTS if getattr(one, name) >= more_than}


def stats_of(survey: Survey, figures: Iterable[Figure], paused: Iterable[str], known: Iterable[str]) -> Stats:
    """What was read, put together."""
    last = int(survey.now // 60)
    nothing = [Minute(at=datetime.fromtimestamp(minute * 60, UTC)) for minute in range(last - MINUTES + 1, last + 1)]
    hours = _hours(figures, last - MINUTES + 1)
    asleep, quiet, are_paused = Whereabouts(), _Hour(), set(paused)
    types = {
        name: _type_stats(survey.types.get(name, asleep), hours.get(name, quiet), nothing, paused=name in are_paused)
        for name in sorted({*known, *survey.types, *hours})
    }
    return Stats(
        at=datetime.fromtimestamp(survey.now, UTC),
        more_than=survey.most,
        total=_type_stats(_in_all(survey), _sum(hours.values()), nothing, paused=False),
        types=types,
    )


class _Hour:
    """What happened, by the number of the minute; and how long jobs waited and ran."""

    __slots__ = ("minutes", "runs", "waits")

    def __init__(self) -> None:
        self.minutes: dict[int, tuple[int, int, int, int]] = {}
        self.waits: Histogram = {}
        self.runs: Histogram = {}

    def add(self, minute: int, started: int, completed: int, failed: int, retried: int) -> None:
        s, c, f, r = self.minutes.get(minute, (0, 0, 0, 0))
        self.minutes[minute] = (s + started, c + completed, f + failed, r + retried)


def _hours(figures: Iterable[Figure], first: int) -> dict[str, _Hour]:
    """By type."""
    hours: dict[str, _Hour] = {}
    for one in figures:
        hour = hours.get(one.type_name)
        if hour is None:
            hour = hours[one.type_name] = _Hour()
        if one.minute - first >= MINUTES:
            continue  # of a writer whose clock is ahead
        hour.add(one.minute - first, one.started, one.completed, one.failed, one.retried)
        add_up(hour.waits, one.waits)
        add_up(hour.runs, one.runs)
    return hours


def _sum(hours: Iterable[_Hour]) -> _Hour:
    total = _Hour()
    for hour in hours:
        for minute, counts in hour.minutes.items():
            total.add(minute, *counts)
        add_up(total.waits, hour.waits)
        add_up(total.runs, hour.runs)
    return total


def _in_all(survey: Survey) -> Whereabouts:
    """The sum: at least so many, where there are more of a type than were counted."""
    each = survey.types.values()
    return Whereabouts(
        **{name: sum(getattr(one, name) for one in each) for name in COUNTS},
        oldest=max((one.oldest for one in each if one.oldest is not None), default=None),
    )


def _type_stats(where: Whereabouts, hour: _Hour, nothing: Sequence[Minute], *, paused: bool) -> TypeStats:
    """`nothing`: minutes in which nothing happened, of which there are many where there are many types."""
    minutes = list(nothing)
    for minute, (started, completed, failed, retried) in hour.minutes.items():
        minutes[minute] = Minute(
            at=nothing[minute].at, started=started, completed=completed, failed=failed, retried=retried
        )
    return TypeStats(
        **{name: getattr(where, name) for name in COUNTS},
        oldest=None if where.oldest is None else timedelta(seconds=where.oldest),
        paused=paused,
        minutes=minutes,
        wait=spread_of(hour.waits),
        run=spread_of(hour.runs),
    )

"""How everything is doing: the counts of all types, and the figures of the last hour."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from onward.operating import Minute, Stats, TypeStats
from onward.state.command import Operation, Steps
from onward.state.contract import StateAdapter
from onward.state.driver import Connection
from onward.state.figures import Figure, Survey, Whereabouts
from onward.state.histogram import Histogram, add_up, spread_of

MORE_THAN = 10_000
"""Where counting ends, unless told: so many are counted in a few milliseconds."""
MINUTES = 60
_COUNTS = ("blocked", "pending", "scheduled", "running", "failed")


def stats(state: StateAdapter, known: Iterable[str], *, more_than: int) -> Operation[Stats]:
    """Of the types that are known, and of those that there are."""

    async def look(connection: Connection) -> Stats:
        survey = await connection.run(state.figures.survey(most=more_than))
        figures = await connection.run(state.figures.read(first=int(survey.now // 60) - MINUTES + 1))
        return stats_of(survey, figures, await connection.run(state.paused()), known, more_than=more_than)

    return Steps(look)


def stats_of(
    survey: Survey, figures: Sequence[Figure], paused: Sequence[str], known: Iterable[str], *, more_than: int
) -> Stats:
    """What was read, put together."""
    last = int(survey.now // 60)
    of_type: dict[str, list[Figure]] = {name: [] for name in {*known, *survey.types}}
    for figure in figures:
        of_type.setdefault(figure.type_name, []).append(figure)
    types = {
        name: _type_stats(survey.types.get(name, Whereabouts()), of_type[name], last, paused=name in paused)
        for name in sorted(of_type)
    }
    return Stats(
        at=datetime.fromtimestamp(survey.now, UTC),
        more_than=more_than,
        total=_type_stats(_in_all(survey), figures, last, paused=False),
        types=types,
    )


def _in_all(survey: Survey) -> Whereabouts:
    """The sum: at least so many, where there are more of a type than were counted."""
    each = survey.types.values()
    return Whereabouts(
        **{name: sum(getattr(one, name) for one in each) for name in _COUNTS},
        oldest=max((one.oldest for one in each if one.oldest is not None), default=None),
    )


def _type_stats(where: Whereabouts, figures: Iterable[Figure], last: int, *, paused: bool) -> TypeStats:
    counts = {minute: [0, 0, 0, 0] for minute in range(last - MINUTES + 1, last + 1)}
    waits, runs = Histogram(), Histogram()
    for one in figures:
        row = counts.get(one.minute)
        if row is None:
            continue  # of a writer whose clock is ahead
        for place, count in enumerate((one.started, one.completed, one.failed, one.retried)):
            row[place] += count
        add_up(waits, one.waits)
        add_up(runs, one.runs)
    return TypeStats(
        **{name: getattr(where, name) for name in _COUNTS},
        oldest=None if where.oldest is None else timedelta(seconds=where.oldest),
        paused=paused,
        minutes=[
            Minute(at=datetime.fromtimestamp(minute * 60, UTC), started=s, completed=c, failed=f, retried=r)
            for minute, (s, c, f, r) in counts.items()
        ],
        wait=spread_of(waits),
        run=spread_of(runs),
    )

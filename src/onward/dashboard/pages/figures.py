"""What several pages make of the app's figures."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from starlette.datastructures import QueryParams

from onward.client.app import Onward
from onward.define.limit import Rate
from onward.define.registry import RegisteredType
from onward.model import StoredSchedule
from onward.operating import Minute, Stats, TypeStats

T = TypeVar("T")
_LATELY = 5
"""Minutes, for how much is done in one: fewer would jump, more would come late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRow:
    """How a type is doing."""

    name: str
    stats: TypeStats
    hour: Minute
    """All that happened in the last hour."""
    known: RegisteredType | None
    """What the app knows of it."""
    schedules: Sequence[StoredSchedule] = ()

    @property
    def pace(self) -> Sequence[int]:
        """What ended in each minute, for a small picture."""
        return [minute.completed + minute.failed for minute in self.stats.minutes]

    @property
    def busy(self) -> int:
        """How much there is to see of it."""
        return self.stats.pending + self.stats.running + self.hour.completed + self.hour.failed


def hour_of(minutes: Sequence[Minute]) -> Minute:
    """All of them as one."""
    return Minute(
        at=minutes[0].at,
        started=sum(minute.started for minute in minutes),
        completed=sum(minute.completed for minute in minutes),
        failed=sum(minute.failed for minute in minutes),
        retried=sum(minute.retried for minute in minutes),
    )


def lately(minutes: Sequence[Minute]) -> float:
    """How many jobs are completed in a minute. The one that has just begun does not count."""
    whole = minutes[-_LATELY - 1 : -1]
    return sum(minute.completed for minute in whole) / max(len(whole), 1)


def rows_of(app: Onward, stats: Stats, schedules: Iterable[StoredSchedule] = ()) -> list[TypeRow]:
    """Every type, by name."""
    started_by: dict[str, list[StoredSchedule]] = {}
    for schedule in schedules:
        started_by.setdefault(schedule.type_name, []).append(schedule)
    return [
        TypeRow(
            name=name,
            stats=found,
            hour=hour_of(found.minutes),
            known=app.registry.get(name),
            schedules=started_by.get(name, ()),
        )
        for name, found in stats.types.items()
    ]


def rate_in_words(rate: Rate | None) -> str:
    """As it can also be written.

    >>> from datetime import timedelta
    >>> rate_in_words(Rate(100, per=timedelta(minutes=1), burst=5))
    '100 per 60s'
    """
    return "" if rate is None else f"{rate.count} per {rate.per.total_seconds():g}s"


def part_of(names: Iterable[T], query: QueryParams, key: str, *, most: int) -> tuple[list[T], str | None]:
    """Those of a page of things that are sorted by a name, and after which name the next one begins."""
    after = query.get("after", "")
    rest: Iterator[T] = (one for one in names if getattr(one, key) > after) if after else iter(names)
    found = list(islice(rest, most + 1))
    return found[:most], getattr(found[most - 1], key) if len(found) > most else None

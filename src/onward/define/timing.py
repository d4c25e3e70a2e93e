"""When a schedule is due: by a cron expression in a time zone, or by elapsed time. Pure: no clock enters."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, takewhile
from typing import Any, NamedTuple

import msgspec

from onward.errors import ConfigurationError
from onward.options import given, wrong_duration, wrong_instant

SHORTEST = timedelta(milliseconds=100)
_NO_TIME = timedelta(0)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_COUNTED = 1_000


class Due(NamedTuple):
    """The ticks from one on whose time has come."""

    ticks: list[datetime]
    """Those asked for, in order."""
    passed_over: int
    """How many others; of a cron expression at most a thousand are counted."""
    next_at: datetime | None
    """The tick after all of these."""


class Timing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ticks of a schedule, in UTC: times of one zone compare as its clocks show them, even in an hour that comes
    twice.

    >>> daily = Timing(cron="30 2 * * *", tz="Europe/Oslo")
    >>> str(daily.after(datetime(2030, 3, 30, 12, tzinfo=UTC)))  # the clocks go from 2 to 3 that night
    '2030-03-31 01:00:00+00:00'
    """

    cron: str | None = None
    every: timedelta | None = None
    tz: str = "UTC"
    start: datetime | None = None
    end: datetime | None = None

    def problem(self) -> str | None:
        """What is wrong with it, if something is."""
        if (self.cron is None) == (self.every is None):
            return "give cron= or every=, and not both"
        wrong = (
            None if self.every is None else wrong_duration("every", self.every, least=SHORTEST),
            None if self.start is None else wrong_instant("start", self.start),
            None if self.end is None else wrong_instant("end", self.end),
            _wrong_zone(self.tz),
        )
        problem = next((one for one in wrong if one), None)
        if problem is None and self.start is not None and self.end is not None and self.end < self.start:
            problem = f"end={self.end} is before start={self.start}"
        return problem or (None if self.cron is None else _wrong_cron(self.cron, self.zone))

    @property
    def zone(self) -> tzinfo:
        return _zone(self.tz)

    def after(self, moment: datetime) -> datetime | None:
        """The first tick later than a moment; None: there is none any more."""
        return next(self._after(moment), None)

    def due(self, first: datetime, now: datetime, *, most: int | None) -> Due:
        """What is due of the ticks from `first` on: `most` of them, or, if that is None, only the last."""
        if most is None:
            return self._last_due(first, now)
        ticks = [first, *islice(takewhile(lambda tick: tick <= now, self._after(first)), most - 1)]
        return Due(ticks, 0, self.after(ticks[-1]))

    def _last_due(self, first: datetime, now: datetime) -> Due:
        last, count = first, 0
        if self.every is not None:
            last = max(first, self._floor(now if self.end is None else min(now, self.end)))
            count = max(round((last - first) / self.every), 0)
        else:
            for tick in islice(self._after(first), _MOST_COUNTED):
                if tick > now:
                    return Due([last], count, tick)
                last, count = tick, count + 1
            last = self._newest(last, now) if count == _MOST_COUNTED else last
        return Due([last], count, self.after(last))

    def _newest(self, since: datetime, now: datetime) -> datetime:
        """The last tick until now, from one that has come. By halves: the walk from there could be a long one, and
        there may have been none for long.
        """
        last, end = since, now
        while (following := self.after(last)) is not None and following <= now:
            middle = max(following, last + (end - last) / 2)
            tick = self.after(middle)
            if tick is None or tick > now:
                last, end = following, middle
            else:
                last = tick
        return last

    def _after(self, moment: datetime) -> Iterator[datetime]:
        moment = moment.astimezone(UTC)
        if self.start is not None and moment < self.start:
            moment = self.start.astimezone(UTC) - timedelta(microseconds=1)
        for tick in self._elapsed(moment) if self.cron is None else self._by_the_clock(moment):
            if self.end is not None and tick > self.end:
                return
            yield tick

    def _elapsed(self, moment: datetime) -> Iterator[datetime]:
        assert self.every is not None
        tick = self._floor(moment)
        while True:
            tick += self.every
            yield tick

    def _floor(self, moment: datetime) -> datetime:
        """The last tick until a moment, in UTC: intervals count from `start`, or from 1970."""
        assert self.every is not None
        anchor = (self.start or _EPOCH).astimezone(UTC)
        return anchor + (moment - anchor) // self.every * self.every

    def _by_the_clock(self, moment: datetime) -> Iterator[datetime]:
        assert self.cron is not None
        walk = self._at_times_of_day if _means_time_of_day(self.cron) else self._as_clocks_show
        return (tick for tick in walk(self.cron, moment.astimezone(self.zone)) if tick > moment)

    def _at_times_of_day(self, cron: str, local: datetime) -> Iterator[datetime]:
        """Once a day: in an hour that comes twice the library begins with the first of the two."""
        return (tick.astimezone(UTC) for tick in _cronsim().CronSim(cron, local))

    def _as_clocks_show(self, cron: str, local: datetime) -> Iterator[datetime]:
        """Whenever clocks show such a time. The library is not told of the zone: it goes by whole hours, and misses
        what follows a change by half of one, or one that is not on the hour.
        """
        begin, span = local.replace(tzinfo=None, fold=0), _comes_again_after(local)
        since, again = begin, None
        if local.fold:
            yield from self._again(cron, begin, span)
        elif span:
            again = self._again(cron, begin - span, span)
        for shown in _cronsim().CronSim(cron, begin):
            tick = shown.replace(tzinfo=self.zone)
            span = _comes_again_after(tick)
            if span < _NO_TIME or (span and local.fold and shown - begin < span):
                continue  # no clock shows this, or it has come twice already
            if again is not None and (not span or shown - since >= span):
                yield from again
                again = None
            if span and again is None:
                since, again = shown, self._again(cron, shown - span, span)
            yield tick.astimezone(UTC)
        yield from again or ()

    def _again(self, cron: str, begin: datetime, span: timedelta) -> Iterator[datetime]:
        """Of the times that come twice, with so much between them, the second."""
        for shown in takewhile(lambda shown: shown < begin + 2 * span, _cronsim().CronSim(cron, begin)):
            tick = shown.replace(tzinfo=self.zone, fold=1)
            if _comes_again_after(tick) > _NO_TIME:
                yield tick.astimezone(UTC)


def _means_time_of_day(cron: str) -> bool:
    """Whether the library has it come once a day, whatever clocks do; see `docs/how-to/schedules.md`."""
    fields = cron.split()
    return len(fields) == 5 and not fields[0].startswith("*") and not fields[1].startswith("*")


def _comes_again_after(local: datetime) -> timedelta:
    """How long after it clocks show the same time again; negative: they pass it over."""
    offsets = [local.replace(fold=fold).utcoffset() or _NO_TIME for fold in (0, 1)]
    return offsets[0] - offsets[1]


def _zone(tz: Any) -> tzinfo:
    if tz == "UTC":
        return UTC  # there may be no time zones on this system
    from zoneinfo import ZoneInfo  # for those with schedules only

    return ZoneInfo(tz)


def _wrong_zone(tz: object) -> str | None:
    try:
        _zone(tz)
    except Exception:  # noqa: BLE001 - whatever it is, it names no zone
        advice = "use a name such as 'Europe/Oslo' or 'UTC'; where the system has no time zones, pip install tzdata"
        return f"{given('tz', tz)}: {advice}"
    return None


def _wrong_cron(cron: object, zone: tzinfo) -> str | None:
    such = "such as '0 3 * * *' for every night at three: minute, hour, day, month, weekday"
    if not isinstance(cron, str):
        return f"{given('cron', cron)}: expected text {such}"
    library = _cronsim()
    try:
        if next(library.CronSim(cron, datetime(2024, 1, 1, tzinfo=zone)), None) is None:
            return f"{given('cron', cron)}: there is no such day"
    except (library.CronSimError, ValueError) as error:
        return f"{given('cron', cron)}: {str(error).lower()}; expected an expression {such}"
    return None


def _cronsim() -> Any:
    try:
        import cronsim
    except ImportError as error:
        raise ConfigurationError("cron= needs the package cronsim: pip install 'onward[cron]'") from error
    return cronsim

"""When schedules are due: over both changes of the clocks, within bounds, and after a long time without workers."""

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest

from onward import Schedule
from onward.define.timing import Timing
from onward.errors import ConfigurationError

OSLO = ZoneInfo("Europe/Oslo")
SPRING, AUTUMN = datetime(2030, 3, 31, tzinfo=OSLO), datetime(2030, 10, 27, tzinfo=OSLO)
TWICE = ["00:00", "00:30", "01:00", "01:30"]
DAY, HOUR = timedelta(days=1), timedelta(hours=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def ticks(timing: Timing, since: datetime, count: int) -> list[str]:
    """As the clocks in Oslo show them."""
    moment, found = since, []
    for _ in range(count):
        tick = timing.after(moment)
        assert tick is not None
        assert tick > moment
        moment = tick
        found.append(f"{moment.astimezone(OSLO):%d %H:%M%z}")
    return found


@pytest.mark.parametrize(
    ("cron", "since", "expected"),
    [
        ("30 2 * * *", SPRING - HOUR, ["31 03:00+0200", "01 02:30+0200"]),
        ("0 3 * * *", SPRING - HOUR, ["31 03:00+0200", "01 03:00+0200"]),
        ("*/30 * * * *", SPRING + HOUR, ["31 01:30+0100", "31 03:00+0200", "31 03:30+0200"]),
        ("*/30 2 * * *", SPRING - HOUR, ["01 02:00+0200", "01 02:30+0200"]),
        ("0 30 2 * * *", SPRING - HOUR, ["01 02:30+0200"]),
        ("30 2 * * *", AUTUMN - HOUR, ["27 02:30+0200", "28 02:30+0100"]),
        ("*/30 * * * *", AUTUMN + HOUR, ["27 01:30+0200", "27 02:00+0200", "27 02:30+0200", "27 02:00+0100"]),
        ("*/30 2 * * *", AUTUMN, ["27 02:00+0200", "27 02:30+0200", "27 02:00+0100", "27 02:30+0100"]),
        ("0 30 2 * * *", AUTUMN, ["27 02:30+0200", "27 02:30+0100", "28 02:30+0100"]),
    ],
)
def test_a_cron_expression_over_a_change_of_the_clocks(cron: str, since: datetime, expected: list[str]) -> None:
    assert ticks(Timing(cron=cron, tz="Europe/Oslo"), since, len(expected)) == expected


@pytest.mark.parametrize(
    ("zone", "cron", "since", "expected"),
    [
        ("Australia/Lord_Howe", "*/30 1 * * *", "2030-04-06 13:45", ["14:00", "14:30", "15:00"]),
        ("Australia/Lord_Howe", "*/20 5 * * *", "2030-04-06 13:45", ["18:30", "18:50", "19:10"]),
        ("Australia/Lord_Howe", "*/20 5 * * *", "2030-10-05 13:30", ["18:00", "18:20", "18:40"]),
        ("Australia/Lord_Howe", "0 0 5 * * *", "2030-10-05 13:30", ["18:00"]),
        ("Pacific/Chatham", "*/15 2 * * *", "2030-04-06 12:10", ["12:15", "12:30", "12:45", "13:00", "14:00"]),
        ("Africa/Cairo", "*/30 0 26 4 *", "2030-04-25 12:00", []),
    ],
)
def test_a_change_of_the_clocks_by_half_an_hour_or_not_on_the_hour(
    zone: str, cron: str, since: str, expected: list[str]
) -> None:
    timing, moment, found = Timing(cron=cron, tz=zone), at(since), list[str]()
    while (tick := timing.after(moment)) is not None and tick < at(since) + HOUR * 12:
        moment = tick
        found.append(f"{tick:%H:%M}")

    assert found == expected
    walk = timing._after(at(since))
    assert [f"{tick:%H:%M}" for tick in islice(walk, len(expected))] == expected


def test_times_that_come_twice_come_in_their_order_wherever_one_begins() -> None:
    timing, tick = Timing(cron="*/15 * * * *", tz="Australia/Lord_Howe"), at("2030-04-06 14:00")
    for minutes in range(0, 120, 5):
        found = timing.after(tick + timedelta(minutes=minutes))

        assert found == tick + timedelta(minutes=minutes // 15 * 15 + 15)


@pytest.mark.parametrize("since", ["2030-10-01 00:00", "2030-10-26 23:59", "2030-10-27 00:45", "2030-10-27 01:15"])
def test_what_always_comes_twice_comes_twice_each_year(since: str) -> None:
    timing = Timing(cron="*/30 2 * 10 0L", tz="Europe/Oslo")  # in the hour of the change itself
    all_of_them = [at(f"{day} {time}") for day in ("2030-10-27", "2031-10-26") for time in TWICE]

    found = list(islice(timing._after(at(since)), 5))

    assert found == [tick for tick in all_of_them if tick > at(since)][:5]


@pytest.mark.parametrize("since", [SPRING, AUTUMN])
def test_an_interval_counts_elapsed_time_whatever_the_clocks_do(since: datetime) -> None:
    timing = Timing(every=HOUR, tz="Europe/Oslo")
    found = list(islice(timing._after(since), 10))

    assert {later - earlier for earlier, later in pairwise(found)} == {HOUR}


@pytest.mark.parametrize("since", ["2030-10-27 00:45", "2030-10-27 01:15"])
def test_no_tick_comes_again_in_the_second_of_two_hours(since: str) -> None:
    timing = Timing(cron="30 2 * * *", tz="Europe/Oslo")

    assert timing.after(at(since)) == at("2030-10-28 01:30")


def test_intervals_lie_on_a_grid_that_is_the_same_for_everybody() -> None:
    free, bound = Timing(every=HOUR), Timing(every=HOUR, start=at("2030-01-01 00:10"))

    assert free.after(at("2030-01-01 05:59:59.999999")) == at("2030-01-01 06:00")
    assert free.after(at("2030-01-01 06:00")) == at("2030-01-01 07:00")
    assert bound.after(at("2029-01-01")) == at("2030-01-01 00:10")
    assert bound.after(at("2030-01-01 00:10")) == at("2030-01-01 01:10")


@pytest.mark.parametrize("timing", [{"every": DAY}, {"cron": "0 0 * * *"}])
def test_start_and_end_belong_to_it(timing: dict[str, object]) -> None:
    bound = Timing(start=at("2030-01-02"), end=at("2030-01-03"), **timing)  # type: ignore[arg-type]

    assert bound.after(at("2029-12-24")) == at("2030-01-02")
    assert bound.after(at("2030-01-02")) == at("2030-01-03")
    assert bound.after(at("2030-01-03")) is None
    assert bound.due(at("2030-01-02"), at("2030-06-01"), most=None) == ([at("2030-01-03")], 1, None)


@pytest.mark.parametrize("timing", [Timing(every=HOUR), Timing(cron="0 * * * *")], ids=["every", "cron"])
def test_what_is_due(timing: Timing) -> None:
    first, now, later = at("2030-01-01 01:00"), at("2030-01-01 03:30"), at("2030-01-01 04:00")

    assert timing.due(first, now, most=None) == ([later - HOUR], 2, later)
    assert timing.due(first, now, most=100) == ([first, first + HOUR, first + 2 * HOUR], 0, later)
    assert timing.due(first, now, most=2) == ([first, first + HOUR], 0, first + 2 * HOUR)
    assert timing.due(first, first, most=None) == ([first], 0, first + HOUR)


def test_of_what_comes_once_in_a_lifetime_no_more_is_worked_out_than_is_due() -> None:
    timing = Timing(every=timedelta(days=36_500))  # the hundredth of these would be after the year 9999
    first = timing.after(at("2030-01-01"))
    assert first is not None

    ticks, passed_over, _ = timing.due(first, first + HOUR, most=100)

    assert (ticks, passed_over) == ([first], 0)


@pytest.mark.parametrize("cron", ["* * * * * *", "*/7 * * * *", "0 3 * * *", "0 0 1 * *", "0 12 29 2 *"])
def test_the_last_of_very_many_is_found_without_a_walk_through_all_of_them(cron: str) -> None:
    timing, now = Timing(cron=cron, tz="Europe/Oslo"), at("2049-10-31 12:34:56.789")
    first = timing.after(at("2030-01-01"))
    assert first is not None

    [last], _, following = timing.due(first, now, most=None)

    assert last <= now < (following or now)
    assert timing.after(last) == following


@pytest.mark.parametrize(
    ("timing", "first", "now", "last"),
    [
        (Timing(cron="* * * 1 *"), "2030-01-20", "2030-12-31", "2030-01-31 23:59"),
        (Timing(cron="* * 9 * * *"), "2030-01-01 09:00", "2030-01-02 08:00", "2030-01-01 09:59:59"),
        (Timing(cron="* * * * * *", end=at("2030-02-01")), "2030-01-01", "2031-02-01", "2030-02-01"),
    ],
    ids=["month", "hour", "end"],
)
def test_the_last_of_very_many_is_found_where_there_were_none_for_long(
    timing: Timing, first: str, now: str, last: str
) -> None:
    assert timing.due(at(first), at(now), most=None) == ([at(last)], 1_000, timing.after(at(last)))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "give cron= or every=, and not both"),
        ({"cron": "* * * * *", "every": HOUR}, "give cron= or every=, and not both"),
        ({"cron": "61 * * * *"}, "bad minute"),
        ({"cron": "0 0 31 2 *"}, "bad day-of-month"),
        ({"cron": "hourly"}, "wrong number of fields"),
        ({"cron": 7}, "expected text such as '0 3 \\* \\* \\*'"),
        ({"every": 60}, "every=60: expected a timedelta, such as timedelta\\(seconds=60\\)"),
        ({"every": timedelta(milliseconds=99)}, "too short: expected at least 0.1 seconds"),
        ({"every": HOUR, "tz": "Mars/Olympus"}, "use a name such as 'Europe/Oslo'"),
        ({"every": HOUR, "tz": None}, "use a name such as 'Europe/Oslo'"),
        ({"every": HOUR, "start": datetime(2030, 1, 1)}, "has no time zone"),  # noqa: DTZ001 - what is refused
        ({"every": HOUR, "end": "2030"}, "expected a datetime with a time zone"),
        ({"every": HOUR, "start": SPRING, "end": SPRING - HOUR}, "is before start="),
        ({"every": HOUR, "missed": "never"}, "use one of 'skip', 'once', 'all'"),
        ({"every": HOUR, "overlap": "wait"}, "use one of 'allow', 'skip', 'queue'"),
        ({"every": HOUR, "jitter": 5}, "timedelta\\(seconds=5\\)"),
        ({"every": HOUR, "priority": "high"}, "expected a whole number"),
        ({"every": HOUR, "timezone": "UTC"}, "timezone= is not an option: there are cron, every, tz"),
        ({"every": HOUR, "type_name": "report"}, "type_name= is not an option: there are cron, every, tz"),
        ({"every": HOUR, "input": asyncio.sleep}, "input= is a coroutine function"),
        ({"every": HOUR, "timing": 1}, "timing= is not an option: there are cron, every, tz"),
        ({"cron": f"{'0' * 5000} * * * *"}, "expected an expression such as"),
    ],
)
def test_what_is_wrong_is_said_where_it_is_written(options: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        Schedule(**options)  # type: ignore[call-overload]


def test_cron_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)

    with pytest.raises(ConfigurationError, match=r"pip install 'onward\[cron\]'"):
        Schedule(cron="* * * * *")
    Schedule(every=HOUR)

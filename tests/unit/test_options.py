"""What callers may give: one range for instants and durations, one verdict on text, whatever the database."""

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from onward import Backoff, Deduplication, Reschedule, Slice, new_id
from onward.define.outcome import Rescheduled
from onward.errors import ConfigurationError
from onward.options import storable


@pytest.mark.parametrize("made", [Reschedule, Rescheduled])
@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"at": datetime(2030, 1, 1)}, r"at=2030-01-01 00:00:00 has no time zone; use datetime\.now\(UTC\)"),  # noqa: DTZ001
        ({"at": datetime.max.replace(tzinfo=UTC)}, "is out of range: from the year 1900 to 9000"),
        ({"at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))}, "is out of range"),
        ({"at": datetime.min.replace(tzinfo=UTC)}, "is out of range"),
        ({"at": date(2030, 1, 1)}, "expected a datetime with a time zone"),
        ({"delay": timedelta.max}, "delay is too long: expected at most 365,000 days"),
        ({"delay": timedelta(seconds=-1)}, "is negative"),
        ({"delay": 5}, r"delay=5: expected a timedelta, such as timedelta\(seconds=5\)"),
        ({"delay": timedelta(1), "at": datetime.now(UTC)}, "delay= or at=, not both"),
    ],
)
def test_a_time_that_cannot_be_stored_is_refused_where_it_is_made(made: Any, options: Any, advice: str) -> None:
    with pytest.raises(ConfigurationError, match=advice):
        made(**options)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"key": ""}, "key='': expected 1 to 1000 characters"),
        ({"key": "a\0b"}, "no NUL"),
        ({"key": "caf\udce9"}, "lone surrogate"),
        ({"key": "é" * 501}, r"expected 1 to 1000 characters \(bytes of UTF-8\)"),
        ({"key": 7}, "key=7: expected text"),
        ({"scope": "anny"}, "scope='anny': use one of 'incomplete', 'any'; did you mean 'any'?"),
        ({"window": 5}, r"window=5: expected a timedelta, such as timedelta\(seconds=5\)"),
        ({"window": timedelta(0)}, "window=0:00:00 is too short"),
        ({"window": timedelta.max}, "window is too long"),
        ({"exclude": "abc"}, "exclude='abc': expected a list of UUIDs"),
        ({"exclude": new_id()}, r"expected a list of UUIDs, such as \[chain\.id\]"),
        ({"exclude": ["abc"]}, "exclude='abc': expected a UUID"),
    ],
)
def test_a_deduplication_is_checked_when_it_is_made(options: Any, advice: str) -> None:
    with pytest.raises(ConfigurationError, match=advice):
        Deduplication(**{"key": "key", **options})


@pytest.mark.parametrize("options", [{"initial": 5}, {"maximum": "1h"}, {"factor": "two"}, {"jitter": -1}])
def test_a_backoff_of_the_wrong_kind_is_refused_when_it_is_made(options: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"Backoff: {next(iter(options))}"):
        Backoff(**options)


@pytest.mark.parametrize("options", [{"prefix": ""}, {"lease": 5}, {"backoff": 5}])
def test_a_slice_is_checked_when_it_is_made(options: Any) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        Slice(**{"prefix": "orders", **options})


def test_text_that_no_database_keeps_is_marked() -> None:
    assert storable("caf\udce9 \0 é 🙂") == "caf\ufffd \ufffd é 🙂"

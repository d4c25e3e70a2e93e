"""What callers may give, in one place. Each function says what is wrong with an option, or None where nothing is.

They are asked before any I/O, so that every database answers alike; who asks raises the error that fits.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

EARLIEST = datetime(1900, 1, 1, tzinfo=UTC)
LATEST = datetime(9000, 1, 1, tzinfo=UTC)
"""Every database keeps, compares and reads back the instants between these two, in every time zone."""
LONGEST = timedelta(days=365_000)
"""About a thousand years: no delay, window or lease that is longer means anything but a mistake."""
MOST_PRIORITY = 2**31 - 1
LONGEST_NAME = 255
LONGEST_KEY = 1000
"""In bytes: a name and a key go into one index, whose entries Postgres limits to 2,704."""
MOST_JOBS = 100_000
"""In one call, with those they wait for: what is started together is sent and committed together."""
MOST_JSON = 256 * 1024 * 1024
"""Characters, of all the jobs of one call."""
LONGEST_ERROR, LONGEST_TRACEBACK, LONGEST_NOTE = 2_000, 4_000, 500
"""Characters that are kept of what handlers raise and say."""
CUT = "cut: "
"""So begins what a text says that was longer."""
_ZERO = timedelta(0)
_NOT_STORABLE = re.compile("[\\0\\ud800-\\udfff]")


def wrong_instant(option: str, value: object) -> str | None:
    """For `at=` and the bounds of a listing."""
    if not isinstance(value, datetime):
        return f"{given(option, value)}: expected a datetime with a time zone, such as datetime.now(UTC)"
    if value.utcoffset() is None:
        return f"{option}={value} has no time zone; use datetime.now(UTC) or astimezone()"
    if not EARLIEST <= value <= LATEST:
        return f"{option}={value} is out of range: from the year {EARLIEST.year} to {LATEST.year}"
    return None


def wrong_duration(option: str, value: object, *, least: timedelta = _ZERO, most: timedelta = LONGEST) -> str | None:
    """For delays, windows, leases and timeouts."""
    if not isinstance(value, timedelta):
        such = value if isinstance(value, int | float) and not isinstance(value, bool) else 5
        return f"{given(option, value)}: expected a timedelta, such as timedelta(seconds={such})"
    if value < _ZERO:
        return f"{option}={value} is negative; use a timedelta of {least.total_seconds():g} seconds or more"
    if value < least:
        return f"{option}={value} is too short: expected at least {least.total_seconds():g} seconds"
    if value > most:
        return f"{option} is too long: expected at most {most.days:,} days, got {value.days:,}"
    return None


def wrong_time(delay: object, at: object) -> str | None:
    """For whatever runs later: after a delay, or from an instant on."""
    if delay is None:
        return None if at is None else wrong_instant("at", at)
    if at is not None:
        return "give delay= or at=, not both"
    return wrong_duration("delay", delay)


def wrong_number(option: str, value: object, *, least: int, most: int | None = None) -> str | None:
    """For whole numbers."""
    bounds = f"from {least} on" if most is None else f"from {least} to {most}"
    if not isinstance(value, int) or isinstance(value, bool):
        return f"{given(option, value)}: expected a whole number {bounds}"
    if value < least or (most is not None and value > most):
        return f"{option}={value} is out of range: expected a whole number {bounds}"
    return None


def wrong_priority(value: object) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MOST_PRIORITY:
        return f"priority={value} does not fit in 32 bits"
    return wrong_number("priority", value, least=-MOST_PRIORITY, most=MOST_PRIORITY)


def wrong_text(option: str, value: object, *, most: int) -> str | None:
    """For names and keys: what every database stores, and what its indexes hold."""
    if not isinstance(value, str):
        return f"{given(option, value)}: expected text"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return f"{given(option, value)}: has a lone surrogate, which is not valid Unicode"
    if not 1 <= size <= most or "\0" in value:
        return f"{given(option, value)}: expected 1 to {most} characters (bytes of UTF-8) and no NUL"
    return None


def wrong_choice(option: str, value: object, choices: Collection[str]) -> str | None:
    if isinstance(value, str) and value in choices:
        return None
    return f"{given(option, value)}: use one of {', '.join(map(repr, choices))}{_meant(value, choices)}"


def wrong_flag(option: str, value: object) -> str | None:
    """For what is on or off. Others are refused: databases do not agree on what else means yes."""
    return None if isinstance(value, bool) else f"{given(option, value)}: expected True or False"


def wrong_function(option: str, value: object, *, of: str) -> str | None:
    return None if callable(value) else f"{given(option, value)}: expected a function {of}"


def wrong_iterable(option: str, value: object, *, of: str) -> str | None:
    """For several of a kind that are gone through once."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return None
    return f"{given(option, value)}: expected a list of {of}"


def wrong_several(option: str, value: object, *, of: str) -> str | None:
    """For several of a kind. What can be gone through only once, or never ends, is refused."""
    if isinstance(value, Collection) and not isinstance(value, str | bytes | bytearray | Mapping):
        return None
    return f"{given(option, value)}: expected a list of {of}"


def wrong_id(option: str, value: object) -> str | None:
    """For the ids of jobs and chains. Text is refused: what one database takes for an id, another does not."""
    if isinstance(value, UUID):
        return None
    return f"{given(option, value)}: expected a UUID; UUID(text) makes one of text"


def wrong_ids(option: str, value: object) -> str | None:
    """For several of them."""
    if not isinstance(value, list | tuple | set | frozenset):
        return f"{given(option, value)}: expected a list of UUIDs, such as [chain.id]"
    return next((problem for one in value if (problem := wrong_id(option, one))), None)


def wrong_kind(option: str, value: object, kind: type[object], *, such: str) -> str | None:
    """For values of a class of ours."""
    return None if isinstance(value, kind) else f"{given(option, value)}: expected {such}"


def unknown(option: str, known: Iterable[str], *, meant: str | None = None) -> str:
    """What to say of an option that does not exist."""
    known = list(known)
    nearest = f"; did you mean {meant}=?" if meant else _meant(option, known, "=")
    return f"{option}= is not an option{nearest or ': there are ' + ', '.join(known)}"


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a message about a name that does not exist."""
    return _meant(name, list(names))


def given(option: str, value: object) -> str:
    """An option and what it was given, however long or strange that is."""
    try:
        shown = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    except Exception:  # noqa: BLE001 - the repr of whatever the caller has
        shown = f"a {type(value).__name__}"
    return f"{option}={shown if len(shown) <= 80 else shown[:77] + '…'}"


def storable(text: str) -> str:
    """Text as every database can keep it: what is not valid Unicode, such as many a file name, is marked."""
    return _NOT_STORABLE.sub("\ufffd", text)


def several_keys(keys: Iterable[str]) -> str:
    """The limits of a job that has several, as one text: the database keeps the first, and the rest beside it."""
    return "\x1f" + json.dumps(list(keys))


def cut(text: str, most: int, *, keep_end: bool = False) -> str:
    """Text of at most so many characters, which says so where it was longer.

    >>> cut("a" * 100, 40)
    'aaaaaaaaaaa… (cut: 100 characters in all)'
    """
    if len(text) <= most:
        return text
    if keep_end:
        note = f"({CUT}{len(text):,} characters in all) …"
        return note + text[len(note) - most :]
    note = f"… ({CUT}{len(text):,} characters in all)"
    return text[: most - len(note)] + note


def wrong_call(count: int, size: int) -> str | None:
    """For all that is started in one call: how many jobs, and how many characters of JSON."""
    if count > MOST_JOBS:
        return f"{count:,} jobs in one call, more than the {MOST_JOBS:,} that may be: start them in parts"
    if size > MOST_JSON:
        return f"{size:,} characters of JSON in one call, more than the {MOST_JSON:,} that may be: start them in parts"
    return None


def _meant(value: object, choices: Iterable[str], mark: str = "") -> str:
    import difflib  # for those who mistype only

    close = difflib.get_close_matches(value, list(choices), 1) if isinstance(value, str) and len(value) < 300 else []
    return f"; did you mean {close[0] + mark if mark else repr(close[0])}?" if close else ""

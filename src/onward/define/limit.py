"""Limits: how many jobs may run at a time, and how often one may start."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from onward.errors import ConfigurationError, StartRefused, require
from onward.options import (
    LONGEST,
    LONGEST_KEY,
    LONGEST_NAME,
    given,
    several_keys,
    wrong_duration,
    wrong_function,
    wrong_kind,
    wrong_number,
    wrong_text,
)

_MOST = 2**31 - 1
_LONGEST_PER = timedelta(days=366)
_SHORTEST_EVERY = 1e-6
"""Seconds: what databases can tell apart."""


@dataclass(frozen=True, slots=True)
class Rate:
    """So many starts `per` so much time, evenly spread; after a pause `burst` of them at once.

    >>> Rate(100, per=timedelta(minutes=1), burst=20).every
    0.6
    """

    count: int
    per: timedelta = field(kw_only=True)
    burst: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        require(
            wrong_number("Rate: count", self.count, least=1, most=_MOST),
            wrong_duration("Rate: per", self.per, least=timedelta(milliseconds=1), most=_LONGEST_PER),
            wrong_number("Rate: burst", self.burst, least=1, most=_MOST),
        )
        if self.every < _SHORTEST_EVERY:
            raise ConfigurationError(f"Rate: {self.count:,} per {self.per} is more than a million a second: give less")
        if self.every * self.burst > LONGEST.total_seconds():  # more than databases can add to an instant
            raise ConfigurationError(
                f"Rate: burst={self.burst} takes longer than {LONGEST.days:,} days at this rate: give less"
            )

    @property
    def every(self) -> float:
        """Seconds from one start to the next."""
        return self.per.total_seconds() / self.count


@dataclass(frozen=True, slots=True)
class Limit:
    """How many jobs may run at a time (`concurrency`), and how often one may start (`rate`), across all workers.

    With a `key`, a function of the input, so many for each key. Under a `name` several job types share one: give them
    the same. Without, it is the type's own.

    >>> Limit("stripe", concurrency=5).concurrency
    5
    """

    name: str | None = None
    concurrency: int | None = field(default=None, kw_only=True)
    rate: Rate | None = field(default=None, kw_only=True)
    key: Callable[[Any], str | int | float] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        such, places = "Rate(100, per=timedelta(minutes=1))", self.concurrency
        require(
            None if self.name is None else wrong_text("Limit: name", self.name, most=LONGEST_NAME),
            None if places is None else wrong_number("Limit: concurrency", places, least=1, most=_MOST),
            None if self.rate is None else wrong_kind("Limit: rate", self.rate, Rate, such=such),
            None if self.key is None else wrong_function("Limit: key", self.key, of="of the input"),
            None if self.concurrency or self.rate else "Limit: give concurrency=, rate=, or both",
        )


@dataclass(frozen=True, slots=True)
class TypeLimit:
    """A limit of a job type."""

    type_name: str
    limit: Limit

    @property
    def name(self) -> str:
        return self.limit.name or self.type_name

    @property
    def stored_name(self) -> str:
        return stored_name(self.name)

    def key_of(self, input: Any) -> str:
        """What a job with this input is stored under. Raises StartRefused."""
        if self.limit.key is None:
            return f"{stored_name(self.name)}/"
        try:
            key: object = self.limit.key(input)
            text = key_text(key)  # an integer may be too long to be shown
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a CancelledError, too: nothing is awaited here, so nobody has cancelled us
            raise StartRefused(
                f"{self.type_name!r}: the key= of its limit {self.name!r} raised {type(error).__name__}: {error}"
            ) from error
        is_one = isinstance(key, str | int | float) and not isinstance(key, bool)
        problem = (
            wrong_text("key", text, most=LONGEST_KEY) if is_one else f"{given('key', key)}: expected text or a number"
        )
        if problem is not None:
            raise StartRefused(f"{self.type_name!r}: its limit {self.name!r}: {problem}")
        return f"{stored_name(self.name)}/{text}"


def key_text(key: object) -> str:
    """A key as it is stored: an enum, say, is the text that it is, whatever it is shown as."""
    return str.__str__(key) if isinstance(key, str) else str(key)


def stored_name(name: str) -> str:
    """A name without the `/` that stands between it and a key, and without what begins several keys."""
    return name.replace("~", "~0").replace("/", "~1").replace("\x1f", "~2")


def shown_name(stored: str) -> str:
    return stored.replace("~2", "\x1f").replace("~1", "/").replace("~0", "~")


def limits_of(type_name: str, limit: "Limit | Sequence[Limit] | None") -> tuple[TypeLimit, ...]:
    """In the order in which a job comes by a place of each: one for all types, so that no two wait for each other."""
    several = () if limit is None else (limit,) if isinstance(limit, Limit) else limit
    limits = [TypeLimit(type_name, one) for one in several]
    return tuple(sorted(limits, key=lambda one: (one.limit.key is None, one.name)))


def limit_key_of(limits: Sequence[TypeLimit], input: Any) -> str | None:
    """What a job of these limits is stored under. Raises StartRefused."""
    if len(limits) < 2:
        return limits[0].key_of(input) if limits else None
    return several_keys([limit.key_of(input) for limit in limits])


def wrong_limit(value: object) -> str | None:
    """What is wrong with the option of that name."""
    if value is None or isinstance(value, Limit):
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(one, Limit) for one in value):
        return f"{given('limit', value)}: expected a Limit(concurrency=…), or several in a list"
    names = [one.name for one in value]
    if len(set(names)) < len(names):
        return "limit: of several, each needs a name of its own, but for one"
    return None


def limit_problems(limits: Iterable[TypeLimit]) -> Sequence[str]:
    """Limits of one name that do not say the same."""
    first: dict[str, TypeLimit] = {}
    problems: list[str] = []
    for one in limits:
        other = first.setdefault(one.name, one)
        if (one.limit.concurrency, one.limit.rate) != (other.limit.concurrency, other.limit.rate):
            problems.append(
                f"{one.type_name}: limits under the name {one.name!r} otherwise than {other.type_name}: "
                "give both the same Limit, or another name"
            )
    return problems

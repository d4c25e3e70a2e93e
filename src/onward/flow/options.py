"""What flows, stages and calls are told, checked where it is said: names, types and ranges."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Never

from onward.addresses import shown, wrong_address
from onward.errors import ConfigurationError
from onward.model import Backoff
from onward.options import LONGEST
from onward.redis.connection import ConnectionPool, Redis, RedisCluster

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
SHORTEST = timedelta(milliseconds=1)


class Checks:
    """Every refusal begins with whose option it was: `flow 'access': keep must be …`."""

    def __init__(self, owner: str) -> None:
        self._owner = owner

    def text(self, option: str, value: object) -> None:
        if not isinstance(value, str) or not value:
            self.refuse(option, "a text of at least one character", value)
        if any("\ud800" <= character <= "\udfff" for character in value):
            self.refuse(option, "a text of whole characters", value)

    def whole(self, option: str, value: Any, *, least: int, most: int | None = None) -> None:
        if (
            not isinstance(value, int)
            or isinstance(value, bool)
            or value < least
            or (most is not None and value > most)
        ):
            self.refuse(option, f"a whole number from {least}" + ("" if most is None else f" to {most}"), value)

    def number(self, option: str, value: object, *, least: float, most: float) -> None:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value <= most:
            self.refuse(option, f"a number from {least:g} to {most:g}", value)

    def flag(self, option: str, value: object) -> None:
        if not isinstance(value, bool):
            self.refuse(option, "True or False", value)

    def duration(self, option: str, value: object, *, least: timedelta = timedelta(0)) -> None:
        if not isinstance(value, timedelta) or value < least:
            expected = f"of at least {least.total_seconds():g} s" if least else "that is not negative"
            self.refuse(option, f"a timedelta {expected}", value)
        if value > LONGEST:
            self.refuse(option, f"a timedelta of at most {LONGEST.days} days", value)

    def several(self, option: str, value: object) -> None:
        """One alone is the usual mistake."""
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            self.refuse(option, "several, such as a list", value)

    def name(self, value: object) -> None:
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            self.refuse_because("letters, digits, '_', '-' and '.' make a name")

    def texts(self, option: str, value: object) -> tuple[str, ...]:
        """Several texts; one alone is the usual mistake, since a text is a sequence of texts too."""
        texts: tuple[Any, ...] = (None,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
        if not all(isinstance(one, str) for one in texts):
            self.refuse(option, "a list of texts", value)
        return texts

    def functions(self, option: str, value: object) -> None:
        if not isinstance(value, Sequence) or not all(callable(one) for one in value):
            self.refuse(option, "a list of functions", value)

    def backoff(self, option: str, value: object) -> None:
        if not isinstance(value, Backoff):
            self.refuse(option, "Backoff(…)", value)
        self.duration(f"{option}.initial", value.initial)
        self.duration(f"{option}.maximum", value.maximum)
        self.number(f"{option}.factor", value.factor, least=1, most=1_000)
        self.number(f"{option}.jitter", value.jitter, least=0, most=1)

    def target(self, option: str, value: object) -> None:
        """An address, or a client of `redis.asyncio`."""
        if isinstance(value, str):
            if problem := wrong_address(option, value, ("redis", "rediss", "unix")):
                self.refuse_because(problem)
            try:
                ConnectionPool.from_url(value)
            except ValueError as error:
                self.refuse_because(f"{option} is no address of a Redis, such as redis://localhost:6379: {error}")
        elif not isinstance(value, (Redis, RedisCluster)):
            self.refuse_because(f"{option} must be an address, or a client of redis.asyncio, got: {shown(value)}")

    def refuse(self, option: str, expected: str, value: object) -> Never:
        self.refuse_because(f"{option} must be {expected}, got: {value!r}")

    def refuse_because(self, problem: str) -> Never:
        raise ConfigurationError(f"{self._owner}: {problem}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """How many jobs that have ended are kept, and for how long: whichever is over first.

    >>> Keep(count=1_000, age=timedelta(days=1)).count
    1000
    """

    count: int = 10_000
    """The newest so many of a flow; 0 keeps none."""
    age: timedelta
    """Since they ended."""

    def __post_init__(self) -> None:
        checks = Checks("Keep")
        checks.whole("count", self.count, least=0)
        checks.duration("age", self.age)


KEEP_DONE = Keep(age=timedelta(days=1))
KEEP_FAILED = Keep(age=timedelta(days=7))


def as_keep(checks: Checks, option: str, value: Any) -> Keep:
    """A `timedelta` alone is the age."""
    if isinstance(value, Keep):
        return value
    if not isinstance(value, timedelta):
        checks.refuse(option, "a timedelta, or Keep(count=…, age=…)", value)
    checks.duration(option, value)
    return Keep(age=value)

"""Constructor mistakes fail at once and say where."""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any, Never

from onward.errors import QueueConfigurationError
from onward.options import LONGEST
from onward.queue.model import Keep

MOST_COUNTED = 2**31 - 1
"""Every provider can count, keep and compare whole numbers up to this one."""


def is_whole(value: object, *, least: int) -> bool:
    """Whether it is a whole number in these bounds, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST_COUNTED


A_NAME = "a non-empty string of whole characters"


def is_named(value: object) -> bool:
    """Whether it is a name: text, and no half of a character in it, which nothing can send."""
    if not isinstance(value, str) or not value.strip():
        return False
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


class _Checks:
    """Checks values; every refusal begins with whose they were: `[QueueWorker:emails]`."""

    def __init__(self, owner: str) -> None:
        self._owner = owner

    def function(self, field: str, value: object) -> None:
        if not callable(value):
            self.refuse(field, "a function", value)

    def whole(self, field: str, value: object, *, least: int) -> None:
        if not is_whole(value, least=least):
            self.refuse(field, f"a whole number from {least} to {MOST_COUNTED}", value)

    def flag(self, field: str, value: object) -> None:
        if not isinstance(value, bool):
            self.refuse(field, "True or False", value)

    def duration(self, field: str, value: object, *, least: timedelta = timedelta()) -> None:
        if not isinstance(value, timedelta) or value < least:
            expected = f"of at least {least.total_seconds():g} s" if least else "that is not negative"
            self.refuse(field, f"a timedelta {expected}", value)
        if value > LONGEST:
            self.refuse(field, f"a timedelta of at most {LONGEST.days} days", value)

    def keep(self, field: str, value: object) -> None:
        if not isinstance(value, Keep):
            self.refuse(field, "Keep(count=…, age=…)", value)
        self.whole(f"{field}.count", value.count, least=0)
        self.duration(f"{field}.age", value.age)

    def keeps(self, completed: object, failed: object, max_job_size: object) -> None:
        """What most providers are told of the jobs that they keep."""
        self.keep("keep_completed", completed)
        self.keep("keep_failed", failed)
        self.whole("max_job_size", max_job_size, least=1)

    def one_of(self, field: str, value: object, fits: Callable[[Any], bool], expected: str) -> None:
        if not fits(value):
            self.refuse(field, expected, value)

    def refuse(self, field: str, expected: str, value: object) -> Never:
        self.refuse_because(f"{field} must be {expected}, got: {_shown(value)}")

    def refuse_because(self, problem: str) -> Never:
        raise QueueConfigurationError(f"[{self._owner}] {problem}")


class Arguments(_Checks):
    """What a queue or a worker was given."""

    def __init__(self, owner: str, queue_name: object) -> None:
        super().__init__(f"{owner}:{_printable(queue_name)}")
        self.one_of("name", queue_name, is_named, A_NAME)


class ProviderArguments(_Checks):
    """What a factory of providers was given."""

    def client_options(self, options: Iterable[str], known: Collection[str], elsewhere: Mapping[str, str]) -> None:
        """Those that go to the native client; `elsewhere` says of the usual mistakes where they belong."""
        for option in options:
            if option in elsewhere:
                self.refuse_because(f"{option} is {elsewhere[option]}")
            if option not in known:
                names = ", ".join(sorted(known))
                self.refuse_because(f"{option} is not an option of {self._owner} or of its client; these are: {names}")


def _shown(value: object) -> str:
    return f'"{_printable(value)}"' if isinstance(value, str) else _printable(repr(value))


def _printable(value: object) -> str:
    return str(value).encode(errors="backslashreplace").decode()

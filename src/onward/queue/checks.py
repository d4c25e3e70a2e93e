"""Constructor mistakes fail at once and say where."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Never

from onward.errors import QueueConfigurationError, QueueErrorCode
from onward.queue.model import Keep


class _Checks:
    """Checks values; every refusal begins with whose they were: `[QueueWorker:emails]`."""

    def __init__(self, owner: str) -> None:
        self._owner = owner

    def function(self, field: str, value: object) -> None:
        if not callable(value):
            self.refuse(field, "a function", value)

    def whole(self, field: str, value: object, *, least: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self.refuse(field, f"a whole number from {least}", value)

    def flag(self, field: str, value: object) -> None:
        if not isinstance(value, bool):
            self.refuse(field, "True or False", value)

    def duration(self, field: str, value: object, *, least: timedelta = timedelta()) -> None:
        if not isinstance(value, timedelta) or value < least:
            expected = f"of at least {least.total_seconds():g} s" if least else "that is not negative"
            self.refuse(field, f"a timedelta {expected}", value)

    def keep(self, field: str, value: object) -> None:
        if not isinstance(value, Keep):
            self.refuse(field, "Keep(count=…, age=…)", value)
        self.whole(f"{field}.count", value.count, least=0)
        self.duration(f"{field}.age", value.age)

    def one_of(self, field: str, value: object, fits: Callable[[Any], bool], expected: str) -> None:
        if not fits(value):
            self.refuse(field, expected, value)

    def refuse(self, field: str, expected: str, value: object) -> Never:
        shown = f'"{value}"' if isinstance(value, str) else repr(value)
        self.refuse_because(f"{field} must be {expected}, got: {shown}")

    def refuse_because(self, problem: str) -> Never:
        raise QueueConfigurationError(f"[{self._owner}] {problem}", code=QueueErrorCode.INVALID_OPTION)


class Arguments(_Checks):
    """What a queue or a worker was given."""

    def __init__(self, owner: str, queue_name: object) -> None:
        super().__init__(f"{owner}:{queue_name}")
        if not isinstance(queue_name, str) or not queue_name.strip():
            self.refuse("name", "a non-empty string", queue_name)


class ProviderArguments(_Checks):
    """What a factory of providers was given."""

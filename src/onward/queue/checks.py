"""Constructor mistakes fail at once and say where."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Never

from onward.errors import QueueConfigurationError, QueueErrorCode


class Arguments:
    """Checks what a constructor was given; every refusal begins with whose it was: `[QueueWorker:emails]`."""

    def __init__(self, owner: str, queue_name: object) -> None:
        self._owner = f"{owner}:{queue_name}"
        if not isinstance(queue_name, str) or not queue_name.strip():
            self.refuse("name", "a non-empty string", queue_name)

    def function(self, field: str, value: object) -> None:
        if not callable(value):
            self.refuse(field, "a function", value)

    def whole(self, field: str, value: object, *, least: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self.refuse(field, f"a whole number from {least}", value)

    def duration(self, field: str, value: object) -> None:
        if not isinstance(value, timedelta) or value < timedelta():
            self.refuse(field, "a timedelta that is not negative", value)

    def one_of(self, field: str, value: object, fits: Callable[[Any], bool], expected: str) -> None:
        if not fits(value):
            self.refuse(field, expected, value)

    def refuse(self, field: str, expected: str, value: object) -> Never:
        shown = f'"{value}"' if isinstance(value, str) else repr(value)
        self.refuse_because(f"{field} must be {expected}, got: {shown}")

    def refuse_because(self, problem: str) -> Never:
        raise QueueConfigurationError(f"[{self._owner}] {problem}", code=QueueErrorCode.INVALID_OPTION)

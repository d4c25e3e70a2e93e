"""Events as lines of the standard library's logging."""

import logging
from typing import Any

import msgspec

from onward.model import JobError
from onward.observe import events
from onward.observe.events import Event

_LEVELS: dict[type[Event], int] = {
    events.WorkerStarted: logging.INFO,
    events.WorkerStopping: logging.INFO,
    events.WorkerStopped: logging.INFO,
    events.ChainFailed: logging.WARNING,
    events.JobFailed: logging.WARNING,
    events.JobReaped: logging.WARNING,
    events.AttemptFailed: logging.WARNING,
    events.LeaseLost: logging.WARNING,
    events.AlreadyCompleted: logging.WARNING,
    events.ScheduleFailed: logging.WARNING,
    events.StateError: logging.WARNING,
    events.StateRecovered: logging.WARNING,
    events.NotifyError: logging.WARNING,
    events.NotifyRecovered: logging.WARNING,
}
_WITHOUT_TRACEBACK = (events.StateError, events.NotifyError)
"""Where it would only show how Onward came to ask."""


def _level(event: Event) -> int:
    """An outage is worth a line when it begins and one when it is over."""
    if isinstance(event, events.StateError | events.NotifyError) and not event.is_first:
        return logging.DEBUG
    if isinstance(event, events.AttemptFailed) and not event.counted:
        return logging.DEBUG
    return _LEVELS.get(type(event), logging.DEBUG)


def log_event(logger: logging.Logger, level: int, event: Any, *, name: str = "", trace: bool = True) -> None:
    """Write an event as a line of words; its facts are also in the record's `onward`."""
    if not logger.isEnabledFor(level):
        return
    facts = msgspec.structs.asdict(event)
    error = facts.pop("error") if isinstance(facts.get("error"), JobError) else None
    words = " ".join(f"{fact}={value}" for fact, value in facts.items() if value is not None)
    if error is not None:
        words += f" error={error.type}: {error.message}\n{error.traceback if trace else ''}".rstrip()
    logger.log(level, "%s %s", name or type(event).__name__, words, extra={"onward": event})


class LogObserver:
    """Writes events to a logger: troubles as warnings, a worker's life as info, everything else as debug.

    An outage is one line when it begins and one when it is over.

    The facts are also in the record's `onward` attribute, for structured logging.

    >>> LogObserver().wants(events.AttemptFailed)
    True
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("onward")

    def wants(self, kind: type[Event]) -> bool:
        return self._logger.isEnabledFor(_LEVELS.get(kind, logging.DEBUG))

    def observe(self, event: Event) -> None:
        log_event(self._logger, _level(event), event, trace=not isinstance(event, _WITHOUT_TRACEBACK))

"""Events as lines of the standard library's logging."""

import logging

import msgspec

from onward.observe import events
from onward.observe.events import Event

_LEVELS: dict[type[Event], int] = {
    events.WorkerStarted: logging.INFO,
    events.WorkerStopping: logging.INFO,
    events.WorkerStopped: logging.INFO,
    events.WorkerFailed: logging.ERROR,
    events.ChainFailed: logging.WARNING,
    events.JobFailed: logging.WARNING,
    events.JobReaped: logging.WARNING,
    events.AttemptFailed: logging.WARNING,
    events.LeaseLost: logging.WARNING,
    events.AlreadyCompleted: logging.WARNING,
    events.StateError: logging.WARNING,
    events.NotifyError: logging.WARNING,
    events.NotifyRecovered: logging.INFO,
}


class LogObserver:
    """Writes events to a logger: troubles as warnings, a worker's life as info, everything else as debug.

    The facts are also in the record's `onward` attribute, for structured logging.

    >>> LogObserver().wants(events.AttemptFailed)
    True
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("onward")

    def wants(self, kind: type[Event]) -> bool:
        return self._logger.isEnabledFor(_LEVELS.get(kind, logging.DEBUG))

    def observe(self, event: Event) -> None:
        facts = msgspec.structs.asdict(event)
        error = facts.pop("error", None)
        words = " ".join(f"{name}={value}" for name, value in facts.items() if value is not None)
        if error is not None:
            words += f" error={error.type}: {error.message}\n{error.traceback}".rstrip()
        kind = type(event)
        self._logger.log(_LEVELS.get(kind, logging.DEBUG), "%s %s", kind.__name__, words, extra={"onward": event})

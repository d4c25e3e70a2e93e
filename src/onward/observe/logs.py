"""Events as lines of the standard library's logging, and what makes lines of handlers say whose they are."""

import logging
import re
import sys
import time
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import msgspec

from onward.model import JobError
from onward.observe import events
from onward.observe.events import Event
from onward.observe.running import Running, current_attempt
from onward.options import storable

LogFormat: TypeAlias = Literal["text", "json"]
_LEVELS: dict[type[Event], int] = {
    events.WorkerStarted: logging.INFO,
    events.WorkerStopping: logging.INFO,
    events.WorkerStopped: logging.INFO,
    events.JobFailed: logging.WARNING,
    events.JobReaped: logging.WARNING,
    events.AttemptFailed: logging.WARNING,
    events.AttemptEnded: logging.INFO,
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
_PASSWORD = re.compile(r"(\w://[^\s/:@]*:)\S+(?=@)|((?i:password)=)[^\s&'\"]+")
"""As one may meet them in what others say: rather more than less."""
_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "onward", "taskName"}
LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
"""A line for people."""
_SEEN = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {
    0x7F: 0x2421,
    **dict.fromkeys((*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD),
}
"""Characters that would steer a terminal, or turn a line around, and what stands for each. One for one, so that what is
coloured stays so."""
_SETTINGS = "onward_settings"
_NOBODYS: Mapping[str, object] = dict.fromkeys(("type_name", "job_id", "chain_id", "attempt", "worker"))
"""What a record says of the attempt that it belongs to, where there is none."""


def _level(event: Event) -> int:
    """An outage is worth a line when it begins and one when it is over."""
    match event:
        case events.StateError(is_first=False) | events.NotifyError(is_first=False):
            return logging.DEBUG
        case events.AttemptFailed(counted=False):
            return logging.DEBUG
        case _:
            return _LEVELS.get(type(event), logging.DEBUG)


def log_event(logger: logging.Logger, level: int, event: Any, *, name: str = "", trace: bool = True) -> None:
    """Write an event as a line of words; its facts are also in the record's `onward`."""
    if not logger.isEnabledFor(level):
        return
    facts = msgspec.structs.asdict(event)
    error = facts.pop("error") if isinstance(facts.get("error"), JobError) else None
    words = " ".join([f"{fact}={_spelled(value)}" for fact, value in facts.items() if value is not None])
    if error is not None:
        words += f" error={error.type}: {error.message}\n{error.traceback if trace else ''}".rstrip()
    said = (name or type(event).__name__, words)
    # Made and handled as `logger.log` would, less the search for who called: it would be found here.
    record = logger.makeRecord(
        logger.name, level, __file__, _LINE_OF_LOG_EVENT, "%s %s", said, None, "log_event", {"onward": event}
    )
    logger.handle(record)


_LINE_OF_LOG_EVENT = log_event.__code__.co_firstlineno


def _spelled(value: object) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


class LogObserver:
    """Writes events to a logger: troubles as warnings, ended attempts and a worker's life as info, the rest as debug.

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


class AttemptFilter(logging.Filter):
    """For a log handler: has each record say whose it is, and shows no secrets.

    Records of a job's handler, wherever it runs, get `type_name`, `job_id`, `chain_id`, `attempt` and `worker`; on all
    others these are None, so that a format may name them. Passwords in addresses, and what is marked `Secret` in the
    input of the job, are masked in messages and tracebacks.

    >>> handler = logging.StreamHandler()
    >>> handler.addFilter(AttemptFilter())
    >>> handler.setFormatter(logging.Formatter("%(levelname)s %(message)s %(job_id)s %(attempt)s"))
    """

    def filter(self, record: logging.LogRecord) -> bool:
        attempt, fields, told = current_attempt.get(), vars(record), _NOBODYS
        if attempt is not None:
            whose = (attempt.job_type, attempt.job_id, attempt.chain_id, attempt.number, attempt.worker)
            told = dict(zip(_NOBODYS, whose, strict=True))
        for name, value in told.items():
            fields.setdefault(name, value)
        _mask(record, attempt)
        return True


def _mask(record: logging.LogRecord, attempt: Running | None) -> None:
    """Rewrite a record that would show a secret: its message, its traceback and its other texts."""
    message = record.getMessage()
    masked = _masked(message, attempt)
    if masked != message:
        record.msg, record.args = masked, ()
    if record.exc_info and record.exc_info[1] is not None:
        text = record.exc_text or "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n")
        masked = _masked(text, attempt)
        record.exc_text = record.exc_text if masked == text else masked
    for name in vars(record).keys() - _OF_EVERY_RECORD:
        value = getattr(record, name)
        if value is not None:
            setattr(record, name, _masked(value, attempt) if isinstance(value, str) else _masked_inside(value, attempt))


def _masked_inside(value: object, attempt: Running | None) -> object:
    """What is no text itself may hold some that would be shown; if nothing of it is masked it stays what it is."""
    try:
        plain = msgspec.to_builtins(value, builtin_types=(bytes, bytearray), enc_hook=str, str_keys=True)
        masked = _masked_parts(plain, attempt)
    except Exception:  # noqa: BLE001 - of whatever the application has put there
        return value
    return value if masked == plain else masked


def _masked_parts(plain: Any, attempt: Running | None) -> Any:
    if isinstance(plain, dict):
        return {_masked_parts(key, attempt): _masked_parts(inner, attempt) for key, inner in plain.items()}
    if isinstance(plain, list):
        return [_masked_parts(inner, attempt) for inner in plain]
    text = plain.decode(errors="replace") if isinstance(plain, bytes | bytearray) else str(plain)
    masked = _masked(text, attempt)
    return plain if masked == text else masked


def _masked(text: str, attempt: Running | None) -> str:
    if attempt is not None:
        text = attempt.masked(text)
    return without_passwords(text)


def without_passwords(text: str) -> str:
    """Text that others wrote, without the passwords of addresses in it.

    >>> without_passwords("no server at postgresql://ada:secret@db/shop?password=secret")
    'no server at postgresql://ada:***@db/shop?password=***'
    """
    # Most texts have none, and to find that out from the expression takes longer than to write the line.
    may_have_one = "://" in text or "password=" in text.casefold()
    return _PASSWORD.sub(r"\1\2***", text) if may_have_one else text


def seen(text: str) -> str:
    """Text that others wrote, such as an error, for a terminal: what steers one is shown instead.

    >>> seen("\\x1b[2Jall is well")
    '␛[2Jall is well'
    """
    # Of what is translated nothing is printable, and to look is quicker: most lines are.
    return text if text.isprintable() else text.translate(_SEEN)


class TextFormatter(logging.Formatter):
    """Lines for people; those of a job's handler end with whose they are."""

    _last = (-1, "")
    """The second of the last line, and how it is spelled: a busy worker has many lines in one."""

    def format(self, record: logging.LogRecord) -> str:
        return seen(super().format(record))

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging's
        if datefmt is not None or self.default_msec_format is None:
            return super().formatTime(record, datefmt)
        second, spelled = self._last
        if second != int(record.created):
            spelled = time.strftime(self.default_time_format, self.converter(record.created))
            self._last = int(record.created), spelled
        return self.default_msec_format % (spelled, record.msecs)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's
        line = super().formatMessage(record)
        if getattr(record, "job_id", None) is None or hasattr(record, "onward"):
            return line
        words = (f"{name}={getattr(record, name, None)}" for name in _NOBODYS)
        return f"{line} [{' '.join(words)}]"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time` (UTC), `level`, `logger`, `message`, and fields that are not texts where the facts
    are none: those of an event, of the attempt (see `AttemptFilter`), and whatever was passed as `extra`.

    >>> record = logging.makeLogRecord({"name": "shop", "msg": "paid", "levelname": "INFO", "created": 0, "order": 7})
    >>> print(JsonFormatter().format(record))
    {"time":"1970-01-01T00:00:00Z","level":"info","logger":"shop","message":"paid","order":7}
    """

    def __init__(self, **always: object) -> None:
        """`always`: fields of every line."""
        super().__init__()
        self._always = {name: value for name, value in always.items() if value is not None}

    def format(self, record: logging.LogRecord) -> str:
        event, message = getattr(record, "onward", None), record.getMessage()
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
            **self._always,
        }
        for name in vars(record):
            if name not in _OF_EVERY_RECORD and (value := getattr(record, name)) is not None:
                line[name] = value
        if isinstance(event, msgspec.Struct):
            line["message"] = line["event"] = message.split(maxsplit=1)[0]
            line |= {name: value for name, value in msgspec.structs.asdict(event).items() if value is not None}
        if record.exc_info:
            line["traceback"] = record.exc_text or self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return as_json(line)


def as_json(line: dict[str, Any]) -> str:
    """Whatever there is in it: what JSON has no form for is spelled out; what cannot even be that is said to be so."""
    try:
        return msgspec.json.encode(line, enc_hook=str).decode()
    except Exception:  # noqa: BLE001 - of whatever the application has put there
        return msgspec.json.encode({name: _as_text(value) for name, value in line.items()}).decode()


def _as_text(value: object) -> str:
    try:
        return storable(str(value))
    except Exception as error:  # noqa: BLE001 - as above
        return f"<its text cannot be made: {type(error).__name__}>"


class LogSettings(msgspec.Struct, frozen=True):
    """How the command line logs: the processes of its worker do the same."""

    level: int
    format: LogFormat
    number: int | None = None
    """Of the worker process, where there are several."""

    def apply(self, handler: logging.Handler | None = None) -> None:
        """Log like this from now on: to standard error, or where `handler` writes."""
        if handler is None:
            mark = "" if self.number is None else f"[{self.number}] "
            handler = logging.StreamHandler(sys.stderr)
            handler.setFormatter(TextFormatter(f"{mark}{LINE}"))
        if self.format == "json":
            handler.setFormatter(JsonFormatter(process=self.number))
        handler.addFilter(AttemptFilter())
        vars(handler)[_SETTINGS] = self
        logging.basicConfig(level=self.level, handlers=[handler])


def log_settings() -> LogSettings | None:
    """Those of this process, if they were applied."""
    found = (vars(handler).get(_SETTINGS) for handler in logging.root.handlers)
    return next(filter(None, found), None)

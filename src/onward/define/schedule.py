"""Schedules: a name, what to start, and when. Checked where they are written, and with the types of the app."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypedDict, cast, get_args, overload

import msgspec
from typing_extensions import TypeVar, Unpack

from onward.define.timing import Timing
from onward.errors import ConfigurationError, DefinitionError, PayloadError, StartRefused, require
from onward.options import LONGEST_NAME, given, wrong_choice, wrong_duration, wrong_priority, wrong_text

if TYPE_CHECKING:
    from onward.define.job_type import JobType
    from onward.define.registry import RegisteredType, Registry

I = TypeVar("I")  # noqa: E741 - input
Missed: TypeAlias = Literal["skip", "once", "all"]
Overlap: TypeAlias = Literal["allow", "skip", "queue"]
_NO_TIME = timedelta(0)


class ScheduleOptions(TypedDict, total=False):
    """When a schedule is due, and what then; what is not said is as in `Schedule`."""

    cron: str | None
    every: timedelta | None
    tz: str
    missed: Missed
    overlap: Overlap
    jitter: timedelta
    start: datetime | None
    end: datetime | None
    priority: int


class Rules(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything declared about a schedule, as it is stored."""

    timing: Timing
    missed: Missed = "once"
    overlap: Overlap = "allow"
    jitter: timedelta = _NO_TIME
    priority: int = 0
    type_name: str = ""
    payload_version: int = 0
    input: str | None = None
    """JSON text; None: code makes it, or it is nobody's business."""


class Schedule(Generic[I]):
    """Starts a chain at every tick: as a cron expression says, or whenever so much time has gone by.

    Given to `Onward(…, schedules=[…])`; or, without name and type, to `@job(…, schedule=Schedule(…))`. `input` is that
    of every chain, or a function that makes it from the tick (a datetime in the zone `tz`).

    `missed`: what to do about ticks while no worker ran: "once", start the last of them; "all", start each; "skip",
    start none that is more than a minute late. `overlap`: what if the last chain has not ended: "allow", start beside
    it; "skip" the tick; "queue", start what waits for it. `jitter`: chains begin up to so much later, at random.

    >>> from datetime import timedelta
    >>> from onward import JobType, Schedule
    >>> report = JobType("report", input=str, output=str)
    >>> nightly = Schedule("nightly", report, lambda tick: str(tick.date()), cron="0 3 * * *", tz="Europe/Oslo")
    >>> hourly = Schedule("hourly", report, "today", every=timedelta(hours=1), overlap="skip")
    """

    @overload
    def __init__(
        self,
        name: str,
        job_type: "JobType[I, Any]",
        input: I | Callable[[datetime], I],
        **options: Unpack[ScheduleOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: "Schedule[None]", name: str, job_type: "JobType[None, Any]", **options: Unpack[ScheduleOptions]
    ) -> None: ...
    @overload
    def __init__(self: "Schedule[Any]", *, input: Any = None, **options: Unpack[ScheduleOptions]) -> None: ...
    def __init__(self, name: Any = None, job_type: Any = None, input: Any = None, **options: Any) -> None:
        self.name: str | None = name
        self.job_type: JobType[Any, Any] | None = job_type
        self.input = input
        times = {key: options.pop(key) for key in Timing.__struct_fields__ if key in options}
        strange = [key for key in options if key not in ScheduleOptions.__annotations__]
        if strange:
            raise ConfigurationError(f"Schedule: {strange[0]}= is not an option: there are {_OPTIONS}")
        self.rules = rules = Rules(timing=Timing(**times), **options)
        problems = (
            None if name is None else wrong_text("name", name, most=LONGEST_NAME),
            rules.timing.problem(),
            wrong_choice("missed", rules.missed, get_args(Missed)),
            wrong_choice("overlap", rules.overlap, get_args(Overlap)),
            wrong_duration("jitter", rules.jitter),
            wrong_priority(rules.priority),
            "input= is a coroutine function: it has to make the input, not to await it"
            if iscoroutinefunction(input)
            else None,
        )
        require(*(problem and f"schedule {name or 'of a job type'}: {problem}" for problem in problems))

    def __repr__(self) -> str:
        return f"<Schedule {self.name!r}>"


_OPTIONS = ", ".join(ScheduleOptions.__annotations__)


class Declared(msgspec.Struct, frozen=True):
    """A schedule of an app."""

    name: str
    schedule: Schedule[Any]
    type: "RegisteredType"
    definition: str
    fingerprint: str

    @property
    def rules(self) -> Rules:
        return self.schedule.rules

    @property
    def job_type(self) -> "JobType[Any, Any]":
        return cast("JobType[Any, Any]", self.type.step)

    def input_at(self, tick: datetime) -> Any:
        """The input of the chain of a tick; what the application's function raises is an Exception."""
        made = self.schedule.input
        if not callable(made):
            return made
        try:
            return made(tick.astimezone(self.rules.timing.zone))
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:  # a CancelledError, too: nothing is awaited here, so nobody has cancelled us
            raise StartRefused(f"the input of schedule {self.name!r}: {type(error).__name__}: {error}") from error


def declared(registry: "Registry", schedules: Iterable[Schedule[Any]]) -> Mapping[str, Declared]:
    """The schedules of an app by name, its types' own included. Raises a DefinitionError with every problem."""
    problems: list[str] = []
    found: dict[str, Declared] = {}
    own = [(kind.name, kind.name, kind.definition.schedule) for kind in registry.values() if kind.definition.schedule]
    for name, type_name, schedule in [*own, *map(_given, schedules)]:
        if name in found:
            problems.append(f"schedule {name!r}: there are two of that name; give each its own")
        try:
            found[name] = _declared(registry, name, type_name, schedule)
        except (DefinitionError, PayloadError, StartRefused) as error:
            problems.append(f"schedule {name!r}: {error}")
    if problems:
        raise DefinitionError(problems)
    return found


def _given(schedule: Any) -> tuple[str, str, Schedule[Any]]:
    if not isinstance(schedule, Schedule):
        raise ConfigurationError(f"{given('schedules', schedule)}: expected what Schedule(…) makes")
    if schedule.name is None or schedule.job_type is None:
        raise ConfigurationError(
            "a schedule without name and job type belongs to @job(…, schedule=…); "
            "of an app it is Schedule('nightly', job_type, input, cron='0 3 * * *')"
        )
    return schedule.name, getattr(schedule.job_type, "name", repr(schedule.job_type)), schedule


def _declared(registry: "Registry", name: str, type_name: str, schedule: Schedule[Any]) -> Declared:
    kind = registry.entry(cast(Any, schedule.job_type) or registry.find(type_name).step)
    if kind.required:
        raise StartRefused(
            f"{type_name!r} needs blockers ({', '.join(sorted(kind.required))}), which no schedule gives"
        )
    text = None if callable(schedule.input) else kind.input.bare.encode(schedule.input)
    rules = msgspec.structs.replace(
        schedule.rules,
        type_name=type_name,
        payload_version=kind.definition.version,
        input=text if kind.guard is None else None,
    )
    from hashlib import sha256  # for those with schedules only: it loads OpenSSL

    definition = msgspec.json.encode(rules).decode()
    return Declared(name, schedule, kind, definition, sha256(definition.encode()).hexdigest()[:32])

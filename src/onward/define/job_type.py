"""Job types: a name, the types of its payloads, and what may follow. `@job` makes them from functions."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypedDict, get_args, overload

from typing_extensions import TypeVar, Unpack

from onward.crypto import Encryption
from onward.define.attempt import Attempt
from onward.define.limit import Limit, wrong_limit
from onward.define.outcome import Outcome
from onward.define.request import NewChain, StartOptions
from onward.define.schedule import Schedule
from onward.define.signature import (
    Signature,
    caller_names,
    place_of,
    place_of_caller,
    read_signature,
    without_marks,
)
from onward.errors import ConfigurationError, DefinitionError
from onward.model import Backoff, Retention
from onward.options import (
    LONGEST_NAME,
    given,
    unknown,
    wrong_choice,
    wrong_duration,
    wrong_kind,
    wrong_number,
    wrong_text,
)

if TYPE_CHECKING:
    from onward.define.slice import Slice

I = TypeVar("I")  # noqa: E741 - input
O = TypeVar("O")  # noqa: E741 - output
Tx = TypeVar("Tx")
I_contra = TypeVar("I_contra", contravariant=True)
O_co = TypeVar("O_co", covariant=True)

Upcaster: TypeAlias = Callable[[Any], Any]
"""Turns the plain JSON of one payload version into that of the next."""
OnBlockerFailure: TypeAlias = Literal["fail", "run"]
Executor: TypeAlias = Literal["auto", "process"]
"""Where a handler runs; "auto": `async def` on the event loop, `def` in a thread."""
BUILT_IN = "onward."
"""How the names of the library's own types begin; middleware that is required of the application's is not of these."""
UNSET_TIMEOUT = timedelta.max
"""Stands for "as the library says", since None means no timeout."""
UNSET_RETENTION = Retention()
"""Stands, itself and no other that is equal, for "as the app says", since None means to keep everything."""
SHORTEST_LEASE = timedelta(seconds=1)
_ELSEWHERE_CALLED = {
    **dict.fromkeys(("retries", "max_retries", "attempts", "tries", "max_tries"), "max_attempts"),
    **dict.fromkeys(("time_limit", "soft_time_limit", "max_age", "execution_timeout"), "timeout"),
    **dict.fromkeys(("retry_backoff", "min_backoff", "max_backoff", "retry_delay", "default_retry_delay"), "backoff"),
    **dict.fromkeys(("next", "then", "continues"), "continues_to"),
    **dict.fromkeys(("depends_on", "needs", "requires"), "blocked_by"),
}
"""Options of other libraries, and what they are here."""


@dataclass(frozen=True, slots=True)
class Required:
    """A type in `blocked_by` that a job must have a chain of among its blockers. Made by `required(…)`."""

    job_type: "JobType[Any, Any] | str"


def required(job_type: "JobType[Any, Any] | str") -> Required:
    """For `blocked_by=[…]`: a job can only be started with a blocker of this type.

    >>> fetch = JobType("fetch", input=str, output=bytes)
    >>> report = JobType("report", input=str, output=str, blocked_by=[required(fetch)])
    """
    return Required(job_type)


class TypeOptions(TypedDict, total=False):
    """What may be declared about a job type; what is not said is as in `Definition`."""

    continues_to: "Sequence[Step[Any, Any] | str]"
    blocked_by: "Sequence[BlockedBy]"
    version: int
    lease: timedelta | None
    timeout: timedelta | None
    backoff: Backoff | None
    max_attempts: int | None
    executor: Executor
    on_blocker_failure: OnBlockerFailure
    encryption: Encryption | Literal[False] | None
    retention: Retention | None
    schedule: Schedule[Any] | None
    limit: Limit | Sequence[Limit] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """Everything declared about a job type."""

    name: str
    continues_to: "Sequence[Step[Any, Any] | str]" = ()
    blocked_by: "Sequence[BlockedBy]" = ()
    internal: bool = False
    version: int = 1
    lease: timedelta | None = None
    timeout: timedelta | None = UNSET_TIMEOUT
    backoff: Backoff | None = None
    max_attempts: int | None = None
    executor: Executor = "auto"
    on_blocker_failure: OnBlockerFailure = "fail"
    encryption: Encryption | Literal[False] | None = None
    retention: Retention | None = UNSET_RETENTION
    schedule: Schedule[Any] | None = None
    limit: Limit | Sequence[Limit] | None = None
    slice: "Slice | None" = None
    upcasters: Mapping[int, Upcaster] = field(default_factory=dict[int, Upcaster])
    output_upcasters: Mapping[int, Upcaster] = field(default_factory=dict[int, Upcaster])

    def problems(self) -> list[str]:
        """What is wrong with the options themselves."""
        timeout = self.timeout if self.timeout != UNSET_TIMEOUT else None
        problems = [
            wrong_text("name", self.name, most=LONGEST_NAME),
            _wrong_types("continues_to", self.continues_to, Step),
            _wrong_types("blocked_by", self.blocked_by, (Step, Required)),
            wrong_number("version", self.version, least=1, most=2**31 - 1),
            self.max_attempts is not None and wrong_number("max_attempts", self.max_attempts, least=1),
            self.lease is not None and wrong_duration("lease", self.lease, least=SHORTEST_LEASE),
            timeout is not None and wrong_duration("timeout", timeout, least=timedelta(microseconds=1)),
            wrong_backoff(self.backoff),
            wrong_choice("executor", self.executor, get_args(Executor)),
            wrong_choice("on_blocker_failure", self.on_blocker_failure, get_args(OnBlockerFailure)),
            self.encryption is not False and wrong_encryption(self.encryption),
            wrong_retention(self.retention) or self._retention_in_vain(),
            self.schedule is not None and _wrong_schedule(self.schedule),
            wrong_limit(self.limit),
        ]
        return [f"{self.name or 'job'}: {problem}" for problem in problems if problem]

    def _retention_in_vain(self) -> str | None:
        if not self.internal or self.retention is UNSET_RETENTION:
            return None
        return "no chain begins with an internal type: say retention= where its chains begin"


def wrong_backoff(backoff: object) -> str | None:
    """What is wrong with the option of that name, of a type, a slice or a worker."""
    if backoff is None:
        return None
    if not isinstance(backoff, Backoff):
        return wrong_kind("backoff", backoff, Backoff, such="a Backoff(initial=…)")
    return backoff.problem()


def _wrong_schedule(schedule: Any) -> str | None:
    if isinstance(schedule, Schedule) and (schedule.name or schedule.job_type):
        return (
            "schedule=: leave out name and job type, which are this type's; others belong to Onward(…, schedules=[…])"
        )
    return wrong_kind("schedule", schedule, Schedule, such="a Schedule(input=…, cron='0 3 * * *')")


def wrong_encryption(encryption: object) -> str | None:
    """What is wrong with the option of that name, of a type or an app."""
    if encryption is None:
        return None
    return wrong_kind("encryption", encryption, Encryption, such="an onward.crypto.Encryption")


def wrong_retention(retention: object) -> str | None:
    """What is wrong with the option of that name, of a type or an app."""
    if retention is None:
        return None
    return wrong_kind("retention", retention, Retention, such="a Retention(completed=…, failed=…)")


def _wrong_types(option: str, value: object, kinds: Any) -> str | None:
    if isinstance(value, str | Step | Required) or not isinstance(value, Sequence):
        return f"{given(option, value)}: expected a list of job types, or of their names"
    for one in value:
        if not isinstance(one, (str, kinds)):
            return f"{given(option, one)}: expected a job type, as @job makes it, or its name"
    return None


class Step(Generic[I_contra, O_co]):
    """A job type that can be continued to. Made by `@job(…, internal=True)`."""

    def __init__(self, definition: Definition, *, input: Any, output: Any) -> None:
        problems = definition.problems()
        if problems:
            raise DefinitionError(problems)
        self.definition = definition
        self.place = "a place unknown"
        """Where it is defined: file and line."""
        self.run: Callable[..., Any] | None = None
        self.signature = Signature(
            input=input,
            output=output,
            transaction=None,
            may_complete=True,
            may_continue=True,
            is_async=True,
            marked_input=(input,),
            marked_output=(output,),
        )

    @property
    def name(self) -> str:
        """The name under which jobs of this type are stored."""
        return self.definition.name

    def upcast(self, version: int) -> Callable[[Upcaster], Upcaster]:
        """Register how plain JSON of `version` becomes that of `version + 1`, so that older jobs can be taken."""

        def register(upcaster: Upcaster) -> Upcaster:
            if not 1 <= version < self.definition.version:
                raise DefinitionError([f"{self.name}: upcast({version}) leads nowhere below its version"])
            upcasters = {**self.definition.upcasters, version: upcaster}
            self.definition = replace(self.definition, upcasters=upcasters)
            return upcaster

        return register

    def upcast_output(self, version: int) -> Callable[[Upcaster], Upcaster]:
        """Register how plain JSON of an output of `version` becomes that of `version + 1`, for whoever reads it."""

        def register(upcaster: Upcaster) -> Upcaster:
            if not 1 <= version < self.definition.version:
                raise DefinitionError([f"{self.name}: upcast_output({version}) leads nowhere below its version"])
            upcasters = {**self.definition.output_upcasters, version: upcaster}
            self.definition = replace(self.definition, output_upcasters=upcasters)
            return upcaster

        return register

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def _attach(self, run: Callable[..., Any], signature: Signature) -> None:
        self.run, self.signature, self.place = run, signature, place_of(run)


class JobType(Step[I_contra, O_co]):
    """A job type that can also begin a chain. Made by `@job`, or without a handler by its own name.

    >>> approve = JobType("orders.approve", input=dict, output=bool)
    >>> approve.with_input({"order": 7}).input
    {'order': 7}
    """

    def __init__(
        self: "JobType[I, O]",
        name: str,
        *,
        input: type[I],
        output: type[O],
        **options: Unpack[TypeOptions],
    ) -> None:
        """The options are those of `@job`."""
        definition = defined(name, options, internal=False)
        Step.__init__(self, definition, input=input, output=output)
        self.place = place_of_caller(1)

    def with_input(self: "JobType[I, O]", input: I, **options: Unpack[StartOptions]) -> NewChain[O]:
        """A chain to start, for `start_many(…)` and `blockers=[…]`; nothing is stored yet.

        Options: `id`, `delay` or `at`, `priority`, `blockers`, `deduplication`, as of `app.start`.
        """
        return NewChain(job_type=self, input=input, **options)

    @overload
    def handler(
        self: "JobType[I, O]", run: Callable[[Attempt[I, Tx]], Awaitable[Outcome[O]]], /
    ) -> "JobType[I, O]": ...
    @overload
    def handler(self: "JobType[I, O]", run: Callable[[Attempt[I, Tx]], Awaitable[O]], /) -> "JobType[I, O]": ...
    @overload
    def handler(self: "JobType[I, O]", run: Callable[[Attempt[I, Tx]], Outcome[O] | O], /) -> "JobType[I, O]": ...
    def handler(self, run: Callable[..., Any], /) -> "JobType[Any, Any]":
        """Decorator: the handler of this type, in the program that runs it."""
        if self.run is not None:
            raise DefinitionError([f"{self.name}: it has a handler already"])
        signature = read_signature(self.name, run, caller_names(1))
        if signature.input != without_marks(self.signature.input):
            raise DefinitionError(
                [f"{self.name}: its handler takes {signature.input}, declared {self.signature.input}"]
            )
        declared = self.signature
        marked_input = (*declared.marked_input, *signature.marked_input)
        marked_output = (*declared.marked_output, *signature.marked_output)
        self._attach(run, replace(signature, marked_input=marked_input, marked_output=marked_output))
        return self


BlockedBy: TypeAlias = JobType[Any, Any] | Required | str
"""A type whose chains a job may, or with `required(…)` must, wait for; or its name."""


class MakeStep(Protocol):
    """The decorator `job(…, internal=True)`."""

    @overload
    def __call__(self, run: Callable[[Attempt[I, Tx]], Coroutine[Any, Any, Outcome[O]]], /) -> Step[I, O]: ...
    @overload
    def __call__(self, run: Callable[[Attempt[I, Tx]], Coroutine[Any, Any, O]], /) -> Step[I, O]: ...
    @overload
    def __call__(self, run: Callable[[Attempt[I, Tx]], Outcome[O]], /) -> Step[I, O]: ...
    @overload
    def __call__(self, run: Callable[[Attempt[I, Tx]], O], /) -> Step[I, O]: ...


class MakeJobType(Protocol):
    """The decorator `job(…)`."""

    @overload
    def __call__(self, run: Callable[[Attempt[I, Tx]], Coroutine[Any, Any, Outcome[O]]], /) -> JobType[I, O]: ...
    @overload
    def __call__(self, run: Callable[[Attempt[I, Tx]], Coroutine[Any, Any, O]], /) -> JobType[I, O]: ...
    @overload
    def __call__(self, run: Callable[[Attempt[I, Tx]], Outcome[O]], /) -> JobType[I, O]: ...
    @overload
    def __call__(self, run: Callable[[Attempt[I, Tx]], O], /) -> JobType[I, O]: ...


@overload
def job(name: str, *, internal: Literal[True], **options: Unpack[TypeOptions]) -> MakeStep: ...
@overload
def job(name: str, *, internal: Literal[False] = False, **options: Unpack[TypeOptions]) -> MakeJobType: ...
def job(name: str, **options: Any) -> Any:
    """Make a job type from a handler. What it returns is the outcome.

    `continues_to` are the steps it may continue to, `internal` whether it is no more than one; `blocked_by` the types
    it may wait for, `on_blocker_failure` what follows if one fails; `lease` how long a job is held without renewal,
    `timeout` how long a handler may run, `backoff` and `max_attempts` when, and how often, it is tried again;
    `executor` where it runs; `version` and `encryption` are those of its payloads; `schedule` starts it by itself;
    `limit` is how many may run at a time, or start; `retention` how long chains that begin with it are kept.

    >>> @job("greet")
    ... async def greet(attempt: Attempt[str]) -> str:
    ...     return f"hello {attempt.input}"
    >>> greet.name
    'greet'
    """
    return make_decorator(defined(name, options))


def defined(name: Any, options: Mapping[str, Any], **more: Any) -> Definition:
    """What is declared about a type, or a DefinitionError that says which option does not exist."""
    if callable(name):
        called = getattr(name, "__name__", "handler")
        raise ConfigurationError(f'write @job("name") above {called}, with the name under which its jobs are stored')
    known = [field.name for field in fields(Definition) if field.name not in (*_NOT_OPTIONS, *more)]
    strange = [option for option in options if option not in known]
    if strange:
        problems = [unknown(option, known, meant=_ELSEWHERE_CALLED.get(option)) for option in strange]
        raise DefinitionError([f"{name}: {problem}" for problem in problems])
    if isinstance(name, str):
        name = str.__str__(name)  # a member of an enum shows as something else
    return Definition(name=name, **options, **more)


_NOT_OPTIONS = ("name", "slice", "upcasters", "output_upcasters")


def make_decorator(definition: Definition) -> Any:
    """The decorator behind `@job` and `@slice.job`."""

    def decorate(run: Callable[..., Any]) -> Step[Any, Any]:
        if not callable(run):
            raise ConfigurationError(f"{given('handler', run)}: use @job as @job('name') above a function")
        signature = read_signature(definition.name, run, caller_names(1))
        step: Step[Any, Any] = Step.__new__(Step if definition.internal else JobType)
        Step.__init__(step, definition, input=signature.input, output=signature.output)
        step._attach(run, signature)  # pyright: ignore[reportPrivateUsage]
        if definition.slice is not None:
            definition.slice.steps.append(step)
        return step

    return decorate

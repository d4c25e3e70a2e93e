"""Job types: a name, the types of its payloads, and what may follow. `@job` makes them from functions."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, get_args, overload

from typing_extensions import TypeVar

from onward.define.attempt import Attempt
from onward.define.outcome import Outcome
from onward.define.request import BlockerSource, NewChain
from onward.define.signature import Signature, caller_names, read_signature
from onward.errors import ConfigurationError, DefinitionError
from onward.model import Backoff, ChainId, Deduplication

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """Everything declared about a job type."""

    name: str
    continues_to: "Sequence[Step[Any, Any] | str]" = ()
    blocked_by: "Sequence[JobType[Any, Any] | str]" = ()
    internal: bool = False
    version: int = 1
    lease: timedelta | None = None
    timeout: timedelta | None = UNSET_TIMEOUT
    backoff: Backoff | None = None
    max_attempts: int | None = None
    executor: Executor = "auto"
    on_blocker_failure: OnBlockerFailure = "fail"
    slice: "Slice | None" = None
    upcasters: Mapping[int, Upcaster] = field(default_factory=dict[int, Upcaster])

    def problems(self) -> list[str]:
        """What is wrong with the options themselves."""
        checks = {
            "a name is one or more characters without NUL": self.name and "\0" not in self.name,
            "version counts from 1": self.version >= 1,
            "max_attempts counts from 1": self.max_attempts is None or self.max_attempts >= 1,
            "lease must be at least 1 second": self.lease is None or self.lease >= timedelta(seconds=1),
            "executor is 'auto' or 'process'": self.executor in get_args(Executor),
            "timeout must be positive": self.timeout is None or self.timeout > timedelta(0),
        }
        return [f"{self.name or 'job'}: {problem}" for problem, holds in checks.items() if not holds]


class Step(Generic[I_contra, O_co]):
    """A job type that can be continued to. Made by `@job(…, internal=True)`."""

    def __init__(self, definition: Definition, *, input: Any, output: Any) -> None:
        problems = definition.problems()
        if problems:
            raise DefinitionError(problems)
        self.definition = definition
        self.run: Callable[..., Any] | None = None
        self.signature = Signature(
            input=input, output=output, transaction=None, may_complete=True, may_continue=True, is_async=True
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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def _attach(self, run: Callable[..., Any], signature: Signature) -> None:
        self.run, self.signature = run, signature


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
        continues_to: "Sequence[Step[Any, Any] | str]" = (),
        blocked_by: "Sequence[JobType[Any, Any] | str]" = (),
        version: int = 1,
        lease: timedelta | None = None,
        timeout: timedelta | None = UNSET_TIMEOUT,
        backoff: Backoff | None = None,
        max_attempts: int | None = None,
        executor: Executor = "auto",
        on_blocker_failure: OnBlockerFailure = "fail",
    ) -> None:
        definition = Definition(
            name=name,
            continues_to=continues_to,
            blocked_by=blocked_by,
            version=version,
            lease=lease,
            timeout=timeout,
            backoff=backoff,
            max_attempts=max_attempts,
            executor=executor,
            on_blocker_failure=on_blocker_failure,
        )
        Step.__init__(self, definition, input=input, output=output)

    def with_input(
        self: "JobType[I, O]",
        input: I,
        *,
        id: ChainId | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        priority: int = 0,
        blockers: Sequence[BlockerSource] = (),
        deduplication: Deduplication | None = None,
    ) -> NewChain[O]:
        """A chain to start, for `start_many(…)` and `blockers=[…]`; nothing is stored yet."""
        return NewChain(
            job_type=self,
            input=input,
            id=id,
            delay=delay,
            at=at,
            priority=priority,
            blockers=blockers,
            deduplication=deduplication,
        )

    @overload
    def handler(
        self: "JobType[I, O]", run: Callable[[Attempt[I, Tx]], Awaitable[Outcome[O]]], /
    ) -> "JobType[I, O]": ...
    @overload
    def handler(self: "JobType[I, O]", run: Callable[[Attempt[I, Tx]], Awaitable[O]], /) -> "JobType[I, O]": ...
    @overload
    def handler(self: "JobType[I, O]", run: Callable[[Attempt[I, Tx]], Outcome[O] | O], /) -> "JobType[I, O]": ...
    def handler(self, run: Callable[..., Any], /) -> "JobType[Any, Any]":
        """Give a type its handler, as a decorator, where it runs."""
        if self.run is not None:
            raise DefinitionError([f"{self.name}: it has a handler already"])
        signature = read_signature(self.name, run, caller_names(1))
        if signature.input != self.signature.input:
            raise DefinitionError(
                [f"{self.name}: its handler takes {signature.input}, declared {self.signature.input}"]
            )
        self._attach(run, signature)
        return self


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
def job(
    name: str,
    *,
    internal: Literal[True],
    continues_to: Sequence[Step[Any, Any] | str] = (),
    blocked_by: Sequence[JobType[Any, Any] | str] = (),
    version: int = 1,
    lease: timedelta | None = None,
    timeout: timedelta | None = UNSET_TIMEOUT,
    backoff: Backoff | None = None,
    max_attempts: int | None = None,
    executor: Executor = "auto",
    on_blocker_failure: OnBlockerFailure = "fail",
) -> MakeStep: ...
@overload
def job(
    name: str,
    *,
    internal: Literal[False] = False,
    continues_to: Sequence[Step[Any, Any] | str] = (),
    blocked_by: Sequence[JobType[Any, Any] | str] = (),
    version: int = 1,
    lease: timedelta | None = None,
    timeout: timedelta | None = UNSET_TIMEOUT,
    backoff: Backoff | None = None,
    max_attempts: int | None = None,
    executor: Executor = "auto",
    on_blocker_failure: OnBlockerFailure = "fail",
) -> MakeJobType: ...
def job(name: str, **options: Any) -> Any:
    """Make a job type from a handler. What it returns is the outcome.

    >>> @job("greet")
    ... async def greet(attempt: Attempt[str]) -> str:
    ...     return f"hello {attempt.input}"
    >>> greet.name
    'greet'
    """
    return make_decorator(Definition(name=name, **options))


def make_decorator(definition: Definition) -> Any:
    """The decorator behind `@job` and `@slice.job`."""

    def decorate(run: Callable[..., Any]) -> Step[Any, Any]:
        if not callable(run):
            raise ConfigurationError("use @job as @job('name')")
        signature = read_signature(definition.name, run, caller_names(1))
        step: Step[Any, Any] = Step.__new__(Step if definition.internal else JobType)
        Step.__init__(step, definition, input=signature.input, output=signature.output)
        step._attach(run, signature)  # pyright: ignore[reportPrivateUsage]
        if definition.slice is not None:
            definition.slice.steps.append(step)
        return step

    return decorate

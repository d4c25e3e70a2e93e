"""A stage: one handler, what it asks for, what it gives, and where a job goes from there."""

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypedDict

from onward.define.called import YIELDS, called, yields
from onward.errors import FlowDefinitionError
from onward.flow.options import SHORTEST, Checks
from onward.flow.outcome import FanOut, Goto
from onward.flow.run import Run
from onward.model import Backoff

Handler = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `limit` jobs of a stage begin in any period of `per`; with `group`, for each value of that attribute.

    >>> Rate(10, per=timedelta(seconds=1), group="tenant").limit
    10
    """

    limit: int
    per: timedelta
    group: str | None = None

    def __post_init__(self) -> None:
        checks = Checks("Rate")
        checks.whole("limit", self.limit, least=1)
        checks.duration("per", self.per, least=SHORTEST)
        if self.group is not None:
            checks.text("group", self.group)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSignature:
    """The types of a handler."""

    attributes: Any
    results: Any
    """What it returns plainly: one type, a union of them, or None."""
    goto: Any
    """The result in `Goto[…]`; Any when it does not say."""
    children: Any
    """What each child begins with, and the result beside them: from `FanOut[…, …]`; None when it starts none."""
    beside_children: Any
    returns_plainly: bool
    wants_run: bool
    is_async: bool

    @property
    def types(self) -> Sequence[Any]:
        """All that it takes and gives."""
        return self.attributes, self.results, self.goto, self.children, self.beside_children


class StageOptions(TypedDict, total=False):
    """What `@flow.stage(…)` may be told; what is not said is as in `Stage`."""

    next: str | None
    goto: Sequence[str]
    children: str | None
    collect: str | None
    timeout: timedelta | None
    lock: timedelta
    max_retries: int
    max_stalls: int
    backoff: Backoff | None
    delay: timedelta
    priorities: bool
    rate: Rate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What `@flow.stage(…)` was told."""

    name: str
    handler: Handler
    signature: StageSignature
    next: str | None = None
    goto: Sequence[str] = ()
    children: str | None = None
    collect: str | None = None
    timeout: timedelta | None = timedelta(seconds=30)
    lock: timedelta = timedelta(seconds=30)
    max_retries: int = 0
    max_stalls: int = 3
    backoff: Backoff | None = None
    delay: timedelta = timedelta(0)
    priorities: bool = False
    rate: Rate | None = None

    def check(self, flow: str) -> None:
        """Raise a ConfigurationError that names the option, whatever is wrong with one."""
        checks = Checks(f"stage {self.name!r} of flow {flow!r}")
        for option in ("next", "children", "collect"):
            if getattr(self, option) is not None:
                checks.text(option, getattr(self, option))
        if self.timeout is not None:
            checks.duration("timeout", self.timeout, least=SHORTEST)
        checks.duration("lock", self.lock, least=SHORTEST)
        checks.whole("max_retries", self.max_retries, least=0)
        checks.whole("max_stalls", self.max_stalls, least=0)
        if self.backoff is not None:
            checks.backoff("backoff", self.backoff)
        checks.duration("delay", self.delay)
        checks.flag("priorities", self.priorities)
        if self.rate is not None and not isinstance(self.rate, Rate):
            checks.refuse("rate", "Rate(limit, per=…)", self.rate)

    @property
    def is_taken_by_script(self) -> bool:
        """BLMOVE serves one list, first in, first out, and knows no rates."""
        return self.priorities or self.rate is not None

    @property
    def leads_to(self) -> tuple[str, ...]:
        """Every stage that a job, or a child of it, may enter from here."""
        return tuple(name for name in (self.next, *self.goto, self.children) if name is not None)


def read_signature(flow: str, stage: str, handler: Handler, local_names: Mapping[str, Any]) -> StageSignature:
    """The types of a handler, or an error that says how to annotate it."""
    if yields(handler):
        raise FlowDefinitionError(flow, [f"stage {stage!r}: {YIELDS}"])
    try:
        hints = typing.get_type_hints(called(handler), localns=dict(local_names))
    except NameError as error:
        problem = f"stage {stage!r}: an annotation of its handler cannot be resolved: {error}"
        raise FlowDefinitionError(flow, [problem]) from error
    parameters = list(inspect.signature(handler).parameters)
    wants_run = len(parameters) == 2 and hints.get(parameters[1]) is Run
    if len(parameters) != 1 + wants_run or "return" not in hints or parameters[0] not in hints:
        form = f"async def {getattr(handler, '__name__', 'handler')}(job: Attributes) -> Result"
        problem = f"stage {stage!r}: write its handler as `{form}`; a second parameter may be `run: Run`"
        raise FlowDefinitionError(flow, [problem])
    plain, goto, fan_out = _sorted_out(members_of(hints["return"]))
    return StageSignature(
        attributes=hints[parameters[0]],
        results=typing.Union[tuple(plain)] if plain else None,  # noqa: UP007 - built at run time
        goto=_argument(goto, 0, Any),
        children=_argument(fan_out, 0, Any) if fan_out is not None else None,
        beside_children=_argument(fan_out, 1, None),
        returns_plainly=bool(plain),
        wants_run=wants_run,
        is_async=inspect.iscoroutinefunction(called(handler)),
    )


def members_of(annotation: Any) -> Sequence[Any]:
    """The members of a union, or the one type there is."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _sorted_out(members: Sequence[Any]) -> tuple[list[Any], Any, Any]:
    plain, goto, fan_out = [], None, None
    for member in members:
        origin = typing.get_origin(member) or member
        if origin is Goto:
            goto = member
        elif origin is FanOut:
            fan_out = member
        else:
            plain.append(member)
    return plain, goto, fan_out


def _argument(annotation: Any, position: int, otherwise: Any) -> Any:
    given = typing.get_args(annotation)
    found = given[position] if len(given) > position else otherwise
    return None if found is type(None) else found

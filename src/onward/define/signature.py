"""Reads a handler's annotations: what comes in, what goes out, and whether the chain may end or go on with it."""

import inspect
import sys
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from onward.define.attempt import Attempt, Transaction
from onward.define.outcome import Done, Next, Outcome
from onward.errors import DefinitionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The types of a handler."""

    input: Any
    output: Any
    """What `Done` may carry; for `Next[O]` the output of the rest of the chain."""
    transaction: Any
    """What the handler expects as `tx`; `Transaction` also when it does not say."""
    may_complete: bool
    may_continue: bool
    is_async: bool
    marked_input: tuple[Any, ...]
    """With what `Annotated` says of it, such as that it is secret: where it is declared, and where it is handled."""
    marked_output: tuple[Any, ...]


def caller_names(depth: int) -> Mapping[str, Any]:
    """The local names where a decorator stands, so that classes defined in a function can be annotations."""
    return dict(sys._getframe(depth + 1).f_locals)


def place_of_caller(depth: int) -> str:
    """Where a call stands, to be told in a message."""
    frame = sys._getframe(depth + 1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def place_of(handler: Callable[..., Any]) -> str:
    """Where a function is defined."""
    code = getattr(inspect.unwrap(handler), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else "a place unknown"


def read_signature(name: str, handler: Callable[..., Any], local_names: Mapping[str, Any]) -> Signature:
    """The types of `handler`, or a DefinitionError that says how to annotate it."""
    try:
        hints = typing.get_type_hints(handler, localns=dict(local_names))
        marked = typing.get_type_hints(handler, localns=dict(local_names), include_extras=True)
    except NameError as error:
        raise DefinitionError([f"{name}: an annotation of its handler cannot be resolved: {error}"]) from error
    parameters = list(inspect.signature(handler).parameters.values())
    if len(parameters) != 1 or "return" not in hints or parameters[0].name not in hints:
        raise DefinitionError(
            [f"{name}: write its handler as `async def {handler.__name__}(attempt: Attempt[Input]) -> Output`"]
        )
    annotation = hints[parameters[0].name]
    if typing.get_origin(annotation) is not Attempt:
        raise DefinitionError([f"{name}: the parameter of its handler must be annotated Attempt[Input]"])
    if _is_awaitable(hints["return"]):
        raise DefinitionError([f"{name}: its def handler returns an awaitable: write async def {handler.__name__}"])
    given = typing.get_args(annotation)
    output, may_complete, may_continue = _read_return(hints["return"])
    return Signature(
        input=given[0],
        output=output,
        transaction=given[1] if len(given) > 1 else Transaction,
        may_complete=may_complete,
        may_continue=may_continue,
        is_async=inspect.iscoroutinefunction(handler),
        marked_input=(typing.get_args(_unwrapped(marked[parameters[0].name]))[0],),
        marked_output=(_marked_output(marked["return"]),),
    )


def without_marks(kind: Any) -> Any:
    """A type as `read_signature` gives it: without what `Annotated` says in it."""

    def holder() -> None: ...

    holder.__annotations__ = {"return": kind}
    return typing.get_type_hints(holder)["return"]


def _marked_output(annotation: Any) -> Any:
    outcome = _unwrapped(annotation)
    is_outcome = (typing.get_origin(outcome) or outcome) in (Next, Done, Outcome)
    return _read_return(outcome)[0] if is_outcome else annotation


def _unwrapped(annotation: Any) -> Any:
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is typing.Annotated else annotation


def _is_awaitable(annotation: Any) -> bool:
    origin = typing.get_origin(annotation) or annotation
    return isinstance(origin, type) and issubclass(origin, Awaitable)


def _read_return(annotation: Any) -> tuple[Any, bool, bool]:
    origin = typing.get_origin(annotation) or annotation
    if origin in (Next, Done, Outcome):
        arguments = typing.get_args(annotation)
        return (arguments[0] if arguments else Any), origin is not Next, origin is not Done
    return annotation, True, False

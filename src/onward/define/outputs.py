"""Whether the output that a step promises can be what the steps it continues to give.

Lenient: where types cannot be compared without running a type checker, they fit. Only what plainly differs is told.
"""

import types
import typing
from collections.abc import Mapping
from typing import Any

_WIDER = {int: (float, complex), float: (complex,), bytes: (bytearray, memoryview)}
"""What type checkers take one for, though it is no subclass."""


def may_hold(promised: Any, given: Any) -> bool:
    """Whether a value of type `given` may be one of type `promised`."""
    promised, given = _plain(promised), _plain(given)
    if promised == given or given in (typing.Never, typing.NoReturn):
        return True
    if _is_union(given):
        return all(may_hold(promised, member) for member in typing.get_args(given))
    if _is_union(promised):
        return any(may_hold(member, given) for member in typing.get_args(promised))
    return _may_be(_class_of(promised), _class_of(given)) and _parameters_fit(promised, given)


def name_of(kind: Any) -> str:
    """A type as it is written."""
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)


def _plain(kind: Any) -> Any:
    """A type without what says nothing about its values: Annotated, NewType, aliases; None for its class."""
    while True:
        if kind is None:
            return type(None)
        if typing.get_origin(kind) is typing.Annotated:
            kind = typing.get_args(kind)[0]
        elif isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        elif type(kind).__name__ == "TypeAliasType":
            kind = kind.__value__
        else:
            return kind


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def _class_of(kind: Any) -> type[Any] | None:
    """The class whose instances are the values; None where that cannot be told."""
    if typing.get_origin(kind) is typing.Literal:
        classes = {type(value) for value in typing.get_args(kind)}
        return classes.pop() if len(classes) == 1 else None
    found = typing.get_origin(kind) or kind
    if not isinstance(found, type) or found in (object, Any) or getattr(found, "_is_protocol", False):
        return None
    return found


def _may_be(promised: type[Any] | None, given: type[Any] | None) -> bool:
    if promised is None or given is None:
        return True
    if typing.is_typeddict(promised) or typing.is_typeddict(given):
        return all(typing.is_typeddict(one) or issubclass(one, Mapping) for one in (promised, given))
    # One that is wider than promised may still give what was promised.
    return issubclass(given, promised) or issubclass(promised, given) or promised in _WIDER.get(given, ())


def _parameters_fit(promised: Any, given: Any) -> bool:
    ours, theirs = typing.get_args(promised), typing.get_args(given)
    if typing.get_origin(promised) is not typing.get_origin(given) or len(ours) != len(theirs):
        return True
    if typing.get_origin(promised) is typing.Literal:
        return not set(ours).isdisjoint(theirs)
    return all(may_hold(one, other) for one, other in zip(ours, theirs, strict=True) if one is not ... is not other)

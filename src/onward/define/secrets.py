"""Fields marked `Secret`: found in the type of a payload once, masked wherever somebody looks.

They are known by their names in JSON: a name that is secret in one class of a payload is secret in all of it, also in
versions of the payload that this code no longer has a class for.
"""

import dataclasses
import json
import typing
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from onward.crypto import Secret

MASK = "***"
"""What is shown of a secret."""
_SHORTEST = 4
"""What is shorter would be found everywhere, and so be told by what is masked."""
Path: TypeAlias = tuple[str | int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Secrets:
    """The secret fields of one payload."""

    names: frozenset[str]
    everything: bool = False
    """The payload itself is marked, or what it is a list of."""

    def replaced(self, plain: Any, change: Callable[[Any, Path], Any], path: Path = ()) -> Any:
        """The payload with every secret changed."""
        if self.everything:
            return change(plain, path)
        if isinstance(plain, dict):
            return {
                key: change(value, (*path, key)) if key in self.names else self.replaced(value, change, (*path, key))
                for key, value in plain.items()
            }
        if isinstance(plain, list):
            return [self.replaced(value, change, (*path, at)) for at, value in enumerate(plain)]
        return plain

    def masked(self, plain: Any) -> Any:
        """The payload for those who look."""
        return self.replaced(plain, lambda value, path: MASK)

    def texts(self, plain: Any) -> set[str]:
        """The secrets of a payload, to be found in other texts. However deep it is: a hand may have written it."""
        found: set[str] = set()
        todo = [(plain, self.everything)]
        while todo:
            value, is_secret = todo.pop()
            if isinstance(value, dict):
                todo.extend((inner, is_secret or key in self.names) for key, inner in value.items())
            elif isinstance(value, list):
                todo.extend((inner, is_secret) for inner in value)
            elif is_secret and isinstance(value, str | int | float) and len(str(value)) >= _SHORTEST:
                found.add(str(value))
        return found - {"True", "False"}


def secrets_of(kind: Any) -> Secrets | None:
    """The secret fields of a type; None if there are none."""
    names: set[str] = set()
    everything = _look(kind, names, set())
    return Secrets(frozenset(names), everything) if names or everything else None


def redacted(text: str, secrets: set[str]) -> str:
    """A text without these, however `repr`, `ascii` and JSON spell them."""
    for secret in sorted(secrets, key=len, reverse=True):
        for spelled in (secret, repr(secret)[1:-1], ascii(secret)[1:-1], json.dumps(secret)[1:-1]):
            text = text.replace(spelled, MASK)
    return text


def _look(kind: Any, names: set[str], seen: set[Any]) -> bool:
    """Collect the names of secret fields; whether what is of this type is secret itself."""
    kind = getattr(kind, "__value__", kind) if type(kind).__name__ == "TypeAliasType" else kind
    if isinstance(kind, typing.NewType):
        return _look(kind.__supertype__, names, seen)
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return False
    parts: tuple[Any, ...] = typing.get_args(kind)
    if origin is typing.Annotated:
        if any(mark is Secret or isinstance(mark, Secret) for mark in parts[1:]):
            return True
        parts = parts[:1]
    secret = [part for part in parts if _look(part, names, seen)]
    return _look_at_fields(origin or kind, names, seen) or bool(secret)


def _look_at_fields(kind: Any, names: set[str], seen: set[Any]) -> bool:
    if not isinstance(kind, type) or kind in seen:
        return False
    seen.add(kind)
    secret = [name for name, field in _fields(kind) if _look(field, names, seen)]
    if _has_no_names(kind):
        return bool(secret)
    names.update(secret)
    return False


def _fields(kind: type[Any]) -> list[tuple[str, Any]]:
    """The fields of a class, as they are named in JSON, with their types."""
    if issubclass(kind, msgspec.Struct):
        return [(field.encode_name, field.type) for field in msgspec.structs.fields(kind)]
    if hasattr(kind, "model_fields"):
        return _model_fields(kind.model_fields)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        return [(field.name, hints[field.name]) for field in dataclasses.fields(kind)]
    if typing.is_typeddict(kind) or hasattr(kind, "__attrs_attrs__") or issubclass(kind, tuple):
        return [*typing.get_type_hints(kind, include_extras=True).items()]
    return []


def _model_fields(fields: dict[str, Any]) -> list[tuple[str, Any]]:
    """Those of a pydantic model, which has resolved their types, and may write them under another name."""
    found: list[tuple[str, Any]] = []
    for name, field in fields.items():
        kind = typing.Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        names = {name, field.alias or name, field.serialization_alias or name}
        found.extend((one, kind) for one in names)
    return found


def _has_no_names(kind: type[Any]) -> bool:
    """Whether its fields are written without them: as a list, or as what it holds."""
    if issubclass(kind, msgspec.Struct):
        return bool(kind.__struct_config__.array_like)
    return issubclass(kind, tuple) or getattr(kind, "__pydantic_root_model__", False)

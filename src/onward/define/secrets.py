"""Fields marked `Secret`: found in the type of a payload once, masked wherever somebody looks.

They are known by their names in JSON: a name that is secret in one class of a payload is secret in all of it, also in
versions of the payload that this code no longer has a class for.
"""

import dataclasses
import json
import re
import typing
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, TypeAlias
from urllib.parse import quote, quote_plus

import msgspec

from onward.crypto import Secret
from onward.options import CUT

MASK = "***"
"""What is shown of a secret."""
_SHORTEST = 4
"""What is shorter would be found everywhere, and so be told by what is masked."""
_CUTS = re.compile(rf"(… \({CUT}[\d,]+ characters in all\)|\({CUT}[\d,]+ characters in all\) …)")
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
                todo.extend((key, True) for key in value if is_secret)
            elif isinstance(value, list):
                todo.extend((inner, is_secret) for inner in value)
            elif is_secret and isinstance(value, bytes | bytearray):
                found.update((repr(bytes(value))[2:-1], value.decode(errors="replace"), value.hex()))
            elif is_secret and isinstance(value, str | int | float | datetime):
                found.add(str(value))
        return {text for text in found if len(text) >= _SHORTEST} - {"True", "False"}


def secrets_of(*kinds: Any) -> Secrets | None:
    """The secret fields of a payload of any of these types; None if there are none."""
    names: set[str] = set()
    everything = [_look(kind, names, set()) for kind in kinds]
    return Secrets(frozenset(names), any(everything)) if names or any(everything) else None


def redacted(text: str, secrets: set[str]) -> str:
    """A text without these, however `repr`, `ascii`, JSON and addresses spell them; also where it was cut."""
    every = sorted({spelled for secret in secrets for spelled in _spellings(secret)}, key=len, reverse=True)
    for spelled in every:
        text = text.replace(spelled, MASK)
    if not every or CUT not in text:
        return text
    parts = _CUTS.split(text)
    for at in range(1, len(parts), 2):
        if parts[at].startswith("…"):
            parts[at - 1] = _without_torn(parts[at - 1], every)
        else:
            torn = [spelled[::-1] for spelled in every]
            parts[at + 1] = _without_torn(parts[at + 1][::-1], torn)[::-1]
    return "".join(parts)


def _spellings(secret: str) -> Iterable[str]:
    in_addresses = quote(secret, errors="replace"), quote(secret, safe="", errors="replace")
    in_bytes = repr(secret.encode(errors="replace"))[2:-1]
    plus = quote_plus(secret, errors="replace")
    once = {secret, repr(secret)[1:-1], ascii(secret)[1:-1], json.dumps(secret)[1:-1], in_bytes, *in_addresses, plus}
    yield from once
    for spelled in once:  # and once more, as where JSON is spelled by `repr`
        yield (again := spelled.replace("\\", "\\\\"))
        yield again.replace("'", "\\'")
    if "\n" in secret:  # a traceback of several exceptions puts something before each line
        yield from (line for line in secret.splitlines() if len(line) >= _SHORTEST)


def _without_torn(text: str, every: list[str]) -> str:
    """A text without the beginning of a secret that stood at its end, before the rest was cut off."""
    for spelled in every:
        for length in range(min(len(spelled) - 1, len(text)), _SHORTEST - 1, -1):
            if text.endswith(spelled[:length]):
                return text[:-length] + MASK
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

"""Values to JSON text and back, with one verdict on every database about what may be stored."""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Iterable
from typing import Any, NoReturn
from uuid import UUID

import msgspec

from onward.crypto import MARK, is_sealed, key_id_of
from onward.define.secrets import Secrets, redacted
from onward.errors import DefinitionError, PayloadError, UnknownKey

AT = re.compile(r" - at `\$(?P<path>[^`]*)`")


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """How large a payload may be."""

    bytes: int = 1024 * 1024
    depth: int = 100
    option: str = "max_payload"
    """Where the number of bytes was said."""


class Codec:
    """Encodes and decodes one payload of one job type; every refusal names the job type and the field."""

    def __init__(self, kind: Any, *, job_type: str, part: str, limits: Limits, secrets: Secrets | None = None) -> None:
        self.job_type, self.part, self.limits, self._secrets = job_type, part, limits, secrets
        self._encode = msgspec.json.Encoder(enc_hook=encode_foreign).encode
        try:
            self._decode = _decoder(kind)
            self._takes_null = kind is None or kind is type(None)
        except TypeError as error:
            raise DefinitionError([f"{job_type}: {part} type {kind!r} cannot be stored as JSON: {error}"]) from error

    @property
    def bare(self) -> "Codec":
        """Itself: one that encrypts has a plain one inside."""
        return self

    def encode(self, value: Any, id: UUID | None = None) -> str:
        """The JSON text of `value`, or a PayloadError: nothing is stored that could not be read back.

        The `id` is for codecs that encrypt; here and in `decode` it says nothing.
        """
        if value is None and self._takes_null:
            return "null"
        try:
            data = self._encode(value)
        except RecursionError:
            self._refuse("$", f"nested deeper than {self.limits.depth} levels")
        except UnicodeEncodeError:
            self._refuse(_place_of_surrogate(value), "text with a lone surrogate, which is not valid Unicode")
        except (TypeError, ValueError, OverflowError) as error:
            self._refuse("$", str(error))
        if len(data) > self.limits.bytes:
            limit = f"the limit of {self.limits.bytes:,} ({self.limits.option}=)"
            self._refuse("$", f"{len(data):,} bytes of JSON, more than {limit}")
        # The bytes tell cheaply when a closer look is needed: NaN and infinity are written as null.
        is_short = len(data) <= self.limits.depth
        if b"null" in data or b"\\u0000" in data or not (is_short or self._is_flat(data)):
            self._refuse_what_databases_cannot_keep(value)
        text = data.decode()
        self.decode(text)
        return text

    def decode(self, text: str | bytes, id: UUID | None = None) -> Any:
        """The value in stored JSON text, or a PayloadError."""
        try:
            value = self._decode(text)
        except msgspec.ValidationError as error:
            if MARK in (text if isinstance(text, str) else text.decode(errors="replace")):
                self._refuse_sealed(self._any(text))
            # A pydantic model inside another type gives its own path first, then comes the path to the model.
            problem, *paths = AT.split(str(error))
            field = "$" + "".join(path for path in reversed(paths) if path)
            self._refuse(self._masked(field, text), self._masked(problem, text))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            self._refuse("$", str(error))
        if value.__class__ is str and value.startswith(MARK):
            self._refuse_sealed(value)
        return value

    def plain(self, text: str | bytes, id: UUID | None = None) -> Any:
        """The plain JSON data in stored text."""
        plain = self._any(text)
        self._refuse_sealed(plain)
        return plain

    def _any(self, text: str | bytes) -> Any:
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            self._refuse("$", str(error))

    def _refuse_sealed(self, plain: Any) -> None:
        """What is encrypted is JSON text too, which a type that takes any text would take."""
        if is_sealed(plain):
            raise UnknownKey(job_type=self.job_type, part=self.part, key_id=key_id_of(plain)) from None

    def _masked(self, told: str, text: str | bytes) -> str:
        """Without the secrets: what does not fit is often named."""
        return told if self._secrets is None else redacted(told, self._secrets.texts(self._any(text)))

    def _refuse(self, field: str, problem: str) -> NoReturn:
        raise PayloadError(job_type=self.job_type, part=self.part, field=field, problem=problem) from None

    def _refuse_what_databases_cannot_keep(self, value: Any) -> None:
        plain = msgspec.to_builtins(value, enc_hook=encode_foreign, str_keys=True)
        for path, depth, item in _walk(plain):
            if depth > self.limits.depth:
                self._refuse(path[:80], f"nested deeper than {self.limits.depth} levels")
            if isinstance(item, float) and not math.isfinite(item):
                self._refuse(path, f"{item} is not a JSON number")
            if isinstance(item, str) and "\0" in item:
                self._refuse(path, "text with a NUL character, which Postgres cannot store")

    def _is_flat(self, data: bytes) -> bool:
        return data.count(b"[") + data.count(b"{") <= self.limits.depth


def _walk(plain: Any) -> Iterable[tuple[str, int, Any]]:
    """Every value and key inside plain JSON data with its path and depth, without recursion."""
    todo = [("$", 0, plain)]
    while todo:
        path, depth, item = todo.pop()
        yield path, depth, item
        if isinstance(item, dict):
            for key, inner in item.items():
                todo.append((f"{path}.{key}", depth + 1, inner))
                if "\0" in str(key):
                    todo.append((f"{path}.{key!r}", depth + 1, str(key)))
        elif isinstance(item, (list, tuple)):
            todo.extend((f"{path}[{at}]", depth + 1, inner) for at, inner in enumerate(item))


def _place_of_surrogate(value: Any) -> str:
    for path, _, item in _walk(msgspec.to_builtins(value, enc_hook=encode_foreign, str_keys=True)):
        if isinstance(item, str) and any("\ud800" <= character <= "\udfff" for character in item):
            return path
    return "$"  # in a key


def encode_foreign(value: Any) -> Any:
    """Pydantic models, which msgspec does not know; recognised by what they offer, so pydantic stays optional."""
    if hasattr(value, "model_dump") and hasattr(type(value), "model_validate"):
        return value.model_dump(mode="json")
    raise TypeError(f"a value of type {type(value).__name__} cannot be stored as JSON")


def _decode_foreign(kind: Any, plain: Any) -> Any:
    if hasattr(kind, "model_validate"):
        try:
            return kind.model_validate(plain)
        except ValueError as error:
            problems: list[Any] = getattr(error, "errors", list[Any])()
            if not problems:
                raise
            place = "".join(f".{part}" for part in problems[0]["loc"])
            raise ValueError(f"{problems[0]['msg']} - at `${place}`") from None
    raise TypeError(f"type {kind.__name__} cannot be read from JSON")


def _decoder(kind: Any) -> typing.Callable[[str | bytes], Any]:
    members = _object_members(kind)
    if len(members) > 1:
        decode: typing.Callable[[str | bytes], Any] = _decoder_of_alternatives(kind, members)
        return decode
    return _checked_decoder(kind)


def _checked_decoder(kind: Any) -> typing.Callable[[str | bytes], Any]:
    if kind is None or kind is type(None):
        return msgspec.json.Decoder(type(None)).decode
    foreign = [member for member in _members(kind) if hasattr(member, "model_validate")]
    for member in _members(kind):
        if (
            not foreign
            and isinstance(member, type)
            and msgspec.inspect.type_info(member).__class__.__name__ == "CustomType"
        ):
            raise TypeError(
                f"{member.__name__} is neither a dataclass, msgspec.Struct, TypedDict, pydantic model nor JSON"
            )
    return msgspec.json.Decoder(kind, dec_hook=_decode_foreign).decode


def _members(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def _object_members(kind: Any) -> dict[Any, tuple[frozenset[str], frozenset[str]]]:
    """The members of a union that are JSON objects with known fields: member -> (all fields, required fields)."""
    members = _members(kind)
    if len(members) < 2 or all(isinstance(m, type) and issubclass(m, msgspec.Struct) for m in members):
        return {}
    return {member: fields for member in members if (fields := fields_of(member)) is not None}


def fields_of(kind: Any) -> tuple[frozenset[str], frozenset[str]] | None:
    """All fields and the required ones, as they are named in JSON; None for what is no object with known fields."""
    if hasattr(kind, "model_fields"):
        named = kind.model_fields.items()
        return frozenset(name for name, _ in named), frozenset(name for name, f in named if f.is_required())
    if not isinstance(kind, type):
        return None
    info = msgspec.inspect.type_info(kind)
    if isinstance(info, (msgspec.inspect.DataclassType, msgspec.inspect.StructType, msgspec.inspect.TypedDictType)):
        every = frozenset(field.encode_name for field in info.fields)
        return every, frozenset(field.encode_name for field in info.fields if field.required)
    return None


def _decoder_of_alternatives(kind: Any, members: dict[Any, tuple[frozenset[str], frozenset[str]]]) -> Any:
    """Several object types without a tag: told apart by their fields, which must therefore differ."""
    for one, (every, required) in members.items():
        for other, (other_every, other_required) in members.items():
            if one is not other and required | other_required <= every & other_every:
                raise TypeError(
                    f"{one.__name__} and {other.__name__} have the same fields and cannot be told apart: "
                    "use msgspec.Struct with tag=True"
                )
    decoders = {member: _checked_decoder(member) for member in members}
    rest = [member for member in _members(kind) if member not in members]
    otherwise = _checked_decoder(typing.Union[tuple(rest)]) if rest else None  # noqa: UP007 - built at run time
    names = " | ".join(member.__name__ for member in members)

    def decode(text: str | bytes) -> Any:
        plain = msgspec.json.decode(text)
        if isinstance(plain, dict):
            keys = frozenset(plain)
            for member, (every, required) in members.items():
                if required <= keys <= every:
                    return decoders[member](text)
            raise msgspec.ValidationError(f"Object with fields {sorted(keys)} is none of {names}")
        if otherwise is None:
            raise msgspec.ValidationError(f"Expected {names}, got {type(plain).__name__}")
        return otherwise(text)

    return decode

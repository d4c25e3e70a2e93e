"""Values to fields of a Redis hash and back: each field is JSON, and plain text stays as it is."""

import typing
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from onward.define.codec import Codec, Limits, fields_of
from onward.define.secrets import secrets_of
from onward.errors import DefinitionError, FlowPayloadError, PayloadError

_RESERVED = frozenset({"done", "failed", "failedQueue", "failedErrorMsg"})
"""Fields of a job's hash that Onward writes; its others have a dash in their names, which no attribute has."""
_MAY_BE_JSON = frozenset('{["-0123456789tfn \t\n\r')


class Attributes:
    """Reads and writes the fields of one type: what a stage asks for, or what it returns."""

    def __init__(self, kind: Any, *, flow: str, stage: str, part: str) -> None:
        self.kind, self._flow, self._stage, self._part = kind, flow, stage, part
        self._codec = Codec(kind, job_type=stage, part=part, limits=Limits(), secrets=secrets_of(kind))
        every, required = fields_of(kind) or (frozenset[str](), frozenset[str]())
        self.names: Sequence[str] = tuple(sorted(every))
        self.required = required

    def read(self, stored: Mapping[str, str]) -> Any:
        """The value whose fields are stored, or a FlowPayloadError."""
        fields = b",".join(
            msgspec.json.encode(name) + b":" + as_json(stored[name]) for name in self.names if name in stored
        )
        try:
            return self._codec.decode(b"{" + fields + b"}")
        except PayloadError as error:
            self._refuse(error)

    def convert(self, value: Any) -> Any:
        """A mapping as the type it should have; anything else as it is."""
        if not isinstance(value, Mapping) or typing.is_typeddict(self.kind):
            return value
        try:
            return self._codec.decode(msgspec.json.encode(value))
        except PayloadError as error:
            self._refuse(error)
        except (TypeError, UnicodeEncodeError) as error:
            self.refuse(str(error))

    def write(self, value: Any) -> tuple[dict[str, str], str]:
        """The fields to store, and the whole as one JSON text; a FlowPayloadError names what does not fit."""
        try:
            text = self._codec.encode(value)
        except PayloadError as error:
            self._refuse(error)
        if value is None:
            return {}, text
        if not text.startswith("{"):
            self.refuse(f"{type(value).__name__} has no fields to store")
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        for name in fields:
            if is_reserved(name):
                self.refuse("Onward has a field of that name", field=name)
        return {name: as_text(raw) for name, raw in fields.items()}, text

    def refuse(self, problem: str, *, field: str = "") -> NoReturn:
        """Say what is wrong with a value."""
        raise FlowPayloadError(
            flow=self._flow, stage=self._stage, part=self._part, field=field, problem=problem
        ) from None

    def _refuse(self, error: PayloadError) -> NoReturn:
        self.refuse(error.problem, field=error.field.removeprefix("$").removeprefix("."))


def provided_by(kind: Any) -> frozenset[str]:
    """The fields that a value of this type is sure to have."""
    if kind is None or kind is type(None):
        return frozenset()
    every, required = fields_of(kind) or (frozenset[str](), frozenset[str]())
    return required if typing.is_typeddict(kind) else every


def problem_of(kind: Any) -> str | None:
    """What is wrong with a type of attributes, if anything is."""
    try:
        fields = fields_of(kind)
        Codec(kind, job_type="", part="", limits=Limits())
    except (DefinitionError, TypeError) as error:
        return str(error)
    if fields is None:
        return f"{kind!r} has no fields: use a dataclass, TypedDict, msgspec.Struct or pydantic model"
    taken = sorted(filter(is_reserved, fields[0]))
    return f"attributes may not be named {', '.join(taken)}: Onward has fields of that name" if taken else None


def is_reserved(name: str) -> bool:
    """Whether a field of a job's hash is Onward's own."""
    return name in _RESERVED or "-" in name


def as_text(raw: bytes | msgspec.Raw) -> str:
    """JSON as it is stored: text that could not be taken for JSON goes without quotes.

    >>> as_text(b'"ann"'), as_text(b'"7"'), as_text(b'7')
    ('ann', '"7"', '7')
    """
    data = bytes(raw)
    if not data.startswith(b'"'):
        return data.decode()
    text: str = msgspec.json.decode(data)
    return data.decode() if _is_json(text) else text


def as_json(stored: str) -> bytes:
    """What is stored, as JSON again.

    >>> as_json('ann'), as_json('"7"'), as_json('7')
    (b'"ann"', b'"7"', b'7')
    """
    return stored.encode() if _is_json(stored) else msgspec.json.encode(stored)


def _is_json(text: str) -> bool:
    if not text or text[0] not in _MAY_BE_JSON:
        return False
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True

"""Values spelled out in SQL, for the one place that cannot take parameters: several statements in one message."""

import hashlib
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from onward.state.statement import spell

_SPECIAL = re.compile(r"[\\']")


def literal(value: Any) -> str:
    """A value as it is written in SQL, whatever the server's settings are.

    >>> print(literal("it's"), literal(None), literal(7))
    E'it''s' NULL 7
    """
    write = _WRITERS.get(type(value)) or _writer_for(value)
    return write(value)


def _text(value: str) -> str:
    if "\0" in value:
        raise ValueError("text with a NUL character, which Postgres cannot store")
    return f"E'{_SPECIAL.sub(_doubled, value)}'" if _SPECIAL.search(value) else f"'{value}'"


def _doubled(found: re.Match[str]) -> str:
    return found[0] * 2


def _quoted(value: UUID) -> str:
    return f"'{value}'"


def _instant(value: datetime) -> str:
    return f"'{value.astimezone(UTC)}'"  # the server reads no offset with fractions of a second


def _null(value: None) -> str:
    return "NULL"


_WRITERS: dict[type[Any], Callable[[Any], str]] = {
    str: _text, UUID: _quoted, datetime: _instant, int: str, float: str, bool: str, type(None): _null,
}  # fmt: skip


def _writer_for(value: Any) -> Callable[[Any], str]:
    for kind, write in tuple(_WRITERS.items()):  # threads add to it
        if isinstance(value, kind):
            _WRITERS[type(value)] = write  # of a client's own kind of UUID, say
            return write
    raise TypeError(f"a value of type {type(value).__name__} has no literal")


def new_name(sql: str) -> str:
    """To prepare a statement under; each time another.

    A PREPARE whose outcome is unknown, because it was cancelled or its answer lost, is then of no consequence: nobody
    uses that name again. Two apps on one connection, which know nothing of each other, do not meet either.
    """
    return f"onward_{_digest(sql)}_{secrets.token_hex(4)}"


@lru_cache(maxsize=1024)
def _digest(sql: str) -> str:
    return hashlib.sha256(sql.encode()).hexdigest()[:12]


def inlined(sql: str, parameters: Mapping[str, Any]) -> str:
    """A statement of ours, with its values in it.

    >>> inlined("SELECT :n::integer, :word::text", {"n": 1, "word": "it's"})
    "SELECT 1::integer, E'it''s'::text"
    """
    spelled = spell(sql, "percent")
    return spelled.sql % {name: literal(parameters[name]) for name in spelled.names}


def call(name: str, values: Sequence[Any]) -> str:
    """Runs a statement that was prepared under this name."""
    written = [(_WRITERS.get(type(value)) or _writer_for(value))(value) for value in values]
    return f"EXECUTE {name}({', '.join(written)})" if written else f"EXECUTE {name}"

"""Values spelled out in SQL, for the one place that cannot take parameters: several statements in one message."""

import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any
from uuid import UUID

from onward.state.statement import spell

_SPECIAL = re.compile(r"[\\'\0]")


def literal(value: Any) -> str:
    """A value as it is written in SQL, whatever the server's settings are.

    >>> print(literal("it's"), literal(None), literal(7))
    E'it''s' NULL 7
    """
    return _WRITERS[type(value)](value)


def literals(values: Iterable[Any]) -> str:
    """Several, with commas between them."""
    return ", ".join([_WRITERS[type(value)](value) for value in values])


def _array(values: list[Any]) -> str:
    return f"ARRAY[{literals(values)}]"


def _text(value: str) -> str:
    if _SPECIAL.search(value) is None:
        return f"'{value}'"
    return f"E'{_SPECIAL.sub(_doubled, value)}'"


def _doubled(found: re.Match[str]) -> str:
    if found[0] == "\0":
        raise ValueError("text with a NUL character, which Postgres cannot store")
    return found[0] * 2


def _instant(value: datetime) -> str:
    return f"'{value.astimezone(UTC)}'"  # the server reads no offset with fractions of a second


_PLAIN: dict[type[Any], Callable[[Any], Any]] = {str: str.__str__, int: int.__int__, float: float.__float__}
"""What others make of their own kinds, such as members of an enum, they may show as something else."""


def _written_plain(write: Callable[[Any], str], plain: Callable[[Any], Any], value: Any) -> str:
    return write(plain(value))


class _Writers(dict[type[Any], Callable[[Any], str]]):
    """How values of a type are written; learns what else is one of these, such as a client's own kind of UUID."""

    def __missing__(self, kind: type[Any]) -> Callable[[Any], str]:
        for known, write in tuple(self.items()):  # threads add to it
            if issubclass(kind, known):
                self[kind] = partial(_written_plain, write, _PLAIN[known]) if known in _PLAIN else write
                return self[kind]
        raise TypeError(f"a value of type {kind.__name__} has no literal")


_WRITERS = _Writers({
    str: _text, UUID: "'{}'".format, datetime: _instant, int: str, float: str, bool: str, type(None): "NULL".format,
    list: _array,
})  # fmt: skip


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
    return spelled.sql % {name: _WRITERS[type(value := parameters[name])](value) for name in spelled.names}

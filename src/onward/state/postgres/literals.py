"""Values spelled out in SQL, for the one place that cannot take parameters: several statements in one message."""

import re
import zlib
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

_SPECIAL = re.compile(r"[\\']")


def literal(value: Any) -> str:
    """A value as it is written in SQL, whatever the server's settings are.

    >>> print(literal("it's"), literal(None), literal(7))
    E'it''s' NULL 7
    """
    if value is None:
        return "NULL"
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError("text with a NUL character, which Postgres cannot store")
        return f"E'{_SPECIAL.sub(_doubled, value)}'" if _SPECIAL.search(value) else f"'{value}'"
    if isinstance(value, UUID | datetime):
        return f"'{value}'"
    if isinstance(value, int | float):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__} has no literal")


def _doubled(found: re.Match[str]) -> str:
    return found[0] * 2


@lru_cache
def name_of(sql: str) -> str:
    """Under which a statement is prepared."""
    return f"onward_{zlib.crc32(sql.encode()):08x}"


def call(name: str, values: Sequence[Any]) -> str:
    """Runs a statement that was prepared under this name."""
    return f"EXECUTE {name}({', '.join(map(literal, values))})" if values else f"EXECUTE {name}"

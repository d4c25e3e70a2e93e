"""Limits as rows, whatever a hand has written there."""

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from onward.options import EARLIEST
from onward.state.contract import LimitRule, StoredLimit
from onward.state.rows import Columns, as_integer, as_text, optional, shown

_COLUMNS = ("name", "places", "every", "burst", "declared", "declared_at", "changed_at")
"""What `list_limits.sql` returns."""
_SHORTEST, _LONGEST = 1e-6, 4e10
"""Seconds from one start to the next, as `admit` takes them."""


def read_limit(row: Sequence[Any], read_time: Callable[[Any], datetime]) -> StoredLimit:
    """The limit in a row. One that nobody can go by lets nobody in, and is shown as that."""
    column = Columns(dict(zip(_COLUMNS, row, strict=True)))
    name = column.read("name", as_text, shown)
    places = column.read("places", optional(as_integer), lambda value: 0)
    every = column.read("every", optional(_every), lambda value: None)
    burst = column.read("burst", _burst, lambda value: 1)
    rule = LimitRule(name, 0 if column.problems else places, every, burst)
    return StoredLimit(
        rule=rule,
        declared=column.read("declared", optional(_figures), lambda value: None),
        declared_at=column.read("declared_at", optional(read_time), lambda value: None),
        changed_at=column.read("changed_at", optional(read_time), lambda value: EARLIEST),
        problem="; ".join(column.problems) or None,
    )


def _every(value: Any) -> float:
    if not (isinstance(value, int | float) and math.isfinite(value) and _SHORTEST <= value <= _LONGEST):
        raise ValueError(value)
    return float(value)


def _burst(value: Any) -> int:
    burst = as_integer(value)
    if not 1 <= burst < 2**31:
        raise ValueError(value)
    return burst


def _figures(value: Any) -> str:
    figures = as_text(value)
    LimitRule("").as_said(figures)
    return figures

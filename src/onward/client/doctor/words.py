"""How findings are told."""

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from onward.operating import Finding

Level: TypeAlias = Literal["warning", "error"]
_MOST_NAMED = 5


def fine(name: str, message: str) -> Finding:
    """It was looked at, and nothing is wrong."""
    return Finding(name=name, level="ok", message=message)


def wrong(name: str, level: Level, message: str, advice: str) -> Finding:
    """Something is, and that is what to do."""
    return Finding(name=name, level=level, message=message, advice=advice)


def or_fine(findings: Iterable[Finding], name: str, message: str) -> list[Finding]:
    """What is wrong, or else that nothing is."""
    return list(findings) or [fine(name, message)]


def named(names: Sequence[object]) -> str:
    """The first few, and how many more.

    >>> named(["a", "b"]), named(range(7))
    ('a, b', '0, 1, 2, 3, 4 and 2 more')
    """
    each = list(dict.fromkeys(map(str, names)))
    more = f" and {len(each) - _MOST_NAMED:,} more" if len(each) > _MOST_NAMED else ""
    return ", ".join(each[:_MOST_NAMED]) + more


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "job"), counted(1200, "job")
    ('1 job', '1,200 jobs')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def span(seconds: float) -> str:
    """
    >>> span(5), span(700), span(20_000), span(400_000)
    ('5 s', '12 min', '6 h', '5 d')
    """
    for limit, length, unit in ((600, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds / 86_400:,.0f} d"


def size(bytes: float) -> str:
    """
    >>> size(20_000), size(300 << 20), size(7 << 30)
    ('20 kB', '300 MB', '7.0 GB')
    """
    if bytes < 1 << 20:
        return f"{bytes / 1000:,.0f} kB"
    return f"{bytes / (1 << 20):,.0f} MB" if bytes < 1 << 30 else f"{bytes / (1 << 30):,.1f} GB"

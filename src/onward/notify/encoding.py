"""Hints as text, for adapters that send them elsewhere: a heading, then a line for each hint.

`vetting.py` reads them.
"""

from collections.abc import Sequence

from onward.notify.contract import Hint

MOST_BYTES = 7_999
"""NOTIFY takes payloads of less than 8,000 bytes."""
_WRITTEN = 7_900


def encode_hints(hints: Sequence[Hint], heading: str) -> list[str]:
    """Hints as few payloads, each with the heading."""
    payloads: list[str] = []
    size = _WRITTEN
    for hint in hints:
        line = f"\n{hint.kind}{hint.count}:{hint.key}"
        size += len(line.encode())
        if size >= _WRITTEN:
            payloads.append(heading)
            size = len(heading.encode()) + len(line.encode())
        payloads[-1] += line
    return payloads

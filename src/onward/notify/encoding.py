"""Hints merged, and as text, for adapters that send them elsewhere: a heading, then a line for each hint.

`connected.py` reads them.
"""

from collections.abc import Sequence

from onward.notify.contract import Hint, HintKind

MOST_BYTES = 7_999
"""NOTIFY takes payloads of less than 8,000 bytes."""
_WRITTEN = 7_900


def merged(hints: Sequence[Hint]) -> list[Hint]:
    """At most one hint per kind and key, with the counts added up."""
    found: dict[tuple[HintKind, str], Hint] = {}
    for hint in hints:
        same = found.get((hint.kind, hint.key))
        found[hint.kind, hint.key] = hint if same is None else Hint(hint.kind, hint.key, same.count + hint.count)
    return list(found.values())


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

"""Hints as text, for adapters that send them elsewhere: a heading, then a line for each hint."""

from collections.abc import Sequence
from contextlib import suppress

from onward.notify.contract import Hint, HintKind

_MOST_BYTES = 7_900
"""NOTIFY takes payloads of less than 8,000 bytes."""


def encode_hints(hints: Sequence[Hint], heading: str) -> list[str]:
    """Hints as few payloads, each with the heading."""
    payloads: list[str] = []
    size = _MOST_BYTES
    for hint in hints:
        line = f"\n{hint.kind}{hint.count}:{hint.key}"
        size += len(line.encode())
        if size >= _MOST_BYTES:
            payloads.append(heading)
            size = len(heading.encode()) + len(line.encode())
        payloads[-1] += line
    return payloads


def decode_hints(payload: str) -> tuple[str, list[Hint]]:
    """The heading and the hints of a payload; what cannot be read, say from a newer version, is left out."""
    heading, *lines = payload.split("\n")
    hints: list[Hint] = []
    for line in lines:
        head, _, key = line.partition(":")
        with suppress(ValueError):
            hints.append(Hint(HintKind(head[:1]), key, int(head[1:])))
    return heading, hints

"""Hints merged, and as text, for adapters that send them elsewhere: a heading, then a line for each hint.

`connected.py` reads them.
"""

import secrets
from collections.abc import Sequence

import msgspec

from onward.notify.contract import Hint, HintKind
from onward.state.command import Command

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


class HintStatement(msgspec.Struct, frozen=True):
    """Makes a command of hints, for databases whose statements can send them."""

    sql: str
    """With `:channel` and `:payloads`."""
    channel: str
    heading: str
    """Of a payload; after it comes a random word."""

    def __call__(self, hints: Sequence[Hint]) -> Command[None]:
        payloads = encode_hints(hints, self.heading + secrets.token_hex(4))
        return Command(self.sql, {"channel": self.channel, "payloads": payloads}, needs="nothing")


def no_command(hints: Sequence[Hint]) -> Command[None] | None:
    """Where hints cannot be sent by a statement."""
    return None

"""Hints merged, and as text, for adapters that send them elsewhere: a heading, then a line for each hint.

And what may be believed of such a text, which anybody may have written.
"""

import re
import secrets
import time
from collections.abc import Callable, Sequence

import msgspec

from onward.notify.contract import Hint, HintKind
from onward.options import LONGEST_NAME
from onward.state.command import Command

MOST_BYTES = 7_999
"""NOTIFY takes payloads of less than 8,000 bytes."""
_WRITTEN = 7_900
MOST_JOBS = 1_000
"""That a hint can stand for: more than that many listeners need not be woken by one hint."""
_LONGEST_HEADING = _LONGEST_ID = 64
_LINE = re.compile(r"(.)([0-9]{1,9}):(.*)")
"""Kind, count and key of a hint."""
_KINDS = {kind.value: kind for kind in HintKind if kind is not HintKind.UNKNOWN}
"""That something unknown has changed is said within a process only."""
_IDS = {HintKind.ENDED, HintKind.LOST, HintKind.AWAITED}
"""Whose keys are ids, and not names of types."""
_PER_SECOND = 20_000
"""Lines that are read of what comes in: more than honest processes send, and little work."""


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


# -- what may be believed of a payload


def read_payload(payload: str | bytes) -> tuple[str, list[Hint]]:
    """The heading and the hints of a payload; what is not as we write it, say from a newer version, is left out."""
    if len(payload) > MOST_BYTES:
        return "", []
    try:
        text = payload if isinstance(payload, str) else payload.decode()
    except UnicodeDecodeError:
        return "", []
    heading, *lines = text.split("\n")
    hints: dict[tuple[HintKind, str], Hint] = {}
    for found in map(_LINE.fullmatch, lines):
        if found is None or (kind := _KINDS.get(found[1])) is None:
            continue
        count, key = int(found[2]), found[3]
        if len(key) <= (_LONGEST_ID if kind in _IDS else LONGEST_NAME) and (count or kind is HintKind.ROOM):
            same = hints.get((kind, key))
            hints[kind, key] = Hint(kind, key, min(count + (same.count if same else 0), MOST_JOBS))
    return heading if len(heading) <= _LONGEST_HEADING else "", list(hints.values())


def is_nonce(text: str, length: int) -> bool:
    """Whether it is a random word as we make them: hexadecimal digits, so many."""
    return len(text) == length and all(letter in "0123456789abcdef" for letter in text)


class RationedReader:
    """Reads what comes in, but no more than a process can afford."""

    def __init__(
        self,
        too_much: Callable[[], object],
        *,
        per_second: float = _PER_SECOND,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`too_much` is called for each payload that is not read."""
        self._too_much, self._per_second, self._now = too_much, per_second, now
        self._left, self._at = per_second, now()

    def read(self, payload: str | bytes) -> tuple[str, list[Hint]]:
        """What can be believed of a payload from outside; nothing of what is too much to be read."""
        lines = payload.count("\n") if isinstance(payload, str) else payload.count(b"\n")
        now = self._now()
        self._left = min(self._left + (now - self._at) * self._per_second, self._per_second)
        self._at = now
        if self._left < lines + 1:
            self._too_much()
            return "", []
        self._left -= lines + 1
        return read_payload(payload)

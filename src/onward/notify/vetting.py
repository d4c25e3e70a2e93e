"""What may be believed of a payload: whoever may connect to the server may have written it.

A hint only ever says that a look may be worth it, so that the worst a forged one can do is to cost a look. That stays
true because everything in a payload is checked and cut to size here, because no name of a key or process is taken from
it, and because no more is read than a process can afford: beyond that its listeners look by themselves.
"""

import re
import time
from collections.abc import Callable

from onward.notify.contract import Hint, HintKind
from onward.notify.encoding import MOST_BYTES
from onward.options import LONGEST_NAME

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


class Ration:
    """How much is read of all that comes in."""

    def __init__(self, *, per_second: float = _PER_SECOND, now: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._now = per_second, now
        self._left, self._at = per_second, now()

    def allows(self, payload: str | bytes) -> bool:
        """Whether there is enough left to read this one."""
        lines = payload.count("\n") if isinstance(payload, str) else payload.count(b"\n")
        now = self._now()
        self._left = min(self._left + (now - self._at) * self._per_second, self._per_second)
        self._at = now
        if self._left < lines + 1:
            return False
        self._left -= lines + 1
        return True

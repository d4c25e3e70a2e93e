"""Where an operation can be hit, and by what: points are found by a recording run, and hit one at a time afterwards."""

import os
import re
import threading
import zlib
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

ONLY = os.environ.get("ONWARD_SWEEP_ONLY", "")
under_test: ContextVar[bool] = ContextVar("sweep_under_test", default=False)
"""Set in the context of the operation: what runs beside it is not hit, unless the whole process is under test."""


class Blow(StrEnum):
    """What happens at a point."""

    CANCELLED_UNSENT = "cancelled before its first step"
    CANCELLED_WAITING = "cancelled while it waits"
    CANCELLED_ANSWERED = "cancelled when the answer is there"
    STOPPED_WAITING = "worker told to give back while it waits"
    INTERRUPTED_BEFORE = "KeyboardInterrupt before the statement"
    INTERRUPTED_AFTER = "KeyboardInterrupt after the statement"
    CUT_BEFORE = "connection cut before the statement"
    CUT_AFTER = "connection cut after the server did it"
    READ_ONLY = "read-only"
    SERIALIZATION = "serialization failure"
    TIMEOUT = "statement timeout"
    FULL = "disk full"


ERRORS = (Blow.READ_ONLY, Blow.SERIALIZATION, Blow.TIMEOUT, Blow.FULL)
CUTS = (Blow.CUT_BEFORE, Blow.CUT_AFTER)
INTERRUPTS = (Blow.INTERRUPTED_BEFORE, Blow.INTERRUPTED_AFTER)
CANCELS = (Blow.CANCELLED_UNSENT, Blow.CANCELLED_WAITING, Blow.CANCELLED_ANSWERED)


@dataclass(frozen=True, order=True)
class Place:
    """A statement or an await, by its text, and the how many-eth of that text it is."""

    label: str
    nth: int

    def __str__(self) -> str:
        return f"{self.label} (no. {self.nth})"


@dataclass(frozen=True, order=True)
class Point:
    """A place and what happens there."""

    place: Place
    blow: Blow

    def __str__(self) -> str:
        return f"{self.blow} at {self.place}"

    def is_chosen(self, share: float, seed: int) -> bool:
        """Whether it belongs to the share of all points that this run tries: another one for each seed.

        ONWARD_SWEEP_ONLY="words of a report" tries these points alone.
        """
        if ONLY:
            return ONLY in str(self)
        number = zlib.crc32(f"{seed}/{self.place.label}/{self.place.nth}/{self.blow}".encode()) % 1000
        return number < share * 1000


class Tap:
    """Counts the places an operation passes; when armed, says once that this is the one to hit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._target: Point | None = None
        self.everywhere = False
        """Whether all of the process is under test, and not only the context of one operation."""
        self.is_open = False
        self.statements: list[Place] = []
        self.awaits: list[Place] = []
        self.was_hit = False

    def arm(self, target: Point | None, *, everywhere: bool = False) -> None:
        """From now on: record, or hit a point."""
        with self._lock:
            self._counts.clear()
            self.statements, self.awaits = [], []
            self._target, self.was_hit = target, False
            self.everywhere, self.is_open = everywhere, True

    def disarm(self) -> None:
        with self._lock:
            self.is_open = False

    def statement(self, text: str, *, in_thread: bool = False) -> Blow | None:
        """A statement is about to be sent; what is to become of it. In a thread there is no context to tell whose."""
        label = label_of(text)
        if not self.is_open or label in _AMBIENT or not (self.everywhere or in_thread or under_test.get()):
            return None
        return self._pass(label, self.statements)

    def suspension(self, label: str) -> Blow | None:
        """A task is about to wait; what is to become of it."""
        if not self.is_open:
            return None
        return self._pass(f"await {label}", self.awaits)

    def _pass(self, label: str, passed: list[Place]) -> Blow | None:
        with self._lock:
            if not self.is_open:
                return None
            self._counts[label] += 1
            place = Place(label, self._counts[label])
            passed.append(place)
            if self.was_hit or self._target is None or self._target.place != place:
                return None
            self.was_hit = True
            return self._target.blow


TAP = Tap()
"""One for the process: client libraries are patched once."""

_AMBIENT = frozenset({"PRAGMA data_version", "SELECT 1"})
"""What is asked in the background, now and then."""
_NUMBERS = re.compile(r"'[^']*'|\b[0-9a-f]{8,}\b")


def label_of(sql: str) -> str:
    """A statement in a few words: what its comment says, or how it begins."""
    prefix, _, rest = sql.rpartition("\x00")
    lines = [line.strip() for line in rest.strip().splitlines()]
    if lines and lines[0].startswith("--"):
        found = lines[0].removeprefix("--").strip()
    else:
        found = " ".join(line for line in lines if not line.startswith("--"))
        found = re.sub(r"\s+", " ", found).partition("(")[0]
    return prefix + _NUMBERS.sub("…", found)[:70].strip()

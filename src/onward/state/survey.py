"""How many jobs of each type are where: what there is to count, and how far to count it. Alike on every database."""

from typing import Any

import msgspec

from onward.state.command import Rows

KINDS = ("blocked", "pending", "scheduled", "running", "failed", "held")
"""What is counted: by type, and what limits hold by limit."""
_ROWS_AT_FIRST = 5_000
"""To look at before it is known how long that takes."""
_ROWS_ANYWAY, _LEAST = 10_000, 10
"""How many are looked at however long it takes, in all and of each."""
_FURTHER_AT_FIRST, _FURTHER = 2, 5
"""So many times as far one counts next, at most: what was looked at before is at hand, what comes then may not be."""
_LONGEST = 1e10
"""Seconds: a hand may have written that something has been due for ever."""


class Whereabouts(msgspec.Struct, kw_only=True):
    """How many jobs of a type are where, counted up to as many as were asked for."""

    blocked: int = 0
    pending: int = 0
    scheduled: int = 0
    running: int = 0
    failed: int = 0
    oldest: float | None = None
    """Seconds for which the oldest that is pending has been due."""


class Survey(msgspec.Struct, frozen=True):
    """Where all jobs are."""

    now: float
    """The database's time, in seconds since 1970."""
    most: int
    """Where counting ended."""
    types: dict[str, Whereabouts]


class Counting:
    """A survey under way. Each type and status is counted as far as all others, and those that go on further once more
    as long as there is time: so one number says how far every count is exact.
    """

    def __init__(self, found: Rows, *, most: int, within: float | None) -> None:
        """`found`: what there is (`survey.sql`). `within`: seconds; None counts up to `most`, however long it takes."""
        self._most, self._left, self._looked = most, within, 0
        self._again: tuple[int, float] | None = None
        """How many rows are looked at once more, and in about how many seconds."""
        self._now, self._oldest = 0.0, dict[str, float]()
        self._counted: dict[tuple[str, str], list[tuple[Any, int, float | None]]] = {}
        self.names: dict[str, list[str]] = {kind: [] for kind in KINDS}
        """What is still to be counted, by kind."""
        for kind, name, seconds in found:
            if kind == "now":
                self._now = seconds
            elif isinstance(name, str):  # else a hand has spoiled it
                self.names[kind].append(name)
                if kind == "pending":
                    self._oldest[name] = seconds
        self.reached = most if within is None else self._share(_ROWS_AT_FIRST)
        """How far."""

    def _share(self, rows: float) -> int:
        return min(max(int(rows) // max(self._places, 1), _LEAST), self._most)

    @property
    def _places(self) -> int:
        return sum(map(len, self.names.values()))

    @property
    def is_done(self) -> bool:
        """Whether what is left is not to be counted any further."""
        return not self._places

    def count(self, rows: Rows, took: float) -> None:
        """What was counted of the names up to where one is, in so many seconds (`survey_counts.sql`)."""
        counted: dict[tuple[str, str], list[tuple[Any, int, float | None]]] = {}
        for kind, name, type_name, jobs, seconds in rows:
            counted.setdefault((kind, name), []).append((type_name, jobs, seconds))
        self._counted.update(counted)
        self.names = {kind: [] for kind in KINDS}
        looked = 0
        for (kind, name), found in counted.items():
            jobs = sum(jobs for _, jobs, _ in found)
            looked += jobs
            if jobs >= self.reached:
                self.names[kind].append(name)
        self._go_on(looked, took)

    def _go_on(self, looked: int, took: float) -> None:
        """How far to count what is left; it is worth it only if that is much further."""
        if not self._places:
            self.reached = self._most  # which none is
        if self._left is None or self.reached == self._most:
            self.names = {}
            return
        self._left -= took
        self._looked += looked
        further = self._share(max(self._affordable(looked, took), _ROWS_ANYWAY - self._looked))
        if further >= min(2 * self.reached, self._most):
            self.reached = further
        else:
            self.names = {}

    def _affordable(self, looked: int, took: float) -> float:
        """How many rows can be looked at in the time that is left, those of the last look once more among them."""
        assert self._left is not None
        each, most = max(took / looked, 1e-9), _FURTHER_AT_FIRST
        if self._again is not None:
            rows, seconds = self._again
            each, most = max(each, (took - seconds) / max(looked - rows, 1)), _FURTHER
        rows = self._places * self.reached
        self._again = rows, took * rows / looked
        return min(rows + (self._left - self._again[1]) / each, most * rows)

    def survey(self) -> Survey:
        """What was found."""
        types: dict[str, Whereabouts] = {}
        for (kind, _), found in self._counted.items():
            for name, jobs, seconds in found:
                if not isinstance(name, str):
                    continue
                where = types.setdefault(name, Whereabouts())
                if kind not in ("pending", "held"):
                    setattr(where, kind, jobs)
                elif jobs:
                    age = self._oldest[name] if seconds is None else seconds
                    where.pending = min(where.pending + jobs, self.reached)
                    where.oldest = max(where.oldest or 0.0, min(max(age, 0.0), _LONGEST))
        return Survey(self._now, self.reached, types)

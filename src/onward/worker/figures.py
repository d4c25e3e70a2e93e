"""What a worker counts of its attempts, and what all workers together make of it."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from onward.lifecycle.settle import ended_as
from onward.lifecycle.store import Store
from onward.model import WorkerId
from onward.state.command import Command
from onward.state.contract import Settlement, TakenJob
from onward.state.figures import Figure, FigureStatements
from onward.state.histogram import Histogram, add_up, histogram_of
from onward.worker.connections import Reserved

_WRITE_EVERY = 2.0
"""Seconds: so much a worker that is killed has not told. More often would cost those who wait for their outcomes."""
_FIRST_LOOK = (3.0, 8.0)
"""Between how many seconds the chore first looks: whoever has just begun has better things to do."""
_PAUSE_PER_SECOND = 9.0
"""How long to leave the database alone where there is more to count: a tenth of one connection's time is spent."""


class Tally:
    """What came of attempts at jobs of a type in a minute."""

    __slots__ = (
        "attempts",
        "completed",
        "failed",
        "minute",
        "ran",
        "retried",
        "runs",
        "type_name",
        "waited",
        "waits",
        "written",
    )

    def __init__(self, minute: int, type_name: str) -> None:
        self.minute, self.type_name = minute, type_name
        self.completed = self.failed = self.retried = self.attempts = 0
        self.waited: list[float] = []
        self.ran: list[float] = []
        """Seconds, not yet among `waits` and `runs`."""
        self.waits: Histogram = {}
        self.runs: Histogram = {}
        self.written = 0
        """How many attempts the database knows of."""

    def figure(self) -> Figure:
        """As it is now."""
        add_up(self.waits, histogram_of(self.waited))
        add_up(self.runs, histogram_of(self.ran))
        self.waited, self.ran = [], []
        return Figure(
            minute=self.minute,
            type_name=self.type_name,
            completed=self.completed,
            failed=self.failed,
            retried=self.retried,
            waits=self.waits.copy(),
            runs=self.runs.copy(),
        )


class Taken(NamedTuple):
    """What is to be written, and how much it tells of."""

    command: Command[float]
    told: Sequence[tuple[Tally, int]]


class Figures:
    """The figures of one worker. It says what its rows are to be, not what to add: so nothing is counted twice, however
    often a write whose outcome is unknown is repeated.

    They are counted after the commit of what they tell of, and written with a later group of outcomes, or alone if
    none comes: never in a handler's transaction.
    """

    def __init__(self, statements: FigureStatements, worker: WorkerId) -> None:
        self._statements, self._worker = statements, worker
        self._writer, self._writers = worker, 1
        self._tallies: dict[str, Tally] = {}
        """Of this minute."""
        self._left: list[Tally] = []
        """Of minutes before it, not yet written."""
        self._minute = 0
        self._ends = 0.0
        """When the minute is over (monotonic)."""
        self._ahead: float | None = None
        """Seconds that the database's time is ahead of the monotonic clock."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.is_due = False
        """Whether there is something to write, and it is time to."""
        self.due: Callable[[], None] = lambda: None
        """Called when it is."""

    # -- counting

    def count(self, job: TakenJob, settlement: Settlement, waited: float | None = None, ran: float = 0.0) -> None:
        """An attempt has ended, and its outcome is stored; `waited` is None where nobody has run it to its end."""
        if time.monotonic() >= self._ends:
            self._begin_minute(job, (waited or 0.0) + ran)
        tally = self._tallies.get(job.type_name)
        if tally is None:
            tally = self._tallies[job.type_name] = Tally(self._minute, job.type_name)
        if settlement.kind in ("complete", "continue"):
            tally.completed += 1
        elif settlement.kind == "fail":
            tally.failed += 1
        elif (outcome := ended_as(settlement)) == "retrying":
            tally.retried += 1
        elif outcome == "given_back":
            return
        tally.attempts += 1
        if waited is not None:
            tally.waited.append(waited)
            tally.ran.append(ran)
        if self._timer is None:
            self._ring_later()

    def _begin_minute(self, job: TakenJob, since: float) -> None:
        now = time.monotonic()
        if self._ahead is None:
            # Until the database says what time it is: it was just as late when the job had waited, and run.
            self._ahead = job.scheduled_at.timestamp() + since - now if job.held_until else time.time() - now
        self._turn(now)

    def _turn(self, now: float) -> None:
        """Go by the database's clock, as far as it is known."""
        assert self._ahead is not None
        minute = int((now + self._ahead) // 60)
        if minute < self._minute - 1:
            # It was set back: rows of that minute may be there, and say something else.
            self._writers += 1
            self._writer = f"{self._worker}~{self._writers}"
        elif minute <= self._minute:
            minute = self._minute
        if minute != self._minute:
            self._left += [tally for tally in self._tallies.values() if tally.attempts > tally.written]
            self._tallies, self._minute = {}, minute
        self._ends = (minute + 1) * 60 - self._ahead

    # -- writing

    def _ring_later(self) -> None:
        if not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(_WRITE_EVERY, self._ring)

    def _ring(self) -> None:
        self.is_due = True
        self.due()

    def take(self) -> Taken | None:
        """What is to be written now; None: nothing has changed."""
        self.is_due = False
        changed = [tally for tally in (*self._left, *self._tallies.values()) if tally.attempts > tally.written]
        if not changed:
            self.rest()
            return None
        figures = [tally.figure() for tally in changed]
        told = [(tally, tally.attempts) for tally in changed]
        return Taken(self._statements.record(self._writer, figures), told)

    def wrote(self, taken: Taken, now: float) -> None:
        """It is stored; what the database says the time is."""
        for tally, attempts in taken.told:
            tally.written = attempts
        self._left = [tally for tally in self._left if tally.attempts > tally.written]
        monotonic = time.monotonic()
        self._ahead = now - monotonic
        self._turn(monotonic)
        self.rest()

    def rest(self) -> None:
        """Wait for more to tell; or for another try."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if any(tally.attempts > tally.written for tally in (*self._left, *self._tallies.values())):
            self._ring_later()

    def close(self) -> None:
        """Nobody will write any more: whatever is counted from now on sets no timer."""
        self._is_closed = True
        self.rest()


class TendFigures:
    """The chore of counting what was started, and of keeping the table small."""

    name = "tend the figures"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._begins_at: float | None = None

    async def look(self, reserved: Reserved) -> float:
        if self._begins_at is None:
            self._begins_at = time.monotonic() + random.uniform(*_FIRST_LOOK)
        if (left := self._begins_at - time.monotonic()) > 0:
            return left  # asked again by the next worker of the app, if this one ends
        began = time.monotonic()
        # Of the pool: to hold one more for a look now and then would be too much.
        wait = await reserved.borrow(self._store.state.figures.tend())
        return wait * random.uniform(1.0, 1.1) or (time.monotonic() - began) * _PAUSE_PER_SECOND

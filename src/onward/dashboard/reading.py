"""What pages show, read once for all who look: however many tabs are open, the database is asked at a bounded rate."""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from onward.client.app import Onward
from onward.client.words import sentence
from onward.dashboard.page import Ask, Data, Page
from onward.dashboard.refusal import Away, Refusal
from onward.errands import Errands
from onward.errors import ConfigurationError, DatabaseError, OnwardError
from onward.state.driver import Fault

T = TypeVar("T")
_MOST_KEPT = 500
_KEPT = 300.0
"""Seconds after which a reading is dropped that nobody has asked for again."""
_AT_A_TIME = 4
"""Readings, so that those who look leave connections for those who work."""
_MORE = 1.0
"""Seconds that a question has more than a page."""
_PULSE = 1.0
"""Seconds that the database has, when a page was not answered, to show that it answers at all."""
_PER_SECOND = 12
"""Statements that open pages may cost together, as pages estimate their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a page shows, or why it cannot, and when that was found out."""

    at: datetime
    data: Data
    refusal: Refusal | None = None
    before: "Reading | None" = None
    """Where the database is away: the last one that was none."""


class _Slot:
    __slots__ = ("asked", "good", "last", "lock", "taken")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.last: Reading | None = None
        self.taken = 0.0
        self.good: Reading | None = None
        """The last one that had something to show."""
        self.asked = 0.0


class Readings:
    """One reading of each page at a time; who asks soon after gets the same."""

    def __init__(self, *, timeout: float) -> None:
        self._timeout = timeout
        self._slots: OrderedDict[Hashable, _Slot] = OrderedDict()
        """Who was asked for last comes last."""
        self._turns = asyncio.Semaphore(_AT_A_TIME)
        self._watched: Counter[tuple[Hashable, int]] = Counter()
        self._errands = Errands()
        self._away_since: datetime | None = None
        self._swept_in: asyncio.AbstractEventLoop | None = None
        """The event loop that has been told to drop what nobody asks for."""

    def forget(self) -> None:
        """Something was done: what was read before is no longer true."""
        self._slots.clear()

    async def get(self, page: Page, ask: Ask, *, no_older_than: float = 1.0) -> Reading:
        """What a page shows, read now or at most so many seconds ago."""
        slot = self._slot(key_of(page, ask))
        # A lock, and no task: if whoever reads is gone, the next in line reads.
        async with slot.lock:
            if slot.last is None or time.monotonic() - slot.taken > no_older_than:
                slot.last = await self._read(page, ask)
                slot.taken = time.monotonic()
                if slot.last.refusal is None:
                    slot.good = slot.last
                elif isinstance(slot.last.refusal, Away):
                    slot.last = replace(slot.last, before=slot.good)
            return slot.last

    async def once(self, app: Onward, look: Callable[[], Awaitable[T]]) -> T:
        """What is read for one visitor only, such as what a question needs to know. It takes its turn too."""
        began = datetime.now(UTC)

        async def looked() -> T:
            async with self._turns:
                return await look()

        try:
            # Longer than a page: some questions count within a page's time, and say so themselves when it is over.
            found = await self._errands.within(self._timeout + _MORE, looked())
        except TimeoutError:
            raise await self._late(app, began) from None
        except DatabaseError as error:
            raise self._of(error, began) from error
        self._away_since = None
        return found

    @contextmanager
    def watched(self, page: Page, ask: Ask) -> Iterator[None]:
        """Somebody keeps looking at a page."""
        key = key_of(page, ask), page.cost
        self._watched[key] += 1
        try:
            yield
        finally:
            self._watched[key] -= 1
            if not self._watched[key]:
                del self._watched[key]

    def pause(self, page: Page) -> float:
        """How long to wait before a page is read again: longer, the more different pages are looked at."""
        return max(page.every, sum(cost for _, cost in self._watched) / _PER_SECOND)

    def _slot(self, key: Hashable) -> _Slot:
        slot = self._slots.setdefault(key, _Slot())
        slot.asked = time.monotonic()
        self._slots.move_to_end(key)
        while len(self._slots) > _MOST_KEPT:
            self._slots.popitem(last=False)
        loop = asyncio.get_running_loop()
        if self._swept_in is not loop:
            self._swept_in = loop
            loop.call_later(_KEPT, self._sweep)
        return slot

    def _sweep(self) -> None:
        """Drop what nobody has asked for: it would be shown, and take room, long after anybody looked."""
        for key, slot in list(self._slots.items()):
            left = slot.asked + _KEPT - time.monotonic()
            if left > 0:
                asyncio.get_running_loop().call_later(left, self._sweep)
                return
            del self._slots[key]
        self._swept_in = None

    async def _read(self, page: Page, ask: Ask) -> Reading:
        began = datetime.now(UTC)
        try:
            found = await self._errands.within(self._timeout, self._look(page, ask))
        except Refusal as refusal:
            why = refusal
        except TimeoutError:
            why = await self._late(ask.app, began)
        except OnwardError as error:
            why = self._of(error, began)
        else:
            self._away_since = None
            return found
        return Reading(at=datetime.now(UTC), data={}, refusal=why)

    async def _look(self, page: Page, ask: Ask) -> Reading:
        async with self._turns:
            at = datetime.now(UTC)
            return Reading(at=at, data=await page.look(ask))

    # -- no answer

    async def _late(self, app: Onward, began: datetime) -> Refusal:
        """Whether a page asked for too much, or nobody is answered at all."""
        return await self.away(app, began) or Refusal(
            503,
            f"The database did not answer within {self._timeout:g} s, and was told to stop looking. "
            "Ask for less: a type, a status, a shorter time. "
            "If every page says so, look at the database: onward doctor.",
        )

    async def away(self, app: Onward, began: datetime) -> Away | None:
        """Somebody waits since then for the database: that it answers nobody, or None if it does."""
        try:
            pulse = app.health(timeout=timedelta(seconds=_PULSE))
            database = (await self._errands.within(_PULSE * 1.2, pulse)).findings[0]
        except TimeoutError:
            return self._away("", began)
        if database.level != "ok":
            return self._away(f"{sentence(database.message)} {sentence(database.advice or '')}".strip(), began)
        self._away_since = None
        return None

    def _of(self, error: OnwardError, began: datetime) -> Refusal:
        if isinstance(error, DatabaseError) and error.fault == Fault.LOST:
            return self._away(sentence(f"{error}"), began)
        return refusal_of(error)

    def _away(self, words: str, noticed: datetime) -> Away:
        if self._away_since is None:
            self._away_since = noticed
        return Away(f"The database does not answer. {words}".strip(), since=self._away_since)


def key_of(page: Page, ask: Ask) -> Hashable:
    """What two who ask the same have in common."""
    return page.path, tuple(sorted(ask.path.items())), tuple(sorted(ask.query.multi_items()))


def refusal_of(error: OnwardError) -> Refusal:
    """What Onward says, as a page says it."""
    status = 503 if isinstance(error, DatabaseError) else 400 if isinstance(error, ConfigurationError) else 409
    return Refusal(status, f"{error}")

"""What pages show, read once for all who look: however many tabs are open, the database is asked at a bounded rate."""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from onward.dashboard.page import Ask, Data, Page
from onward.dashboard.refusal import Refusal
from onward.errors import ConfigurationError, DatabaseError, OnwardError

T = TypeVar("T")
_MOST_KEPT = 500
_AT_A_TIME = 4
"""Readings, so that those who look leave connections for those who work."""
_MORE = 1.0
"""Seconds that a question has more than a page."""
_PER_SECOND = 12
"""Statements that open pages may cost together, as pages estimate their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a page shows, or why it cannot, and when that was found out."""

    at: datetime
    data: Data
    refusal: Refusal | None = None


class _Slot:
    __slots__ = ("last", "lock", "taken")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.last: Reading | None = None
        self.taken = 0.0


class Readings:
    """One reading of each page at a time; who asks soon after gets the same."""

    def __init__(self, *, timeout: float) -> None:
        self._timeout = timeout
        self._slots: OrderedDict[Hashable, _Slot] = OrderedDict()
        self._turns = asyncio.Semaphore(_AT_A_TIME)
        self._watched: Counter[tuple[Hashable, int]] = Counter()

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
            return slot.last

    async def once(self, look: Callable[[], Awaitable[T]]) -> T:
        """What is read for one visitor only, such as what a question needs to know. It takes its turn too."""
        try:
            # Longer than a page: some questions count within a page's time, and say so themselves when it is over.
            async with asyncio.timeout(self._timeout + _MORE), self._turns:
                return await look()
        except TimeoutError:
            raise self._late() from None

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
        self._slots.move_to_end(key)
        while len(self._slots) > _MOST_KEPT:
            self._slots.popitem(last=False)
        return slot

    async def _read(self, page: Page, ask: Ask) -> Reading:
        try:
            async with asyncio.timeout(self._timeout):
                async with self._turns:
                    at = datetime.now(UTC)
                    return Reading(at=at, data=await page.look(ask))
        except Refusal as refusal:
            why = refusal
        except TimeoutError:
            why = self._late()
        except OnwardError as error:
            why = refusal_of(error)
        return Reading(at=datetime.now(UTC), data={}, refusal=why)

    def _late(self) -> Refusal:
        return Refusal(
            503,
            f"The database did not answer within {self._timeout:g} s, and was told to stop looking. "
            "Ask for less: a type, a status, a shorter time. "
            "If every page says so, look at the database: onward doctor.",
        )


def key_of(page: Page, ask: Ask) -> Hashable:
    """What two who ask the same have in common."""
    return page.path, tuple(sorted(ask.path.items())), tuple(sorted(ask.query.multi_items()))


def refusal_of(error: OnwardError) -> Refusal:
    """What Onward says, as a page says it."""
    status = 503 if isinstance(error, DatabaseError) else 400 if isinstance(error, ConfigurationError) else 409
    return Refusal(status, f"{error}")

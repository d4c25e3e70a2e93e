"""Lends the connections of a pool of our own, and keeps one at hand for the next who asks.

asyncpg's pool starts a task for each connection that comes back, and has the server forget what was set on it: as much
again as all else that a lone start costs us. A connection on which only our own statements ran needs neither.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Generic, Protocol, TypeVar

_PLAIN = re.compile(r"\s*(?:select|insert|update|delete|with|values)\b", re.IGNORECASE)
_CALL = re.compile(r"(?<!\binto )(?<![\w.\"])[a-z_][\w.]*\s*\(|\"\s*\(", re.IGNORECASE)
_HARMLESS = re.compile(
    r"(?:abs|all|and|any|as|by|cast|ceil|char_length|coalesce|conflict|count|current_timestamp|exists|extract|filter|floor|from|"
    r"gen_random_uuid|greatest|in|json_build_object|jsonb_build_object|least|length|lower|max|min|not|now|nullif|"
    r"numeric|on|or|over|round|row|select|sum|then|to_json|to_jsonb|unnest|upper|using|values|varchar|when|where)\s*\(",
    re.IGNORECASE,
)


@lru_cache(maxsize=2048)
def may_leave_traces(sql: str) -> bool:
    """Whether a statement may outlast its transaction: by SET, LISTEN, a lock, or a function that does such things.

    >>> may_leave_traces("UPDATE account SET balance = coalesce(balance, 0) - :amount WHERE id = :id")
    False
    >>> may_leave_traces("SELECT set_tenant(:id)")
    True
    """
    return not _PLAIN.match(sql) or any(not _HARMLESS.fullmatch(call) for call in _CALL.findall(sql))


class Lendable(Protocol):
    """A connection, and what has to be known of it while it is lent to one after another."""

    is_touched: bool
    """Whether statements of the application's may have left settings or locks on it since it was last reset."""
    is_shown: bool
    """Whether the application has seen the connection itself, and may still have it."""

    @property
    def is_sound(self) -> bool:
        """Whether it is open, in no transaction, and leads to a server that can write."""
        ...


C = TypeVar("C", bound=Lendable)


class Lender(Generic[C]):
    """Lends at most `size` connections at a time.

    Invariant: those lent and those at hand are together no more than that, so that nobody ever waits for the pool.
    """

    def __init__(
        self, size: int, *, acquire: Callable[[], Awaitable[C]], release: Callable[[C], Awaitable[None]]
    ) -> None:
        self._acquire, self._release = acquire, release
        self._turns = asyncio.Semaphore(size)
        self._waiting = 0
        self._at_hand: list[C] = []

    async def lend(self) -> C:
        """A connection, waiting for one if all are lent."""
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        try:
            while self._at_hand:
                connection = self._at_hand.pop()
                if connection.is_sound:
                    return connection
                await self._release(connection)
            return await self._acquire()
        except BaseException:
            self._turns.release()
            raise

    async def take_back(self, connection: C, *, keep: bool) -> None:
        """Somebody who waits gets it at once, and has to reset it first; at rest one is kept at hand, if it may be."""
        try:
            wanted = self._waiting > 0 or not (self._at_hand or connection.is_touched)
            if keep and wanted and connection.is_sound and not connection.is_shown:
                self._at_hand.append(connection)
            else:
                await self._release(connection)
        finally:
            self._turns.release()

    async def let_go(self) -> None:
        """Keep none at hand."""
        while self._at_hand:
            await self._release(self._at_hand.pop())

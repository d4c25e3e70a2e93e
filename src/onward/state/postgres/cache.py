"""Lends the connections of a pool of our own, and keeps some at hand for the next who asks.

asyncpg's pool starts a task for each connection that comes back, and has the server forget what was set on it: as much
again as all else that a lone start costs us; psycopg's is not much cheaper. So a connection is handed on as it is.
Whoever gets one on which statements of the application's ran resets it first, in the same message as his BEGIN; one
that nobody asks for within a moment is reset where it is, lest it keep a lock.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from onward.errands import Errands, to_the_end
from onward.state.postgres.session import Session

logger = logging.getLogger("onward")
_AT_REST = 0.1
"""Seconds that a connection is at hand before it is reset, or goes back to the pool."""


class Lendable(Protocol):
    """A connection, and what has to be known of it while it is lent to one after another."""

    is_to_be_reset: bool
    """Whether the server is to forget, before the first statement, what the last borrower left behind."""

    @property
    def session(self) -> Session:
        """Knows whether statements of the application's may have left settings or locks on it."""
        ...

    @property
    def escaped(self) -> bool:
        """Whether the application has seen the connection itself, and may still have it."""
        ...

    @property
    def is_sound(self) -> bool:
        """Whether it is open, in no transaction, and was not refused to write."""
        ...

    @property
    def is_demoted(self) -> bool:
        """Whether the server takes no writes any more: there may be a better one by now."""
        ...


C = TypeVar("C", bound=Lendable)


class ConnectionCache(Generic[C]):
    """Lends at most `size` connections at a time.

    Invariant: those lent and those at hand are together no more than that, so that nobody waits for the pool for longer
    than it takes to tidy up a connection that was at rest.
    """

    def __init__(
        self,
        size: int,
        *,
        acquire: Callable[[], Awaitable[C]],
        release: Callable[[C], Coroutine[Any, Any, None]],
        reset: Callable[[C], Awaitable[None]],
        errands: Errands,
    ) -> None:
        """`reset` has the server forget what the last borrower left behind; it may be cancelled."""
        self.acquire, self._release, self._reset = acquire, release, reset
        self.turns = asyncio.Semaphore(size)
        self.at_hand: deque[tuple[C, float]] = deque()
        """With the time since which each has been."""
        self.clock = asyncio.get_running_loop().time
        self.untidy = asyncio.Event()
        self.is_closed = False
        errands.start(self._tidy_up())

    async def part_with(self, connection: C) -> None:
        """Give it to the pool."""
        await to_the_end(self._release(connection))

    async def close(self) -> None:
        """Keep none at hand any more, nor those that are lent: the pool waits for them before it closes."""
        self.is_closed = True
        await self.let_go()

    async def let_go(self) -> None:
        """Keep none at hand."""
        while self.at_hand:
            await self.part_with(self.at_hand.pop()[0])

    async def _tidy_up(self) -> None:
        """Until cancelled: those for which nobody has asked go back to the pool, but for one, which is reset."""
        while True:
            await self.untidy.wait()
            if not self.at_hand or not (len(self.at_hand) > 1 or self.at_hand[0][0].session.needs_reset):
                self.untidy.clear()
            elif (left := self.at_hand[0][1] + _AT_REST - self.clock()) > 0:
                await asyncio.sleep(left)
            else:
                async with self.turns:  # as a borrower: while it is reset, nobody is left waiting for the pool
                    await self._tidy()

    async def _tidy(self) -> None:
        connection, _ = self.at_hand.popleft() if self.at_hand else (None, 0.0)
        try:
            if connection is not None and not self.at_hand:
                await self._reset(connection)
                self.at_hand.append((connection, self.clock()))
                connection = None
        except Exception as error:  # noqa: BLE001 - it is lost, as the pool will see
            logger.debug("a connection that was at rest cannot be reset: %s", error)
        finally:
            if connection is not None:
                await self.part_with(connection)


class Lent(msgspec.Struct, Generic[C]):
    """A connection of our own pool, within a block."""

    cache: ConnectionCache[C]
    replace_all: Callable[[], Awaitable[None]]
    connection: C | None = None
    """Within the block."""

    async def __aenter__(self) -> C:
        cache = self.cache
        await cache.turns.acquire()
        try:
            while cache.at_hand:
                connection, _ = cache.at_hand.pop()
                if connection.is_sound:
                    break
                await cache.part_with(connection)
            else:
                connection = await cache.acquire()
        except BaseException:
            cache.turns.release()
            raise
        connection.is_to_be_reset = connection.session.needs_reset
        self.connection = connection
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cache, connection, is_demoted = self.cache, self.connection, False
        assert connection is not None
        try:
            if error is None and not (cache.is_closed or connection.escaped) and connection.is_sound:
                cache.at_hand.append((connection, cache.clock()))  # for the next who asks, as it is
                if connection.session.needs_reset or len(cache.at_hand) > 1:
                    cache.untidy.set()
            else:
                is_demoted = connection.is_demoted
                await cache.part_with(connection)
        finally:
            cache.turns.release()
            if is_demoted:
                await self.replace_all()

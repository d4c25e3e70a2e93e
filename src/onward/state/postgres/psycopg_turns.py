"""Lends the connections of a pool of our own to threads, and hands them on from one to the next.

psycopg's pool has a thread that waits pass through two locks and a condition, at each of which Python may change over
to another thread: a third of what a job of a `def` handler cost us. So they wait here, and whoever gives back a
connection on which nothing is amiss gives it to the one that has waited longest, as it is. When nobody waits it goes
back to the pool.
"""

import threading
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType

from onward.state.postgres.psycopg_connection import PsycopgConnection


class _Waiting:
    """A thread's place in the line."""

    __slots__ = ("connection", "turn")

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.turn.acquire()
        self.connection: PsycopgConnection | None = None
        """What it was handed; None: it may ask the pool."""


class Turns:
    """Lends at most `size` connections at a time, so that nobody waits for the pool. Its methods never suspend.

    `look`: raises, after so many seconds of waiting, if there is no server any more that could end it.
    """

    def __init__(
        self,
        size: int,
        *,
        acquire: Callable[[], Awaitable[PsycopgConnection]],
        release: Callable[[PsycopgConnection], Awaitable[None]],
        look: Callable[[], Awaitable[None]],
        look_after: float,
    ) -> None:
        self._acquire, self._release, self._look, self._look_after = acquire, release, look, look_after
        self._lock = threading.Lock()
        self._free = size
        self._line: deque[_Waiting] = deque()
        self._is_closed = False

    async def lend(self) -> PsycopgConnection:
        """A connection, waiting for one if all are lent."""
        with self._lock:
            waiting = None if self._free else _Waiting()
            if waiting is None:
                self._free -= 1
            else:
                self._line.append(waiting)
        connection = None if waiting is None else await self._wait(waiting)
        if connection is None:
            try:
                connection = await self._acquire()
            except BaseException:
                self._pass_on(None)
                raise
        connection.was_awaited = waiting is not None
        return connection

    async def _wait(self, waiting: _Waiting) -> PsycopgConnection | None:
        try:
            while not waiting.turn.acquire(timeout=self._look_after):
                await self._look()
        except BaseException:  # also what interrupts the main thread
            with self._lock:
                is_in_line = waiting in self._line
                if is_in_line:
                    self._line.remove(waiting)
            if not is_in_line:
                await self._give_on(waiting.connection)
            raise
        return waiting.connection

    async def take_back(self, connection: PsycopgConnection, *, keep: bool) -> None:
        """Hand it on as it is, unless it may not be lent again."""
        is_sound = keep and not self._is_closed and connection.is_sound and not connection.escaped
        if is_sound and self._line:
            await self._give_on(connection)
            return
        try:
            await self._release(connection)
        finally:
            self._pass_on(None)

    async def _give_on(self, connection: PsycopgConnection | None) -> None:
        if not self._pass_on(connection) and connection is not None:
            await self._release(connection)  # whoever waited has gone

    def _pass_on(self, connection: PsycopgConnection | None) -> bool:
        """Whether somebody waited."""
        with self._lock:
            if not self._line:
                self._free += 1
                return False
            waiting = self._line.popleft()
            waiting.connection = connection  # before it can see that it is in line no longer
        waiting.turn.release()
        return True

    def close(self) -> None:
        """Have all who wait ask the pool, which tells them that it is closed."""
        with self._lock:
            self._is_closed = True
            line, self._line = self._line, deque()
        for waiting in line:
            waiting.turn.release()


class Handed:
    """A connection of our own pool, within a block."""

    __slots__ = ("_connection", "_turns")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    async def __aenter__(self) -> PsycopgConnection:
        self._connection = connection = await self._turns.lend()
        connection.is_to_be_reset = connection.session.needs_reset
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        keep = error is None and not self._connection.is_demoted
        await self._turns.take_back(self._connection, keep=keep)

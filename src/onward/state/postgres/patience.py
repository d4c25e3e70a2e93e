"""How long a statement of ours may take on a connection of a pool.

There it may have to wait for the lock of somebody else's transaction, for as long as that takes. So the connection is
not cut off when time is up, but doubted: the server is asked, by another one, whether it is at work on the statement.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from weakref import WeakKeyDictionary

from onward.errands import Errands
from onward.state.driver import Driver
from onward.state.postgres.settings import IS_BUSY, IS_THERE
from onward.transport import CONNECT, STATEMENT, Waiting

logger = logging.getLogger("onward")


class PoolPatience:
    """`with patience:` around each wait: stands for a connection that a library of the application's has."""

    __slots__ = ("__weakref__", "_give_up", "waits_since")

    def __init__(self, give_up: Callable[[], object]) -> None:
        self._give_up, self.waits_since = give_up, 0.0

    def cut_off(self) -> None:
        self._give_up()

    def __enter__(self) -> None:
        self.waits_since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.waits_since = 0.0


class PoolWatch:
    """Looks now and then, while a driver's pool has connections, for how long they have waited for an answer.

    A timer for each statement would cost more than all else we do for it.
    """

    def __init__(self, driver: Driver, errands: Errands) -> None:
        self._driver, self._errands = driver, errands
        self._processes: WeakKeyDictionary[Waiting, int | None] = WeakKeyDictionary()
        self._doubted: set[Waiting] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: Waiting, *, process: int | None) -> None:
        """Look after it from now on. By which process of the server's it is served, a pooler does not tell."""
        self._processes[connection] = process
        if self._timer is None:
            self._look_in(STATEMENT)

    def patience(self, *, process: int | None, give_up: Callable[[], object]) -> PoolPatience:
        """For one on which nobody can note since when it waits."""
        patience = PoolPatience(give_up)
        self.add(patience, process=process)
        return patience

    def end(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        now, soonest, connections = time.monotonic(), STATEMENT, list(self._processes.items())
        for connection, process in connections:
            since = connection.waits_since
            if not since or connection in self._doubted:
                continue
            left = since + STATEMENT - now
            if left > 0:
                soonest = min(soonest, left)
            else:
                self._doubted.add(connection)
                self._errands.start(self._doubt(connection, process, since))
        if connections:
            self._look_in(soonest)

    async def _doubt(self, connection: Waiting, process: int | None, since: float) -> None:
        try:
            while connection.waits_since == since and await is_busy(self._driver, process):  # noqa: ASYNC110 - nothing tells when
                await asyncio.sleep(STATEMENT)
            if connection.waits_since == since:
                connection.cut_off()
        finally:
            self._doubted.discard(connection)


async def is_busy(driver: Driver, process: int | None) -> bool:
    """Whether the server answers at all, and says that this process of its is at work."""
    try:
        async with asyncio.timeout(CONNECT) if driver.is_async else nullcontext(), driver.reserved() as connection:
            question = (IS_THERE, {}) if process is None else (IS_BUSY, {"process": process})
            return bool(await connection.fetch(*question))
    except Exception:
        logger.debug("the server does not answer", exc_info=True)
        return False

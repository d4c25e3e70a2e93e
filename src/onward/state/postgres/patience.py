"""How long a statement of ours may take on a connection of a pool.

There it may have to wait for the lock of somebody else's transaction, for as long as that takes. So the connection is
not cut off when time is up, but doubted: the server is asked, by another one, whether it is at work on the statement.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from weakref import WeakSet

from onward.errands import Errands
from onward.state.driver import Driver
from onward.state.postgres.settings import IS_BUSY, IS_THERE
from onward.transport import CONNECT, STATEMENT

logger = logging.getLogger("onward")
_LOOKS = 4
"""How often is looked in the time that a statement has: a timer for each would cost more than all else we do for it."""


class PoolPatience:
    """`with patience:` around each wait for an answer on one connection of a pool."""

    __slots__ = ("__weakref__", "_watch", "give_up", "is_doubted", "process", "since")

    def __init__(self, watch: "PoolWatch", process: int | None, give_up: Callable[[], object]) -> None:
        self._watch = watch
        self.process, self.give_up = process, give_up
        self.since = 0.0
        """When the wait under way began; 0.0: there is none."""
        self.is_doubted = False

    def __enter__(self) -> None:
        self.since = time.monotonic()
        if self._watch.timer is None:
            self._watch.look_later()

    def __exit__(self, *_: object) -> None:
        self.since = 0.0


class PoolWatch:
    """Looks after those connections of a driver's pool that wait for an answer."""

    def __init__(self, driver: Driver, errands: Errands) -> None:
        self._driver, self._errands = driver, errands
        self._all: WeakSet[PoolPatience] = WeakSet()
        self.timer: asyncio.TimerHandle | None = None

    def patience(self, *, process: int | None, give_up: Callable[[], object]) -> PoolPatience:
        """For the connection that is served by this process of the server's; None: behind a pooler, which does not
        tell.
        """
        patience = PoolPatience(self, process, give_up)
        self._all.add(patience)
        return patience

    def look_later(self) -> None:
        self.timer = asyncio.get_running_loop().call_later(STATEMENT / _LOOKS, self._look)

    def end(self) -> None:
        """Look no more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _look(self) -> None:
        self.timer = None
        overdue = time.monotonic() - STATEMENT
        waiting = [patience for patience in self._all if patience.since]
        for patience in waiting:
            if patience.since < overdue and not patience.is_doubted:
                patience.is_doubted = True
                self._errands.start(self._doubt(patience, patience.since))
        if waiting:
            self.look_later()

    async def _doubt(self, patience: PoolPatience, since: float) -> None:
        try:
            while patience.since == since and await self._is_busy(patience):  # noqa: ASYNC110 - nothing tells when
                await asyncio.sleep(STATEMENT)
            if patience.since == since:
                patience.give_up()
        finally:
            patience.is_doubted = False

    async def _is_busy(self, patience: PoolPatience) -> bool:
        return await is_busy(self._driver, patience.process)


async def is_busy(driver: Driver, process: int | None) -> bool:
    """Whether the server answers at all, and says that this process of its is at work."""
    try:
        async with asyncio.timeout(CONNECT) if driver.is_async else nullcontext(), driver.reserved() as connection:
            question = (IS_THERE, {}) if process is None else (IS_BUSY, {"process": process})
            return bool(await connection.fetch(*question))
    except Exception:
        logger.debug("the server does not answer", exc_info=True)
        return False

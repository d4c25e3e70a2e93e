"""How long a statement of ours may take on a connection of a pool.

There it may have to wait for the lock of somebody else's transaction, for as long as that takes. So the connection is
not cut off when time is up, but doubted: the server is asked, by another one, whether it is at work on the statement.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import nullcontext

from onward.state.driver import Driver
from onward.state.errands import Errands
from onward.state.postgres.settings import IS_BUSY, IS_THERE
from onward.transport import CONNECT, STATEMENT, Patience

logger = logging.getLogger("onward")


def patience_in_pool(
    driver: Driver, errands: Errands, *, process: int | None, give_up: Callable[[], object]
) -> Patience:
    """For the connection that is served by this process of the server's; None: behind a pooler, which does not tell."""
    patience = Patience(STATEMENT, lambda: errands.start(_doubt(driver, patience, process, give_up)))
    return patience


async def _doubt(driver: Driver, patience: Patience, process: int | None, give_up: Callable[[], object]) -> None:
    turn = patience.turn
    while await is_busy(driver, process):
        await asyncio.sleep(STATEMENT)
        if patience.turn != turn:
            return
    if patience.turn == turn:
        give_up()


async def is_busy(driver: Driver, process: int | None) -> bool:
    """Whether the server answers at all, and says that this process of its is at work."""
    try:
        async with asyncio.timeout(CONNECT) if driver.is_async else nullcontext(), driver.reserved() as connection:
            question = (IS_THERE, {}) if process is None else (IS_BUSY, {"process": process})
            return bool(await connection.fetch(*question))
    except Exception:
        logger.debug("the server does not answer", exc_info=True)
        return False

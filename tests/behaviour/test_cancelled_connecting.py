"""Whoever is cancelled while asyncpg connects leaves nothing behind, neither a connection nor a line in a log."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from onward.conformance.queue.session import until
from onward.notify.postgres_connections import asyncpg_hints
from onward.state.postgres.asyncpg import AsyncpgDriver
from onward.state.sqlalchemy import SqlAlchemyDriver
from proxy import proxied
from support import SOON

KINDS = ["of the pool", "reserved", "reserved beside a pool", "reserved beside an engine", "for hints"]
_MOST_TURNS = 40


@asynccontextmanager
async def connecting(kind: str, dsn: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """What makes a connection, each time it is called."""
    if kind == "for hints":
        yield lambda: entered(asyncpg_hints(dsn)())
        return
    async with AsyncExitStack() as stack:
        driver: Any
        if kind == "reserved beside an engine":
            engine = create_async_engine(dsn.replace("://", "+asyncpg://", 1))
            stack.push_async_callback(engine.dispose)
            driver = SqlAlchemyDriver(engine)
        elif kind == "reserved beside a pool":
            pool: Any = asyncpg.create_pool(dsn, min_size=1, max_size=2)
            driver = AsyncpgDriver(pool=await stack.enter_async_context(pool))
        else:
            driver = AsyncpgDriver(dsn)
        await driver.open()
        stack.push_async_callback(driver.close)
        if kind == "of the pool":
            await stack.enter_async_context(driver.connection())  # so that there is none at hand
        yield lambda: entered(driver.connection() if kind == "of the pool" else driver.reserved())


async def is_left_alone(dsn: str) -> bool:
    """Whether no session is left but our own."""
    raw = await asyncpg.connect(dsn)
    try:
        mine = "datname = current_database() AND backend_type = 'client backend'"
        return int(await raw.fetchval(f"SELECT count(*) FROM pg_stat_activity WHERE {mine}")) == 1
    finally:
        await raw.close()


async def entered(block: Any) -> None:
    async with block:
        pass


@pytest.fixture
async def heard() -> AsyncIterator[list[str]]:
    """What the event loop was told that would go into a log."""
    found = list[str]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, told: found.append(f"{told['message']}: {told.get('exception')!r}"))
    yield found
    loop.set_exception_handler(None)


@pytest.mark.parametrize("kind", KINDS)
async def test_to_be_cancelled_while_a_connection_is_made_is_nothing_to_log(
    kind: str, postgres_dsn: str, heard: list[str]
) -> None:
    loop, turns, is_done = asyncio.get_running_loop(), 0, False
    async with connecting(kind, postgres_dsn) as connect:
        while not is_done and turns < _MOST_TURNS:
            making = loop.create_task(connect())  # type: ignore[arg-type]
            for _ in range(turns):  # of the event loop: every state that connecting can be in
                await asyncio.sleep(0)
            turns, is_done = turns + 1, making.done()
            making.cancel()
            await asyncio.wait([making])
            del making
            gc.collect()

    assert turns > 5
    assert heard == []
    await until(partial(is_left_alone, postgres_dsn))


@pytest.mark.parametrize("kind", KINDS)
async def test_whoever_is_cancelled_does_not_wait_for_a_server_that_does_not_answer(
    kind: str, postgres_dsn: str, heard: list[str]
) -> None:
    async with proxied(postgres_dsn) as (proxy, dsn), connecting(kind, dsn) as connect:
        proxy.freeze()
        making = asyncio.get_running_loop().create_task(connect())  # type: ignore[arg-type]
        await asyncio.wait([making], timeout=0.2)
        making.cancel()
        done, _ = await asyncio.wait([making], timeout=1)
        proxy.thaw()
        await asyncio.wait([making], timeout=SOON.total_seconds())
        gc.collect()

    assert done
    assert heard == []

"""Sessions of SQLAlchemy's that are in use when their block ends, or after it: connections go back all the same."""

import asyncio
import gc
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.util import await_only

from onward import Attempt, Onward, job
from onward.errors import ChainFailed
from support import SOON


class Left:
    """Tasks that handlers have left behind."""

    tasks: ClassVar[list[asyncio.Task[None]]] = []


@job("work")
async def work(attempt: Attempt[int]) -> int:
    async with attempt.complete() as session:
        await session.execute(text("SELECT 1"))
        return attempt.input


@job("leaves", max_attempts=1)
async def leaves(attempt: Attempt[bool]) -> None:
    """A task that is in the midst of a savepoint when the block ends, with an error if that is asked."""
    async with attempt.complete() as session:
        Left.tasks.append(asyncio.get_running_loop().create_task(begin_savepoint(session)))
        await asyncio.sleep(0.05)
        if attempt.input:
            raise ValueError("in the midst of it")


@job("late", max_attempts=1)
async def late(attempt: Attempt[int]) -> None:
    async with attempt.prepare() as session:
        pass
    await session.execute(text("SELECT 1"))


async def begin_savepoint(session: Any) -> None:
    await session.begin_nested()
    await session.connection()


@pytest.fixture(params=["aiosqlite", "asyncpg", "psycopg"])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    address = f"sqlite+aiosqlite:///{tmp_path}/jobs.db"
    if request.param != "aiosqlite":
        address = request.getfixturevalue("postgres_dsn").replace("://", f"+{request.param}://", 1)
    engine = create_async_engine(address, pool_size=2, max_overflow=0)
    event.listen(engine.sync_engine, "savepoint", lambda *_: await_only(asyncio.sleep(0.3)))
    yield engine
    await asyncio.gather(*Left.tasks, return_exceptions=True)  # noqa: TID251 - what they raise is of no interest
    Left.tasks.clear()
    await engine.dispose()


@pytest.fixture
async def app(engine: AsyncEngine) -> AsyncIterator[Onward]:
    options: Any = {} if engine.dialect.name == "sqlite" else {"schema": f"t_{secrets.token_hex(6)}"}
    jobs = [work, leaves, late]
    app = Onward(async_sessionmaker(engine), jobs=jobs, observers=[], migrate=True, **options)
    async with app, app.worker():
        yield app


async def goes_on(app: Onward, engine: AsyncEngine) -> None:
    """No connection is missed, and nobody is in the way; whatever is collected as garbage later."""
    gc.disable()
    try:
        for _ in range(3):
            assert await (await app.start(work, 1)).wait(timeout=SOON) == 1
        pool: Any = engine.sync_engine.pool
        assert pool.checkedout() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("raises", [False, True])
async def test_a_session_that_a_task_is_using_when_its_block_ends_gives_its_connection_back(
    app: Onward, engine: AsyncEngine, raises: bool
) -> None:
    chain = await app.start(leaves, raises)

    with pytest.raises(ChainFailed, match="in the midst of it" if raises else "another task is in the midst"):
        await chain.wait(timeout=SOON)
    await goes_on(app, engine)


async def test_a_session_takes_no_connection_after_its_block(app: Onward, engine: AsyncEngine) -> None:
    with pytest.raises(ChainFailed, match="permanently closed"):
        await (await app.start(late, 1)).wait(timeout=SOON)
    await goes_on(app, engine)


async def test_nor_does_that_of_a_transaction(app: Onward, engine: AsyncEngine) -> None:
    async with app.transaction() as session:
        pass

    with pytest.raises(InvalidRequestError, match="permanently closed"):
        await session.execute(text("SELECT 1"))
    await goes_on(app, engine)

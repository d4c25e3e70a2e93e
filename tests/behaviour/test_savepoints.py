"""Savepoints of SQLAlchemy's that the application has begun and not ended, on sessions and connections."""

import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from onward import Attempt, Onward, job
from onward.errors import ChainFailed, TransactionUnsuitable
from onward.state.sqlalchemy.work import STYLES
from support import SOON

PLACES = ["aiosqlite", "asyncpg", "psycopg"]
HANDED_OUT = ["sessions", "connections"]


class Base(DeclarativeBase): ...


class Note(Base):
    __tablename__ = "savepoint_notes"
    note: Mapped[str] = mapped_column(primary_key=True)


@job("work")
async def work(attempt: Attempt[int]) -> int:
    return attempt.input


@job("nesting", max_attempts=1)
async def nesting(attempt: Attempt[bool]) -> bool:
    """In a savepoint that is never ended; with a statement in it that fails, if so asked."""
    async with attempt.complete() as tx:
        await tx.begin_nested()
        if attempt.input:
            with suppress(DBAPIError):
                await tx.execute(text("SELECT nonsense"))
        return attempt.input


async def fail(session: Any) -> None:
    """A flush fails, with which SQLAlchemy rolls back to the last savepoint."""
    await session.execute(text("INSERT INTO savepoint_notes VALUES ('here')"))
    session.add(Note(note="here"))
    with suppress(IntegrityError):
        await session.flush()


def address(place: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    assert place in STYLES
    if "sqlite" in place:
        return f"sqlite+{place}:///{tmp_path}/jobs.db"
    return str(request.getfixturevalue("postgres_dsn")).replace("://", f"+{place}://", 1)


@pytest.fixture(params=[f"{kind} {place}" for kind in HANDED_OUT for place in PLACES])
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    kind, place = request.param.split()
    engine = create_async_engine(address(place, request, tmp_path))
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.drop_all)
        await connection.run_sync(Base.metadata.create_all)
    target = engine if kind == "connections" else async_sessionmaker(engine)
    options: Any = {} if place == "aiosqlite" else {"schema": f"t_{secrets.token_hex(6)}"}
    async with Onward(target, jobs=[work, nesting], observers=[], migrate=True, **options) as app:
        yield app
    await engine.dispose()


@pytest.fixture(params=[f"{kind} {place}" for kind in HANDED_OUT for place in ("pysqlite", "psycopg")])
def sync_app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    kind, place = request.param.split()
    engine = create_engine(address(place, request, tmp_path))
    target = engine if kind == "connections" else sessionmaker(engine)
    options: Any = {} if place == "pysqlite" else {"schema": f"t_{secrets.token_hex(6)}"}
    with Onward(target, jobs=[work], observers=[], migrate=True, **options).sync as app:
        yield app
    engine.dispose()


@pytest.mark.parametrize("is_used", [False, True])
async def test_a_savepoint_that_is_never_ended_is_committed_as_sqlalchemy_does_it(app: Any, is_used: bool) -> None:
    async with app.transaction() as tx:
        before = await app.start(work, 1, tx=tx)
        await tx.begin_nested()
        inside = await app.start(work, 2, tx=tx) if is_used else before

    assert await app.find_chain(before.id)
    assert await app.find_chain(inside.id)


@pytest.mark.parametrize("is_used", [False, True])
def test_so_it_is_without_an_event_loop(sync_app: Any, is_used: bool) -> None:
    with sync_app.transaction() as tx:
        before = sync_app.start(work, 1, tx=tx)
        tx.begin_nested()
        inside = sync_app.start(work, 2, tx=tx) if is_used else before

    assert sync_app.find_chain(before.id)
    assert sync_app.find_chain(inside.id)


def test_a_session_without_an_event_loop_commits_what_is_started_in_it(sync_app: Any) -> None:
    with sync_app.transaction() as tx:
        tx.execute(text("SELECT 1"))
        chain = sync_app.start(work, 1, tx=tx)

    assert sync_app.find_chain(chain.id)


async def test_a_handler_that_leaves_a_savepoint_is_settled(app: Any) -> None:
    async with app.worker():
        chain = await app.start(nesting, False)

        assert await chain.wait(timeout=SOON) is False


async def test_a_handler_in_whose_savepoint_a_statement_failed_is_told_of_savepoints(app: Any) -> None:
    async with app.worker():
        chain = await app.start(nesting, True)
        if app.driver.dialect == "sqlite":  # which goes on after a statement that failed
            assert await chain.wait(timeout=SOON)
            return
        with pytest.raises(ChainFailed, match=r"an earlier statement in it had failed.* run it in a savepoint"):
            await chain.wait(timeout=SOON)


async def test_a_start_in_a_savepoint_in_which_a_statement_failed_says_what_to_do(app: Any) -> None:
    if app.driver.dialect == "sqlite":
        pytest.skip("goes on after a statement that failed")
    async with app.transaction() as tx:
        savepoint = await tx.begin_nested()
        with suppress(DBAPIError):
            await tx.execute(text("SELECT nonsense"))

        with pytest.raises(TransactionUnsuitable, match=r"start: an earlier statement .* back to a savepoint"):
            await app.start(work, 1, tx=tx)
        await savepoint.rollback()
        chain = await app.start(work, 2, tx=tx)

    assert await app.find_chain(chain.id)


@pytest.mark.parametrize("app", [f"sessions {place}" for place in PLACES], indirect=True)
async def test_a_start_in_a_session_whose_savepoint_failed_is_told_to_leave_that(app: Any) -> None:
    async with app.transaction() as session:
        savepoint = await session.begin_nested()
        await fail(session)

        with pytest.raises(TransactionUnsuitable, match="leave its begin_nested"):
            await app.start(work, 1, tx=session)
        await savepoint.rollback()
        chain = await app.start(work, 2, tx=session)

    assert await app.find_chain(chain.id)


@pytest.mark.parametrize("app", [f"sessions {place}" for place in PLACES], indirect=True)
async def test_a_session_whose_savepoint_failed_is_not_committed(app: Any) -> None:
    with pytest.raises(TransactionUnsuitable, match="leave its begin_nested"):
        async with app.transaction() as session:
            chain = await app.start(work, 1, tx=session)
            await session.begin_nested()
            await fail(session)

    assert await app.find_chain(chain.id) is None

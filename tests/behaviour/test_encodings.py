"""What texts and times become that are spelled out in SQL, whatever a client and its server talk in."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from onward import Attempt, Next, Onward, job
from onward.state.command import Command
from onward.state.postgres.asyncpg import AsyncpgDriver
from onward.state.sqlalchemy import SqlAlchemyDriver
from support import SOON


@job("second")
async def second(attempt: Attempt[str]) -> str:
    return attempt.input


@job("first", continues_to=[second])
async def first(attempt: Attempt[str]) -> Next[str]:
    async with attempt.complete():
        return attempt.continue_with(second, attempt.input)


@job("only")
async def only(attempt: Attempt[str]) -> str:
    async with attempt.complete():
        return attempt.input


@pytest.mark.parametrize(
    ("encoding", "text"), [("latin1", "it's é\\ü"), ("euc_jp", "日本 it's \\'"), ("utf8", "it's é\\ü $1 %s %(x)s")]
)
@pytest.mark.parametrize("client", ["asyncpg", "psycopg"])
async def test_they_are_stored_as_they_are(postgres_dsn: str, client: str, encoding: str, text: str) -> None:
    address = postgres_dsn.replace("postgresql:", f"postgresql+{client}:") + f"?client_encoding={quote(encoding)}"
    app = Onward(address, jobs=[first, second, only], schema=f"t_{secrets.token_hex(6)}", migrate=True)
    async with app, app.worker(poll=timedelta(minutes=10)):
        for job_type in (only, first):
            assert await (await app.start(job_type, text)).wait(timeout=SOON) == text


@job("later", continues_to=[second])
async def later(attempt: Attempt[str]) -> Next[str]:
    odd = timezone(timedelta(seconds=-1, microseconds=5))
    async with attempt.complete():
        return attempt.continue_with(second, attempt.input, at=datetime(2000, 1, 1, tzinfo=odd))


@pytest.mark.parametrize("client", ["asyncpg", "psycopg"])
async def test_a_time_may_be_given_in_any_zone(postgres_dsn: str, client: str) -> None:
    address = postgres_dsn.replace("postgresql:", f"postgresql+{client}:")
    app = Onward(address, jobs=[later, second], schema=f"t_{secrets.token_hex(6)}", migrate=True)
    async with app, app.worker():
        chain = await app.start(later, "x")

        assert await chain.wait(timeout=SOON) == "x"


# -- injection

BREAKS_OUT = "ッ\\'); INSERT INTO said VALUES ($$forged$$); --"
"""asyncpg sends statements in UTF-8 whatever the encoding is, and some take the last byte of the first sign for half of
one, of which a backslash that follows is the other half.
"""


@asynccontextmanager
async def talking(library: str, dsn: str, encoding: str) -> AsyncIterator[Any]:
    """A connection of ours."""
    engine = create_async_engine(
        dsn.replace("postgresql:", "postgresql+asyncpg:"),
        connect_args={"server_settings": {"client_encoding": encoding}},
    )
    driver: Any = (
        AsyncpgDriver(f"{dsn}?client_encoding={encoding}") if library == "asyncpg" else SqlAlchemyDriver(engine)
    )
    await driver.open()
    async with driver.connection() as connection:
        yield connection
    await driver.close()
    await engine.dispose()


@pytest.mark.parametrize("library", ["asyncpg", "sqlalchemy"])
@pytest.mark.parametrize("encoding", ["sjis", "gbk", "euc_jp"])
@pytest.mark.parametrize("needs", ["count", "nothing"])
async def test_no_text_ends_where_only_the_server_sees_its_end(
    postgres_dsn: str, encoding: str, library: str, needs: Any
) -> None:
    said = Command("INSERT INTO said VALUES (:word::text)", {"word": BREAKS_OUT}, len, needs)
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute("DROP TABLE IF EXISTS said; CREATE TABLE said (word text)")
        async with talking(library, postgres_dsn, encoding) as connection:
            await connection.run(said, begin=True)
            await connection.run(said, commit=True)
        words = [word for (word,) in admin.execute("SELECT word FROM said").fetchall()]

    assert words == [BREAKS_OUT] * 2

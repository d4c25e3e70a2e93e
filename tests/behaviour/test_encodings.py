"""What texts and times become that are spelled out in SQL, whatever a client and its server talk in."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote

import asyncpg
import psycopg
import pytest
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import create_async_engine

from onward import Attempt, Backoff, ChainFailed, FailedJob, JobType, Next, Onward, job
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


@pytest.mark.parametrize("client", ["asyncpg", "psycopg"])
async def test_an_address_that_says_nothing_of_them_means_utf_8(
    postgres_dsn: str, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    address = postgres_dsn.replace("postgresql:", f"postgresql+{client}:")
    app = Onward(address, jobs=[only], schema=f"t_{secrets.token_hex(6)}", migrate=True)
    async with app, app.worker(guardian="process"):
        for text in ("日本", "it's é\\ü"):
            assert await (await app.start(only, text)).wait(timeout=SOON) == text


TWICE: Any = {"max_attempts": 2, "backoff": Backoff(initial=timedelta(milliseconds=10))}


@job("returns", **TWICE)
async def returns(attempt: Attempt[None]) -> str:
    return "日本…"


@job("settles", **TWICE)
async def settles(attempt: Attempt[None]) -> str:
    async with attempt.complete():
        return "日本…"


@job("raises", **TWICE)
async def raises(attempt: Attempt[None]) -> str:
    raise ValueError("日本…")


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg", "asyncpg pool", "sqlalchemy"])
@pytest.mark.parametrize("failing", [returns, settles, raises])
async def test_what_cannot_be_said_in_them_fails_like_any_other_outcome(
    postgres_dsn: str, kind: str, failing: JobType[None, str]
) -> None:
    client = "psycopg" if kind in ("psycopg", "sqlalchemy") else "asyncpg"
    address = postgres_dsn.replace("postgresql:", f"postgresql+{client}:") + "?client_encoding=latin1"
    async with AsyncExitStack() as stack:
        target: Any = address
        if kind == "asyncpg pool":
            settings = {"client_encoding": "latin1"}
            target = await stack.enter_async_context(asyncpg.create_pool(postgres_dsn, server_settings=settings))
        elif kind == "sqlalchemy":
            target = create_async_engine(address)
            stack.push_async_callback(target.dispose)
        app = Onward(target, jobs=[failing, only], schema=f"t_{secrets.token_hex(6)}", migrate=True)
        await stack.enter_async_context(app)
        await stack.enter_async_context(app.worker(poll=timedelta(seconds=1)))
        chain = await app.start(failing, None)

        with pytest.raises(ChainFailed):
            await chain.wait(timeout=SOON)

        failed = (await chain.get()).current
        assert isinstance(failed, FailedJob)
        assert (failed.reason, failed.failures) == ("attempts", 2)
        assert failing is not raises or failed.last_error == replace(
            failed.last_error, type="ValueError", message="\\u65e5\\u672c\\u2026"
        )
        assert await (await app.start(only, "é")).wait(timeout=SOON) == "é"


async def test_a_note_that_cannot_be_said_in_them_is_escaped_and_hides_no_others(postgres_dsn: str) -> None:
    go = asyncio.Event()

    @job("noted")
    async def noted(attempt: Attempt[int]) -> str:
        attempt.progress(0.5, "日本" if attempt.input else "plain")
        await go.wait()
        return "é"

    address = postgres_dsn.replace("postgresql:", "postgresql+asyncpg:") + "?client_encoding=latin1"
    app = Onward(address, jobs=[noted], schema=f"t_{secrets.token_hex(6)}", migrate=True)
    async with app, app.worker(concurrency=2):
        chains = await app.start_many([noted.with_input(number) for number in range(2)])
        seen: list[Any] = [None]
        async with asyncio.timeout(SOON.total_seconds()):
            while None in seen:
                seen = [(await chain.get()).current.progress for chain in chains]
        go.set()

        assert [await chain.wait(timeout=SOON) for chain in chains] == ["é", "é"]
        after = [(await chain.get()).current.progress for chain in chains]
        assert [progress.note for progress in seen] == ["plain", "\\u65e5\\u672c"]
        assert [progress and progress.note for progress in after] == ["plain", "\\u65e5\\u672c"]


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

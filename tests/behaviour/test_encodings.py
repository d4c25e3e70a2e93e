"""What texts and times become that are spelled out in SQL, whatever a client and its server talk in."""

import asyncio
import secrets
from contextlib import AsyncExitStack
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from onward import Attempt, Backoff, ChainFailed, FailedJob, JobType, Next, Onward, job
from onward.errors import ConfigurationError
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
async def test_they_are_stored_as_they_are(postgres_dsn: str, encoding: str, text: str) -> None:
    address = postgres_dsn.replace("postgresql:", "postgresql+psycopg:") + f"?client_encoding={quote(encoding)}"
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


@pytest.mark.parametrize("kind", ["psycopg", "sqlalchemy"])
@pytest.mark.parametrize("failing", [returns, settles, raises])
async def test_what_cannot_be_said_in_them_fails_like_any_other_outcome(
    postgres_dsn: str, kind: str, failing: JobType[None, str]
) -> None:
    address = postgres_dsn.replace("postgresql:", "postgresql+psycopg:") + "?client_encoding=latin1"
    async with AsyncExitStack() as stack:
        target: Any = address
        if kind == "sqlalchemy":
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
        if failing is raises:
            assert failed.last_error is not None
            assert (failed.last_error.type, failed.last_error.message) == ("ValueError", "\\u65e5\\u672c\\u2026")
        assert await (await app.start(only, "é")).wait(timeout=SOON) == "é"


async def test_a_note_that_cannot_be_said_in_them_is_escaped_and_hides_no_others(postgres_dsn: str) -> None:
    go = asyncio.Event()

    @job("noted")
    async def noted(attempt: Attempt[int]) -> str:
        attempt.progress(0.5, "日本" if attempt.input else "plain")
        await go.wait()
        return "é"

    address = postgres_dsn.replace("postgresql:", "postgresql+psycopg:") + "?client_encoding=latin1"
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


# -- asyncpg, which sends what it has given up before


@pytest.mark.parametrize("kind", ["address", "pool", "sqlalchemy"])
async def test_asyncpg_is_refused_in_another_encoding_than_utf_8(postgres_dsn: str, kind: str) -> None:
    settings, schema = {"client_encoding": "sjis"}, f"t_{secrets.token_hex(6)}"
    async with AsyncExitStack() as stack:
        target: Any = postgres_dsn.replace("postgresql:", "postgresql+asyncpg:")
        if kind == "address":
            target += "?client_encoding=sjis"
        elif kind == "pool":
            target = await stack.enter_async_context(asyncpg.create_pool(postgres_dsn, server_settings=settings))
        else:
            target = create_async_engine(target, connect_args={"server_settings": settings})
            stack.push_async_callback(target.dispose)

        with pytest.raises(ConfigurationError, match=r"client_encoding SJIS.* leave client_encoding out"):
            async with Onward(target, jobs=[only], schema=schema, migrate=True):
                pass


@pytest.mark.parametrize("is_sqlalchemy", [False, True])
async def test_so_is_a_connection_of_asyncpgs_that_is_passed(postgres_dsn: str, is_sqlalchemy: bool) -> None:
    address = postgres_dsn.replace("postgresql:", "postgresql+asyncpg:")
    async with AsyncExitStack() as stack:
        target: Any = address
        if is_sqlalchemy:
            target = create_async_engine(address)
            stack.push_async_callback(target.dispose)
        app = Onward(target, jobs=[only], schema=f"t_{secrets.token_hex(6)}", migrate=True)
        await stack.enter_async_context(app)
        if is_sqlalchemy:
            tx: Any = await stack.enter_async_context(target.begin())
            await tx.execute(text("SET LOCAL client_encoding = 'latin1'"))
        else:
            tx = await asyncpg.connect(postgres_dsn, server_settings={"client_encoding": "latin1"})
            stack.push_async_callback(tx.close)
            await stack.enter_async_context(tx.transaction())

        with pytest.raises(ConfigurationError, match="client_encoding LATIN1"):
            await app.start(only, "é", tx=tx)

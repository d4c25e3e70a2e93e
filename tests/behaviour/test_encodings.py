"""What texts and times become that are spelled out in SQL, whatever a client and its server talk in."""

import secrets
from datetime import datetime, timedelta, timezone
from urllib.parse import quote

import pytest

from onward import Attempt, Next, Onward, job
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
async def test_psycopg_stores_them_as_they_are(postgres_dsn: str, encoding: str, text: str) -> None:
    address = postgres_dsn.replace("postgresql:", "postgresql+psycopg:") + f"?client_encoding={quote(encoding)}"
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

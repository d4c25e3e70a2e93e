"""What texts become where a client and its server talk in another encoding than UTF-8."""

import secrets
from datetime import timedelta
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

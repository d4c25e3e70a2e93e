"""A server whose queue of notifications is full, which any role that may connect can bring about: work commits."""

from collections.abc import Iterator
from datetime import timedelta

import asyncpg
import psycopg
import pytest

import servers
from onward import Attempt, Onward, job
from support import SOON

NEVER = timedelta(hours=1)
FULL = """
ALTER FUNCTION pg_catalog.pg_notification_queue_usage() RENAME TO servers_own_usage;
CREATE FUNCTION pg_catalog.pg_notification_queue_usage() RETURNS double precision LANGUAGE sql AS 'SELECT 1.0::float8';
ALTER FUNCTION pg_catalog.pg_notify(text, text) RENAME TO servers_own_notify;
CREATE FUNCTION pg_catalog.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
  RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = 'program_limit_exceeded';
END $$
"""
"""To fill it takes eight gigabytes."""


@job("greet")
async def greet(attempt: Attempt[int]) -> int:
    async with attempt.complete():
        return attempt.input


@pytest.fixture(scope="module")
def full() -> Iterator[str]:
    with servers.private_postgres() as server:
        with psycopg.connect(server.dsn, autocommit=True) as admin:
            admin.execute(FULL)
        yield server.dsn


@pytest.mark.parametrize("client", ["asyncpg", "psycopg"])
async def test_what_is_started_commits_and_is_found_without_a_hint(full: str, client: str) -> None:
    app = Onward(full.replace("postgresql:", f"postgresql+{client}:"), jobs=[greet], migrate=True, schema=client)
    async with app, app.worker(poll=NEVER):
        for n in range(3):
            async with app.transaction() as tx:
                within = await app.start(greet, n, tx=tx)
            alone = await app.start(greet, n)

            assert await within.wait(timeout=SOON) == n
            assert await alone.wait(timeout=SOON) == n


async def test_so_does_what_is_started_in_a_transaction_of_the_applications(full: str) -> None:
    theirs = await asyncpg.connect(full)
    app = Onward(full, jobs=[greet], migrate=True, schema="theirs")
    async with app, app.worker(poll=NEVER):
        async with theirs.transaction():
            chain = await app.start(greet, 7, tx=theirs)

        assert await chain.wait(timeout=SOON) == 7
    await theirs.close()

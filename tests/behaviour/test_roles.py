"""Roles and databases with defaults of their own, and several who migrate at once."""

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

from onward import Attempt, ChainFailed, Deduplication, JobStatus, Onward, job
from onward.errors import ChainNotFailed, TransactionUnsuitable
from support import SOON

LATER = timedelta(hours=1)
ODD = {
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "<+0330>-3:30",
    "bytea_output": "escape",
    "extra_float_digits": "-5",
}


@job("fetch", max_attempts=1)
async def fetch(attempt: Attempt[int]) -> int:
    async with attempt.prepare():
        pass
    async with attempt.complete():
        if attempt.input < 0:
            raise ValueError("negative")
        return attempt.input


@job("gather", blocked_by=[fetch])
async def gather(attempt: Attempt[int]) -> list[int]:
    return attempt.outputs_of(fetch)


@pytest.fixture
def role(postgres_dsn: str) -> Iterator[Callable[[dict[str, str]], str]]:
    """Makes a role with such defaults; how to connect as it."""
    name, url = f"role_{secrets.token_hex(6)}", urlsplit(postgres_dsn)
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:

        def make(defaults: dict[str, str]) -> str:
            admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'".encode())
            admin.execute(f"GRANT CREATE ON DATABASE {url.path[1:]} TO {name}".encode())
            for setting, value in defaults.items():
                admin.execute(f"ALTER ROLE {name} SET {setting} = '{value}'".encode())
            return url._replace(netloc=f"{name}:secret@{url.hostname}:{url.port or 5432}").geturl()

        yield make
        admin.execute(f"DROP OWNED BY {name} CASCADE".encode())
        admin.execute(f"DROP ROLE {name}".encode())


async def work_out(app: Onward) -> None:
    """A little of everything that a client and a worker do."""
    keyed = await app.start(fetch, 1, deduplication=Deduplication("key"), delay=LATER)
    again = await app.start(fetch, 1, deduplication=Deduplication("key"))
    assert (again.id, again.duplicate) == (keyed.id, True)
    many = await app.start_many([fetch.with_input(n, deduplication=Deduplication(f"{n}")) for n in range(3)])
    waiting = await app.start(gather, 1, blockers=many)
    at = datetime.now(UTC) + LATER
    found = await app.find_job((await app.start(fetch, 1, at=at)).id)
    assert found is not None
    assert found.scheduled_at == at
    approved = await app.start(fetch, 1, delay=LATER)
    async with app.complete(approved) as completion:
        await completion.done(7)
    assert await approved.wait(timeout=SOON) == 7
    assert await app.cancel(keyed) == 1
    assert await app.retry(keyed) == 1
    with pytest.raises(ChainNotFailed):
        await app.retry(keyed)
    assert await app.trigger(keyed) == 1
    await app.pause(gather)
    await app.resume(gather)
    async with app.worker(concurrency=4):
        assert await waiting.wait(timeout=SOON) == [0, 1, 2]
        assert await keyed.wait(timeout=SOON) == 1
        with pytest.raises(ChainFailed):
            await (await app.start(fetch, -1)).wait(timeout=SOON)
    assert {chain.status async for chain in app.chains(limit=2)} >= {JobStatus.COMPLETED, JobStatus.FAILED}
    assert await app.delete(waiting, cascade=True) == 4
    assert await app.prune(older_than=timedelta()) == 3


async def connect(dsn: str, kind: str, stack: AsyncExitStack) -> Any:
    client, _, pooled = kind.partition(" ")
    if not pooled:
        return dsn.replace("postgresql", f"postgresql+{client}")
    if client == "asyncpg":
        return await stack.enter_async_context(asyncpg.create_pool(dsn, min_size=1, max_size=5))
    pool: Any = AsyncConnectionPool(dsn, min_size=1, max_size=5, open=False)
    return await stack.enter_async_context(pool)


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg", "asyncpg pool", "psycopg pool"])
@pytest.mark.parametrize(
    "defaults",
    [
        {"default_transaction_isolation": "repeatable read"},
        {"default_transaction_isolation": "serializable"},
        ODD,
    ],
    ids=["repeatable-read", "serializable", "odd-styles"],
)
async def test_a_roles_own_defaults_are_no_hindrance(role: Any, defaults: dict[str, str], kind: str) -> None:
    dsn, schema = role(defaults), f"t_{secrets.token_hex(6)}"
    async with AsyncExitStack() as stack:
        target = await connect(dsn, kind, stack)
        app = Onward(target, jobs=[fetch, gather], schema=schema, migrate=True, observers=[])
        async with app:
            await work_out(app)
            async with app.driver.reserved() as connection:
                assert (await connection.fetch("SHOW transaction_isolation", {}))[0][0] == "read committed"
        if isinstance(target, str):
            with app.sync as client:
                assert client.start(fetch, 1, deduplication=Deduplication("k")).get().status == "pending"


async def test_a_transaction_of_the_applications_own_isolation_is_left_alone(role: Any) -> None:
    dsn = role({"default_transaction_isolation": "repeatable read"})
    async with Onward(dsn, jobs=[fetch], schema=f"t_{secrets.token_hex(6)}", migrate=True, observers=[]) as app:
        async with app.transaction() as tx:
            assert await tx.fetchval("SHOW transaction_isolation") == "repeatable read"
            with pytest.raises(TransactionUnsuitable, match="not safe in a REPEATABLE READ transaction"):
                await app.start(fetch, 1, tx=tx, deduplication=Deduplication("key"))
            kept = await app.start(fetch, 1, tx=tx)
        assert [chain.id async for chain in app.chains()] == [kept.id]


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
async def test_several_may_migrate_at_once(role: Any, isolation: str) -> None:
    dsn, several = role({"default_transaction_isolation": isolation}), 6
    for _ in range(3):
        schema = f"t_{secrets.token_hex(6)}"
        apps = [Onward(dsn, jobs=[fetch], schema=schema, migrate=True, observers=[]) for _ in range(several)]
        async with asyncio.TaskGroup() as tasks:
            for app in apps:
                tasks.create_task(_opened_and_closed(app))


async def test_several_may_make_a_file_at_once(tmp_path: Any) -> None:
    apps = [Onward(f"sqlite:///{tmp_path}/jobs.db", jobs=[fetch], observers=[]) for _ in range(6)]
    async with asyncio.TaskGroup() as tasks:
        for app in apps:
            tasks.create_task(_opened_and_closed(app))


async def _opened_and_closed(app: Onward) -> None:
    async with app:
        await app.start(fetch, 1)

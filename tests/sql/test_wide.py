"""Wide things, a job that waits for many and a call with many keys, cost what their size is, not its square."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextvars import Context
from typing import Any

import pytest

from onward import Attempt, Deduplication, Onward, job
from support import SOON

WIDE = 300
MANY = 150
"""More keys than are locked one by one."""
WAITING = (
    "SELECT 1 FROM pg_locks JOIN pg_database d ON d.oid = database "
    "WHERE locktype = 'advisory' AND NOT granted AND d.datname = current_database()"
)


@job("leaf")
async def leaf(attempt: Attempt[int]) -> int:
    return attempt.input


@job("gather", blocked_by=[leaf])
async def gather(attempt: Attempt[int]) -> int:
    return attempt.input


@pytest.fixture
async def app(postgres_dsn: str) -> AsyncIterator[Onward]:
    schema = f"t_{secrets.token_hex(6)}"
    async with Onward(postgres_dsn, jobs=[leaf, gather], schema=schema, migrate=True, observers=[]) as app:
        yield app


async def work_done(tx: Any, schema: str) -> tuple[int, int]:
    """Rows that were read, and looks into an index, by this transaction so far."""
    return tuple(
        await tx.fetchrow(
            "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint, sum(coalesce(idx_scan, 0))::bigint "
            "FROM pg_stat_xact_user_tables WHERE schemaname = :schema",
            schema=schema,
        )
    )


async def test_a_wide_fan_in_is_retried_well_whatever_the_statistics_say(app: Onward) -> None:
    schema: str = app.state.schema  # type: ignore[attr-defined]
    past = await app.start_many([leaf.with_input(n) for n in range(1000)])
    await app.start_many([gather.with_input(n, blockers=past[100 * n : 100 * n + 100]) for n in range(10)])
    async with app.transaction() as tx:
        await tx.execute(f"UPDATE {schema}.job SET status = 'completed', ended_at = now(), chain_ended_at = now()")
        # From now on the statistics say that nothing is alive, and that nothing waits for more than a hundred.
        await tx.execute(f"ANALYZE {schema}.job")
        await tx.execute(f"ANALYZE {schema}.blocker")
    leaves = await app.start_many([leaf.with_input(n) for n in range(WIDE)])
    wide = await app.start(gather, 1, blockers=leaves)
    await app.cancel(*leaves)

    async with app.transaction() as tx:
        before = await work_done(tx, schema)
        assert await app.retry(*leaves, tx=tx) == WIDE + 1
        after = await work_done(tx, schema)

    assert (await wide.get()).status == "blocked"
    # Some statements go through the whole table, once; none does so for each of many rows.
    assert after[0] - before[0] < 100 * (1010 + WIDE)
    assert after[1] - before[1] < 50 * WIDE


async def advisory_locks(tx: Any) -> int:
    locks: int = await tx.fetchval(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    )
    return locks


def keyed(first: int, count: int) -> list[Any]:
    return [leaf.with_input(n, deduplication=Deduplication(f"key {n}")) for n in range(first, first + count)]


async def test_a_call_with_many_keys_holds_few_locks(app: Onward) -> None:
    async with app.transaction() as tx:
        chains = await app.start_many(keyed(0, MANY), tx=tx)
        assert await advisory_locks(tx) == 1
    await app.cancel(*chains)

    async with app.transaction() as tx:
        await app.retry(*chains, tx=tx)
        assert await advisory_locks(tx) == 1


@pytest.mark.parametrize(("first", "second"), [(MANY, 1), (1, MANY), (MANY, MANY), (1, 1)])
async def test_many_keys_and_few_wait_for_each_other(app: Onward, first: int, second: int) -> None:
    async with asyncio.timeout(SOON.total_seconds()), asyncio.TaskGroup() as tasks:
        async with app.transaction() as tx:
            kept = await app.start_many(keyed(0, first), tx=tx)
            other = tasks.create_task(app.start_many(keyed(0, second)), context=Context())
            while not await tx.fetchval(WAITING):
                await asyncio.sleep(0.01)
        found = await other

    assert [chain.id for chain in found[:first]] == [chain.id for chain in kept[:second]]
    assert [chain.duplicate for chain in found] == [n < first for n in range(second)]


async def test_few_keys_of_a_type_do_not_wait_for_others(app: Onward) -> None:
    async with asyncio.timeout(SOON.total_seconds()), asyncio.TaskGroup() as tasks, app.transaction() as tx:
        await app.start_many(keyed(0, 50), tx=tx)
        await tasks.create_task(app.start_many(keyed(50, 50)), context=Context())

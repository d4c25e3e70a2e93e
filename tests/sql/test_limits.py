"""Limits in the database: an upgrade in place, and what admission reads."""

import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onward.model import new_id
from onward.options import several_keys
from onward.state.contract import Filter, LimitRule, NewJob, StateAdapter, TypeClaim
from onward.state.driver import Driver, run_now
from onward.state.postgres.adapter import PostgresState
from onward.state.postgres.psycopg import SyncPsycopgDriver
from onward.state.postgres.settings import session_settings
from onward.state.sqlite.adapter import SqliteState
from onward.state.sqlite.sqlite3 import SyncSqliteDriver
from onward.state.statement import spell

HELD, KEYS = 20_000, 1_000


@pytest.fixture(params=["postgres", "sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, Driver]]:
    """A state without tables, and a driver."""
    driver: Driver = SyncSqliteDriver(tmp_path / "jobs.db")
    state: Any = SqliteState()
    if request.param == "postgres":
        driver = SyncPsycopgDriver(request.getfixturevalue("postgres_dsn"))
        state = PostgresState(schema=f"upgrade_{secrets.token_hex(4)}")
    run_now(driver.open())
    yield state, driver
    run_now(driver.close())


def test_tables_with_jobs_are_brought_up_in_place(database: tuple[Any, Driver]) -> None:
    state, driver = database

    waiting, held, running, done = run_now(_upgraded(state, driver))

    assert waiting == 2
    assert (held, running, done) == (1, 1, 1)


async def _upgraded(state: Any, driver: Driver) -> tuple[int, int, int, int]:
    async with driver.connection() as connection:
        whole = state.sql.migrations
        before = [one for one in whole() if not one[1].endswith("limits") and one[0] == 1]
        state.sql.migrations = lambda: before
        await connection.run(state.migrate())
        state.sql.migrations = whole
        table, now = state.sql._table("job"), "now()" if state.dialect == "postgres" else "0"
        for status, key in [("pending", None), ("pending", "a/b"), ("running", "a/b"), ("completed", "a/b")]:
            id = str(new_id())
            await connection.fetch(
                f"INSERT INTO {table} (id, chain_id, chain_index, type_name, payload_version, status, rank, deferred, "
                f"limit_key, input, created_at, scheduled_at, root_id) VALUES (:id, :id, 0, 'work', 1, '{status}', 0, "
                f"false, :key, '1', {now}, {now}, :id)",
                {"id": id, "key": key},
            )
        applied = await connection.run(state.migrate())
        assert any(name.endswith("limits") for name in applied)
        (use,) = await connection.run(state.limit_uses("a", after=None, limit=9))
        await connection.run(state.admit(sweep=True))
        taken = await connection.run(state.take(types=[TypeClaim("work", 1, 60.0)], limit=9, worker="w"))
        jobs = await connection.run(state.list_jobs(Filter(), after=None, limit=9))
    return len(taken), use.held, use.placed, [job.status for job in jobs].count("completed")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def loaded(postgres_dsn: str) -> Iterator[tuple[PostgresState, str]]:
    """A thousand keys with a backlog each, and one with as much as all of them."""
    state, driver = PostgresState(schema="limits"), SyncPsycopgDriver(postgres_dsn)
    run_now(driver.open())
    run_now(_load(state, driver))
    run_now(driver.close())
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute("VACUUM (ANALYZE) limits.job")
    yield state, postgres_dsn
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute("DROP SCHEMA limits CASCADE")


async def _load(state: StateAdapter, driver: Driver) -> None:
    async with driver.connection() as connection:
        await connection.run(state.migrate())
        await connection.run(state.set_limits([LimitRule("tenant", places=3)], declared=True))
        for start in range(0, 2 * HELD, 5000):
            jobs = []
            for n in range(start, start + 5000):
                id, key = new_id(), "big" if n % 2 else f"k{n // 2 % KEYS}"
                ids: dict[str, Any] = {"id": id, "chain_id": id, "root_id": id}
                jobs.append(NewJob(**ids, type_name="work", payload_version=1, input="1", limit_key=f"tenant/{key}"))
            await connection.run(state.start(jobs))


def read(admin: psycopg.Connection) -> int:
    """How many rows of the tables were read in this transaction."""
    counted = admin.execute(
        "SELECT sum(idx_tup_fetch + seq_tup_read) FROM pg_stat_xact_user_tables WHERE schemaname = 'limits'"
    )
    return int((counted.fetchone() or [0])[0] or 0)


def test_an_admission_reads_what_it_admits_and_not_the_backlog(loaded: tuple[PostgresState, str]) -> None:
    _, dsn = loaded

    with psycopg.connect(dsn) as admin:
        admin.execute("DELETE FROM limits.limit_wake")
        admin.execute("UPDATE limits.limit_sweep SET swept_at = clock_timestamp()")
        admin.execute("INSERT INTO limits.limit_wake (key) VALUES ('tenant/big'), ('tenant/k1'), ('tenant/k2')")
        before = read(admin)
        for _ in range(6):
            admin.execute("SELECT * FROM limits.admit(1000, 0, false, NULL)")
        after = read(admin)
        admitted = admin.execute("SELECT count(*) FROM limits.job WHERE admitted_after = 0").fetchone()
        admin.rollback()

    assert admitted == (9,)
    assert after - before < 2_000


def test_an_admission_reads_little_also_where_the_planner_knows_of_none_that_are_held(
    loaded: tuple[PostgresState, str],
) -> None:
    _, dsn = loaded

    with psycopg.connect(dsn) as admin:
        for name, value in session_settings().items():
            admin.execute("SELECT set_config(%s, %s, true)", [name, value])
        admin.execute("SET LOCAL session_replication_role = replica")  # no triggers
        admin.execute("UPDATE limits.job SET deferred = true")
        admin.execute("ANALYZE limits.job")
        admin.execute("UPDATE limits.job SET deferred = false")
        admin.execute("SET LOCAL session_replication_role = origin")
        admin.execute("DELETE FROM limits.limit_wake")
        admin.execute("UPDATE limits.limit_sweep SET swept_at = clock_timestamp()")
        admin.execute("INSERT INTO limits.limit_wake (key) VALUES ('tenant/big'), ('tenant/k1'), ('tenant/k2')")
        before = read(admin)
        admin.execute("SELECT * FROM limits.admit(1000, 0, false, NULL)")
        after = read(admin)
        admin.rollback()

    assert after - before < 1_000


def test_a_take_among_held_jobs_reads_what_it_takes(loaded: tuple[PostgresState, str]) -> None:
    """The table was analyzed while nothing could be taken."""
    state, dsn = loaded
    take = state.take(types=[TypeClaim("work", 1, 60.0)], limit=100, worker="worker-1")
    spelled = spell(take.sql, "percent")
    with psycopg.connect(dsn) as admin:
        for name, value in session_settings().items():
            admin.execute("SELECT set_config(%s, %s, true)", [name, value])
        for _ in range(10):
            admin.execute("SELECT * FROM limits.admit(1000, 0, true, NULL)")
        before = read(admin)
        taken = admin.execute(spelled.sql.encode(), take.parameters).fetchall()
        after = read(admin)
        admin.rollback()

    assert len(taken) == 100
    assert after - before < 2_000


def test_who_sweeps_and_who_admits_do_not_wait_for_each_other(loaded: tuple[PostgresState, str]) -> None:
    """A key becomes idle that somebody has seen with a held job, and has not locked yet."""
    _, dsn = loaded
    keys = [f"tenant/dead-{n}" for n in range(3)]

    def admit(*, sweep: bool) -> None:
        with psycopg.connect(dsn, autocommit=True) as own:
            own.execute("SELECT * FROM limits.admit(1000, 0, %s, NULL)", [sweep])

    def wait_for(count: int) -> None:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%limits.admit%'"
        while (admin.execute(waiting).fetchone() or [0])[0] < count:
            time.sleep(0.01)

    with psycopg.connect(dsn, autocommit=True) as admin, psycopg.connect(dsn) as other, ThreadPoolExecutor() as threads:
        admin.execute("DELETE FROM limits.limit_wake")
        admin.execute("UPDATE limits.limit_sweep SET swept_at = clock_timestamp()")
        admin.execute("INSERT INTO limits.limit_key (key, name) SELECT unnest(%s::text[]), 'tenant'", [keys])
        _start(dsn, keys)
        other.execute("SELECT FROM limits.limit_key WHERE key = %s FOR UPDATE", [keys[1]])
        admits = threads.submit(admit, sweep=False)
        wait_for(1)
        admin.execute("DELETE FROM limits.job WHERE limit_key = %s", [keys[2]])
        sweeps = threads.submit(admit, sweep=True)
        wait_for(2)
        other.rollback()
        admits.result()
        sweeps.result()
        admin.execute("DELETE FROM limits.job WHERE limit_key = ANY(%s)", [keys])
        admin.execute("UPDATE limits.job SET admitted_after = NULL WHERE admitted_after IS NOT NULL")


def test_a_place_that_a_job_has_already_keeps_nobody_out(loaded: tuple[PostgresState, str]) -> None:
    """One was left behind: all that is admitted with it must not fail for it."""
    _, dsn = loaded
    keys = ["tenant/left", "other/left"]
    _start(dsn, [several_keys(keys)])

    with psycopg.connect(dsn) as admin:
        admin.execute(
            "INSERT INTO limits.limit_place SELECT %s, id FROM limits.job WHERE limit_key = %s", [keys[0]] * 2
        )
        for _ in range(60):
            admin.execute("SELECT * FROM limits.admit(1000, 0, false, NULL)")
        moved = admin.execute("SELECT admitted_after FROM limits.job WHERE limit_key = %s", [keys[1]]).fetchall()
        admin.rollback()
        admin.execute("DELETE FROM limits.job WHERE limit_key = %s", [keys[0]])

    assert moved == [(0,)]


def _start(dsn: str, keys: list[str]) -> None:
    async def start() -> None:
        async with driver.connection() as connection:
            for key in keys:
                id = new_id()
                ids: dict[str, Any] = {"id": id, "chain_id": id, "root_id": id}
                job = NewJob(**ids, type_name="work", payload_version=1, input="1", limit_key=key)
                await connection.run(PostgresState(schema="limits").start([job]))

    driver = SyncPsycopgDriver(dsn)
    run_now(driver.open())
    run_now(start())
    run_now(driver.close())

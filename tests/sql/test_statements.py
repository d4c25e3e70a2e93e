"""Every statement is understood by a real server, as it stands in its file."""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from onward.state.driver import run_now
from onward.state.postgres.adapter import PostgresState
from onward.state.sqlite.adapter import SqliteState
from onward.state.sqlite.sqlite3 import SyncSqliteDriver
from onward.state.statement import spell

POSTGRES = PostgresState(schema="statements")
SQLITE = SqliteState(prefix="statements_")


@pytest.fixture(scope="module")
def migrated_dsn(postgres_dsn: str) -> str:
    import psycopg

    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS statements CASCADE")  # workers that help each other come back here
        connection.execute(POSTGRES.migration_sql().encode())
    return postgres_dsn


@pytest.fixture
async def postgres(migrated_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(migrated_dsn)
    yield connection
    await connection.close()


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path = tmp_path_factory.mktemp("statements") / "jobs.db"
    run_now(_migrate(path))
    connection = sqlite3.connect(path)
    connection.text_factory = bytes  # EXPLAIN shows blobs as if they were text
    yield connection
    connection.close()


async def _migrate(path: Path) -> None:
    driver = SyncSqliteDriver(path)
    await driver.open()
    async with driver.connection() as connection:
        await connection.run(SQLITE.migrate())
    await driver.close()


@pytest.mark.parametrize("name", POSTGRES.sql.names())
async def test_postgres_prepares_the_statement(postgres: asyncpg.Connection, name: str) -> None:
    spelled = spell(POSTGRES.sql(name), "dollar")

    prepared = await postgres.prepare(spelled.sql)

    assert len(prepared.get_parameters()) == len(spelled.names)


@pytest.mark.parametrize("types", [2, 8])
async def test_postgres_prepares_a_take_of_many_types(postgres: asyncpg.Connection, types: int) -> None:
    spelled = spell(POSTGRES.sql("take", repeat=types), "dollar")

    prepared = await postgres.prepare(spelled.sql)

    assert spelled.sql.count("ORDER BY rank, scheduled_at, id LIMIT 10000") == types + 1
    assert len(prepared.get_parameters()) == len(spelled.names)


@pytest.mark.parametrize("name", POSTGRES.sql.names())
def test_no_statement_is_too_long_for_asyncpg_to_keep_it_prepared(name: str) -> None:
    """It would be planned anew every time: with a branch for each of 64 types that took longer than all else."""
    assert max(len(spell(POSTGRES.sql(name, repeat=n), "dollar").sql) for n in (1, 8)) < 15 * 1024


@pytest.mark.parametrize("name", SQLITE.sql.names())
def test_sqlite_understands_the_statement(sqlite: sqlite3.Connection, name: str) -> None:
    spelled = spell(SQLITE.sql(name), "qmark")

    program = sqlite.execute(f"EXPLAIN {spelled.sql}", [None] * len(spelled.names)).fetchall()

    assert program


@pytest.mark.parametrize("state", [POSTGRES, SQLITE], ids=["postgres", "sqlite"])
def test_every_statement_begins_by_saying_what_it_is_for(state: PostgresState | SqliteState) -> None:
    silent = [name for name in state.sql.names() if not state.sql(name).startswith("-- ")]

    assert silent == []

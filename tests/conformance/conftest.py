"""Every database and driver, and the fixtures of the conformance suites on them. Another one is one more line."""

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from onward.conformance.state.store import Store
from onward.state.contract import StateAdapter
from onward.state.driver import Driver
from onward.state.postgres.adapter import PostgresState
from onward.state.postgres.asyncpg import AsyncpgDriver
from onward.state.postgres.psycopg import PsycopgDriver, SyncPsycopgDriver
from onward.state.sqlalchemy.driver import SqlAlchemyDriver, SyncSqlAlchemyDriver
from onward.state.sqlite.adapter import SqliteState
from onward.state.sqlite.sqlite3 import SqliteDriver, SyncSqliteDriver


@asynccontextmanager
async def by_address(make: Callable[[Any], Driver], address: Any) -> AsyncIterator[Driver]:
    driver = make(address)
    await driver.open()
    try:
        yield driver
    finally:
        await driver.close()


@asynccontextmanager
async def by_async_engine(library: str, address: Any) -> AsyncIterator[Driver]:
    engine = create_async_engine(url(library, address))
    async with by_address(SqlAlchemyDriver, engine) as driver:
        yield driver
    await engine.dispose()


@asynccontextmanager
async def by_engine(library: str, address: Any) -> AsyncIterator[Driver]:
    engine = create_engine(url(library, address))
    async with by_address(SyncSqlAlchemyDriver, engine) as driver:
        yield driver
    engine.dispose()


def url(library: str, address: Any) -> str:
    """As SQLAlchemy writes it, from a DSN or a path."""
    return f"{library}:///{address}" if isinstance(address, Path) else str(address).replace("postgresql", library, 1)


@dataclass(frozen=True)
class Combination:
    """A driver on a database."""

    name: str
    place: str
    """The fixture that knows the database."""
    driver: Callable[[Any], AbstractAsyncContextManager[Driver]]
    row_locks: bool = True
    """Whether several transactions can write at a time."""
    rounds: int = 50
    """How often races are run at full scale. They are about an adapter's SQL: one driver of each runs them longer."""


COMBINATIONS = [
    Combination("asyncpg", "postgres", partial(by_address, AsyncpgDriver), rounds=500),
    Combination("asyncpg-pgbouncer", "pgbouncer", partial(by_address, partial(AsyncpgDriver, prepared=False))),
    Combination("psycopg", "postgres", partial(by_address, PsycopgDriver)),
    Combination("psycopg-sync", "postgres", partial(by_address, SyncPsycopgDriver)),
    Combination("sqlalchemy-asyncpg", "postgres", partial(by_async_engine, "postgresql+asyncpg")),
    Combination("sqlalchemy-psycopg", "postgres", partial(by_async_engine, "postgresql+psycopg")),
    Combination("sqlalchemy-sync-psycopg", "postgres", partial(by_engine, "postgresql+psycopg")),
    Combination("sqlite", "sqlite", partial(by_address, SqliteDriver), row_locks=False, rounds=500),
    Combination("sqlite-sync", "sqlite", partial(by_address, SyncSqliteDriver), row_locks=False),
    Combination("sqlalchemy-sqlite", "sqlite", partial(by_async_engine, "sqlite+aiosqlite"), row_locks=False),
    Combination("sqlalchemy-sync-sqlite", "sqlite", partial(by_engine, "sqlite"), row_locks=False),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test of the suite runs once for each combination that can do what it is about."""
    if "combination" in metafunc.fixturenames:
        needs_locks = metafunc.cls is not None and metafunc.cls.__name__ == "TestRowLocks"
        able = [one for one in COMBINATIONS if one.row_locks or not needs_locks]
        metafunc.parametrize("combination", able, ids=lambda combination: combination.name)


class Postgres:
    """A database with one schema for all tests, and a new one for each that begins without tables."""

    def __init__(self, address: str, admin: psycopg.Connection) -> None:
        self.address, self._admin = address, admin

    async def prepare(self, state: StateAdapter, driver: Driver) -> None:
        tables = ("job", "blocker", "paused_type", "limit_rule", "limit_key", "limit_wake", "limit_place")
        try:
            self._admin.execute(";".join(f"DELETE FROM conformance.{table}" for table in tables).encode())
        except (psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedTable):
            async with driver.connection() as connection:
                await connection.run(state.migrate())

    def state(self) -> StateAdapter:
        return PostgresState(schema="conformance")

    def empty_state(self) -> StateAdapter:
        return PostgresState(schema=f"empty_{secrets.token_hex(4)}")


class Sqlite:
    """A new file for each test."""

    def __init__(self, address: Path) -> None:
        self.address = address

    async def prepare(self, state: StateAdapter, driver: Driver) -> None:
        async with driver.connection() as connection:
            await connection.run(state.migrate())

    def state(self) -> StateAdapter:
        return SqliteState()

    empty_state = state


@pytest.fixture(scope="session")
def postgres(postgres_dsn: str) -> Iterator[Postgres]:
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        yield Postgres(postgres_dsn, admin)


@pytest.fixture(scope="session")
def pgbouncer(postgres_dsn: str, pgbouncer_dsn: str) -> Iterator[Postgres]:
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        yield Postgres(pgbouncer_dsn, admin)


@pytest.fixture
def sqlite(tmp_path: Path) -> Sqlite:
    return Sqlite(tmp_path / "jobs.db")


@pytest.fixture
async def store(
    request: pytest.FixtureRequest, combination: Combination, scale: Callable[[int], int]
) -> AsyncIterator[Store]:
    place = request.getfixturevalue(combination.place)
    async with combination.driver(place.address) as driver:
        store = Store(
            state=place.state(),
            driver=driver,
            rounds=scale(combination.rounds),
        )
        await place.prepare(store.state, driver)
        yield store


@pytest.fixture
async def empty_store(request: pytest.FixtureRequest, combination: Combination) -> AsyncIterator[Store]:
    place = request.getfixturevalue(combination.place)
    async with combination.driver(place.address) as driver:
        yield Store(state=place.empty_state(), driver=driver)

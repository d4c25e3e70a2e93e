"""Every database and driver, and the fixtures of the conformance suites on them. Another one is one more line."""

import os
import secrets
import sqlite3
import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio
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


IS_WHOLE = float(os.environ.get("ONWARD_TEST_SCALE", "0.1")) >= 1


def without_most_engines(combinations: list[Combination], test: str) -> list[Combination]:
    """Of SQLAlchemy's, which share all but their last inch, one for each database; for each test another one."""
    kept = [one for one in combinations if not one.name.startswith("sqlalchemy-")]
    for place in ("postgres", "sqlite"):
        engines = [one for one in combinations if one not in kept and one.place == place]
        kept += engines[zlib.crc32(test.encode()) % len(engines) :][:1] if engines else []
    return kept


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test of the suite runs once for each combination that can do what it is about."""
    if "combination" in metafunc.fixturenames:
        needs_locks = metafunc.cls is not None and metafunc.cls.__name__ == "TestRowLocks"
        able = [one for one in COMBINATIONS if one.row_locks or not needs_locks]
        if not IS_WHOLE:
            able = without_most_engines(able, metafunc.function.__qualname__)
        # Of the module: those of one combination run one after another, on one driver.
        metafunc.parametrize("combination", able, ids=lambda combination: combination.name, scope="module")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who shares a driver shares its event loop."""
    for item in items:
        if "combination" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


class Place(ABC):
    """A database with one set of tables for all tests, and room for those that begin without any."""

    address: Any
    tables: str
    """What their names begin with."""
    never: str
    """How a time is spelled that has not come."""
    admin: Any

    async def prepare(self, state: StateAdapter, driver: Driver) -> None:
        limits = ("limit_rule", "limit_key", "limit_wake", "limit_place", "unserved_type")
        tables = ("job", "blocker", "paused_type", "schedule", "worker", "figure", *limits)
        tables += ("history", "history_part") if state.history else ()
        try:
            for table in tables:
                self.admin.execute(f"DELETE FROM {self.tables}{table}")
            self.admin.execute(
                f"UPDATE {self.tables}retention SET held_by = NULL, held_until = {self.never}, walks = '{{}}'"
            )
            first = "'00000000-0000-0000-0000-000000000000'"
            self.admin.execute(f"UPDATE {self.tables}figure_turn SET next_at = 0, counted_to = {first}, loose_from = 0")
        except (psycopg.errors.UndefinedTable, sqlite3.OperationalError):
            async with driver.connection() as connection:
                await connection.run(state.migrate())

    @abstractmethod
    def state(self) -> StateAdapter: ...

    @abstractmethod
    def empty(self) -> tuple[Any, StateAdapter]:
        """The address of a database, and an adapter that finds no tables there."""


class Postgres(Place):
    tables, never = "conformance.", "NULL"

    def __init__(self, address: str, admin: psycopg.Connection) -> None:
        self.address, self.admin = address, admin

    def state(self) -> StateAdapter:
        return PostgresState(schema="conformance")

    def empty(self) -> tuple[str, StateAdapter]:
        return self.address, PostgresState(schema=f"empty_{secrets.token_hex(4)}")


class Sqlite(Place):
    tables, never = "onward_", "0"

    def __init__(self, address: Path, admin: sqlite3.Connection) -> None:
        self.address, self.admin = address, admin

    def state(self) -> StateAdapter:
        return SqliteState()

    def empty(self) -> tuple[Path, StateAdapter]:
        return self.address.with_name(f"empty_{secrets.token_hex(4)}.db"), SqliteState()


@pytest.fixture(scope="session")
def postgres(postgres_dsn: str) -> Iterator[Postgres]:
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        yield Postgres(postgres_dsn, admin)


@pytest.fixture(scope="session")
def pgbouncer(postgres_dsn: str, pgbouncer_dsn: str) -> Iterator[Postgres]:
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        yield Postgres(pgbouncer_dsn, admin)


@pytest.fixture(scope="session")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sqlite]:
    path = tmp_path_factory.mktemp("conformance") / "jobs.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as admin:
        yield Sqlite(path, admin)


class Shared:
    """A driver for one test after another: none of them opens and ends connections that the next could have used."""

    def __init__(self, opened: Callable[[], AbstractAsyncContextManager[Driver]]) -> None:
        self._opened, self._open = opened, AsyncExitStack()
        self._driver: Driver | None = None

    async def driver(self) -> Driver:
        if self._driver is None:
            self._driver = await self._open.enter_async_context(self._opened())
        return self._driver

    async def close(self) -> None:
        self._driver = None
        await self._open.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(request: pytest.FixtureRequest, combination: Combination) -> AsyncIterator[Shared]:
    place = request.getfixturevalue(combination.place)
    shared = Shared(partial(combination.driver, place.address))
    yield shared
    await shared.close()


@pytest_asyncio.fixture(loop_scope="module")
async def store(
    request: pytest.FixtureRequest, combination: Combination, shared: Shared, scale: Callable[[int], int]
) -> AsyncIterator[Store]:
    place, failed = request.getfixturevalue(combination.place), request.session.testsfailed
    store = Store(state=place.state(), driver=await shared.driver(), rounds=scale(combination.rounds))
    await place.prepare(store.state, store.driver)
    yield store
    if request.session.testsfailed > failed:  # whatever it has left there is not for the next one to find
        await shared.close()


@pytest_asyncio.fixture(loop_scope="module")
async def empty_store(request: pytest.FixtureRequest, combination: Combination) -> AsyncIterator[Store]:
    address, state = request.getfixturevalue(combination.place).empty()
    async with combination.driver(address) as driver:
        yield Store(state=state, driver=driver)

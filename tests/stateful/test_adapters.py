"""Random operations on each adapter, compared with a model of plain dictionaries after each."""

import os
import secrets
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from onward.state.driver import Driver, run_now
from onward.state.postgres.adapter import PostgresState
from onward.state.postgres.psycopg import SyncPsycopgDriver
from onward.state.sqlite.adapter import SqliteState
from onward.state.sqlite.sqlite3 import SyncSqliteDriver
from stateful.machine import Machine, Steps

pytestmark = pytest.mark.timeout(1800)
_TABLES = ("job", "blocker", "paused_type", "limit_rule", "limit_key", "limit_wake", "limit_place", "unserved_type")
_STEPS = 50
_SHRINKS = os.environ.get("ONWARD_STATEFUL_SHRINK", "yes") == "yes"
"""Whether a failure is worth minutes of looking for a shorter one."""
_PARTS = 4
"""Of each database, so that several can run side by side."""
_EXAMPLES = 1200
"""Of each part: 4 × 1200 × 50 steps, less those that begin a run."""


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[type[Machine]]:
    driver = SyncSqliteDriver(tmp_path / "jobs.db", synchronous="off")
    with _opened(driver):
        state = SqliteState()
        _migrate(driver, state)

        def clear() -> None:
            with _connected(driver) as connection:
                for table in _TABLES:
                    run_now(connection.fetch(f"DELETE FROM onward_{table}", {}))

        yield _machine(driver, state, "onward_job", clear, row_locks=False)


@pytest.fixture
def postgres(postgres_dsn: str) -> Iterator[type[Machine]]:
    schema = f"stateful_{secrets.token_hex(4)}"
    driver = SyncPsycopgDriver(postgres_dsn, pool_size=3)
    with _opened(driver), psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute("SET synchronous_commit = off")
        state = PostgresState(schema=schema)
        _migrate(driver, state)

        def clear() -> None:
            tables = ", ".join(f"{schema}.{table}" for table in _TABLES)
            admin.execute(f"TRUNCATE {tables}".encode())

        yield _machine(driver, state, f"{schema}.job", clear, row_locks=True)
        admin.execute(f"DROP SCHEMA {schema} CASCADE".encode())


class _opened:  # noqa: N801 - reads as a function
    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def __enter__(self) -> None:
        run_now(self._driver.open())  # type: ignore[arg-type]

    def __exit__(self, *_: object) -> None:
        run_now(self._driver.close())  # type: ignore[arg-type]


class _connected:  # noqa: N801 - reads as a function
    def __init__(self, driver: Driver) -> None:
        self._lent = driver.connection()

    def __enter__(self) -> Any:
        return run_now(self._lent.__aenter__())  # type: ignore[arg-type]

    def __exit__(self, *_: object) -> None:
        run_now(self._lent.__aexit__(None, None, None))  # type: ignore[arg-type]


def _migrate(driver: Driver, state: Any) -> None:
    with _connected(driver) as connection:
        run_now(connection.run(state.migrate()))


def _machine(driver: Driver, state: Any, table: str, clear: Callable[[], None], *, row_locks: bool) -> type[Machine]:
    facts = {"driver": driver, "state": state, "job_table": table, "clear": staticmethod(clear), "row_locks": row_locks}
    facts["lets_go"] = not row_locks and hasattr(state, "time_out")
    return type("Chosen", (Machine,), facts)


@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_whatever_is_done_the_rows_are_as_the_model_says(
    database: str,
    part: int,
    request: pytest.FixtureRequest,
    scale: Callable[[int], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine: type[Machine] = request.getfixturevalue(database)
    # A tenth of the scale is a hundredth of the work: it is part of every `make test`.
    examples = _EXAMPLES if scale(10) >= 10 else max(1, _EXAMPLES * scale(1000) // 8000)
    chosen = settings(
        max_examples=examples,
        stateful_step_count=_STEPS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink] if _SHRINKS else [Phase.generate],
        print_blob=True,
    )
    before = Steps.taken

    run_state_machine_as_test(seed(zlib.crc32(f"{part}".encode()))(machine), settings=chosen)

    with capsys.disabled():
        sys.stderr.write(f"\n  {database}, part {part}: {Steps.taken - before} operations in {examples} runs\n")

"""A worker, hit at every statement of its process and every wait of its tasks, once each."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sweep.bench import make_bench
from sweep.sweeping import WorkerSweep
from sweep.worker_operations import WORKS

pytestmark = pytest.mark.timeout(1800)
DRIVERS = ["sqlite", "asyncpg", "psycopg", "sqlalchemy-asyncpg", "sqlalchemy-psycopg", "sqlalchemy-aiosqlite"]

SELDOM = ["schedules", "limits"]
"""Tried by `make test-all` only."""


@pytest.fixture(scope="module", params=DRIVERS)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder: Path = tmp_path_factory.mktemp("sweep")
    made = make_bench(request.param, dsn=lambda: request.getfixturevalue("postgres_dsn"), folder=folder)
    yield made
    made.close()


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SELDOM else n for n in WORKS])
def test_what_a_worker_does_is_done_once_whatever_hits_it(
    bench: Any, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = WorkerSweep(bench, WORKS[name]).run()

    with capsys.disabled():
        sys.stderr.write(f"\n  {report}\n")
    assert not report.problems, f"{len(report.problems)} problems, see above"

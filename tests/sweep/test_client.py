"""Every operation of a client, on every driver, hit at every statement and every wait, once each.

`make test` tries six in a hundred of the points, on SQLAlchemy a third of that, always the same.
ONWARD_SWEEP_SEED chooses others.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sweep.bench import make_bench
from sweep.client_operations import OPERATIONS
from sweep.sweeping import ClientSweep

pytestmark = pytest.mark.timeout(900)
DRIVERS = [
    "sqlite",
    "sqlite-sync",
    "asyncpg",
    "psycopg",
    "psycopg-sync",
    "sqlalchemy-asyncpg",
    "sqlalchemy-psycopg",
    "sqlalchemy-aiosqlite",
]


@pytest.fixture(scope="module", params=DRIVERS)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder: Path = tmp_path_factory.mktemp("sweep")
    made = make_bench(request.param, dsn=lambda: request.getfixturevalue("postgres_dsn"), folder=folder)
    yield made
    made.close()


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_that_is_hit_is_done_once_or_not_at_all(
    bench: Any, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    operation = OPERATIONS[name]
    if operation.is_native and bench._engine is not None:
        pytest.skip("an engine's own connections are what its apps hand out")

    report = ClientSweep(bench, operation).run()

    with capsys.disabled():
        sys.stderr.write(f"\n  {report}\n")
    assert not report.problems, f"{len(report.problems)} problems, see above"

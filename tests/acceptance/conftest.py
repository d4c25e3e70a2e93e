"""Real processes for acceptance tests."""

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from command import Command
from onward import JobType, Onward, SyncOnward
from programs.three_steps import one, three, two

PROGRAMS = Path(__file__).parent.parent / "programs"


@pytest.fixture(params=["postgres", "sqlite"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database, once for each kind."""
    if request.param == "postgres":
        dsn: str = request.getfixturevalue("postgres_dsn")
        return dsn
    return f"sqlite:///{tmp_path}/onward.db"


@pytest.fixture
def sqlite_address(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/onward.db"


@pytest.fixture
def database_url(postgres_server: str) -> Iterator[str]:
    """An empty Postgres database."""
    name = f"onward_docs_{secrets.token_hex(4)}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield postgres_server.rpartition("/")[0] + f"/{name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def schema() -> str:
    return f"t_{secrets.token_hex(6)}"


@pytest.fixture
def launch(target: str, schema: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts programs/NAME.py with the test's database; what still runs at the end is killed, by its own id."""
    with ExitStack() as stack:

        def start(name: str, *arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
            command = [sys.executable, str(PROGRAMS / f"{name}.py"), target, schema, *map(str, arguments)]
            process = subprocess.Popen(command, **options)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        yield start


@pytest.fixture
def work(target: str, schema: str, tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts `onward worker` on programs/stoppable.py; what still runs at the end is killed, by its own id."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("ONWARD_")}
    with ExitStack() as stack:

        def start(*arguments: str, **variables: str) -> Command:
            environment = {**own, "DATABASE": target, "SCHEMA": schema, **variables}
            command = Command(
                "worker", "stoppable:app", *arguments, folder=PROGRAMS, output=tmp_path, environment=environment
            )
            stack.callback(command.process.wait)
            stack.callback(command.process.kill)
            return command

        yield start


@pytest.fixture
def client(target: str, schema: str) -> Iterator[SyncOnward]:
    """The client's side of programs/stoppable.py, with an empty table."""
    texts = [JobType(name, input=str, output=int) for name in ("hold", "hold_thread", "hold_loop", "linger", "meet")]
    nothings = [JobType(name, input=type(None), output=type(None)) for name in ("stubborn", "block", "die")]
    with Onward(target, jobs=[one, two, three, *texts, *nothings], schema=schema, migrate=True).sync as client:
        with client.transaction() as tx:
            tx.execute("DROP TABLE IF EXISTS trace")
            tx.execute("CREATE TABLE trace (chain text, step int)")
        yield client

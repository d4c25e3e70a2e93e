"""Real processes for acceptance tests."""

import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent.parent / "programs"


@pytest.fixture(params=["postgres", "sqlite"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database, once for each kind."""
    if request.param == "postgres":
        dsn: str = request.getfixturevalue("postgres_dsn")
        return dsn
    return f"sqlite:///{tmp_path}/onward.db"


@pytest.fixture
def schema() -> str:
    return f"t_{secrets.token_hex(6)}"


@pytest.fixture
def launch(target: str, schema: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts programs/NAME.py with the test's database; what still runs at the end is killed, by its own id."""
    with ExitStack() as stack:

        def start(name: str, *arguments: Any) -> subprocess.Popen[bytes]:
            command = [sys.executable, str(PROGRAMS / f"{name}.py"), target, schema, *map(str, arguments)]
            process = subprocess.Popen(command)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        yield start

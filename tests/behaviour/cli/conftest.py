"""Commands, run in this process on every database."""

import json
import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from onward import Onward, SyncOnward
from onward.cli.commands import cli
from orders import jobs


@dataclass(frozen=True)
class Said:
    """What a command said, and how it ended."""

    code: int
    out: str
    words: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def schema() -> str:
    return f"t_{secrets.token_hex(6)}"


@pytest.fixture
def at(target: str, schema: str) -> list[str]:
    """The options that say where the jobs are."""
    return ["--database", target, *(["--schema", schema] if "postgres" in target else [])]


@pytest.fixture
def onward(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Runs a command in this process."""
    for name in ("ONWARD_APP", "ONWARD_DATABASE"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object, input: str | bytes | None = None, code: int = 0) -> Said:
        result = CliRunner().invoke(cli, list(map(str, arguments)), input=input, catch_exceptions=False)
        assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr)
        return Said(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def client(target: str, schema: str) -> Iterator[SyncOnward]:
    with Onward(target, jobs=jobs(), schema=schema, migrate=True, observers=[]).sync as client:
        yield client


@pytest.fixture
def module(
    tmp_path: Path, target: str, schema: str, client: SyncOnward, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], list[str]]]:
    """Writes a module with an app on the test's tables; gives the options that name it."""
    made: list[str] = []
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(code: str) -> list[str]:
        name = f"shop_{secrets.token_hex(4)}"
        made.append(name)
        imported = ("import asyncio", "from dataclasses import *", "from typing import *", "from onward import *")
        head = "\n".join((*imported, "from onward.crypto import *\n"))
        tail = f"\napp = Onward({target!r}, jobs=jobs, schema={schema!r}, observers=[])\n"
        (tmp_path / f"{name}.py").write_text(head + code + tail)
        return ["--app-dir", str(tmp_path), f"{name}:app"]

    yield write
    for name in made:
        sys.modules.pop(name, None)

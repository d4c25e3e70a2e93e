"""An app that was opened before a fork: its children connect anew, or say what to do; nobody waits for ever."""

import asyncio
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from onward.errors import ConfigurationError
from onward.notify.nats import NatsNotify
from onward.notify.redis import RedisNotify
from onward.state import process

HINTS = Path(__file__).parent.parent / "programs" / "forked_hints.py"
PROGRAM = Path(__file__).parent.parent / "programs" / "forked.py"
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def said(url: str, kind: str) -> dict[str, str]:
    """What the parent and its children said, by who said it."""
    schema = f"t_{secrets.token_hex(6)}"
    done = subprocess.run(
        [sys.executable, str(PROGRAM), url, schema, kind], capture_output=True, text=True, timeout=60, check=True
    )
    lines = [line.partition(": ") for line in done.stdout.splitlines()]
    return {name: rest for name, _, rest in lines}


@pytest.mark.parametrize("kind", ["sync", "sync engine"])
def test_a_sync_client_on_postgres_connects_anew_in_each_child(postgres_dsn: str, kind: str) -> None:
    outcomes = said(postgres_dsn, kind)

    names = ["child 0", "child 1", "child 2", "parent", "parent afterwards"]
    assert [outcomes[name] for name in names] == ["{'started': 20}"] * 5


@pytest.mark.parametrize("address", ["sqlite:///{}/jobs.db", "memory://"])
def test_a_sync_client_on_sqlite_says_that_it_was_opened_before_the_fork(tmp_path: Path, address: str) -> None:
    """And the private file of the parent is still there when its children have ended."""
    outcomes = said(address.format(tmp_path), "sync")

    assert outcomes["parent"] == outcomes["parent afterwards"] == "{'started': 20}"
    assert outcomes["file"] == "True"
    for number in range(3):
        assert "ConfigurationError: the app was opened in process" in outcomes[f"child {number}"]
        assert "open the app after the fork" in outcomes[f"child {number}"]


@pytest.mark.parametrize("client", ["asyncpg", "psycopg", "sqlite"])
def test_an_app_with_an_event_loop_says_so_too(postgres_dsn: str, tmp_path: Path, client: str) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db" if client == "sqlite" else postgres_dsn.replace("://", f"+{client}://", 1)
    outcomes = said(url, "async")

    assert outcomes["parent"] == "{'started': 3}"
    assert outcomes["child"].startswith("ConfigurationError: the app was opened in process")


async def test_so_does_a_client_that_is_made_in_the_child_if_somebody_was_writing_to_the_file_at_the_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who had his turn is not in the child, which would wait for him."""
    app = Onward(f"sqlite:///{tmp_path}/jobs.db", jobs=[])
    async with app, app.transaction():
        with monkeypatch.context() as child:
            for home in process._homes:
                child.setattr(home, "is_elsewhere", True)
            with pytest.raises(ConfigurationError, match="open the app after the fork"):
                app.sync.open()
    with app.sync as client:
        assert client.depths() == {}


@pytest.mark.parametrize("broker", ["redis", "nats"])
async def test_hints_leave_the_child_and_the_parent_of_a_fork(request: pytest.FixtureRequest, broker: str) -> None:
    address, name = request.getfixturevalue(f"{broker}_url"), f"t{secrets.token_hex(6)}"
    notify: Any = RedisNotify(address, channel=name) if broker == "redis" else NatsNotify(address, subject=name)
    awaited, heard = {"parent", "child", "parent again"}, set[str]()
    async with asyncio.TaskGroup() as tasks:
        await notify.open(tasks)
        async with notify.listen(ended=awaited) as listener, asyncio.timeout(60):
            program = await asyncio.create_subprocess_exec(sys.executable, str(HINTS), broker, address, name)
            try:
                while heard != awaited:
                    heard |= {hint.key for hint in await listener.wait(1.0)}
                assert await program.wait() == 0
            finally:
                if program.returncode is None:
                    program.kill()
                    await program.wait()
        await notify.close()

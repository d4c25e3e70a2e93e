"""A server that may be hurt, processes that suffer, and what they must have left behind."""

import asyncio
import os
import secrets
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import servers
from chaos.network import Network
from onward import Onward
from programs.under_chaos import make_app

PROGRAM = Path(__file__).parent.parent / "programs" / "under_chaos.py"
Launch = Callable[..., subprocess.Popen[bytes]]


@dataclass
class Scene:
    """A database, and how those who suffer reach it."""

    instance: servers.Instance
    address: str
    """For the workers: by TCP."""
    home: str
    """For the test itself: by a way that is not cut."""
    network: Network | None = None


def _unix(instance: servers.Instance) -> str:
    folder = instance.log.parent
    port = instance.dsn.rpartition(":")[2].partition("/")[0]
    return f"postgresql://postgres@/postgres?host={folder}&port={port}"


@pytest.fixture
def scene() -> Iterator[Scene]:
    """A private server on this machine."""
    with servers.private_postgres() as instance:
        yield Scene(instance, instance.dsn, _unix(instance))


@pytest.fixture
def cut_scene() -> Iterator[Scene]:
    """A private server in a network of its own, whose connections can be cut."""
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("networks can be made and cut only by root, on Linux")
    for program, package in {"ip": "iproute2", "iptables": "iptables"}.items():
        if shutil.which(program) is None:
            servers.install(package)
    servers.find(servers.POSTGRES)  # inside there would be no way to fetch it
    network = Network()
    try:
        with ExitStack() as stack:
            with network.inside():
                instance = stack.enter_context(servers.private_postgres())
            yield Scene(instance, instance.dsn, _unix(instance), network)
    finally:
        network.close()


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Tells a measured figure on the terminal."""

    def tell(text: str) -> None:
        with capsys.disabled():
            sys.stderr.write(f"\n  {text}\n")

    return tell


@pytest.fixture
def schema() -> str:
    return f"t_{secrets.token_hex(6)}"


@pytest.fixture
def launch(schema: str) -> Iterator[Launch]:
    """Starts workers; what still runs at the end is killed, by its own id."""
    with ExitStack() as stack:

        def start(
            address: str, *, concurrency: int = 10, network: Network | None = None, **environment: str
        ) -> subprocess.Popen[bytes]:
            command = [sys.executable, str(PROGRAM), address, schema, str(concurrency)]
            with network.inside() if network else ExitStack():
                process = subprocess.Popen(command, env={**os.environ, **environment})
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        yield start


@pytest.fixture
async def open_app(schema: str) -> AsyncIterator[Callable[..., Any]]:
    """Opens clients; the first also makes the table of the programs."""
    stack: list[Onward] = []

    async def opened(address: str, **options: Any) -> Onward:
        app = make_app(address, schema, **options)
        await app.open()
        stack.append(app)
        async with app.transaction() as tx:
            await tx.execute("CREATE TABLE IF NOT EXISTS trace (chain text, step int)")
            await tx.execute("CREATE INDEX IF NOT EXISTS trace_chain ON trace (chain)")
        return app

    yield opened
    for app in reversed(stack):
        await app.close()


async def all_ended(app: Onward, *, within: float) -> None:
    """Wait until no chain is unfinished."""
    async with asyncio.timeout(within):
        while (await app.chains(status=["blocked", "pending", "running"], limit=1)).items:
            await asyncio.sleep(0.1)


async def trace(app: Onward) -> Counter[tuple[str, int]]:
    """How often each step of each chain has left its row."""
    async with app.transaction() as tx:
        rows = await tx.fetch("SELECT chain, step FROM trace")
    return Counter((row["chain"], row["step"]) for row in rows)

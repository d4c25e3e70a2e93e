"""A worker is told to stop while its database is away: it ends, and what it could not settle is done later."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psycopg
import pytest

import servers
from command import Command, until
from onward import JobType, SyncOnward
from support import SOON

pytestmark = pytest.mark.chaos
GRACE = 1.0
hold = JobType("hold", input=str, output=int)


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Instance]:
    with servers.private_postgres() as instance:
        yield instance


@pytest.fixture
def target(server: servers.Instance) -> str:
    return server.dsn


@contextmanager
def stopped(server: servers.Instance) -> Iterator[None]:
    """Connections are refused."""
    server.stop("immediate")
    try:
        yield
    finally:
        server.start()


@contextmanager
def frozen(server: servers.Instance) -> Iterator[None]:
    """Connections are made and never answered."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        rows = connection.execute("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()").fetchall()
    pids = [server.pid, *(row[0] for row in rows)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("away", [stopped, frozen])
def test_stopping_ends_while_the_database_is_away(
    work: Callable[..., Command],
    client: SyncOnward,
    server: servers.Instance,
    tmp_path: Path,
    away: Callable[[servers.Instance], AbstractContextManager[None]],
) -> None:
    folders = tmp_path / "unsettled", tmp_path / "running"
    for folder in folders:
        folder.mkdir()
    chains = client.start_many([hold.with_input(str(folder)) for folder in folders])
    worker = work("--concurrency", "2", "--grace", str(GRACE))
    until(lambda: all(any(folder.iterdir()) for folder in folders), or_else=lambda: worker.said)

    with away(server):
        (tmp_path / "unsettled" / "go").touch()
        worker.signal(signal.SIGTERM)
        assert worker.exits(within=GRACE + 10) in (0, 3)

    (tmp_path / "running" / "go").touch()
    work()
    for chain in chains:
        chain.wait(timeout=SOON)

"""What other systems lack, taken away as far as one can."""

import asyncio
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import create_async_engine
from typer.testing import CliRunner

from onward import Onward
from onward.cli import commands, supervisor
from onward.errors import ConfigurationError
from onward.state.driver import run_now
from onward.state.postgres.psycopg import PsycopgDriver
from onward.state.sqlite import version
from onward.state.sqlite.sqlite3 import SyncSqliteDriver
from onward.transport import cut_off, watch
from onward.worker.guardian import table
from onward.worker.guardian.table import Reader, Shape, Writer, is_stopped, started_at


@pytest.fixture
def without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_PROC", str(tmp_path))


@pytest.mark.usefixtures("without_proc")
def test_a_process_is_told_from_another_without_proc() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert started_at(child.pid) == started_at(child.pid) != -1
        assert not is_stopped(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        assert is_stopped(child.pid)
    finally:
        child.kill()
        child.communicate()
    assert started_at(child.pid) == -1
    assert not is_stopped(child.pid)


@pytest.mark.usefixtures("without_proc")
def test_a_process_of_which_the_system_says_nothing_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_ask_ps", lambda pid, what: b"")
    shape = Shape(leases=1, processes=1)
    writer = Writer(shape)
    writer.add_process(os.getpid())

    assert Reader(writer.descriptor, shape).processes() == []
    writer.close()


async def test_psycopg_says_which_event_loop_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    class ProactorEventLoop:
        """As it is called on Windows."""

    monkeypatch.setattr(asyncio, "get_running_loop", ProactorEventLoop)

    with pytest.raises(ConfigurationError, match=r"loop_factory=asyncio\.SelectorEventLoop"):
        await PsycopgDriver("postgresql://127.0.0.1:1/db").open()


def test_several_processes_are_refused_in_words_where_there_are_no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor.os, "name", "nt")

    done = CliRunner().invoke(commands.cli, ["worker", "shop:app", "--processes", "2"])

    assert done.exit_code == 1
    assert "--processes needs signals" in done.output


def test_how_a_process_ended_is_told_without_the_names_of_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signal, "SIGKILL")

    assert "was killed" in supervisor.in_words(-9)
    assert supervisor.in_words(1) == "ended with exit code 1"


@pytest.mark.slow  # every library there is an extra for
def test_modules_are_imported_without_what_windows_lacks() -> None:
    program = Path(__file__).parents[1] / "programs" / "like_windows.py"

    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=110)

    assert done.stdout.splitlines() == ["modules that do not import: none", "hello w sync w"], done.stderr


async def test_sockets_are_watched_and_cut_off_without_being_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "dup")  # which knows no sockets on Windows
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        watch(ours)
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1

        cut_off(ours.fileno())

        assert ours.recv(1) == b""
        assert ours.fileno() > 0
    watch(-1)
    cut_off(-1)


async def test_an_old_sqlite_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.34.1")

    with pytest.raises(ConfigurationError, match=r"SQLite 3\.34\.1; Onward needs 3\.35\.0 or newer"):
        run_now(SyncSqliteDriver(tmp_path / "jobs.db").open())
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'jobs.db'}")
    with pytest.raises(ConfigurationError, match=r"needs 3\.35\.0"):
        Onward(engine, jobs=[])
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 35, 0))
    version.require_version()
    monkeypatch.setattr(version, "_has_json", lambda: False)
    with pytest.raises(ConfigurationError, match="without its JSON functions"):
        version.require_version()

"""Handlers in processes of a worker that is a program: signals, its death, and handlers defined in the script."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from onward import ChainHandle, JobStatus, Onward
from programs.cpu_jobs import blur, frames

Launch = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
async def app(target: str, schema: str) -> AsyncIterator[Onward]:
    async with Onward(target, jobs=[frames], schema=schema, migrate=True) as app:
        yield app


async def pid_said(chain: ChainHandle[Any]) -> int:
    async with asyncio.timeout(30):
        while (progress := (await chain.get()).current.progress) is None:
            await asyncio.sleep(0.02)
    assert progress.note is not None
    return int(progress.note)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_signal_to_everybody_drains_first(app: Onward, launch: Launch, tmp_path: Path) -> None:
    chain = await app.start(blur, str(tmp_path / "enough"))
    worker = launch("cpu_jobs", "work")
    child = await pid_said(chain)

    # What systemd does; a terminal's Ctrl-C does not even reach another session.
    assert os.getsid(child) != os.getsid(worker.pid)
    for pid in (child, worker.pid):
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    (tmp_path / "enough").touch()

    assert await chain.wait(timeout=timedelta(seconds=20)) > 0
    assert await asyncio.to_thread(worker.wait, 20) == 0
    assert not is_running(child)


async def test_processes_end_with_a_worker_that_is_killed(app: Onward, launch: Launch) -> None:
    chain = await app.start(blur, "/nowhere")
    worker = launch("cpu_jobs", "work")
    child = await pid_said(chain)

    worker.kill()

    async with asyncio.timeout(10):
        while is_running(child):
            await asyncio.sleep(0.01)
    assert (await chain.get()).status in (JobStatus.RUNNING, JobStatus.PENDING)

"""A handler that blocks the event loop beyond its timeout: the job is counted as timed out, the process replaced."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from command import Command
from onward import Onward
from onward.cli.steering import NOT_STOPPED
from programs.blocking import blocks, blocks_in_phase, grips, make_app, neighbour
from support import SOON

PROGRAMS = Path(__file__).parent.parent / "programs"
LONGER = SOON * 3


@pytest.fixture
def work(target: str, schema: str, tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts `onward worker` on programs/blocking.py; what still runs at the end is killed, by its own id."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("ONWARD_")}
    environment = {**own, "DATABASE": target, "SCHEMA": schema}
    with ExitStack() as stack:

        def start(*arguments: str) -> Command:
            words = ("worker", "blocking:app", "--concurrency", "4", "--grace", "1", *arguments)
            command = Command(*words, folder=PROGRAMS, output=tmp_path, environment=environment)
            stack.callback(command.process.wait)
            stack.callback(command.process.kill)
            return command

        yield start


@pytest.fixture
async def app(target: str, schema: str) -> AsyncIterator[Onward]:
    async with make_app(target, schema) as app:
        yield app


async def start_beside(app: Onward, blocking: Any) -> tuple[Any, Any]:
    """A job that blocks, when another runs in the same process."""
    other = await app.start(neighbour, None)
    async with asyncio.timeout(LONGER.total_seconds()):
        while (await other.get()).status != "running":
            await asyncio.sleep(0.01)
    return await app.start(blocking, None), other


async def exits(command: Command) -> int:
    return await asyncio.to_thread(command.exits, within=LONGER.total_seconds())


@pytest.mark.parametrize("guardian", ["process", "thread"])
@pytest.mark.parametrize(
    "blocking", [blocks, pytest.param(blocks_in_phase, marks=pytest.mark.chaos)], ids=lambda job: job.name
)
async def test_a_blocked_worker_ends_and_another_finishes_its_jobs(
    app: Onward, work: Callable[..., Command], guardian: str, blocking: Any
) -> None:
    first = work("--guardian", guardian)
    first.says("takes jobs", within=LONGER.total_seconds())
    chain, other = await start_beside(app, blocking)

    assert await exits(first) == NOT_STOPPED
    assert "in block\n    time.sleep(600)" in first.said
    assert f"beyond the timeout of job {chain.id} (attempt 1)" in first.said
    work("--guardian", guardian)

    assert await chain.wait(timeout=LONGER) == 2
    assert await other.wait(timeout=LONGER) == 2
    job = (await chain.get()).current
    assert job.failures == 1
    if guardian == "process" or blocking is blocks:  # else it dies with its own transaction open, and cannot say why
        assert job.last_error is not None
        assert (job.last_error.type, job.last_error.attempt) == ("TimeoutError", 1)
        assert "time.sleep(600)" in job.last_error.traceback
    if guardian == "process" or blocking is blocks:
        assert (await other.get()).current.failures == 0, first.said


@pytest.mark.chaos
async def test_a_worker_that_holds_the_gil_is_killed_by_its_guardian(app: Onward, work: Callable[..., Command]) -> None:
    first = work()
    first.says("takes jobs", within=LONGER.total_seconds())
    chain, other = await start_beside(app, grips)

    assert await exits(first) == -9
    work()

    assert await chain.wait(timeout=LONGER) == 2
    assert await other.wait(timeout=LONGER) == 2
    job = (await chain.get()).current
    assert job.last_error is not None
    assert (job.failures, job.last_error.type) == (1, "TimeoutError")
    assert (await other.get()).current.failures == 0


@pytest.mark.chaos
async def test_a_supervisor_replaces_a_blocked_worker(app: Onward, work: Callable[..., Command]) -> None:
    command = work("--processes", "2")
    command.says("takes jobs", times=2, within=LONGER.total_seconds())

    chain = await app.start(blocks, None)

    assert await chain.wait(timeout=LONGER) == 2
    await asyncio.to_thread(command.says, "takes jobs", times=3, within=LONGER.total_seconds())
    assert "made room because a handler did not stop (exit code 3)" in command.said


@pytest.mark.chaos
@pytest.mark.parametrize("guardian", ["process", "thread"])
async def test_a_worker_inside_another_program_lets_go_of_the_job_and_says_so(
    app: Onward, target: str, schema: str, work: Callable[..., Command], guardian: str, tmp_path: Path
) -> None:
    program = (
        "import asyncio, logging, sys\n"
        "from datetime import timedelta\n"
        "from programs.blocking import make_app\n"
        "logging.basicConfig()\n"
        "async def main(app):\n"
        "    async with app, app.worker(concurrency=4, guardian=sys.argv[3], grace=timedelta(seconds=1)):\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main(make_app(*sys.argv[1:3])))\n"
    )
    log = tmp_path / "log"
    with log.open("wb") as file:
        embedded = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, target, schema, guardian, cwd=PROGRAMS.parent, stderr=file
        )
    try:
        chain, _ = await start_beside(app, blocks)
        began = time.monotonic()
        async with asyncio.timeout(LONGER.total_seconds()):
            while "cannot be ended from here" not in log.read_text():
                await asyncio.sleep(0.05)
        work()

        assert await chain.wait(timeout=LONGER) == 2
        assert time.monotonic() - began < 2 * LONGER.total_seconds()
        assert embedded.returncode is None
    finally:
        embedded.kill()
        await embedded.wait()
    job = (await chain.get()).current
    assert job.last_error is not None
    assert (job.failures, job.last_error.type) == (1, "TimeoutError")

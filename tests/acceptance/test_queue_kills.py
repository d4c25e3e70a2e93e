"""Queue workers that die between finishing a job and acknowledging it: nothing is lost, on any provider."""

import asyncio
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from onward.queue import Queue, QueueWorker
from programs import queue_worker

PROGRAM = Path(queue_worker.__file__)
SERVERS = {
    "redis": "redis_url",
    "bullmq": "redis_url",
    "sqlite": "sqlite_address",
    "postgres": "postgres_dsn",
    "sqs": "sqs_url",
    "rabbitmq": "rabbitmq_url",
    "rabbitmq-classic": "rabbitmq_url",
}
"""Which fixture has the address of a provider's server."""
JOBS = 40
OFTEN = 10_000
"""Attempts: every death counts as one."""


@pytest.fixture(params=SERVERS)
def spec(request: pytest.FixtureRequest) -> str:
    return f"{request.param}+{request.getfixturevalue(SERVERS[request.param])}"


@pytest.fixture
async def queue(spec: str) -> AsyncIterator[Queue[int]]:
    async with Queue(f"kills-{secrets.token_hex(6)}", provider=queue_worker.factory(spec), data=int) as queue:
        yield queue
        await queue.delete()


def run_out(*command: object, within: float) -> int:
    """Run a program to its end, or end it; its exit code."""
    return subprocess.run([sys.executable, *map(str, command)], timeout=within).returncode


@pytest.mark.timeout(300)
async def test_workers_killed_between_finishing_and_acknowledging_lose_nothing(
    spec: str, queue: Queue[int], tmp_path: Path, scale: Callable[[int], int]
) -> None:
    deaths, trace = scale(200), tmp_path / "trace"
    added = await queue.add_many("count", range(JOBS), attempts=OFTEN)

    assert await asyncio.to_thread(run_out, PROGRAM, spec, queue.name, deaths, trace, within=240) == 0
    completed: set[str] = set()
    done = asyncio.Event()

    async def handler(data: int, job: object) -> None:
        pass

    worker = QueueWorker(queue.name, handler, provider=queue_worker.factory(spec), concurrency=10)
    worker.on("completed", lambda event: completed.add(event.job_id))
    worker.on("completed", lambda event: done.set() if len(completed) == JOBS else None)
    async with worker:
        async with asyncio.timeout(60):
            await done.wait()
        stats = await queue.stats()

    assert len(trace.read_text().split()) >= deaths
    assert completed == {job.id for job in added}
    assert stats.failed in (0, None)
    assert stats.completed in (JOBS, None)

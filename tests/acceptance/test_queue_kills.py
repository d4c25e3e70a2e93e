"""Queue workers that are killed: nothing is lost and nothing fails, on any provider, with the options nobody gave."""

import asyncio
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from onward.queue import Queue, QueueWorker
from onward.queue.model import KEEP_COMPLETED
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
    "nats": "nats_url",
}
"""Which fixture has the address of a provider's server."""
ALL_DEATHS, FEW = 200, 5
"""How many are killed in all; and how many times fewer still where not all are: each takes a tenth of a second."""
SLOW = {"sqs": 10}
"""How many times fewer deaths for a server that only plays its part."""


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


@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", [pytest.param([], id="before acknowledging"), pytest.param(["random"], id="at random")])
async def test_workers_that_are_killed_lose_nothing(
    spec: str, queue: Queue[int], tmp_path: Path, scale: Callable[[int], int], how: list[str]
) -> None:
    deaths, trace = scale(ALL_DEATHS), tmp_path / "trace"
    few = SLOW.get(spec.partition("+")[0], 1) if deaths >= ALL_DEATHS else FEW
    deaths = max(deaths // few, 2)
    count = deaths * queue_worker.JOBS_OF_A_LIFE
    for first in range(0, count, 500):
        await queue.add_many("count", range(first, min(first + 500, count)))

    assert await asyncio.to_thread(run_out, PROGRAM, spec, queue.name, deaths, trace, *how, within=500) == 0

    had_effect = {int(line) for line in trace.read_text().split()}

    async def handler(data: int, job: object) -> None:
        had_effect.add(data)

    async def nothing_is_left() -> bool:
        stats = await queue.stats()
        return (stats.waiting, stats.active or 0) == (0, 0)

    async with QueueWorker(queue.name, handler, provider=queue_worker.factory(spec), concurrency=10):
        async with asyncio.timeout(120):
            while not await nothing_is_left():
                await asyncio.sleep(0.1)
        stats = await queue.stats()

    assert stats.failed in (0, None), [(job.error, job.reason, job.stalls) for job in await queue.dead_letters()]
    # BullMQ counts what it keeps; some do not count at all.
    assert stats.completed in (count, min(count, KEEP_COMPLETED.count), None)
    assert had_effect == set(range(count))

"""Workers that die, and many processes at once: nothing is lost and nothing happens twice."""

import asyncio
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from programs.three_steps import make_app, one

Launch = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
async def app(target: str, schema: str) -> AsyncIterator[Onward]:
    """The client's side of programs/three_steps.py, with an empty table."""
    async with make_app(target, schema) as app:
        async with app.transaction() as tx:
            await tx.execute("DROP TABLE IF EXISTS trace")
            await tx.execute("CREATE TABLE trace (chain text, step int)")
        yield app


async def ended(app: Onward, count: int, *, within: float) -> None:
    """Wait until that many chains have left their last row, and none is unfinished."""
    async with asyncio.timeout(within):
        while sum(step == 3 for _, step in await trace(app)) < count or await unfinished(app):
            await asyncio.sleep(0.1)


async def unfinished(app: Onward) -> bool:
    return bool((await app.chains(status=["blocked", "pending", "running"], limit=1)).items)


async def exited(process: subprocess.Popen[bytes], *, within: float) -> int:
    async with asyncio.timeout(within):
        return await asyncio.to_thread(process.wait)


async def trace(app: Onward) -> Counter[tuple[str, int]]:
    async with app.transaction() as tx:
        rows = await tx.fetch("SELECT chain, step FROM trace")
    return Counter((row["chain"], row["step"]) for row in rows)


@pytest.mark.parametrize("point", ["claim", "prepare", "between", "before commit", "after commit"])
async def test_a_worker_killed_anywhere_leaves_every_step_done_exactly_once(
    app: Onward, launch: Launch, tmp_path: Path, point: str
) -> None:
    chains = await app.start_many([one.with_input(n) for n in range(5)])

    first = launch("three_steps", "work", point, tmp_path / "marker")
    assert await exited(first, within=20) == -signal.SIGKILL
    launch("three_steps", "work")
    await ended(app, 5, within=30)

    expected = Counter({(str(chain.id), step): 1 for chain in chains for step in (1, 2, 3)})
    assert await trace(app) == expected


async def test_many_producers_and_workers_lose_nothing_and_double_nothing(
    app: Onward, launch: Launch, scale: Any
) -> None:
    producers, per_producer = 8, scale(625 * 8) // 8
    workers = [launch("three_steps", "work") for _ in range(4)]
    writers = [launch("three_steps", "produce", per_producer, n * per_producer) for n in range(producers)]

    for writer in writers:
        assert await exited(writer, within=100) == 0
    await ended(app, producers * per_producer, within=100)
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    codes = [await exited(worker, within=20) for worker in workers]

    counts = await trace(app)
    assert codes == [0, 0, 0, 0]
    assert set(counts.values()) == {1}
    assert Counter(step for _, step in counts) == dict.fromkeys(range(4), producers * per_producer)

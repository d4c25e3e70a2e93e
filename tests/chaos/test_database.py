"""The database goes away and comes back: nothing is lost, nothing happens twice, and nobody oversleeps its return."""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from chaos.conftest import Launch, Scene, all_ended, trace
from onward import Onward
from onward.errors import DatabaseUnavailable
from programs.under_chaos import INSERT, began, one

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]
SOON = timedelta(seconds=20)


async def start_surely(app: Onward, id: UUID) -> None:
    """As an application would that cannot do without: try, and after an unknown outcome look."""
    while True:
        try:
            if await app.find_chain(id) is not None:
                return
            async with app.transaction() as tx:
                await app.start(one, 0, tx=tx, id=id)
                await tx.execute(INSERT, chain=str(id), step=0)
        except Exception as error:
            fault = app.driver.fault(error)  # of its own statements; those of ours say it in their type
            if not isinstance(error, DatabaseUnavailable) and (fault is None or not fault.is_transient):
                raise
            await asyncio.sleep(0.1)


async def test_restarts_under_load_lose_nothing_and_double_nothing(
    scene: Scene, launch: Launch, open_app: Any, scale: Callable[[int], int], say: Callable[[str], None]
) -> None:
    every = 10 if scale(120) >= 120 else 4
    restarts = max(scale(120), 12) // every
    client: Onward = await open_app(scene.address)
    workers = [launch(scene.address) for _ in range(2)]
    await (await client.start(began, None)).wait(timeout=SOON)
    started: list[UUID] = []
    latencies: list[float] = []
    done = asyncio.Event()

    async def produce() -> None:
        while not done.is_set():
            started.append(uuid4())
            await start_surely(client, started[-1])
            await asyncio.sleep(0.02)

    async def restart() -> None:
        for _ in range(restarts):
            await asyncio.sleep(every - 3)
            await asyncio.to_thread(scene.instance.restart, "immediate")
            await asyncio.sleep(1)
            asked = time.time()
            chain = await client.start(began, None, priority=1)
            latencies.append(await chain.wait(timeout=SOON) - asked)
        done.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(produce())
        tasks.create_task(restart())
    await all_ended(client, within=60)

    typical, worst = statistics.median(latencies), max(latencies)
    say(
        f"{restarts} restarts, {len(started)} chains; begun {typical * 1000:.0f} ms (median), {worst * 1000:.0f} ms "
        "(worst) after a start 1 s after the return"
    )
    assert await trace(client) == Counter({(str(id), step): 1 for id in started for step in range(4)})
    assert worst < 2
    assert [worker.poll() for worker in workers] == [None, None]


async def test_an_idle_worker_is_awake_when_the_database_has_been_away_for_long(
    scene: Scene, launch: Launch, open_app: Any, scale: Callable[[int], int], say: Callable[[str], None]
) -> None:
    client: Onward = await open_app(scene.address)
    launch(scene.address)
    await (await client.start(began, None)).wait(timeout=SOON)

    scene.instance.stop("immediate")
    await asyncio.sleep(max(scale(60), 8))
    await asyncio.to_thread(scene.instance.start)
    await asyncio.sleep(1)
    asked = time.time()
    latency = await (await client.start(began, None)).wait(timeout=SOON) - asked

    say(f"begun {latency * 1000:.0f} ms after a start 1 s after the return")
    assert latency < 2

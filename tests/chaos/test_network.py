"""Connections that die without a word: noticed, replaced, and nothing happens twice."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from chaos.conftest import Launch, Scene, all_ended, trace
from onward import Onward
from programs.under_chaos import began, hold, one

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]
SOON = timedelta(seconds=30)
LIBRARIES = ["asyncpg", "psycopg"]


async def ports(app: Onward, *, named: str = "%") -> set[int]:
    """The workers' ends of their connections: nobody else is connected by TCP."""
    async with app.transaction() as tx:
        rows = await tx.fetch(
            "SELECT client_port FROM pg_stat_activity WHERE client_port > 0 AND application_name LIKE :named",
            named=named,
        )
    return {row[0] for row in rows}


def by(library: str, address: str) -> str:
    return address.replace("postgresql://", f"postgresql+{library}://")


@pytest.mark.parametrize("library", LIBRARIES)
async def test_a_worker_whose_connections_are_all_cut_starts_the_next_job_within_ten_seconds(
    cut_scene: Scene,
    launch: Launch,
    open_app: Any,
    scale: Callable[[int], int],
    say: Callable[[str], None],
    library: str,
) -> None:
    network = cut_scene.network
    assert network is not None
    client: Onward = await open_app(cut_scene.home)
    launch(by(library, cut_scene.address), network=network)
    await (await client.start(began, None)).wait(timeout=SOON)
    chains = await client.start_many([one.with_input(n) for n in range(scale(1000))])
    await asyncio.sleep(0.05)

    cut_at = time.monotonic()
    network.cut(await ports(client))
    asked = time.time()
    latency = await (await client.start(began, None, priority=1)).wait(timeout=SOON) - asked
    chains += await client.start_many([one.with_input(n) for n in range(scale(100))])
    await asyncio.sleep(max(scale(60), 20) - (time.monotonic() - cut_at))
    network.mend()
    await all_ended(client, within=60)

    say(f"begun {latency:.1f} s after all connections ({library}) were cut")
    assert latency < 10
    assert await trace(client) == Counter({(str(chain.id), step): 1 for chain in chains for step in (1, 2, 3)})


async def test_a_listener_that_is_cut_costs_seconds_and_comes_back(
    cut_scene: Scene, launch: Launch, open_app: Any, say: Callable[[str], None]
) -> None:
    network = cut_scene.network
    assert network is not None
    client: Onward = await open_app(cut_scene.home)
    launch(cut_scene.address, network=network)
    await (await client.start(began, None)).wait(timeout=SOON)

    listening = await ports(client, named="onward hints")
    network.cut(listening)
    cut_at, asked = time.monotonic(), time.time()
    latency = await (await client.start(began, None)).wait(timeout=SOON) - asked
    async with asyncio.timeout(30):
        while not await ports(client, named="onward hints") - listening:
            await asyncio.sleep(0.05)
    back_after = time.monotonic() - cut_at
    asked = time.time()
    again = await (await client.start(began, None)).wait(timeout=SOON) - asked

    say(f"begun after {latency:.1f} s, listening again after {back_after:.1f} s, then {again * 1000:.0f} ms")
    assert listening
    assert latency < 5
    assert back_after < 10
    assert again < 1


@pytest.mark.parametrize("library", LIBRARIES)
async def test_a_guardian_that_is_cut_keeps_the_lease_and_gives_it_back_at_once_when_its_worker_is_killed(
    cut_scene: Scene, launch: Launch, open_app: Any, say: Callable[[str], None], library: str
) -> None:
    network = cut_scene.network
    assert network is not None
    client: Onward = await open_app(cut_scene.home)
    worker = launch(by(library, cut_scene.address), network=network, GUARDIAN_PROCESS="yes")
    await (await client.start(began, None)).wait(timeout=SOON)
    async with asyncio.timeout(30):
        while not (guarding := await ports(client, named="onward guardian")):
            await asyncio.sleep(0.05)

    network.cut(guarding)
    cut_at = time.monotonic()
    async with asyncio.timeout(30):
        while not await ports(client, named="onward guardian") - guarding:
            await asyncio.sleep(0.05)
    idle = time.monotonic() - cut_at
    chain = await client.start(hold, 60.0)
    async with asyncio.timeout(30):
        while (await chain.get()).status != "running":
            await asyncio.sleep(0.05)
    network.cut(await ports(client, named="onward guardian"))
    worker.kill()
    killed_at = time.monotonic()
    async with asyncio.timeout(30):
        while (await chain.get()).current.leased_until > datetime.now(UTC):  # type: ignore[union-attr]
            await asyncio.sleep(0.05)
    given_back = time.monotonic() - killed_at

    say(
        f"{library}: an idle guardian was back after {idle:.1f} s; cut and orphaned, it gave back in {given_back:.1f} s"
    )
    assert idle < 10
    assert given_back < 10

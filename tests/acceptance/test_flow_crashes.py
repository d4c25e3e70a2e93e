"""Flow workers that are killed, a Redis that is restarted under them, and many jobs; on servers of the tests' own."""

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

import servers
from flows import places
from onward.flow import Flow
from programs import flow_soak
from programs.flow_five_stages import Number, make_flow

ALL_KILLS, FEW_KILLS = 1_000, 10
PROGRAMS = Path(__file__).parent.parent / "programs"


@asynccontextmanager
async def herd(
    address: str, *, processes: int, kills: int = 0, lock: Sequence[int] = ()
) -> AsyncIterator[asyncio.Task[bytes]]:
    """Runs `flow_five_stages.py`; yields what it says when it has killed as many as it should."""
    numbers = map(str, (processes, kills, *lock))
    program = (sys.executable, str(PROGRAMS / "flow_five_stages.py"), address, *numbers)
    process = await asyncio.create_subprocess_exec(*program, stdout=subprocess.PIPE)
    assert process.stdout is not None
    async with asyncio.TaskGroup() as tasks:
        try:
            yield tasks.create_task(process.stdout.readline())
        finally:
            process.terminate()
            async with asyncio.timeout(60):
                assert await process.wait() == 0


async def start_until(flow: Flow[Number], enough: Callable[[list[str]], bool], *, at_a_time: int) -> list[str]:
    """Start jobs, some more as soon as few wait."""
    ids: list[str] = []
    while not enough(ids):
        if (await flow.positions(limit=0)).count(place="waiting") < at_a_time:
            ids += await flow.start_many(Number(n) for n in range(len(ids), len(ids) + at_a_time))
        else:
            await asyncio.sleep(0.05)
    return ids


async def all_ended(flow: Flow[Number], count: int) -> None:
    while (await flow.positions(limit=0)).count(place="done") < count:
        await asyncio.sleep(0.1)
        assert (await flow.positions(limit=0)).count(place="failed") == 0


async def check_that_each_ended_once(address: str, flow: Flow[Number], ids: list[str]) -> None:
    """Each job is done, with every stage's addition once; it is in no list; what is left, expiry owns."""
    positions = await flow.positions(limit=10 * len(ids))
    assert Counter(places(positions).values()) == {(None, "done"): len(ids)}
    assert set(places(positions)) == set(ids)
    for job_id in ids:
        assert (await flow.get(job_id)).attributes["total"] == 5
    async with Redis.from_url(address, decode_responses=True) as redis:
        runs: dict[str, Any] = await redis.hgetall("runs-of-five")  # type: ignore[misc]
        assert set(runs) == set(ids)
        for key in await redis.keys("*"):
            assert key == "runs-of-five" or await redis.pttl(key) > 0, f"{key} is left behind"


@pytest.mark.timeout(1800)
async def test_at_default_options_no_job_is_lost_however_many_workers_are_killed(scale: Callable[[int], int]) -> None:
    # Few of them in a hurry: the job of a dead worker is taken from it after three seconds, not thirty.
    kills, processes, at_a_time, lock = (
        (ALL_KILLS, 8, 500, ()) if scale(ALL_KILLS) >= ALL_KILLS else (FEW_KILLS, 3, 50, (3,))
    )
    with servers.private_redis() as server:
        async with (
            make_flow(server.dsn) as flow,
            herd(server.dsn, processes=processes, kills=kills, lock=lock) as killed,
        ):
            ids = await start_until(flow, lambda ids: killed.done(), at_a_time=at_a_time)
            assert await killed == b"%d killed\n" % kills
            await all_ended(flow, len(ids))
        async with make_flow(server.dsn) as flow:
            await check_that_each_ended_once(server.dsn, flow, ids)


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["fast", "kill"])
async def test_workers_come_back_when_redis_is_restarted(scale: Callable[[int], int], mode: str) -> None:
    count, processes = (5_000, 8) if scale(5_000) >= 5_000 else (100, 3)
    with servers.private_redis(appendonly="yes", appendfsync="always") as server:
        async with make_flow(server.dsn) as flow:
            ids = await flow.start_many(Number(n) for n in range(count))
            async with herd(server.dsn, processes=processes):
                for part in (0.2, 0.6):
                    while (await flow.positions(limit=0)).count(place="done") < part * count:
                        await asyncio.sleep(0.05)
                    await asyncio.to_thread(server.restart, mode)
                await all_ended(flow, count)
            await check_that_each_ended_once(server.dsn, flow, ids)


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_many_jobs_leave_a_bounded_number_of_keys(scale: Callable[[int], int]) -> None:
    count = scale(200_000)
    with servers.private_redis() as server:
        left = await asyncio.to_thread(
            subprocess.check_output, [sys.executable, flow_soak.__file__, server.dsn, str(count)], text=True
        )
    sys.stdout.write(left)
    done, failed, keys, _ = map(int, left.split())
    assert done <= flow_soak.KEPT
    assert failed <= flow_soak.KEPT
    # A hash and an entry in an index for each that is kept; and the lists, however many jobs there were.
    assert keys <= 2 * (done + failed) + 20

"""Flow workers in processes that are killed, and a Redis that is restarted under them; on servers of the tests' own."""

import asyncio
import signal
import subprocess
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

import servers
from flows import places
from onward.flow import Flow
from programs.flow_five_stages import Number, make_flow

PROGRAM = Path(__file__).parent.parent / "programs" / "flow_five_stages.py"
PROCESSES = 8


class Herd:
    """Worker processes; one that is killed is replaced."""

    def __init__(self, address: str, stack: ExitStack) -> None:
        self._address, self._stack = address, stack
        self._processes: deque[subprocess.Popen[bytes]] = deque()

    def grow(self) -> None:
        process = subprocess.Popen([sys.executable, str(PROGRAM), self._address])
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        self._processes.append(process)

    def kill_oldest(self) -> None:
        victim = self._processes.popleft()
        victim.kill()
        victim.wait()

    async def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        codes = [await asyncio.to_thread(process.wait, 30) for process in self._processes]
        assert set(codes) <= {0, -signal.SIGTERM}  # the youngest may not listen yet


@asynccontextmanager
async def started(address: str, count: int) -> AsyncIterator[tuple[Flow[Number], list[str], Herd]]:
    flow = make_flow(address, keep=timedelta(minutes=10))
    with ExitStack() as stack:
        herd = Herd(address, stack)
        async with flow:
            ids = []
            for first in range(0, count, 500):
                ids += await flow.start_many(Number(n) for n in range(first, min(first + 500, count)))
            for _ in range(PROCESSES):
                herd.grow()
            yield flow, ids, herd


async def check_that_each_ended_once(address: str, flow: Flow[Number], ids: list[str]) -> None:
    """Each job is done, with every stage's addition once; it is in no list; what is left, expiry owns."""
    positions = await flow.positions(limit=10 * len(ids))
    assert Counter(places(positions).values()) == {(None, "done"): len(ids)}
    assert set(places(positions)) == set(ids)
    for job_id in ids:
        assert (await flow.get(job_id)).attributes["total"] == 5
    async with Redis.from_url(address, decode_responses=True) as redis:
        for key in await redis.keys("*"):
            assert key == "runs-of-five" or await redis.pttl(key) > 0, f"{key} is left behind"


@pytest.mark.timeout(900)
async def test_each_job_ends_once_though_a_worker_is_killed_every_second(scale: Callable[[int], int]) -> None:
    count, kills = scale(10_000), 0
    with servers.private_redis() as server:
        async with started(server.dsn, count) as (flow, ids, herd):
            while (done := (await flow.positions(limit=0)).count(place="done")) < count or kills < 2:
                await asyncio.sleep(1)
                if done < count:
                    herd.kill_oldest()
                    herd.grow()
                    kills += 1
                assert (await flow.positions(limit=0)).count(place="failed") == 0
            await herd.stop()
            await check_that_each_ended_once(server.dsn, flow, ids)
            async with Redis.from_url(server.dsn, decode_responses=True) as redis:
                runs: dict[str, Any] = await redis.hgetall("runs-of-five")
    assert set(runs) == set(ids)
    assert kills >= 2


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["fast", "kill"])
async def test_workers_come_back_when_redis_is_restarted(scale: Callable[[int], int], mode: str) -> None:
    count = scale(5_000)
    with servers.private_redis(appendonly="yes", appendfsync="always") as server:
        async with started(server.dsn, count) as (flow, ids, herd):
            for part in (0.2, 0.6):
                while (await flow.positions(limit=0)).count(place="done") < part * count:
                    await asyncio.sleep(0.05)
                await asyncio.to_thread(server.restart, mode)
            while (await flow.positions(limit=0)).count(place="done") < count:
                await asyncio.sleep(0.1)
            await herd.stop()
            await check_that_each_ended_once(server.dsn, flow, ids)

"""A program for tests of flows: processes with a worker of each of five stages, of which some are killed.

flow_five_stages.py ADDRESS PROCESSES KILLS [SECONDS]

At random moments it kills a process, -9, and starts another, KILLS times; then it prints how many, and goes on until
SIGTERM. Processes are forked, so that a new one works within milliseconds. Stages have their default options: a lock of
30 s unless SECONDS are given, three stalls, no retries.
"""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType

import redis
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff

from onward.flow import Flow, Keep, Run

MOST_SECONDS_BETWEEN_KILLS = 0.4
RUNS_BETWEEN_KILLS = 100
"""At least: on a slow machine kills are fewer, so that it is not always the same jobs that are hit."""


@dataclass
class Number:
    number: int


@dataclass
class Sum:
    number: int
    total: int


@dataclass
class Total:
    total: int


def make_flow(address: str, lock: timedelta = timedelta(seconds=30)) -> Flow[Number]:
    """Each stage counts its run in Redis, and adds one to the total."""
    keep = Keep(count=1_000_000, age=timedelta(minutes=30))
    flow = Flow("five", address, input=Number, index=["number"], keep=keep, keep_failed=keep)
    counts = Redis.from_url(address, retry=Retry(ConstantBackoff(0.1), 300))  # a restart is no failure of the handler

    @flow.stage("one", next="two", lock=lock)
    async def one(job: Number) -> Total:
        return Total(1)

    def add(name: str, next: str | None, *, priorities: bool = False, delay: timedelta = timedelta(0)) -> None:
        @flow.stage(name, next=next, priorities=priorities, delay=delay, lock=lock)
        async def count(job: Sum, run: Run) -> Total:
            await asyncio.sleep(random.random() / 200)
            if name == "five":
                await counts.hincrby("runs-of-five", run.job_id, 1)  # type: ignore[misc]
            return Total(job.total + 1)

    add("two", "three", priorities=True)
    add("three", "four", delay=timedelta(milliseconds=10))
    add("four", "five")
    add("five", None)
    return flow


async def work(address: str, *lock: timedelta) -> None:
    flow = make_flow(address, *lock)
    async with flow:
        workers = flow.workers()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, workers.stop)
        await workers.run()


class Herd:
    """Processes that work; one that is killed is replaced."""

    def __init__(self, address: str, size: int, lock: Sequence[timedelta]) -> None:
        self._address, self._size, self._lock = address, size, lock
        self._processes: list[int] = []

    def grow(self) -> None:
        while len(self._processes) < self._size:
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                asyncio.run(work(self._address, *self._lock))
                os._exit(0)
            self._processes.append(pid)

    def kill(self) -> None:
        victim = self._processes.pop(random.randrange(len(self._processes)))
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)

    def stop(self) -> None:
        for pid in self._processes:
            os.kill(pid, signal.SIGTERM)
        for pid in self._processes:
            os.waitpid(pid, 0)


class Stopped(Exception):
    """SIGTERM came."""


@contextmanager
def stoppable() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except Stopped:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def main(address: str, size: int, kills: int, *lock: timedelta) -> None:
    herd = Herd(address, size, lock)
    with stoppable(), redis.Redis.from_url(address) as client:
        herd.grow()
        runs = 0
        for _ in range(kills):
            time.sleep(random.random() * MOST_SECONDS_BETWEEN_KILLS)
            while (now := client.hlen("runs-of-five")) < runs + RUNS_BETWEEN_KILLS // 5:
                time.sleep(0.01)
            runs = now
            herd.kill()
            herd.grow()
        sys.stdout.write(f"{kills} killed\n")
        sys.stdout.flush()
        signal.pause()
    herd.stop()


if __name__ == "__main__":
    address, size, kills, *lock = sys.argv[1:]
    main(address, int(size), int(kills), *[timedelta(seconds=float(seconds)) for seconds in lock])

"""A program for tests of flows: a worker of each of five stages, until it is stopped or killed.

flow_five_stages.py ADDRESS
"""

import asyncio
import signal
import sys
from dataclasses import dataclass
from datetime import timedelta

from redis.asyncio import Redis

from onward.flow import Flow, Run

TIMEOUT = timedelta(seconds=2)


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


def make_flow(address: str, *, keep: timedelta) -> Flow[Number]:
    """Each stage counts its run in Redis, and adds one to the total."""
    flow = Flow("five", address, input=Number, index=["number"], keep=keep, keep_failed=keep, wait=timedelta(seconds=1))
    counts = Redis.from_url(address)

    @flow.stage("one", next="two", timeout=TIMEOUT, max_retries=100)
    async def one(job: Number) -> Total:
        return Total(1)

    def add(name: str, next: str | None, *, priorities: bool = False, delay: timedelta = timedelta(0)) -> None:
        @flow.stage(name, next=next, timeout=TIMEOUT, max_retries=100, priorities=priorities, delay=delay)
        async def count(job: Sum, run: Run) -> Total:
            if name == "five":
                await counts.hincrby("runs-of-five", run.job_id, 1)
            return Total(job.total + 1)

    add("two", "three", priorities=True)
    add("three", "four", delay=timedelta(milliseconds=10))
    add("four", "five")
    add("five", None)
    return flow


async def main(address: str) -> None:
    flow = make_flow(address, keep=timedelta(minutes=10))
    async with flow:
        workers = flow.workers(janitor=timedelta(milliseconds=200))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, workers.stop)
        await workers.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

"""A program for tests of flows: so many jobs through everything that leaves keys, then a look at what is left.

flow_soak.py ADDRESS COUNT

Prints how many jobs that are done and failed are kept, how many keys there are, and the megabytes they take.
"""

import asyncio
import logging
import sys
from dataclasses import dataclass
from datetime import timedelta

from redis.asyncio import Redis

from onward.flow import FanOut, Flow, Goto, Positions, Rate

KEPT = 10_000
"""The default."""


@dataclass
class Number:
    number: int
    tenant: int


@dataclass
class Part:
    number: int
    tenant: int
    part: int


def make_flow(address: str) -> Flow[Number]:
    """Default options; an index of a value that no two jobs share, a rate of many groups, children, failures."""
    flow = Flow("soak", address, input=Number, index=["number"])

    rate = Rate(50, per=timedelta(milliseconds=10), group="tenant")

    @flow.stage("soak.begin", goto=["soak.split"], priorities=True, rate=rate)
    async def begin(job: Number) -> Goto[None] | None:
        if job.number % 10 == 0:
            raise RuntimeError("one of ten")
        return Goto("soak.split") if job.number % 10 == 1 else None

    @flow.stage("soak.split", children="soak.part")
    async def split(job: Number) -> FanOut[Part]:
        return FanOut([Part(job.number, job.tenant, 1)])

    @flow.stage("soak.part")
    async def part(job: Part) -> Part:
        return job

    return flow


async def main(address: str, count: int) -> None:
    logging.disable(logging.CRITICAL)
    async with Redis.from_url(address) as redis, make_flow(address) as flow:
        empty = (await redis.info("memory"))["used_memory"]
        async with flow.workers(16):
            for first in range(0, count, 1_000):
                inputs = [Number(n, n % 1_000) for n in range(first, min(first + 1_000, count))]
                await flow.start_many(inputs)
                while (await flow.positions(limit=0)).count(stage="soak.begin") > 1_000:
                    await asyncio.sleep(0.05)
            while open_jobs(await flow.positions(limit=0)):
                await asyncio.sleep(0.1)
        left = await flow.positions(limit=0)
        megabytes = ((await redis.info("memory"))["used_memory"] - empty) // 1_000_000
        figures = (left.count(place="done"), left.count(place="failed"), await redis.dbsize(), megabytes)
    sys.stdout.write(" ".join(map(str, figures)) + "\n")


def open_jobs(positions: Positions) -> int:
    return sum(count for (stage, _), count in positions.counts.items() if stage is not None)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))

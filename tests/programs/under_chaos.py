"""A program for chaos tests: handlers that leave rows in the user's own table, and that say when they began.

under_chaos.py URL SCHEMA CONCURRENCY, with GUARDIAN_PROCESS in the environment for a guardian that is one, and with
SLEEP for handlers that take their time
"""

import asyncio
import os
import signal
import sys
import time
from datetime import timedelta

from onward import Attempt, Next, Onward, job

INSERT = "INSERT INTO trace (chain, step) VALUES (:chain, :step)"
LEASE = timedelta(seconds=2)


@job("three", internal=True, lease=LEASE)
async def three(attempt: Attempt[int]) -> int:
    async with attempt.complete() as tx:
        await tx.execute(INSERT, chain=str(attempt.chain_id), step=3)
        return attempt.input


@job("two", internal=True, continues_to=[three], lease=LEASE)
async def two(attempt: Attempt[int]) -> Next[int]:
    async with attempt.prepare() as tx:
        await tx.fetchval("SELECT count(*) FROM trace WHERE chain = :chain", chain=str(attempt.chain_id))
    async with attempt.complete() as tx:
        await tx.execute(INSERT, chain=str(attempt.chain_id), step=2)
        return attempt.continue_with(three, attempt.input)


@job("one", continues_to=[two], lease=LEASE)
async def one(attempt: Attempt[int]) -> Next[int]:
    await asyncio.sleep(float(os.environ.get("SLEEP", "0")))
    async with attempt.complete() as tx:
        await tx.execute(INSERT, chain=str(attempt.chain_id), step=1)
        return attempt.continue_with(two, attempt.input)


@job("began", lease=LEASE)
async def began(attempt: Attempt[None]) -> float:
    """When the handler began, by the clock of its own process."""
    return time.time()


@job("began_there", lease=LEASE)
async def began_there(attempt: Attempt[None]) -> float:
    """When the handler began, by the clock of the database."""
    async with attempt.complete() as tx:
        moment = await tx.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
        return float(moment)


@job("hold", lease=timedelta(seconds=60))
async def hold(attempt: Attempt[float]) -> int:
    """Which attempt it was that stayed for so many seconds."""
    async with attempt.prepare() as tx:
        await tx.execute(INSERT, chain=str(attempt.chain_id), step=attempt.number)
    await asyncio.sleep(attempt.input)
    return attempt.number


@job("occupy", lease=LEASE)
async def occupy(attempt: Attempt[float]) -> int:
    """Keeps a connection of the pool in a phase for longer than a lease."""
    async with attempt.prepare() as tx:
        await tx.fetchval("SELECT 1")
        await asyncio.sleep(attempt.input / 2)
    async with attempt.complete() as tx:
        await tx.execute(INSERT, chain=str(attempt.chain_id), step=attempt.number)
        await asyncio.sleep(attempt.input)
        return attempt.number


def make_app(url: str, schema: str, **options: object) -> Onward:
    jobs = [one, two, three, began, began_there, hold, occupy]
    return Onward(url, **{"jobs": jobs, "schema": schema, "migrate": True, **options})  # type: ignore[arg-type]


async def work(app: Onward, concurrency: int) -> None:
    guardian = "process" if "GUARDIAN_PROCESS" in os.environ else "thread"
    worker = app.worker(concurrency=concurrency, grace=timedelta(seconds=5), guardian=guardian)
    async with app:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()


if __name__ == "__main__":
    url, schema, concurrency = sys.argv[1:]
    asyncio.run(work(make_app(url, schema), int(concurrency)))

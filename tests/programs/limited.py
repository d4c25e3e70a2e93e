"""A worker whose handlers keep a ledger of when they ran, for tests of limits.

limited.py URL SCHEMA LEDGER CONCURRENCY
"""

import asyncio
import os
import random
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from onward import Attempt, Backoff, Limit, Onward, Rate, job

LEDGER: list[int] = []
_SOON = Backoff(initial=timedelta(milliseconds=10), factor=1.0)


@dataclass
class Work:
    key: str
    number: int = 0


def write(*words: object) -> None:
    os.write(LEDGER[0], (" ".join(map(str, words)) + "\n").encode())


@job("work", limit=Limit("tenant", concurrency=3, key=lambda input: input.key), backoff=_SOON)
async def work(attempt: Attempt[Work]) -> None:
    run = f"{attempt.job_id}/{attempt.number}"
    write("began", run, attempt.input.key, time.monotonic())
    try:
        await asyncio.sleep(random.random() * 0.003)
        if random.random() < 0.02:
            raise ValueError("once in a while")
    finally:
        write("ended", run, attempt.input.key, time.monotonic())


@job("paced", limit=Limit(rate=Rate(200, per=timedelta(seconds=1), burst=10)))
async def paced(attempt: Attempt[int]) -> None:
    write("began", attempt.job_id, "paced", time.monotonic())


@job("free")
async def free(attempt: Attempt[Work]) -> None: ...


def make_app(url: str, schema: str) -> Onward:
    return Onward(url, jobs=[work, paced, free], schema=schema, migrate=True)


async def run(url: str, schema: str, ledger: str, concurrency: str) -> None:
    LEDGER.append(os.open(Path(ledger), os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    async with make_app(url, schema) as app:
        await app.worker(concurrency=int(concurrency), guardian="process", lease=timedelta(minutes=2)).run()


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))

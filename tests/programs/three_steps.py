"""A program for tests with real processes: chains of three steps, each leaving a row in the user's own table.

    three_steps.py URL SCHEMA produce COUNT FIRST
    three_steps.py URL SCHEMA work [KILL_AT MARKER_FILE]

A worker given KILL_AT kills itself with SIGKILL at that point of step 2, once: the marker file says that it happened.
"""

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from onward import Attempt, Next, Onward, job

KILL_AT, MARKER = (*sys.argv[4:], "", "")[:2] if sys.argv[3:4] == ["work"] else ("", "")
INSERT = "INSERT INTO trace (chain, step) VALUES (:chain, :step)"


def maybe_die(point: str, step: int) -> None:
    if point == KILL_AT and step == 2 and not Path(MARKER).exists():
        Path(MARKER).touch()
        os.kill(os.getpid(), signal.SIGKILL)


@job("three", internal=True, lease=timedelta(seconds=1))
async def three(attempt: Attempt[int]) -> int:
    async with attempt.complete() as tx:
        await tx.execute(INSERT, chain=str(attempt.chain_id), step=3)
        return attempt.input


@job("two", internal=True, continues_to=[three], lease=timedelta(seconds=1))
async def two(attempt: Attempt[int]) -> Next[int]:
    maybe_die("claim", 2)
    async with attempt.prepare() as tx:
        await tx.fetchval("SELECT count(*) FROM trace")
        maybe_die("prepare", 2)
    maybe_die("between", 2)
    async with attempt.complete() as tx:
        await tx.execute(INSERT, chain=str(attempt.chain_id), step=2)
        maybe_die("before commit", 2)
        tx.after_commit(lambda: maybe_die("after commit", 2))
        return attempt.continue_with(three, attempt.input)


@job("one", continues_to=[two], lease=timedelta(seconds=1))
async def one(attempt: Attempt[int]) -> Next[int]:
    async with attempt.complete() as tx:
        await tx.execute(INSERT, chain=str(attempt.chain_id), step=1)
        return attempt.continue_with(two, attempt.input)


def make_app(url: str, schema: str) -> Onward:
    return Onward(url, jobs=[one, two, three], schema=schema, migrate=True)


async def produce(app: Onward, count: int, first: int) -> None:
    async with app:
        for n in range(first, first + count):
            async with app.transaction() as tx:
                chain = await app.start(one, n, tx=tx)
                await tx.execute(INSERT, chain=str(chain.id), step=0)


async def work(app: Onward) -> None:
    worker = app.worker(concurrency=10, grace=timedelta(seconds=5))
    async with app:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()


if __name__ == "__main__":
    url, schema, role, *rest = sys.argv[1:]
    app = make_app(url, schema)
    asyncio.run(produce(app, int(rest[0]), int(rest[1])) if role == "produce" else work(app))

"""An app for tests that stop its workers: `onward worker stoppable:app` in this folder.

The environment has its DATABASE and SCHEMA; with BROKEN it cannot be imported.
"""

import asyncio
import os
import threading
import time
from datetime import timedelta
from pathlib import Path

from three_steps import one, three, two

from onward import Attempt, Backoff, Onward, job

SHORT = timedelta(seconds=1)

if "BROKEN" in os.environ:
    raise RuntimeError("no luck today")


def exists(path: str) -> bool:
    return Path(path).exists()


def sign_in(folder: str, attempt: Attempt[str]) -> int:
    """Leave a file; how many have."""
    Path(folder, str(attempt.job_id)).touch()
    return len(list(Path(folder).iterdir()))


@job("hold", lease=SHORT)
async def hold(attempt: Attempt[str]) -> int:
    """In this folder until it has a file `go`; the process it ran in."""
    sign_in(attempt.input, attempt)
    while not exists(f"{attempt.input}/go"):
        await asyncio.sleep(0.01)
    return os.getpid()


@job("meet")
async def meet(attempt: Attempt[str]) -> int:
    """Until two jobs are in this folder; the process it ran in."""
    while sign_in(attempt.input, attempt) < 2:
        await asyncio.sleep(0.01)
    return os.getpid()


@job("stubborn", timeout=timedelta(seconds=0.5), backoff=Backoff(initial=timedelta(hours=1)))
async def stubborn(attempt: Attempt[None]) -> None:
    """Ignores cancellation."""
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue


@job("hold_thread")
def hold_thread(attempt: Attempt[str]) -> int:
    """In this folder for ever, in a thread that nobody can stop."""
    sign_in(attempt.input, attempt)
    while True:
        time.sleep(1)


@job("hold_loop")
async def hold_loop(attempt: Attempt[str]) -> int:
    """In this folder for ever, and nothing else runs meanwhile."""
    sign_in(attempt.input, attempt)
    while True:
        time.sleep(1)  # noqa: ASYNC251 - that is the point


@job("linger")
async def linger(attempt: Attempt[str]) -> int:
    """In this folder; leaves the process a thread that does not end."""
    threading.Thread(target=time.sleep, args=[60]).start()
    return sign_in(attempt.input, attempt)


@job("block")
async def block(attempt: Attempt[None]) -> None:
    """Blocks the event loop."""
    while True:
        time.sleep(1)  # noqa: ASYNC251 - that is the point


@job("die", lease=SHORT, max_attempts=3, backoff=Backoff(initial=timedelta(seconds=0.1)))
async def die(attempt: Attempt[None]) -> None:
    """Takes its process along, and leaves a row."""
    async with attempt.prepare() as tx:
        await tx.execute("INSERT INTO trace (chain, step) VALUES (:chain, 0)", chain=str(attempt.chain_id))
    os._exit(7)


app = Onward(
    os.environ["DATABASE"],
    jobs=[one, two, three, hold, hold_thread, hold_loop, linger, meet, stubborn, block, die],
    schema=os.environ["SCHEMA"],
    migrate=True,
)

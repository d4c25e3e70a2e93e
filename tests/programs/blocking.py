"""An app for `onward worker` whose first attempts block the event loop for good.

DATABASE and SCHEMA say where.
"""

import asyncio
import os
import re
import time
from datetime import timedelta

from onward import Attempt, Backoff, Onward, job

LEASE, BRIEF, SOON = timedelta(seconds=2), timedelta(seconds=1), Backoff(initial=timedelta(milliseconds=10))


def block() -> None:
    time.sleep(600)


@job("block", lease=LEASE, timeout=BRIEF, backoff=SOON)
async def blocks(attempt: Attempt[None]) -> int:
    if attempt.number == 1:
        block()
    return attempt.number


@job("block_in_phase", lease=LEASE, timeout=BRIEF, backoff=SOON)
async def blocks_in_phase(attempt: Attempt[None]) -> int:
    async with attempt.complete():
        if attempt.number == 1:
            block()
        return attempt.number


@job("grip", lease=LEASE, timeout=BRIEF, backoff=SOON)
async def grips(attempt: Attempt[None]) -> int:
    """One call that holds the GIL."""
    if attempt.number == 1:
        re.match(r"(a+)+$", "a" * 60 + "b")
    return attempt.number


@job("neighbour", lease=LEASE)
async def neighbour(attempt: Attempt[None]) -> int:
    """Has all the time in the world, and is in the same process."""
    if attempt.number == 1:
        await asyncio.Event().wait()
    return attempt.number


def make_app(url: str, schema: str) -> Onward:
    return Onward(url, jobs=[blocks, blocks_in_phase, grips, neighbour], schema=schema, migrate=True)


if "DATABASE" in os.environ:
    app = make_app(os.environ["DATABASE"], os.environ["SCHEMA"])

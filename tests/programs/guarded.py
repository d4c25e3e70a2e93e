"""A program for tests of leases with real processes.

    guarded.py URL SCHEMA GUARDIAN [SLEEPER]

Works until it is ended, and prints "ready" when it can be given jobs. Handlers leave a line in the file that they are
given: attempt, process id, time. With SLEEPER it has a process of its own, which only sleeps, and prints its id.
"""

import asyncio
import logging
import math
import os
import re
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from onward import Attempt, Onward, job

BLOCKED = max(10.0 * float(os.environ.get("ONWARD_TEST_SCALE", "0.1")), 4.0)
"""Seconds for which `busy` blocks: four leases, ten at full scale."""


def note(attempt: Attempt[Any], file: str) -> None:
    with Path(file).open("a") as lines:
        lines.write(f"{attempt.number} {os.getpid()} {time.time()}\n")


async def first_time_for_ever(attempt: Attempt[str]) -> int:
    note(attempt, attempt.input)
    if attempt.number == 1:
        await asyncio.Event().wait()
    return attempt.number


hang = job("hang")(first_time_for_ever)
hang_briefly = job("hang_briefly", lease=timedelta(seconds=2))(first_time_for_ever)


@job("busy", lease=timedelta(seconds=1))
async def busy(attempt: Attempt[tuple[str, str]]) -> int:
    how, file = attempt.input
    note(attempt, file)
    {"sleep": sleep, "loop": loop, "regular expression": match}[how]()
    return attempt.number


@job("patient", lease=timedelta(seconds=1))
async def patient(attempt: Attempt[tuple[float, str]]) -> int:
    """Runs for many leases, and does not write."""
    seconds, file = attempt.input
    note(attempt, file)
    await asyncio.sleep(seconds)
    return attempt.number


@job("writer", lease=timedelta(seconds=1))
async def writer(attempt: Attempt[tuple[float, str]]) -> int:
    """Holds its transaction for many leases."""
    seconds, file = attempt.input
    async with attempt.complete():
        note(attempt, file)
        await asyncio.sleep(seconds if attempt.number == 1 else 0)
        return attempt.number


def sleep() -> None:
    time.sleep(BLOCKED)


def loop() -> None:
    deadline = time.monotonic() + BLOCKED
    while time.monotonic() < deadline:
        pass


def match() -> None:
    """One call that holds the GIL: each more letter doubles its time."""
    letters, took = 16, 0.0
    while took < 0.05:
        letters += 1
        began = time.monotonic()
        re.match(r"(a+)+$", "a" * letters + "b")
        took = time.monotonic() - began
    re.match(r"(a+)+$", "a" * (letters + math.ceil(math.log2(BLOCKED / took))) + "b")


def make_app(url: str, schema: str) -> Onward:
    return Onward(url, jobs=[hang, hang_briefly, busy, patient, writer], schema=schema, migrate=True)


def start_sleeper() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=subprocess.DEVNULL)


def say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


async def work(app: Onward, guardian: Any, *, with_sleeper: bool) -> None:
    worker = app.worker(concurrency=2, guardian=guardian, grace=timedelta(seconds=1))
    async with app, worker:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        if with_sleeper:
            sleeper = start_sleeper()
            worker._guardian.add_process(sleeper.pid)
            say(str(sleeper.pid))
        say("ready")
        await asyncio.Event().wait()


if __name__ == "__main__":
    logging.basicConfig(level="INFO")
    url, schema, guardian, *rest = sys.argv[1:]
    asyncio.run(work(make_app(url, schema), guardian, with_sleeper=bool(rest)))

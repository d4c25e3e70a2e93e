"""Handlers that run in processes of their own; also a program: `cpu_jobs.py URL SCHEMA work`."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from onward import Attempt, Backoff, Done, JobType, Next, Onward, Outcome, Permanent, Reschedule, Slice, job

QUICK = Backoff(initial=timedelta(milliseconds=20))


@dataclass
class Frame:
    number: int
    size: float = 1.0


@dataclass
class Rendered:
    frame: int
    pid: int


@job("render", executor="process")
def render(attempt: Attempt[Frame]) -> Rendered:
    return Rendered(attempt.input.number, os.getpid())


@job("describe", executor="process")
def describe(attempt: Attempt[str]) -> list[str | int | None]:
    return [
        str(attempt.job_id), str(attempt.chain_id), str(attempt.root_id), attempt.job_type, attempt.number,
        attempt.failures, None if attempt.last_error is None else attempt.last_error.message, attempt.cancelled,
    ]  # fmt: skip


@job("publish", internal=True, blocked_by=["weigh"])
async def publish(attempt: Attempt[Rendered]) -> str:
    return f"frame {attempt.input.frame}, priority {attempt.outputs_of(weigh)}"


@job("weigh", executor="process")
def weigh(attempt: Attempt[int]) -> int:
    return attempt.input * 2


@job("sum", internal=True, blocked_by=[weigh], executor="process")
def sum_up(attempt: Attempt[int]) -> int:
    return attempt.input + sum(attempt.outputs_of(weigh))


@job("split", continues_to=[sum_up], executor="process")
def split(attempt: Attempt[list[int]]) -> Next[int]:
    return attempt.continue_with(sum_up, 1000, blockers=[weigh.with_input(n) for n in attempt.input])


@job("branch", continues_to=[publish, "branch"], executor="process")
def branch(attempt: Attempt[int]) -> Outcome[str]:
    if attempt.input > 1:
        return attempt.continue_with(branch, attempt.input - 1)
    return attempt.continue_with(publish, Rendered(7, 0)) if attempt.input else Done("nothing")


@job("wrong turn", continues_to=[publish], max_attempts=1, executor="process")
def wrong_turn(attempt: Attempt[int]) -> Next[str]:
    return attempt.continue_with(branch, 1)


@job("later", executor="process")
def later(attempt: Attempt[str]) -> str:
    if attempt.number == 1:
        if attempt.input == "raise":
            raise Reschedule(delay=timedelta(milliseconds=10))
        return attempt.reschedule(delay=timedelta(milliseconds=10))  # type: ignore[return-value]
    return f"attempt {attempt.number}, {attempt.failures} failures"


@job("stolen", executor="process")
def stolen(attempt: Attempt[int]) -> int:
    raise Permanent("card stolen")


@job("broken", max_attempts=2, backoff=QUICK, executor="process")
def broken(attempt: Attempt[int]) -> int:
    return _divide(attempt.input, 0)


def _divide(dividend: int, divisor: int) -> int:
    return dividend // divisor


@job("liar", max_attempts=1, executor="process")
def liar(attempt: Attempt[int]) -> int:
    return "not a number"  # type: ignore[return-value]


@job("phases", max_attempts=1, executor="process")
def phases(attempt: Attempt[str]) -> None:
    if attempt.input == "get":
        attempt.get(str)
    with attempt.complete() if attempt.input == "complete" else attempt.prepare():
        raise AssertionError("not reached")


@job("busy", executor="process")
def busy(attempt: Attempt[str]) -> int:
    """Computes until a file appears; its first progress is its process id."""
    attempt.progress(0.5, str(os.getpid()))
    return _spin(Path(attempt.input))


@job("busy in vain", timeout=timedelta(milliseconds=300), max_attempts=1, executor="process")
def busy_in_vain(attempt: Attempt[str]) -> int:
    """With a program of its own that would go on for a minute."""
    sleeping = subprocess.Popen(["sleep", "60"])
    Path(attempt.input).write_text(f"{os.getpid()} {sleeping.pid}")
    return _spin(Path("/nowhere"))


def _spin(until: Path) -> int:
    turns, look_at = 0, time.monotonic()
    while True:
        turns += 1
        if time.monotonic() > look_at:
            if until.exists():
                return turns
            look_at = time.monotonic() + 0.02


@job("exit", max_attempts=2, backoff=QUICK, executor="process")
def exit_at_once(attempt: Attempt[str]) -> None:
    match attempt.input:
        case "exit":
            os._exit(7)
        case "sys.exit":
            sys.exit(8)
        case _:
            os.kill(os.getpid(), signal.SIGSEGV)


def divide_by_zero(attempt: Attempt[int]) -> int:
    return attempt.input // 0


def plain(attempt: Attempt[int]) -> int:
    return attempt.input + 1


made = job("made", executor="process")(plain)
declared = JobType("declared", input=int, output=int, executor="process")
declared.handler(plain)

versioned: JobType[Frame, int] = JobType("versioned", input=Frame, output=int, version=2, executor="process")


@versioned.handler
def count_pixels(attempt: Attempt[Frame]) -> int:
    return int(attempt.input.number * attempt.input.size)


@versioned.upcast(1)
def with_size(plain: Any) -> Any:
    return {"number": plain, "size": 2.0}


frames = Slice("frames")


@frames.job("blur", executor="process")
def blur(attempt: Attempt[str]) -> int:
    attempt.progress(0.5, str(os.getpid()))
    return _spin(Path(attempt.input))


@job("meta", executor="process")
def meta(attempt: Attempt[int]) -> dict[str, Any]:
    return dict(attempt.meta)


async def work(app: Onward) -> None:
    worker = app.worker(concurrency=2, grace=timedelta(seconds=20))
    async with app:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, worker.stop)
        await worker.run()


if __name__ == "__main__":
    url, schema, _ = sys.argv[1:]
    asyncio.run(work(Onward(url, jobs=[frames], schema=schema, migrate=True)))

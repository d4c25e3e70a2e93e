"""A worker with many schedules, whose clock may be wrong. Elapsed time is true on such a machine too.

scheduled.py URL SCHEMA SCHEDULES OFFSET
"""

import asyncio
import sys
import time
from datetime import UTC, datetime, timedelta

from onward import Attempt, Onward, Schedule, job


@job("count")
async def count(attempt: Attempt[str]) -> None:
    return


def make_app(url: str, schema: str, schedules: int) -> Onward:
    def numbered(n: int) -> Schedule[str]:
        def spell(tick: datetime) -> str:
            return f"{n} {tick.astimezone(UTC).isoformat()}"

        return Schedule(f"every second {n}", count, spell, every=timedelta(seconds=1), missed="all")

    return Onward(url, jobs=[count], schema=schema, migrate=True, schedules=map(numbered, range(schedules)))


def set_clock(offset: float) -> None:
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + offset
    time.time_ns = lambda: now_ns() + int(offset * 1e9)


async def work(app: Onward) -> None:
    async with app, app.worker(concurrency=5):
        await asyncio.Event().wait()


if __name__ == "__main__":
    url, schema, schedules, offset = sys.argv[1:]
    set_clock(float(offset))
    asyncio.run(work(make_app(url, schema, int(schedules))))

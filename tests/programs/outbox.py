"""Adds to a queue through an outbox, or publishes what is there, and dies where it is told to."""

import asyncio
import os
import signal
import sys
from datetime import timedelta
from typing import Any

from onward import Onward
from onward.queue import Queue
from onward.queue.contract import StoredJob
from onward.queue.options import Options
from onward.queue.providers.database import Database


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(queue: Queue[Any], point: str) -> None:
    """Have the process die before, or after, the provider has the first job."""
    inner = queue.provider.add

    async def add(job: StoredJob, options: Options) -> StoredJob:
        if point == "before":
            die()
        added = await inner(job, options)
        if point == "after":
            die()
        return added

    queue.provider.add = add  # type: ignore[method-assign]


async def main(target: str, schema: str, broker: str, role: str, point: str, number: str) -> None:
    app = Onward(target, jobs=[], schema=schema, migrate=True)
    queue = Queue[Any]("emails", provider=Database(Onward(broker, jobs=[])), outbox=app)
    async with app:
        if role == "relay":
            dying(queue, point)
            async with app.worker(lease=timedelta(seconds=1), poll=timedelta(seconds=0.2)):
                await asyncio.Event().wait()
        async with app.transaction() as tx:
            await queue.add("welcome", int(number), id=f"n{number}", tx=tx)
            if point == "before":
                die()
        die()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

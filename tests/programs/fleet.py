"""A process with many workers, for tests that count what they ask of the database; says "ready" when all wait.

fleet.py URL SCHEMA WORKERS CONCURRENCY BROKER
"""

import asyncio
import signal
import sys
from contextlib import AsyncExitStack

from onward import Attempt, Onward, job
from onward.notify.contract import NotifyAdapter
from onward.notify.nats import NatsNotify
from onward.notify.redis import RedisNotify


@job("look")
async def look(attempt: Attempt[int]) -> int:
    return attempt.input


def make_app(url: str, schema: str, broker: str = "", **options: object) -> Onward:
    notify: NotifyAdapter | None = None
    if broker:
        notify = (
            NatsNotify(broker, subject=schema) if broker.startswith("nats") else RedisNotify(broker, channel=schema)
        )
    return Onward(url, **{"jobs": [look], "schema": schema, "migrate": True, "notify": notify, **options})  # type: ignore[arg-type]


async def work(app: Onward, workers: int, concurrency: int) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(app)
        for _ in range(workers):
            await stack.enter_async_context(app.worker(concurrency=concurrency))
        print("ready", flush=True)  # noqa: T201
        await stopped.wait()


if __name__ == "__main__":
    url, schema, workers, concurrency, broker = sys.argv[1:]
    asyncio.run(work(make_app(url, schema, broker), int(workers), int(concurrency)))

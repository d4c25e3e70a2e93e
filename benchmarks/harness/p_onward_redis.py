"""Onward's queue on Redis as a peer of the harness: what p_onward.py is with `ONWARD_BACKEND=redis`."""

import asyncio
import signal

import benchlib as B  # type: ignore[import-not-found]  # noqa: N812 - the harness calls it so
import uvloop

from onward.queue import Queue, QueueWorker
from onward.queue.providers.redis import Redis

CONCURRENCY = 100
Input = dict[str, int]


class OnRedis:
    name, backend, uvloop = "onward-redis", "redis", True
    packages = ("onward", "redis", "hiredis", "uvloop", "msgspec")
    drain_n = 50_000
    settings = f"QueueWorker(concurrency={CONCURRENCY}) on the Redis provider, uvloop"
    semantics = "at-least-once: leases renewed, outcomes settled in groups; results kept for the newest 1,000 jobs"
    settle_redis = (("llen", "onward:{bench}:waiting"), ("zcard", "onward:{bench}:active"))

    def __init__(self) -> None:
        self.queue = Queue[Input]("bench", provider=Redis(B.REDIS_URL))

    def reset(self) -> None:
        B.redis_flush()

    async def open(self) -> None:
        await self.queue.connect()

    async def close(self) -> None:
        await self.queue.disconnect()

    async def enqueue(self, n: int) -> None:
        await self.queue.add("noop", {"n": n})

    async def enqueue_many(self, ns: list[int]) -> None:
        await self.queue.add_many("noop", [{"n": n} for n in ns])

    def worker(self) -> None:
        uvloop.run(self._work())

    async def _work(self) -> None:
        async def handle(data: Input, job: object) -> None:
            B.hit(data["n"])

        worker = QueueWorker[Input]("bench", handle, provider=Redis(B.REDIS_URL), concurrency=CONCURRENCY)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()

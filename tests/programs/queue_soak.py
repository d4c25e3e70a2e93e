"""A program for tests, and for the figures in the pages of providers: many jobs, and what is left of them.

    queue_soak.py SPEC COUNT

SPEC names a provider and its server: `redis+redis://127.0.0.1:6379`, `memory+`. One job in twenty fails. Prints as JSON
how many jobs of each state are kept at the end, and how many keys, entries of keys, or rows the server has for them.
"""

import asyncio
import json
import logging
import secrets
import sys
from datetime import timedelta
from typing import Any

from onward import Permanent
from onward.queue import Keep, Memory, ProviderFactory, Queue, QueueWorker
from onward.queue.model import KEEP_COMPLETED
from programs import queue_worker

AT_A_TIME = 2_000
A_WEEK, SECONDS = timedelta(days=7), 20


def factory(spec: str, **keep: Keep) -> ProviderFactory[Any]:
    """As it is without options, unless they are given: these are the figures that users see."""
    name, _, address = spec.partition("+")
    if name == "memory":
        return Memory(**keep)
    if name == "redis":
        from onward.queue.providers.redis import Redis

        return Redis(address, **keep)
    if name == "bullmq":
        from onward.queue.providers.bullmq import BullMQ

        return BullMQ(address, **keep)
    if name in ("sqlite", "postgres"):
        from onward import Onward
        from onward.queue.providers.database import Database

        return Database(Onward(address, jobs=[], migrate=True), **keep)
    return queue_worker.factory(spec)


async def handler(data: int, job: object) -> int:
    if data % 20 == 0:
        raise Permanent("no such mailbox")
    return data


async def soak(spec: str, count: int, most: int | None = None) -> dict[str, int]:
    """Run them; what is left. `most`: how many finished ones of each state are kept."""
    keep = {} if most is None else dict.fromkeys(("keep_completed", "keep_failed"), Keep(count=most, age=A_WEEK))
    name, made = f"soak-{secrets.token_hex(4)}", factory(spec, **keep)
    async with Queue[int](name, provider=made) as queue:
        worker = QueueWorker(name, handler, provider=made, concurrency=100)
        async with worker:
            for first in range(0, count, AT_A_TIME):
                await queue.add_many("count", range(first, min(first + AT_A_TIME, count)))
                await settled(queue)
            await removed(queue, KEEP_COMPLETED.count if most is None else most)
        left = {"completed": await kept(queue, "completed"), "failed": await kept(queue, "failed")}
        left["on the server"] = await entries(spec, name)
        await queue.delete()
    return left


async def settled(queue: Queue[int]) -> None:
    while True:
        stats = await queue.stats()
        if not stats.waiting and not stats.active:
            return
        await asyncio.sleep(0.05)


async def removed(queue: Queue[int], most: int) -> None:
    """Wait for those that go in the background, if they do: some a second later."""
    for _ in range(SECONDS):
        if await kept(queue, "completed") <= most:
            return
        await asyncio.sleep(1)


async def kept(queue: Queue[int], status: str) -> int:
    found, after = 0, None
    while True:
        page = await queue.jobs(status, after=after, limit=1_000)
        found, after = found + len(page.items), page.next
        if after is None:
            return found


async def entries(spec: str, queue_name: str) -> int:
    """Keys in Redis with what is in them; what is not there is not counted."""
    kind, _, address = spec.partition("+")
    if kind not in ("redis", "bullmq"):
        return 0
    from redis.asyncio import Redis

    async with Redis.from_url(address) as client:
        sizes = {"hash": client.hlen, "list": client.llen, "zset": client.zcard, "stream": client.xlen}
        total = 0
        async for key in client.scan_iter(match=f"*{queue_name}*", count=1_000):
            if kind == "bullmq" and key.count(b":") == 2 and await client.type(key) == b"hash":
                total += 1  # a job
                continue
            size: Any = sizes.get((await client.type(key)).decode())
            total += 1 if size is None else await size(key)
        return total


if __name__ == "__main__":
    logging.getLogger("onward").setLevel(logging.CRITICAL)
    sys.stdout.write(json.dumps(asyncio.run(soak(sys.argv[1], int(sys.argv[2])))) + "\n")

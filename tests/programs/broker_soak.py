"""A program for tests, and for the figures in the pages of brokers: many jobs, and what is left of them.

    broker_soak.py SPEC COUNT

SPEC names a provider and its server: `nats+nats://127.0.0.1:4222`. One job in twenty fails. Prints as JSON how many
jobs of each state are kept at the end, and how many messages the server has for them.
"""

import asyncio
import json
import logging
import secrets
import sys
from typing import Any

from onward import Permanent
from onward.queue import ProviderFactory, Queue, QueueWorker
from programs import queue_worker

AT_A_TIME = 2_000


def factory(spec: str) -> ProviderFactory[Any]:
    """As it is without options: these are the figures that users see."""
    name, _, address = spec.partition("+")
    if name == "nats":
        from onward.queue.providers.nats import Nats

        return Nats(address)
    if name == "sqs":
        from onward.queue.providers.sqs import SQS, NewQueue

        client = {"region": "eu-west-1", "aws_access_key_id": "test", "aws_secret_access_key": "test"}
        return SQS(address, create=NewQueue(), **client)
    return queue_worker.factory(spec)


async def handler(data: int, job: object) -> int:
    if data % 20 == 0:
        raise Permanent("no such mailbox")
    return data


async def soak(spec: str, count: int) -> dict[str, int]:
    """Run them; what is left."""
    name, made = f"soak-{secrets.token_hex(4)}", factory(spec)
    async with Queue[int](name, provider=made) as queue:
        async with QueueWorker(name, handler, provider=made, concurrency=100):
            for first in range(0, count, AT_A_TIME):
                await queue.add_many("count", range(first, min(first + AT_A_TIME, count)))
                await settled(queue)
        stats = await queue.stats()
        kept = {state: getattr(stats, state) or 0 for state in ("waiting", "active", "delayed", "completed", "failed")}
        on_the_server = await messages(spec, name) if spec.startswith("nats+") else sum(kept.values())
        await queue.delete()
    return {**kept, "on the server": on_the_server}


async def settled(queue: Queue[int]) -> None:
    while True:
        stats = await queue.stats()
        if not stats.waiting and not stats.active:
            return
        await asyncio.sleep(0.05)


async def messages(spec: str, queue_name: str) -> int:
    """In all streams of a queue in NATS."""
    import nats

    client = await nats.connect(spec.partition("+")[2])
    names = [f"onward-{kind}-{queue_name}" for kind in ("jobs", "state", "completed", "failed")]
    streams = [await client.jetstream().stream_info(name) for name in names]
    await client.close()
    return sum(stream.state.messages for stream in streams)


if __name__ == "__main__":
    logging.getLogger("onward").setLevel(logging.CRITICAL)
    sys.stdout.write(json.dumps(asyncio.run(soak(sys.argv[1], int(sys.argv[2])))) + "\n")

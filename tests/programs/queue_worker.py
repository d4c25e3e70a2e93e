"""A program for tests with real processes: queue workers that die after their handler and before the acknowledgement.

    queue_worker.py SPEC QUEUE COUNT TRACE_FILE

One worker process after another, COUNT in all, takes jobs and kills itself with SIGKILL once a handler has returned and
its job would be acknowledged. Every handler first adds a line with the number in its job's data to the trace file.
SPEC names a provider and its server: `redis+redis://127.0.0.1:6379`.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from onward.queue import ProviderFactory, QueueWorker

LEASE = timedelta(seconds=1)
PATIENCE = 30
"""Seconds until a worker that gets nothing to die of gives up: then something is lost."""


def redis(address: str) -> ProviderFactory[Any]:
    from onward.queue.providers.redis import Redis

    return Redis(address, lease=LEASE)


def rabbitmq(address: str) -> ProviderFactory[Any]:
    from onward.queue.providers.rabbitmq import RabbitMQ

    return RabbitMQ(address)


def rabbitmq_classic(address: str) -> ProviderFactory[Any]:
    from onward.queue.providers.rabbitmq import RabbitMQ

    return RabbitMQ(address, queue_type="classic")


def database(address: str) -> ProviderFactory[Any]:
    from onward import Onward
    from onward.queue.providers.database import Database

    return Database(Onward(address, jobs=[], migrate=True), lease=LEASE)


def bullmq(address: str) -> ProviderFactory[Any]:
    from onward.queue.providers.bullmq import BullMQ

    return BullMQ(address, lock=LEASE, stalled_interval=LEASE / 2, max_stalled=10_000)


def sqs(address: str) -> ProviderFactory[Any]:
    from onward.queue.providers.sqs import SQS, NewQueue

    # A thousand is the most that SQS allows.
    new = NewQueue(attempts=1000, visibility_timeout=LEASE)
    client = {"region": "eu-west-1", "aws_access_key_id": "test", "aws_secret_access_key": "test"}
    return SQS(address, create=new, wait=timedelta(seconds=1), **client)


PROVIDERS: dict[str, Callable[[str], ProviderFactory[Any]]] = {
    "redis": redis,
    "rabbitmq": rabbitmq,
    "rabbitmq-classic": rabbitmq_classic,
    "bullmq": bullmq,
    "sqlite": database,
    "postgres": database,
    "sqs": sqs,
}


def factory(spec: str) -> ProviderFactory[Any]:
    """The provider that a spec names."""
    name, _, address = spec.partition("+")
    return PROVIDERS[name](address)


def die(*_: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL does not return")


async def work(spec: str, queue_name: str, trace: Path) -> None:
    """Until it dies, which it should."""

    async def handler(data: int, job: object) -> None:
        with trace.open("a") as file:
            file.write(f"{data}\n")

    provider: Any = factory(spec).for_queue(queue_name)
    deliver = provider.process

    async def process(handler: Callable[[Any], Any], **options: Any) -> Any:
        async def handle(job: Any) -> None:
            await handler(job)
            die()

        return await deliver(handle, **options)

    provider.ack, provider.process = die, process
    async with asyncio.timeout(PATIENCE):
        await QueueWorker(queue_name, handler, provider=provider, concurrency=3, batch_size=3).run()


def main(spec: str, queue_name: str, count: int, trace: Path) -> None:
    # Forked from a process that has imported everything and opened nothing: 200 deaths take seconds, not minutes.
    for _ in range(count):
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(work(spec, queue_name, trace))
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            sys.exit(f"a worker did not die but ended with {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    spec, queue_name, count, trace = sys.argv[1:]
    factory(spec)  # import its client once, not in every child
    main(spec, queue_name, int(count), Path(trace))

"""A program for tests with real processes: queue workers that are killed, one after another.

    queue_worker.py SPEC QUEUE COUNT TRACE_FILE [random]

Each of COUNT worker processes kills itself with SIGKILL once a handler has returned and its 20th job would be
acknowledged; or with `random` it is killed at a moment that nobody chose. Every handler first adds a line with the
number in its job's data to the trace file. SPEC names a provider and its server: `redis+redis://127.0.0.1:6379`.
"""

import asyncio
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from onward.queue import ProviderFactory, QueueWorker

LEASE = timedelta(seconds=1)
JOBS_OF_A_LIFE = 20
"""Few jobs then lose more than one holder, and none as many as `max_stalls` allows."""
A_MOMENT, ENOUGH = 0.005, 10.0
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

    return BullMQ(address, lock=LEASE, stalled_interval=LEASE / 2)


def sqs(address: str) -> ProviderFactory[Any]:
    from onward.queue.providers.sqs import SQS, NewQueue

    new = NewQueue(visibility_timeout=LEASE)
    client = {"region": "eu-west-1", "aws_access_key_id": "test", "aws_secret_access_key": "test"}
    return SQS(address, create=new, wait=timedelta(seconds=1), **client)


def nats(address: str) -> ProviderFactory[Any]:
    from onward.queue.providers.nats import Nats

    return Nats(address, lease=LEASE)


PROVIDERS: dict[str, Callable[[str], ProviderFactory[Any]]] = {
    "redis": redis,
    "rabbitmq": rabbitmq,
    "rabbitmq-classic": rabbitmq_classic,
    "bullmq": bullmq,
    "sqlite": database,
    "postgres": database,
    "sqs": sqs,
    "nats": nats,
}


def factory(spec: str) -> ProviderFactory[Any]:
    """The provider that a spec names."""
    name, _, address = spec.partition("+")
    return PROVIDERS[name](address)


def die(*_: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL does not return")


async def work(spec: str, queue_name: str, trace: Path, *, dies_itself: bool) -> None:
    """Until it dies, which it should."""

    async def handler(data: int, job: object) -> None:
        with trace.open("a") as file:
            file.write(f"{data}\n")
        if not dies_itself:
            await asyncio.sleep(A_MOMENT)  # so that there is something left for those who come later

    provider: Any = factory(spec).for_queue(queue_name)
    if dies_itself:
        die_after(provider, JOBS_OF_A_LIFE)
    async with asyncio.timeout(PATIENCE):
        await QueueWorker(queue_name, handler, provider=provider).run()


def die_after(provider: Any, count: int) -> None:
    """Die instead of acknowledging the last of so many jobs, which a provider gives either by `process` or to `ack`."""
    left = itertools.count(count - 1, -1)
    deliver, ack = getattr(provider, "process", None), getattr(provider, "ack", None)

    async def process(handler: Callable[[Any], Any], **options: Any) -> Any:
        async def handle(job: Any) -> Any:
            result = await handler(job)
            return result if next(left) else die()

        assert deliver is not None
        return await deliver(handle, **options)

    async def acknowledge(*arguments: Any) -> None:
        if not next(left):
            die()
        assert ack is not None
        await ack(*arguments)

    if ack is not None:
        provider.ack = acknowledge
    if deliver is not None:
        provider.process = process


def main(spec: str, queue_name: str, count: int, trace: Path, *, at_random: bool) -> None:
    # Forked from a process that has imported everything and opened nothing: 200 deaths take seconds, not minutes.
    for _ in range(count):
        before = trace.stat().st_size
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(work(spec, queue_name, trace, dies_itself=not at_random))
            finally:
                os._exit(1)
        if at_random:
            kill_at_random(child, lambda before=before: lines_since(trace, before))  # type: ignore[misc]
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            sys.exit(f"a worker did not die but ended with {os.waitstatus_to_exitcode(status)}")


def kill_at_random(child: int, ran: Callable[[], int]) -> None:
    """A little while after it has run some, so that most jobs of its life are done, however slow the server is."""
    until, some = time.monotonic() + ENOUGH, random.randint(1, JOBS_OF_A_LIFE // 2)
    while ran() < some and time.monotonic() < until:
        time.sleep(0.002)
    time.sleep(random.uniform(0.0, 0.05))
    os.kill(child, signal.SIGKILL)


def lines_since(trace: Path, position: int) -> int:
    with trace.open("rb") as file:
        file.seek(position)
        return file.read().count(b"\n")


if __name__ == "__main__":
    spec, queue_name, count, trace, *rest = sys.argv[1:]
    factory(spec)  # import its client once, not in every child
    Path(trace).touch()
    main(spec, queue_name, int(count), Path(trace), at_random=rest == ["random"])

"""One program for every queue: add, delay, priority, a failing job, its dead letter, retry, pause, stats, close.

    python examples/emails.py
    python examples/emails.py redis://localhost        # or amqp://…, postgresql://…, sqlite:///…, bullmq+redis://…

Only `provider` differs. An option that a provider lacks appears as one warning; an optional method is asked for
through `capabilities`. It prints:

    3 wait
    alarm
    newsletter
    lost: no mailbox for nobody
    later
    lost failed: no mailbox for nobody
    lost
    1 waits while the queue is paused
    held
    0 wait
"""

import asyncio
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from onward import Onward, Permanent
from onward.queue import ActiveJob, Memory, ProviderFactory, Queue, QueueWorker


@dataclass
class Email:
    to: str


async def program(provider: ProviderFactory[Any], queue_name: str = "emails") -> list[str]:
    """What was sent, in order."""
    sent: list[str] = []
    mailboxes = {"ada", "grace", "edsger"}
    outcomes: asyncio.Queue[str] = asyncio.Queue()

    async def send(email: Email, job: ActiveJob[Email]) -> None:
        if email.to not in mailboxes:
            raise Permanent(f"no mailbox for {email.to}")
        sent.append(email.to)

    queue = Queue(queue_name, provider=provider, data=Email)
    worker = QueueWorker(queue_name, send, provider=provider)
    worker.on("completed", lambda event: outcomes.put_nowait(event.name))
    worker.on("failed", lambda event: outcomes.put_nowait(f"{event.name}: {event.error}"))

    async with queue:
        await queue.add("later", Email("edsger"), delay=timedelta(seconds=1))
        await queue.add("newsletter", Email("ada"), attempts=3)
        await queue.add("alarm", Email("grace"), attempts=3, priority=9)
        await queue.add("lost", Email("nobody"), attempts=3)
        print((await queue.stats()).waiting, "wait")
        async with worker:
            for _ in range(4):
                print(await outcomes.get())
            if queue.capabilities.dead_letters:
                [letter] = await _dead_letters(queue)
                print(letter.name, "failed:", letter.error)
                mailboxes.add("nobody")
                await queue.retry(letter.id)
                print(await outcomes.get())
            if queue.capabilities.pausing:
                await queue.pause()
                await queue.add("held", Email("ada"))
                print((await queue.stats()).waiting, "waits while the queue is paused")
                await queue.resume()
                print(await outcomes.get())
        print((await queue.health()).queue_depth, "wait")
    return sent


async def _dead_letters(queue: Queue[Email]) -> Any:
    """The worker says that a job failed when the provider knows; some brokers list it a moment later."""
    while not (letters := await queue.dead_letters()):  # noqa: ASYNC110 - another process tells nobody
        await asyncio.sleep(0.05)
    return letters


def provider_at(address: str) -> ProviderFactory[Any]:
    """Imports only what it needs."""
    if not address:
        return Memory()
    if address.startswith("redis"):
        from onward.queue.providers.redis import Redis

        return Redis(address)
    if address.startswith("bullmq+"):
        from onward.queue.providers.bullmq import BullMQ

        return BullMQ(address.removeprefix("bullmq+"))
    if address.startswith("amqp"):
        from onward.queue.providers.rabbitmq import RabbitMQ

        return RabbitMQ(address)
    if address.startswith("nats"):
        from onward.queue.providers.nats import Nats

        return Nats(address)
    if address.startswith("sqs+"):
        from onward.queue.providers.sqs import SQS, NewQueue

        return SQS(address.removeprefix("sqs+"), region="eu-central-1", create=NewQueue())
    from onward.queue.providers.database import Database

    return Database(Onward(address, jobs=[], migrate=True))


if __name__ == "__main__":
    asyncio.run(program(provider_at(sys.argv[1] if len(sys.argv) > 1 else "")))

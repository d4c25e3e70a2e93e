"""Sends messages to a queue and its neighbours, and settles those that came from it.

A message that goes on is published and confirmed before the one that came is acknowledged: a crash in between leaves
the job twice, never not at all.
"""

import time
from datetime import UTC, datetime, timedelta

from aio_pika import Message
from aio_pika.abc import AbstractIncomingMessage
from aiormq.exceptions import ChannelInvalidStateError, PublishError

from onward.queue.contract import TakenJob, is_permanent
from onward.queue.providers.rabbitmq.link import Line, Links, answered
from onward.queue.providers.rabbitmq.messages import (
    ATTEMPTS,
    ERROR,
    FAILED_AT,
    REMOVE_ON_FAIL,
    copy_of,
    failure_headers,
    lost_deliveries,
    retry_delay,
    taken_job,
)
from onward.queue.providers.rabbitmq.topology import RENEW, Topology, every_delay, rounded

_DELETING = 30.0
"""Seconds: some hundred queues may go."""


class Lost(Exception):
    """The channel that a message came on is gone: the broker gives the message to someone else."""


class _WorkerDied(Exception):
    def __init__(self, times: int) -> None:
        super().__init__(f"its worker died or lost its connection, {times} times in all")


class Post:
    """For one queue."""

    def __init__(self, links: Links, topology: Topology) -> None:
        self.topology = topology
        self._arriving = links.other
        self._sending, self._asking = Line(links.publishing), Line(links.other)
        self._declared: dict[str, float] = {}
        """Delay queues, and when they were declared last."""

    async def close(self) -> None:
        await self._sending.close()
        await self._asking.close()

    # -- queues

    async def declare(self, name: str) -> int:
        """Have that queue; how many messages wait in it."""
        async with answered():
            return await self.topology.declare(await self._asking.channel(), name)

    async def declare_all(self) -> None:
        await self.declare(self.topology.failed)
        await self.declare(self.topology.queue)

    async def delete_all(self) -> None:
        """Remove all queues, those of other processes' delays too."""
        async with answered(_DELETING):
            channel = await (await self._asking.channel()).get_underlay_channel()
            await channel.queue_delete(self.topology.queue)
            for delay in every_delay():
                # Deleting what does not exist is no error, and needs no answer.
                await channel.queue_delete(self.topology.delay(delay), nowait=True)
            await channel.queue_delete(self.topology.failed)
        self._declared.clear()
        # RabbitMQ 3.10 remembers queues per channel, and fails on one that was deleted and made again.
        await self.close()

    # -- sending

    async def send(self, message: Message, delay: timedelta = timedelta()) -> timedelta:
        """To those who wait, or to those who are delayed; the delay it got."""
        milliseconds = rounded(delay)
        if not milliseconds:
            await self._send_to(self.topology.queue, message)
            return timedelta()
        name = self.topology.delay(milliseconds)
        if time.monotonic() - self._declared.get(name, -RENEW) >= RENEW:
            await self._declare_delay(name)
        await self._send_to(name, message)
        return timedelta(milliseconds=milliseconds)

    async def _declare_delay(self, name: str) -> None:
        before = time.monotonic()
        await self.declare(name)
        self._declared[name] = before

    async def _send_to(self, name: str, message: Message) -> None:
        try:
            await self._publish(name, message)
        except PublishError:
            # No such queue: someone deleted it. What is published must have a place to be.
            await self.declare_all()
            if name not in (self.topology.queue, self.topology.failed):
                await self._declare_delay(name)
            await self._publish(name, message)

    async def _publish(self, name: str, message: Message) -> None:
        async with answered():
            channel = await self._sending.channel()
            await channel.default_exchange.publish(message, routing_key=name, mandatory=True)

    # -- what came

    async def arrived(self, message: AbstractIncomingMessage, lock_token: str) -> TakenJob | None:
        """Its job; none where it has failed by being delivered in vain too often, or goes round once to be counted."""
        lost = lost_deliveries(message)
        job = taken_job(message, self.topology.queue, lost=lost, lock_token=lock_token)
        if lost and job.attempts >= job.max_attempts:
            await self._bury(message, job, job.attempts, _WorkerDied(lost))
            return None
        if lost and "x-delivery-count" not in message.headers:
            # A classic queue does not count: it only says that it was not the first time. So we write it down.
            await self.send(copy_of(message, job.id, {ATTEMPTS: job.attempts}))
            await self._acknowledge(message)
            return None
        return job

    async def complete(self, message: AbstractIncomingMessage) -> None:
        await self._acknowledge(message)

    async def fail(self, message: AbstractIncomingMessage, job: TakenJob, error: BaseException) -> timedelta | None:
        """Tried again after the delay that is the answer, or failed for good."""
        attempts = job.attempts + 1
        if attempts >= job.max_attempts or is_permanent(error):
            await self._bury(message, job, attempts, error)
            return None
        self._check(message)
        copy = copy_of(message, job.id, failure_headers(attempts, error))
        delay = await self.send(copy, retry_delay(message, attempts))
        await self._acknowledge(message)
        return delay

    async def give_back(self, message: AbstractIncomingMessage, job: TakenJob) -> None:
        """As it was. Not by refusing it, which the broker counts like a worker's death."""
        self._check(message)
        await self.send(copy_of(message, job.id, {ATTEMPTS: job.attempts}))
        await self._acknowledge(message)

    async def refuse(self, message: AbstractIncomingMessage) -> bool:
        """The last resort, where it can neither go on nor be acknowledged: the broker delivers it again, and counts.

        Whether that worked; otherwise only closing its channel frees it.
        """
        if message.processed:
            return True
        if not self._arriving.carries(message):
            return False
        try:
            async with answered():
                await message.nack(requeue=True)
        except Exception:  # noqa: BLE001 - whoever calls has an error to tell already
            return False
        return True

    async def retry(self, message: AbstractIncomingMessage, job_id: str) -> None:
        """From the failed ones to those who wait."""
        await self.send(copy_of(message, job_id, {ATTEMPTS: None, ERROR: None, FAILED_AT: None}))
        await self._acknowledge(message)

    async def _bury(self, message: AbstractIncomingMessage, job: TakenJob, attempts: int, error: BaseException) -> None:
        self._check(message)
        if not message.headers.get(REMOVE_ON_FAIL):
            changes = failure_headers(attempts, error) | {FAILED_AT: datetime.now(UTC).isoformat()}
            await self._send_to(self.topology.failed, copy_of(message, job.id, changes))
        await self._acknowledge(message)

    async def _acknowledge(self, message: AbstractIncomingMessage) -> None:
        self._check(message)
        try:
            async with answered():
                await message.ack()
        except ChannelInvalidStateError as error:
            raise Lost from error

    def _check(self, message: AbstractIncomingMessage) -> None:
        if not self._arriving.carries(message):
            raise Lost

"""Sends messages to a queue and its neighbours, and settles those that came from it.

A message that goes on is published and confirmed before the one that came is acknowledged: a crash in between leaves
the job twice, never not at all.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import msgspec
from aio_pika import Message
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aiormq.exceptions import ChannelLockedResource, ChannelPreconditionFailed, DeliveryError, PublishError

from onward.queue.contract import StoredJob, TakenJob, in_words, why_for_good
from onward.queue.model import QueueFailureReason
from onward.queue.providers.rabbitmq.link import ANSWER, KeptChannel, Link, Links, answered
from onward.queue.providers.rabbitmq.messages import (
    ATTEMPTS,
    COPIES,
    ERROR,
    EXPIRES_AT,
    FAILED_AT,
    REASON,
    REMOVE_ON_FAIL,
    STALLS,
    copy_of,
    counts,
    failed_job,
    lost_deliveries,
    retry_delay,
    taken_job,
)
from onward.queue.providers.rabbitmq.topology import Declared, KeptOtherwise, Topology, roughly, rounded
from onward.queue.providers.readable import as_json

logger = logging.getLogger("onward.queue")
_OF_ITS_PAST: tuple[str, ...] = (ATTEMPTS, STALLS, ERROR, REASON, FAILED_AT, EXPIRES_AT)
_DIRECT_REPLY = "amq.rabbitmq.reply-to"
_DELETING = 30.0
"""Seconds: some hundred queues may go."""


class Lost(Exception):
    """The channel that a message came on is gone: the broker gives the message to someone else."""


class Refused(Exception):
    """The broker does not take a message of this kind, in words."""


class Publisher:
    """For one queue. `on_ended` is told of jobs that fail without being run."""

    def __init__(self, links: Links, topology: Topology, on_ended: Callable[[StoredJob], object]) -> None:
        self.topology = topology
        self._arriving, self._publishing, self._on_ended = links.other, links.publishing, on_ended
        self._sending, self._asking = KeptChannel(links.publishing), KeptChannel(links.other)
        self._declared: dict[int, str] = {}
        """By delay, the queue that was declared for it last."""
        self._kept_otherwise = False

    async def close(self) -> None:
        await self._sending.close()
        await self._asking.close()

    # -- queues

    async def declare(self, name: str) -> Declared:
        """Have that queue; what is in it."""
        return await self._asking.ask(lambda channel: self.topology.declare(channel, name))

    async def declare_all(self) -> None:
        await self.look_at_failed()
        await self.declare(self.topology.queue)

    async def look_at_failed(self) -> Declared:
        """One that was made for another number or age is used as it is: RabbitMQ cannot change it."""
        if not self._kept_otherwise:
            try:
                return await self.declare(self.topology.failed)
            except KeptOtherwise as difference:
                logger.warning("%s", difference)
                self._kept_otherwise = True
        return Declared.of(
            await self._asking.ask(lambda channel: channel.declare_queue(self.topology.failed, passive=True))
        )

    async def delete_all(self) -> None:
        """Remove all queues, those of other processes' delays too."""
        await self._asking.ask(self._delete_on, _DELETING)
        self._declared.clear()
        self._kept_otherwise = False
        # RabbitMQ 3.10 remembers queues per channel, and fails on one that was deleted and made again.
        await self.close()

    async def _delete_on(self, channel: AbstractChannel) -> None:
        underlay = await channel.get_underlay_channel()
        await underlay.queue_delete(self.topology.queue)
        for name in self.topology.delays(time.time()):
            # Deleting what does not exist is no error, and needs no answer.
            await underlay.queue_delete(name, nowait=True)
        await underlay.queue_delete(self.topology.failed)

    # -- sending

    async def send(self, message: Message, delay: timedelta = timedelta()) -> timedelta:
        """To those who wait, or to those who are delayed; the delay it got."""
        milliseconds = rounded(delay)
        if not milliseconds:
            await self._send_to(self.topology.queue, message)
            return timedelta()
        name = self.topology.delay(milliseconds, time.time())
        if self._declared.get(milliseconds) != name:
            await self.declare(name)
            self._declared[milliseconds] = name
        await self._send_to(name, message)
        return timedelta(milliseconds=milliseconds)

    async def _send_to(self, name: str, message: Message) -> None:
        try:
            await self._publish(name, message)
        except PublishError:
            # No such queue: someone deleted it. What is published must have a place to be.
            await self.declare_all()
            if name not in (self.topology.queue, self.topology.failed):
                await self.declare(name)
            await self._publish(name, message)
        except DeliveryError:
            await self._publish(name, message)  # on another channel

    async def _publish(self, name: str, message: Message) -> None:
        alone = _may_end_its_channel(message)
        async with answered(), self._alone() if alone else self._sending.lent() as channel:
            await channel.default_exchange.publish(message, routing_key=name, mandatory=True)

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[AbstractChannel]:
        """A channel of its own: what others publish must not be lost with it."""
        channel = await self._publishing.channel()
        try:
            yield channel
        except ChannelPreconditionFailed as error:
            raise Refused(str(error)) from error
        finally:
            await self._publishing.leave(channel)

    # -- what came

    async def arrived(self, message: AbstractIncomingMessage, lock_token: str) -> TakenJob | None:
        """Its job; none where it fails instead of being run, or goes round once to be counted."""
        lost = lost_deliveries(message)
        job = taken_job(message, self.topology.queue, lock_token=lock_token)
        if job.stalls > job.max_stalls:
            words = f"its worker died or lost its connection, {job.stalls} times in all"
            await self._end(message, job, QueueFailureReason.STALLED, words)
            return None
        if job.expires_at is not None and job.expires_at <= datetime.now(UTC):
            await self._end(message, job, QueueFailureReason.EXPIRED, f"nobody began it before {job.expires_at}")
            return None
        if lost and "x-delivery-count" not in message.headers:
            # A classic queue does not count: it only says that it was not the first time. So we write it down.
            await self.give_back(message, job)
            return None
        return job

    async def _end(
        self, message: AbstractIncomingMessage, job: TakenJob, reason: QueueFailureReason, words: str
    ) -> None:
        await self._bury(message, job, reason, words)
        failed = failed_job(message, self.topology.queue)
        self._on_ended(
            msgspec.structs.replace(
                failed, id=job.id, stalls=job.stalls, reason=reason, error=words, failed_at=datetime.now(UTC)
            )
        )

    async def fail(self, message: AbstractIncomingMessage, job: TakenJob, error: BaseException) -> timedelta | None:
        """Tried again after the delay that is the answer, or failed for good."""
        reason = why_for_good(job, error)
        job = msgspec.structs.replace(job, attempts=job.attempts + 1)
        if reason is not None:
            await self._bury(message, job, reason, in_words(error))
            return None
        self._check(message)
        copy = copy_of(message, job.id, counts(job) | {ERROR: in_words(error)})
        delay = await self.send(copy, roughly(retry_delay(message, job.attempts)))
        await self.complete(message)
        return delay

    async def give_back(self, message: AbstractIncomingMessage, job: TakenJob) -> None:
        """As it was. Not by refusing it, which the broker counts like a worker's death."""
        self._check(message)
        await self.send(copy_of(message, job.id, counts(job)))
        await self.complete(message)

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
        await self.send(copy_of(message, job_id, dict.fromkeys(_OF_ITS_PAST)))
        await self.complete(message)

    async def _bury(
        self, message: AbstractIncomingMessage, job: TakenJob, reason: QueueFailureReason, words: str
    ) -> None:
        self._check(message)
        if not message.headers.get(REMOVE_ON_FAIL):
            changes = counts(job) | {ERROR: words, REASON: reason.value, FAILED_AT: datetime.now(UTC).isoformat()}
            await self._send_to(self.topology.failed, copy_of(message, job.id, changes))
        await self.complete(message)

    async def complete(self, message: AbstractIncomingMessage) -> None:
        """Once: it has no answer, and if it was sent nevertheless, a second one would end the channel."""
        self._check(message)
        try:
            async with answered():
                await message.ack()
        except Exception as error:
            raise Lost from error

    def _check(self, message: AbstractIncomingMessage) -> None:
        if not self._arriving.carries(message):
            raise Lost


def _may_end_its_channel(message: Message) -> bool:
    """RabbitMQ closes the channel of a message that says it is another user's, or has a property it cannot read."""
    is_special = bool(message.user_id) or message.reply_to == _DIRECT_REPLY or message.expiration is not None
    return is_special or not COPIES.isdisjoint(message.headers)


MOST = 50_000
"""How many are read at most, from the oldest on; a prefetch count has 16 bits."""
_LOOKS = 200
"""Whether they are back: for two seconds at least, then others will have removed some."""


class TooMany(Exception):
    def __init__(self, depth: int) -> None:
        super().__init__(f"not among the oldest {MOST:,} of {depth:,} failed jobs; retry or purge those first")


class FailedJobs:
    """Of one queue. To read them is to hold them all for a moment: one reader at a time, wherever it runs."""

    def __init__(self, link: Link, publisher: Publisher) -> None:
        self._link, self._publisher = link, publisher
        self._turn = asyncio.Lock()

    async def some(self, limit: int) -> list[StoredJob]:
        """So many from the head of the queue, the newest of them first.

        A quorum queue takes what is put back to its end: who asks again sees others, if there are more.
        """
        jobs: list[StoredJob] = []

        async def look(message: AbstractIncomingMessage) -> bool:
            jobs.append(_shown(failed_job(message, self._publisher.topology.queue)))
            return False

        if limit > 0:
            await self._read(look, limit)
        return sorted(jobs, key=lambda job: job.failed_at or job.created_at, reverse=True)

    async def retry(self, job_id: str) -> bool:
        """Put one back among those who wait; whether there was one."""
        found = False

        async def look(message: AbstractIncomingMessage) -> bool:
            nonlocal found
            if message.message_id == job_id:
                await self._publisher.retry(message, job_id)
                found = True
            return found

        depth = await self._read(look)
        if not found and depth > MOST:
            raise TooMany(depth)
        return found

    async def _read(self, look: Callable[[AbstractIncomingMessage], Awaitable[bool]], most: int = MOST) -> int:
        """Show so many to `look`, the oldest first, until it says that it has seen enough; how many there were."""
        async with self._turn, self._alone():
            depth = (await self._publisher.look_at_failed()).messages
            if depth:
                channel = await self._link.channel()
                try:
                    await self._show(channel, min(depth, most, MOST), look)
                finally:
                    # What was not acknowledged returns in its order. Refusing all at once would shuffle them on a
                    # quorum queue.
                    await self._link.leave(channel)
                    await self._have_returned(depth)
            return depth

    async def _show(
        self, channel: AbstractChannel, count: int, look: Callable[[AbstractIncomingMessage], Awaitable[bool]]
    ) -> None:
        came: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        async with answered():
            await channel.set_qos(prefetch_count=count)
            queue = await channel.get_queue(self._publisher.topology.failed, ensure=False)
            tag = await queue.consume(came.put)
        for _ in range(count):
            async with answered():
                message = await came.get()
            if await look(message):
                break
        async with answered():
            await queue.cancel(tag)

    async def _have_returned(self, depth: int) -> None:
        """The broker takes them back in its own time; all but one that may have been retried."""
        for _ in range(_LOOKS):
            if (await self._publisher.look_at_failed()).messages >= depth - 1:
                return
            await asyncio.sleep(0.01)

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """An exclusive queue belongs to a connection and goes with it: a lock that no crash leaves behind."""
        name, until = self._publisher.topology.lock, time.monotonic() + ANSWER
        while True:
            channel = await self._link.channel()
            try:
                async with answered():
                    await channel.declare_queue(name, exclusive=True)
                break
            except ChannelLockedResource:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.05)
        try:
            yield
        finally:
            async with answered():
                await channel.queue_delete(name)
            await self._link.leave(channel)


def _shown(job: StoredJob) -> StoredJob:
    return msgspec.structs.replace(job, data=as_json(bytes(job.data)))

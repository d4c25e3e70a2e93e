"""Reading the queue of failed jobs, which nobody consumes: everything is put back."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aiormq.exceptions import ChannelLockedResource

from onward.queue.contract import StoredJob
from onward.queue.providers.rabbitmq.link import ANSWER, Link, answered
from onward.queue.providers.rabbitmq.messages import failed_job
from onward.queue.providers.rabbitmq.post import Post
from onward.queue.providers.readable import as_json

MOST = 50_000
"""How many are read at most, from the oldest on; a prefetch count has 16 bits."""
_LOOKS = 200
"""Whether they are back: for two seconds at least, then others will have removed some."""


class TooMany(Exception):
    def __init__(self, depth: int) -> None:
        super().__init__(f"not among the oldest {MOST:,} of {depth:,} failed jobs; retry or purge those first")


class FailedJobs:
    """Of one queue. To read them is to hold them all for a moment: one reader at a time, wherever it runs."""

    def __init__(self, link: Link, post: Post) -> None:
        self._link, self._post = link, post
        self._turn = asyncio.Lock()

    async def some(self, limit: int) -> list[StoredJob]:
        """So many from the head of the queue, the newest of them first.

        A quorum queue takes what is put back to its end: who asks again sees others, if there are more.
        """
        jobs: list[StoredJob] = []

        async def look(message: AbstractIncomingMessage) -> bool:
            jobs.append(_shown(failed_job(message, self._post.topology.queue)))
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
                await self._post.retry(message, job_id)
                found = True
            return found

        depth = await self._read(look)
        if not found and depth > MOST:
            raise TooMany(depth)
        return found

    async def _read(self, look: Callable[[AbstractIncomingMessage], Awaitable[bool]], most: int = MOST) -> int:
        """Show so many to `look`, the oldest first, until it says that it has seen enough; how many there were."""
        async with self._turn, self._alone():
            depth = (await self._post.look_at_failed()).messages
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
            queue = await channel.get_queue(self._post.topology.failed, ensure=False)
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
            if (await self._post.look_at_failed()).messages >= depth - 1:
                return
            await asyncio.sleep(0.01)

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """An exclusive queue belongs to a connection and goes with it: a lock that no crash leaves behind."""
        name, until = self._post.topology.lock, time.monotonic() + ANSWER
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

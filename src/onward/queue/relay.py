"""The built-in job type that publishes what an outbox keeps."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Raw

from onward.client.app import Onward
from onward.define.attempt import Attempt
from onward.define.job_type import BUILT_IN, JobType
from onward.errors import Permanent, QueueConfigurationError, QueueDataError, QueueError, QueueErrorCode
from onward.model import Backoff, JobStatus
from onward.queue.model import KEEP_FAILED, Keep, QueueJob
from onward.queue.options import Options
from onward.queue.payload import with_data
from onward.queue.provider import Provider
from onward.queue.retention import Retention

_AWAY = 1.0
"""Seconds for which a provider that has just failed is not asked again."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A job until it is published."""

    job: QueueJob[Any]
    options: Options

    def options_now(self) -> Options:
        """The delay counts from when the job was added."""
        due = self.job.scheduled_for
        left = timedelta() if due is None else max(due - datetime.now(UTC), timedelta())
        return msgspec.structs.replace(self.options, delay=left)


class Relay:
    """Publishes the jobs of one queue, in the order in which the workers of this process take them.

    Published twice is the same as once where the provider knows duplicates, and it is tried until it succeeds.
    """

    def __init__(self, app: Onward, provider: Provider, *, keep: Keep) -> None:
        self.provider, self.keep = provider, keep
        self._app = app
        self.job_type: JobType[Message, None] = JobType(
            name_of(provider),
            input=Message,
            output=type(None),
            timeout=timedelta(minutes=1),
            backoff=Backoff(initial=timedelta(seconds=1), maximum=timedelta(minutes=1), jitter=0.2),
        )
        self.job_type.handler(self.publish)
        self._turn = asyncio.Lock()
        self._workers = 0
        self._is_connected = False
        self._failure: tuple[float, QueueError] | None = None
        app.register(self.job_type, resources=[self.opened])

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """A worker runs. It connects when there is something to publish: a broker that is away does not keep it."""
        if not self._workers:
            self._turn = asyncio.Lock()  # one that was waited for belongs to the event loop of then
            kept = {JobStatus.COMPLETED: self.keep, JobStatus.FAILED: KEEP_FAILED}
            self._retention = Retention(self._app, self.job_type.name, kept)
            self._retention.begin()
        self._workers += 1
        try:
            yield
        finally:
            self._workers -= 1
            if not self._workers:
                await self._retention.close()
            if not self._workers and self._is_connected:
                self._is_connected = False
                await self.provider.disconnect()

    async def publish(self, attempt: Attempt[Message]) -> None:
        """The handler."""
        async with self._turn:
            if self._failure is not None and time.monotonic() < self._failure[0]:
                raise self._failure[1]  # those in line need not each find out
            try:
                await self._add(attempt.input)
                self._retention.finished(JobStatus.COMPLETED, attempt.job_id)
            except QueueDataError as error:
                # The provider will never take it, and the others need not wait: kept as a failed chain, to be retried.
                raise Permanent(str(error)) from error
            except QueueError as error:
                self._failure = time.monotonic() + _AWAY, error
                raise
            self._failure = None

    async def _add(self, message: Message) -> None:
        if not self._is_connected:
            await self.provider.connect()
            self._is_connected = True
        job = with_data(message.job, Raw(msgspec.json.encode(message.job.data)))
        try:
            await self.provider.add(job, message.options_now())
        except QueueDataError as error:
            if error.code is not QueueErrorCode.DUPLICATE:
                raise
            # An earlier attempt has published it, and did not live to say so.


def name_of(provider: Provider) -> str:
    """The name of the relay type for a queue: only workers that know the queue take its messages."""
    return f"{BUILT_IN}relay:{provider.queue_name}"


def relay_for(app: Onward, provider: Provider, *, keep: Keep) -> Relay:
    """The relay of this queue at this app; queues of one name on one provider share it."""
    registered = app.registry.get(name_of(provider))
    if registered is None:
        return Relay(app, provider, keep=keep)
    relay = getattr(registered.step.run, "__self__", None)
    if isinstance(relay, Relay) and relay.keep != keep:
        raise QueueConfigurationError(
            f"keep_published: another queue of this name on this app has {relay.keep}, got: {keep}",
            queue_name=provider.queue_name,
        )
    if not isinstance(relay, Relay) or relay.provider.events is not provider.events:
        raise QueueConfigurationError(
            "outbox: this app has an outbox for a queue of this name at another provider object: share the provider",
            queue_name=provider.queue_name,
        )
    return relay

"""Jobs that are published once the transaction they were added in has committed."""

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
from onward.errors import (
    DuplicateJobId,
    PayloadError,
    Permanent,
    QueueConfigurationError,
    QueueDataError,
    QueueError,
    QueueErrorCode,
    QueueRuntimeError,
    TransactionError,
)
from onward.model import Backoff, JobStatus
from onward.queue.contract import StoredJob, unfit
from onward.queue.ids import derived_id
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


class Outbox:
    """Keeps the jobs of one queue in an app's database, as chains of a built-in type, and publishes them as the app's
    workers in this process take those.

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

    async def add_within(self, tx: Any, job: StoredJob, options: Options) -> StoredJob:
        """Record it in the caller's transaction."""
        if not self._app.is_open:
            raise self._refused("the app of the outbox is not open: use `async with app:` around this call")
        message = Message(job=with_data(job, msgspec.json.decode(job.data)), options=options)
        try:
            await self._app.start(self.job_type, message, tx=tx, id=derived_id(self.job_type.name, job.id))
        except DuplicateJobId as error:
            raise self.provider.duplicate(job.id) from error
        except PayloadError as error:
            raise unfit(job, f"it does not fit into the outbox: {error.problem}", error) from error
        except TransactionError as error:
            raise self._refused(str(error)) from error
        except Exception as error:
            raise QueueRuntimeError(
                f"the outbox could not keep it: {type(error).__name__}: {error}",
                code=QueueErrorCode.ENQUEUE,
                queue_name=job.queue_name,
                job_id=job.id,
                retryable=True,
                cause=error,
            ) from error
        return job

    def _refused(self, problem: str) -> QueueConfigurationError:
        return QueueConfigurationError(problem, queue_name=self.provider.queue_name)

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
    """The name of the job type for a queue: only workers that know the queue take its messages."""
    return f"{BUILT_IN}relay:{provider.queue_name}"


def outbox_for(app: Onward, provider: Provider, *, keep: Keep) -> Outbox:
    """That of this queue at this app; queues of one name on one provider share it."""
    registered = app.registry.get(name_of(provider))
    if registered is None:
        return Outbox(app, provider, keep=keep)
    outbox = getattr(registered.step.run, "__self__", None)
    if isinstance(outbox, Outbox) and outbox.keep != keep:
        problem = f"keep_published: another queue of this name on this app has {outbox.keep}, got: {keep}"
        raise QueueConfigurationError(problem, queue_name=provider.queue_name)
    if not isinstance(outbox, Outbox) or outbox.provider.events is not provider.events:
        raise QueueConfigurationError(
            "outbox: this app has an outbox for a queue of this name at another provider object: share the provider",
            queue_name=provider.queue_name,
        )
    return outbox

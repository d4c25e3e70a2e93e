"""Queues in RabbitMQ: one of them, and what users make for as many as they like."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from onward.addresses import shown, wrong_address
from onward.errands import Errands
from onward.errors import QueueConfigurationError, QueueError, QueueErrorCode
from onward.queue.checks import Arguments, ProviderArguments
from onward.queue.contract import KeepsDeadLetters, Pulls, Pushes, PushHandler, StoredJob, TakenJob
from onward.queue.events import Emitter
from onward.queue.model import KEEP_FAILED, LARGEST_JOB, Capabilities, Keep, QueueHealth, QueueStats
from onward.queue.options import Options
from onward.queue.provider import Provider, ProviderFactory
from onward.queue.providers.together import add_each, one_by_one

try:
    import aio_pika
except ImportError as error:
    raise QueueConfigurationError("aio-pika is not installed: pip install 'onward[rabbitmq]'") from error

# Behind that: these need it, too.
from aio_pika import Message
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage
from yarl import URL

from onward.queue.providers.rabbitmq.delivery import Delivery
from onward.queue.providers.rabbitmq.link import Connect, KeptChannel, Links, answered, refused_in_words
from onward.queue.providers.rabbitmq.messages import new_message, taken_job, unsendable
from onward.queue.providers.rabbitmq.publisher import FailedJobs, Lost, Publisher, Refused
from onward.queue.providers.rabbitmq.topology import LONGEST_DELAY, LONGEST_KEPT, QueueType, Topology

R = TypeVar("R")


class RabbitMQProvider(Provider, Pulls, Pushes, KeepsDeadLetters):
    """One queue in RabbitMQ, with its failed and its delayed jobs."""

    name = "rabbitmq"
    capabilities = Capabilities(
        delayed_jobs=True,
        retries=True,
        backoff=True,
        removal=True,
        ordered=True,
        stalls=True,
        ttl=True,
        max_delay=LONGEST_DELAY,
    )

    def __init__(self, topology: Topology, factory: ProviderFactory[Links], events: Emitter) -> None:
        super().__init__(topology.queue, events)
        self.declare(priority=topology.max_priority > 0)
        self._topology, self._factory = topology, factory

    async def _open(self) -> None:
        self._links = await self._factory.hold()
        self._held: dict[str, AbstractIncomingMessage] = {}
        """Fetched and not settled yet, by lock token."""
        self._errands = Errands()
        self._asked: asyncio.Task[AbstractIncomingMessage | None] | None = None
        """A question for a message whose answer nobody has had yet."""
        self._asking = asyncio.Lock()
        self._deliveries: list[Delivery] = []
        try:
            self._publisher = Publisher(self._links, self._topology, lambda job: self.on_ended(job))
            self._failed = FailedJobs(self._links.other, self._publisher)
            self._pulling = KeptChannel(self._links.other)
            await self._publisher.declare_all()
        except BaseException:
            await self._close()
            raise

    async def _close(self) -> None:
        for delivery in self._deliveries:
            await delivery.abandon()
        self._deliveries.clear()
        await self._return_unclaimed()
        self._held.clear()
        await self._pulling.close()
        await self._publisher.close()
        await self._factory.let_go()

    def hopeless(self, error: BaseException) -> str | None:
        return None if self.was_open else refused_in_words(error) or super().hopeless(error)

    # -- adding

    async def add(self, job: StoredJob, options: Options) -> StoredJob:
        job = self._fitted(job)
        return await self._add(job, new_message(job, options), options.delay)

    async def add_many(self, jobs: Sequence[tuple[StoredJob, Options]]) -> list[StoredJob]:
        fitted = [(self._fitted(job), options) for job, options in jobs]
        ready = [(job, new_message(job, options), options.delay) for job, options in fitted]
        return await add_each(self, lambda one: self._add(*one), ready)

    def _fitted(self, job: StoredJob) -> StoredJob:
        """RabbitMQ knows no priority beyond the queue's highest."""
        return msgspec.structs.replace(job, priority=min(job.priority, self._topology.max_priority))

    async def _add(self, job: StoredJob, message: Message, delay: timedelta) -> StoredJob:
        try:
            delay = await self._publisher.send(message, delay)
        except Refused as error:
            raise unsendable(job, f"RabbitMQ does not take it: {error}") from error
        return msgspec.structs.replace(job, scheduled_for=job.created_at + delay if delay else None)

    # -- pull

    async def fetch(self, count: int, wait: timedelta = timedelta()) -> Sequence[TakenJob]:
        return await one_by_one(self._take_one, count)

    async def _take_one(self) -> TakenJob | None:
        while (message := await self._get()) is not None:
            token = secrets.token_hex(8)
            try:
                job = await self._publisher.arrived(message, token)
            except Exception:
                await self._publisher.refuse(message)
                raise
            if job is not None:
                self._held[token] = message
                return job
        return None

    async def _get(self) -> AbstractIncomingMessage | None:
        """A call that is cancelled leaves its question to the next one.

        To cancel the question would close the channel, with every job that came on it.
        """
        async with self._asking:
            if self._asked is None:
                self._asked = self._errands.begin(self._ask())
            asked = self._asked
            await asyncio.wait([asked])
            self._asked = None
            return asked.result()

    async def _ask(self) -> AbstractIncomingMessage | None:
        async with answered():
            channel = await self._pulling.channel()
            queue = await channel.get_queue(self._topology.queue, ensure=False)
            return await queue.get(fail=False, timeout=None)

    async def _return_unclaimed(self) -> None:
        """A message that came for a call that was cancelled goes back as it was."""
        with suppress(Exception):  # then the broker takes it back, and counts
            message = await self._get() if self._asked is not None else None
            if message is not None:
                await self._publisher.give_back(message, taken_job(message, self.queue_name, lock_token=""))

    async def ack(self, job: TakenJob, result: Raw | None = None) -> None:
        await self._settled(job, self._publisher.complete)

    async def nack(self, job: TakenJob, error: BaseException) -> timedelta | None:
        if job.native is None:
            raise self.not_found(job.id)
        return await self._settled(job, lambda message: self._publisher.fail(message, job, error))

    async def release(self, jobs: Sequence[TakenJob]) -> None:
        for job in jobs:
            await self._settled(job, lambda message, job=job: self._publisher.give_back(message, job))  # type: ignore[misc]

    async def _settled(self, job: TakenJob, settle: Callable[[AbstractIncomingMessage], Awaitable[R]]) -> R:
        token = job.lock_token or ""
        message = self._held.pop(token, None)
        if message is None:
            raise self.not_active(job.id)
        try:
            return await settle(message)
        except Lost as error:
            raise self.not_active(job.id) from error
        except BaseException:
            self._held[token] = message  # it may be tried again
            raise

    # -- push

    async def process(
        self,
        handler: PushHandler,
        *,
        concurrency: int,
        on_error: Callable[[QueueError], None],
        on_settled: Callable[[TakenJob, timedelta | None], None] | None = None,
    ) -> Delivery:
        delivery = Delivery(
            self._links.other,
            self._publisher,
            handler,
            concurrency=concurrency,
            in_words=self._in_words,
            on_error=on_error,
            on_settled=on_settled,
        )
        self._deliveries = [*(one for one in self._deliveries if not one.is_over), delivery]
        await delivery.start()
        return delivery

    def _in_words(self, error: Exception, code: QueueErrorCode, job: TakenJob | None) -> QueueError:
        job_id = job.id if job is not None else None
        if isinstance(error, QueueError):
            return error
        if isinstance(error, Lost) and job_id is not None:
            return self.not_active(job_id)
        return self.failure(f"{self.name}: delivering failed", error, code, job_id)

    # -- the queue

    async def delete(self) -> None:
        await self._publisher.delete_all()
        await self._pulling.close()

    async def stats(self) -> QueueStats:
        # What is delayed is in queues that only who made them knows, and AMQP does not tell what is unacknowledged.
        return QueueStats(
            waiting=(await self._publisher.declare(self._topology.queue)).messages,
            failed=(await self._publisher.look_at_failed()).messages,
        )

    async def health(self) -> QueueHealth:
        consumers = (await self._publisher.declare(self._topology.queue)).consumers
        return QueueHealth.of(await self.stats(), active_workers=consumers)

    async def dead_letters(self, limit: int = 100) -> Sequence[StoredJob]:
        return await self._failed.some(limit)

    async def retry(self, job_id: str) -> None:
        if not await self._failed.retry(job_id):
            raise self.not_found(job_id)


_HEARTBEAT = 10
"""Seconds. aio-pika gives a silent connection up after about three of them; its own default is 60."""
_LONGEST_NAME = 255 - len(f".delay.{LONGEST_DELAY // timedelta(milliseconds=1)}.{10**10}")
_TLS_OPTIONS = {
    *("ssl_context", "ssl_options", "cafile", "capath", "cadata", "certfile", "keyfile", "no_verify_ssl"),
}
_CONNECT_OPTIONS = _TLS_OPTIONS | {"client_properties", "timeout", "heartbeat", "name", "auth"}
_PARTS_OF_THE_ADDRESS = {"url", "host", "port", "login", "user", "username", "password", "virtualhost", "vhost", "ssl"}


class RabbitMQ(ProviderFactory[Links]):
    """Queues in RabbitMQ 3.10 or newer.

        Queue("emails", provider=RabbitMQ("amqps://user:password@host/vhost"))

    `queue_type="quorum"`, the default, survives the loss of a node and has no priorities; `"classic"` has priorities
    from 0 to `max_priority`, in one place. `keep_failed` bounds what is kept of failed jobs. Further arguments go to
    `aio_pika.connect`, such as `ssl_context=`. In place of an address, a function may be given that makes a
    connection: `RabbitMQ(lambda: aio_pika.connect(…))`.

    >>> RabbitMQ("amqp://localhost").for_queue("emails").capabilities.priority
    False
    >>> RabbitMQ("amqp://localhost", queue_type="classic").for_queue("emails").capabilities.priority
    True
    """

    def __init__(
        self,
        target: str | Connect = "amqp://guest:guest@localhost/",
        *,
        queue_type: QueueType = "quorum",
        max_priority: int = 10,
        max_job_size: int = LARGEST_JOB,  # what RabbitMQ 4 takes unless it is told otherwise; older ones take more
        keep_failed: Keep = KEEP_FAILED,
        **connect_options: Any,
    ) -> None:
        super().__init__()
        arguments = ProviderArguments("RabbitMQ")
        arguments.one_of("queue_type", queue_type, ("quorum", "classic").__contains__, '"quorum" or "classic"')
        arguments.one_of(
            "max_priority", max_priority, lambda n: isinstance(n, int) and 0 <= n <= 255, "a whole number from 0 to 255"
        )
        arguments.whole("max_job_size", max_job_size, least=1)
        arguments.keep("keep_failed", keep_failed)
        if keep_failed.age > LONGEST_KEPT:
            arguments.refuse("keep_failed.age", f"at most {LONGEST_KEPT.days} days", keep_failed.age)
        _check_target(arguments, target, connect_options)
        self._target, self._connect_options = target, connect_options
        self._queue_type: QueueType = queue_type
        self._max_job_size, self._keep_failed = max_job_size, keep_failed
        self._max_priority = max_priority if queue_type == "classic" else 0

    def for_queue(self, queue_name: str) -> RabbitMQProvider:
        """A provider bound to that queue."""
        arguments = Arguments("RabbitMQ", queue_name)
        if queue_name.startswith("amq.") or len(queue_name.encode()) > _LONGEST_NAME:
            arguments.refuse(
                "name", f"at most {_LONGEST_NAME} bytes, and begin with something else than amq.", queue_name
            )
        topology = Topology(queue_name, self._queue_type, self._max_priority, self._keep_failed)
        provider = RabbitMQProvider(topology, self, self.events_of(queue_name))
        return provider.declare(max_job_size=self._max_job_size)

    async def _open(self) -> Links:
        links = Links(self._connect)
        await links.other.connected()
        return links

    async def _close(self, connection: Links) -> None:
        await connection.close()

    async def _connect(self) -> AbstractConnection:
        if not isinstance(self._target, str):
            return await self._target()
        options = dict(self._connect_options)
        if "heartbeat" not in URL(self._target).query:
            options.setdefault("heartbeat", _HEARTBEAT)
        connection: AbstractConnection = await aio_pika.connect(self._target, **options)
        return connection


def _check_target(arguments: ProviderArguments, target: object, options: Mapping[str, Any]) -> None:
    first = 'a part of the address, which comes first: RabbitMQ("amqp://user:password@host:5672/vhost")'
    arguments.client_options(options, _CONNECT_OPTIONS, dict.fromkeys(_PARTS_OF_THE_ADDRESS, first))
    if not isinstance(target, str):
        if not callable(target):
            expected = "an address, or a function that makes a connection"
            arguments.refuse_because(f"target must be {expected}, got: {shown(target)}")
        if options:
            arguments.refuse_because(f"{', '.join(options)}: give that to the connection that your function makes")
    elif problem := wrong_address("target", target, ("amqp", "amqps")):
        arguments.refuse_because(problem)
    elif parts := _PARTS_OF_THE_ADDRESS & set(URL(target).query):  # its client shows all that follows the ?
        arguments.refuse_because(f"{', '.join(sorted(parts))}: goes before the ?, as in amqp://user:password@host")
    elif not _has_host(target):
        arguments.refuse_because("target must be an address like amqp://user:password@host:5672/vhost")
    elif URL(target).scheme == "amqp":
        _refuse_plain_text(arguments, {*options, *URL(target).query})


def _refuse_plain_text(arguments: ProviderArguments, options: set[str]) -> None:
    """aio-pika would speak in plain text, whatever it was told of certificates."""
    for option in sorted(options & _TLS_OPTIONS):
        arguments.refuse_because(f"{option} is for TLS, and the address says otherwise: begin it with amqps://")


def _has_host(target: str) -> bool:
    try:
        return bool(URL(target).host)
    except ValueError:
        return False

"""What users make: RabbitMQ, for as many queues as they like."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from onward.addresses import shown, wrong_address
from onward.errors import QueueConfigurationError, QueueErrorCode
from onward.queue.checks import Arguments, ProviderArguments
from onward.queue.model import KEEP_FAILED, Keep
from onward.queue.provider import ProviderFactory

try:
    import aio_pika
except ImportError as error:  # pragma: no cover - the tests have it
    raise QueueConfigurationError(
        "aio-pika is not installed: pip install 'onward[rabbitmq]'", code=QueueErrorCode.INVALID_OPTION
    ) from error

from aio_pika.abc import AbstractConnection
from yarl import URL

from onward.queue.providers.rabbitmq.link import Connect, Links
from onward.queue.providers.rabbitmq.provider import RabbitMQProvider
from onward.queue.providers.rabbitmq.topology import LONGEST_DELAY, LONGEST_KEPT, QueueType, Topology

_HEARTBEAT = 10
"""Seconds. aio-pika gives a silent connection up after about three of them; its own default is 60."""
_LARGEST_JOB = 16 * 1024 * 1024
"""Bytes that RabbitMQ 4 takes unless it is told otherwise; older ones take more."""
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
        max_job_size: int = _LARGEST_JOB,
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
        _check_keep(arguments, keep_failed)
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


def _check_keep(arguments: ProviderArguments, keep: Keep) -> None:
    arguments.keep("keep_failed", keep)
    if keep.age > LONGEST_KEPT:
        arguments.refuse("keep_failed.age", f"at most {LONGEST_KEPT.days} days", keep.age)


def _check_target(arguments: ProviderArguments, target: object, options: Mapping[str, Any]) -> None:
    for option in options:
        if option in _PARTS_OF_THE_ADDRESS:
            example = 'RabbitMQ("amqp://user:password@host:5672/vhost")'
            arguments.refuse_because(f"{option} is a part of the address, which comes first: {example}")
        if option not in _CONNECT_OPTIONS:
            known = ", ".join(sorted(_CONNECT_OPTIONS))
            arguments.refuse_because(f"{option} is not an option of RabbitMQ or of its client; these are: {known}")
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

"""The entry: queues that BullMQ keeps in one Redis."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from onward.errors import QueueConfigurationError, QueueErrorCode
from onward.queue.contract import ProviderFactory
from onward.queue.providers.bullmq.native import RedisCluster
from onward.queue.providers.bullmq.provider import BullMQProvider
from onward.queue.providers.bullmq.taker import Settings
from onward.queue.providers.redis.connection import client_for, warn_of_eviction

if TYPE_CHECKING:
    from redis.asyncio import Redis


class BullMQ(ProviderFactory[Any]):
    """Queues that Node.js programs share: `Queue("emails", provider=BullMQ("redis://localhost"))`.

    Give an address with options for the `redis` package (`BullMQ(url, password=…, ssl_ca_certs=…)`), or a client of one
    server, which lends its settings, not its connections. `prefix` begins every key, as in BullMQ's own options.

    A worker that is not heard of for `lock` loses its jobs; the next worker that looks for such jobs, every
    `stalled_interval`, puts them back. One that was lost more than `max_stalled` times fails, whatever its attempts.

    >>> BullMQ("redis://localhost:6379/0").for_queue("emails").capabilities.push
    True
    """

    def __init__(
        self,
        target: "str | Redis",
        *,
        prefix: str = "bull",
        lock: timedelta = timedelta(seconds=30),
        stalled_interval: timedelta = timedelta(seconds=30),
        max_stalled: int = 1,
        **client_options: Any,
    ) -> None:
        super().__init__()
        self._expect(
            not isinstance(target, RedisCluster), "target must be an address or a client of one server", target
        )
        self._expect(bool(prefix), "prefix must be a non-empty string", prefix)
        self._expect(lock >= timedelta(seconds=1), "lock must be a timedelta of at least a second", lock)
        self._expect(
            stalled_interval > timedelta(), "stalled_interval must be a timedelta above zero", stalled_interval
        )
        self._expect(max_stalled >= 0, "max_stalled must be a whole number from 0", max_stalled)
        self._target, self._options = target, client_options
        self._settings = Settings(prefix=prefix, lock=lock, stalled_interval=stalled_interval, max_stalled=max_stalled)

    def for_queue(self, queue_name: str) -> BullMQProvider:
        self._expect(":" not in queue_name, "the name of a queue must not contain ':' on bullmq", queue_name)
        return BullMQProvider(queue_name, self, self.events_of(queue_name), self._settings)

    async def _open(self) -> Any:
        client = client_for(self._target, cluster=False, options=self._options, decode_responses=True)
        try:
            await warn_of_eviction(client)
        except BaseException:
            await self._close(client)
            raise
        return client

    async def _close(self, connection: Any) -> None:
        await connection.aclose()

    def _expect(self, is_so: bool, expectation: str, value: object) -> None:
        if not is_so:
            raise QueueConfigurationError(f"{expectation}, got: {value!r}", code=QueueErrorCode.INVALID_OPTION)

"""The entry: queues on one Redis."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from onward.errors import QueueConfigurationError, QueueErrorCode
from onward.queue.contract import ProviderFactory
from onward.queue.providers.redis.connection import client_for, warn_of_eviction
from onward.queue.providers.redis.provider import RedisProvider

if TYPE_CHECKING:
    from redis.asyncio import Redis as RedisClient
    from redis.asyncio import RedisCluster


class Redis(ProviderFactory[Any]):
    """Queues in Redis, each in a few keys of its own: `Queue("emails", provider=Redis("redis://localhost"))`.

    Give an address with options for the `redis` package (`Redis(url, password=…, ssl_ca_certs=…)`; one node's with
    `cluster=True` for a Redis Cluster), or a client: a `redis.asyncio.Redis` lends its settings, not its connections; a
    `RedisCluster` is used as it is and stays open.

    `lease` is how long a job stays with a worker that is not heard of; workers renew it as long as a handler runs. Of
    the jobs that completed, the newest `keep_completed` of each queue are kept, to be looked up and for their ids to be
    refused; those that failed are kept until they are retried.

    >>> Redis("redis://localhost:6379/0").for_queue("emails").capabilities.dead_letters
    True
    """

    def __init__(
        self,
        target: "str | RedisClient | RedisCluster",
        *,
        cluster: bool = False,
        lease: timedelta = timedelta(seconds=30),
        keep_completed: int = 10_000,
        **client_options: Any,
    ) -> None:
        super().__init__()
        self._expect(lease >= timedelta(seconds=1), "lease must be a timedelta of at least a second", lease)
        self._expect(keep_completed >= 0, "keep_completed must be a whole number from 0", keep_completed)
        self._target, self._cluster, self._options = target, cluster, client_options
        self._lease, self._keep_completed = lease, keep_completed

    def for_queue(self, queue_name: str) -> RedisProvider:
        self._expect(
            "{" not in queue_name and "}" not in queue_name,
            "the name of a queue in Redis, which is the hash tag of its keys, must have no braces",
            queue_name,
        )
        return RedisProvider(
            queue_name, self, self.events_of(queue_name), lease=self._lease, keep_completed=self._keep_completed
        )

    async def _open(self) -> Any:
        client = client_for(self._target, cluster=self._cluster, options=self._options)
        try:
            await warn_of_eviction(client)
        except BaseException:
            await self._close(client)
            raise
        return client

    async def _close(self, connection: Any) -> None:
        if connection is not self._target:
            await connection.aclose()

    def _expect(self, is_so: bool, expectation: str, value: object) -> None:
        if not is_so:
            raise QueueConfigurationError(f"{expectation}, got: {value!r}", code=QueueErrorCode.INVALID_OPTION)

"""The entry: queues on one Redis."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from onward.queue.checks import ProviderArguments
from onward.queue.model import KEEP_COMPLETED, KEEP_FAILED, LARGEST_JOB, Keep
from onward.queue.provider import ProviderFactory
from onward.queue.providers.redis.connection import check_target, left, open_client
from onward.queue.providers.redis.provider import RedisProvider

if TYPE_CHECKING:
    from redis.asyncio import Redis as RedisClient
    from redis.asyncio import RedisCluster


class Redis(ProviderFactory[Any]):
    """Queues in Redis, each in a few keys of its own: `Queue("emails", provider=Redis("redis://localhost"))`.

    Give an address with options for the `redis` package (`Redis(url, password=…, ssl_ca_certs=…)`; one node's with
    `cluster=True` for a Redis Cluster), or a client: a `redis.asyncio.Redis` lends its settings, not its connections; a
    `RedisCluster` is used as it is and stays open.

    `lease` is how long a job stays with a worker that is not heard of; workers renew it as long as a handler runs.
    `keep_completed` and `keep_failed` say how many finished jobs of each queue are kept and for how long, to be looked
    up, retried, and for their ids to be refused. `max_job_size` is how many bytes of JSON the data of a job may have.

    >>> Redis("redis://localhost:6379/0").for_queue("emails").capabilities.dead_letters
    True
    """

    def __init__(
        self,
        target: "str | RedisClient | RedisCluster",
        *,
        cluster: bool = False,
        lease: timedelta = timedelta(seconds=30),
        keep_completed: Keep = KEEP_COMPLETED,
        keep_failed: Keep = KEEP_FAILED,
        max_job_size: int = LARGEST_JOB,
        **client_options: Any,
    ) -> None:
        super().__init__()
        arguments = ProviderArguments("Redis")
        check_target(arguments, target, client_options)
        arguments.flag("cluster", cluster)
        arguments.duration("lease", lease, least=timedelta(seconds=1))
        arguments.keeps(keep_completed, keep_failed, max_job_size)
        self._target, self._cluster, self._options = target, cluster, client_options
        self._arguments, self._max_job_size = arguments, max_job_size
        self._settings: dict[str, Any] = {
            "lease": lease,
            "keep_completed": keep_completed,
            "keep_failed": keep_failed,
        }

    def for_queue(self, queue_name: str) -> RedisProvider:
        if "{" in queue_name or "}" in queue_name:
            self._arguments.refuse(
                "the name of a queue, which is the hash tag of its keys,", "without braces", queue_name
            )
        provider = RedisProvider(queue_name, self, self.events_of(queue_name), **self._settings)
        return provider.declare(max_job_size=self._max_job_size)

    async def _open(self) -> Any:
        return await open_client(self._target, cluster=self._cluster, options=self._options)

    async def _close(self, connection: Any) -> None:
        await left(connection, self._target)

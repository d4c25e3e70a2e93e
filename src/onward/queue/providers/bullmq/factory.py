"""The entry: queues that BullMQ keeps in one Redis."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from onward.queue.checks import ProviderArguments
from onward.queue.model import KEEP_COMPLETED, KEEP_FAILED, LARGEST_JOB, Keep
from onward.queue.provider import ProviderFactory
from onward.queue.providers.bullmq.native import RedisCluster
from onward.queue.providers.bullmq.provider import BullMQProvider
from onward.queue.providers.bullmq.taker import Settings
from onward.queue.providers.redis.connection import check_target, client_for, warn_of_eviction

if TYPE_CHECKING:
    from redis.asyncio import Redis


class BullMQ(ProviderFactory[Any]):
    """Queues that Node.js programs share: `Queue("emails", provider=BullMQ("redis://localhost"))`.

    Give an address with options for the `redis` package (`BullMQ(url, password=…, ssl_ca_certs=…)`), or a client of one
    server, which lends its settings, not its connections. `prefix` begins every key, as in BullMQ's own options.

    A worker that is not heard of for `lock` loses its jobs; the next worker that looks for such jobs, every
    `stalled_interval`, puts them back. One that was lost more than `max_stalled` times fails, whatever its attempts.
    `keep_completed` and `keep_failed` say how many finished jobs of each queue are kept and for how long, unless a job
    says otherwise. `max_job_size` is how many bytes of JSON the data of a job may have.

    >>> BullMQ("redis://localhost:6379/0").for_queue("emails").capabilities.keeps
    True
    """

    def __init__(
        self,
        target: "str | Redis",
        *,
        prefix: str = "bull",
        lock: timedelta = timedelta(seconds=30),
        stalled_interval: timedelta = timedelta(seconds=30),
        max_stalled: int = 3,
        keep_completed: Keep = KEEP_COMPLETED,
        keep_failed: Keep = KEEP_FAILED,
        max_job_size: int = LARGEST_JOB,
        **client_options: Any,
    ) -> None:
        super().__init__()
        arguments = ProviderArguments("BullMQ")
        given: object = target
        if isinstance(given, RedisCluster):
            arguments.refuse_because("target must be an address or a client of one server, not of a cluster")
        check_target(arguments, target, client_options)
        arguments.one_of("prefix", prefix, lambda value: isinstance(value, str) and bool(value), "a non-empty string")
        arguments.duration("lock", lock, least=timedelta(seconds=1))
        arguments.duration("stalled_interval", stalled_interval, least=timedelta(milliseconds=1))
        arguments.whole("max_stalled", max_stalled, least=0)
        arguments.keeps(keep_completed, keep_failed, max_job_size)
        self._arguments, self._max_job_size = arguments, max_job_size
        self._target, self._options = target, client_options
        self._settings = Settings(
            prefix=prefix,
            lock=lock,
            stalled_interval=stalled_interval,
            max_stalled=max_stalled,
            keep_completed=keep_completed,
            keep_failed=keep_failed,
        )

    def for_queue(self, queue_name: str) -> BullMQProvider:
        if ":" in queue_name:
            self._arguments.refuse("the name of a queue", "without ':'", queue_name)
        provider = BullMQProvider(queue_name, self, self.events_of(queue_name), self._settings)
        return provider.declare(max_job_size=self._max_job_size)

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

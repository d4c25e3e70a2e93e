"""The factory: one native client for all its queues."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

from onward.errors import ConfigurationError
from onward.queue.contract import ProviderFactory
from onward.queue.providers.sqs.calls import Calls, Refusal
from onward.queue.providers.sqs.facts import NewQueue
from onward.queue.providers.sqs.native import AioConfig, NoRegionError, get_session
from onward.queue.providers.sqs.provider import SQSProvider

_LONGEST_WAIT = timedelta(seconds=20)
_DEFAULT_WAIT = timedelta(seconds=4)
"""Less than the five seconds for which a worker that is told to stop at once waits for what is under way."""


class SQS(ProviderFactory[Calls]):
    """Queues at Amazon SQS: `SQS(region="eu-west-1")`, with credentials from wherever AWS tools look for them.

    A queue must be there, unless `create` says what a new one is like. `wait` is how long a worker's request for jobs
    stays open; closing a worker waits for the one under way. Everything else goes to the native client untouched
    (`aws_access_key_id`, `verify`, `config`, …). It is made from `session`, an aiobotocore session, where you have one;
    or hand over a `client` that you made, and close it yourself.

    >>> queue = SQS(region="eu-west-1").for_queue("emails.fifo")
    >>> queue.capabilities.ordered, queue.capabilities.delayed_jobs
    (True, False)
    """

    def __init__(
        self,
        endpoint_url: str | None = None,
        *,
        region: str | None = None,
        create: NewQueue | None = None,
        wait: timedelta = _DEFAULT_WAIT,
        session: Any = None,
        client: Any = None,
        **client_options: Any,
    ) -> None:
        super().__init__()
        if not timedelta() <= wait <= _LONGEST_WAIT:
            raise ConfigurationError(f"SQS(wait=…) must be from 0 to {_LONGEST_WAIT.seconds} seconds, got: {wait}")
        self.wait, self.create = wait, create
        self._session, self._client = session, client
        self._options = {"endpoint_url": endpoint_url, "region_name": region, **client_options}
        self._stack = AsyncExitStack()

    def for_queue(self, queue_name: str) -> SQSProvider:
        return SQSProvider(queue_name, self, events=self.events_of(queue_name))

    async def _open(self) -> Calls:
        if self._client is not None:
            return Calls(self._client)
        # A request for jobs is answered after `wait`; nothing else takes seconds.
        ours = AioConfig(
            connect_timeout=5,
            read_timeout=self.wait.total_seconds() + 5,
            retries={"mode": "standard", "total_max_attempts": 2},
            max_pool_connections=50,
        )
        theirs = self._options.get("config")
        options = {**self._options, "config": ours.merge(theirs) if theirs is not None else ours}
        create_client: Callable[..., Any] = (self._session or get_session()).create_client
        try:
            return Calls(await self._stack.enter_async_context(create_client("sqs", **options)))
        except NoRegionError as error:
            raise Refusal("no AWS region is set: SQS(region=…), or AWS_DEFAULT_REGION") from error

    async def _close(self, connection: Calls) -> None:
        await self._stack.aclose()

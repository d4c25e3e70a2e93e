"""What users make: one native client for all its queues."""

from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from onward.addresses import wrong_address
from onward.queue.checks import ProviderArguments
from onward.queue.provider import ProviderFactory
from onward.queue.providers.sqs.calls import LONGEST_HOLD, MOST_ATTEMPTS, Calls, NewQueue, connected
from onward.queue.providers.sqs.provider import SQSProvider

_LONGEST_WAIT = timedelta(seconds=20)
_DEFAULT_WAIT = timedelta(seconds=4)
"""Less than the five seconds for which a worker that is told to stop at once waits for what is under way."""
_CLIENT_OPTIONS = {
    *("api_version", "use_ssl", "verify", "config", "aws_account_id"),
    *("aws_access_key_id", "aws_secret_access_key", "aws_session_token"),
}
_OTHER_NAMES = {"region_name": "region", "queue_url": "endpoint_url", "url": "endpoint_url", "profile": "session"}
_ELSEWHERE = {option: f"called {name} here" for option, name in _OTHER_NAMES.items()}


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
        arguments = ProviderArguments("SQS")
        _check_address(arguments, endpoint_url, region)
        arguments.client_options(client_options, _CLIENT_OPTIONS, _ELSEWHERE)
        if client is not None and (endpoint_url or region or session is not None or client_options):
            arguments.refuse_because("client is complete: addresses, sessions and options besides it have no say")
        if create is not None:
            _check_new(arguments, create)
        arguments.duration("wait", wait)
        if wait > _LONGEST_WAIT:
            arguments.refuse("wait", f"at most {_LONGEST_WAIT.seconds} seconds", wait)
        self.wait, self.create = wait, create
        self._session, self._client = session, client
        self._options = {"endpoint_url": endpoint_url, "region_name": region, **client_options}
        self._stack = AsyncExitStack()

    def for_queue(self, queue_name: str) -> SQSProvider:
        return SQSProvider(queue_name, self, events=self.events_of(queue_name))

    async def _open(self) -> Calls:
        if self._client is not None:
            return Calls(self._client)
        self._stack = AsyncExitStack()  # what another event loop left open has ended with it
        return await connected(self._stack, self._session, self._options, wait=self.wait)

    async def _close(self, connection: Calls) -> None:
        await self._stack.aclose()


def _check_address(arguments: ProviderArguments, endpoint_url: object, region: object) -> None:
    if endpoint_url is not None:
        if problem := wrong_address("endpoint_url", endpoint_url, ("https", "http")):
            arguments.refuse_because(problem)
        parts = urlsplit(str(endpoint_url))
        if "@" in parts.netloc or parts.query:  # the client shows all of an address in its errors
            arguments.refuse_because("endpoint_url must have no user, password or option: credentials go beside it")
        if not parts.hostname:
            arguments.refuse_because("endpoint_url must be an address like https://sqs.eu-west-1.amazonaws.com")
    if region is not None and not (isinstance(region, str) and region):
        arguments.refuse("region", "a name like eu-west-1", region)


def _check_new(arguments: ProviderArguments, create: object) -> None:
    if not isinstance(create, NewQueue):
        arguments.refuse("create", "NewQueue(attempts=…)", create)
    arguments.whole("create.attempts", create.attempts, least=1)
    if create.attempts > MOST_ATTEMPTS:
        arguments.refuse("create.attempts", f"at most {MOST_ATTEMPTS:,}", create.attempts)
    arguments.duration("create.visibility_timeout", create.visibility_timeout, least=timedelta(seconds=1))
    if create.visibility_timeout > LONGEST_HOLD:
        arguments.refuse("create.visibility_timeout", "at most 12 hours", create.visibility_timeout)

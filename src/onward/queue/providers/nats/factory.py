"""What users make: NATS JetStream, for as many queues as they like."""

import re
import ssl
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from onward.addresses import wrong_address
from onward.queue.checks import Arguments, ProviderArguments
from onward.queue.model import Keep
from onward.queue.provider import ProviderFactory
from onward.queue.providers.nats.link import Link
from onward.queue.providers.nats.messages import token
from onward.queue.providers.nats.provider import NatsProvider
from onward.queue.providers.nats.store import Settings, Storage

_LONGEST_WAIT = timedelta(seconds=20)
_DEFAULT_WAIT = timedelta(seconds=4)
_LONGEST_NAME = 180
_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,40}")
_SCHEMES = ("nats", "tls", "ws", "wss")
_CLIENT_OPTIONS = {
    *("user", "password", "token", "user_credentials", "nkeys_seed", "nkeys_seed_str", "signature_cb", "user_jwt_cb"),
    *("tls", "tls_hostname", "tls_handshake_first", "name", "inbox_prefix", "ws_connection_headers"),
    *("connect_timeout", "ping_interval", "max_outstanding_pings", "dont_randomize"),
}
_ELSEWHERE: Mapping[str, str] = dict.fromkeys(
    ("host", "port", "url", "server"), 'a part of the address, which comes first: Nats("nats://host:4222")'
)


class Nats(ProviderFactory[Link]):
    """Queues in NATS JetStream 2.9 or newer: `Queue("emails", provider=Nats("nats://localhost"))`.

    Several addresses are servers of one cluster: when one goes away, another is used. `replicas` is on how many of
    them a new queue is kept. `lease` is how long a job stays with a worker that is not heard of, 30 seconds where
    nobody says otherwise; `keep_completed` and `keep_failed` say what is kept of jobs that have ended. Left out, these
    three stay as the queue was made. `wait` is how long a worker's request for jobs stays open. Further arguments go to
    `nats.connect` (`user_credentials=`, `tls=`, …).

    >>> Nats("nats://localhost").for_queue("emails").capabilities.duplicates
    True
    """

    def __init__(
        self,
        servers: str | Sequence[str] = "nats://localhost:4222",
        *,
        lease: timedelta | None = None,
        keep_completed: Keep | None = None,
        keep_failed: Keep | None = None,
        replicas: int = 1,
        storage: Storage = "file",
        wait: timedelta = _DEFAULT_WAIT,
        prefix: str = "onward",
        domain: str | None = None,
        **client_options: Any,
    ) -> None:
        super().__init__()
        arguments = self._arguments = ProviderArguments("Nats")
        self._servers = _checked_servers(arguments, servers)
        _check_options(arguments, client_options, self._servers)
        if lease is not None:
            arguments.duration("lease", lease, least=timedelta(seconds=1))
        for kept, keep in (("keep_completed", keep_completed), ("keep_failed", keep_failed)):
            if keep is not None:
                arguments.keep(kept, keep)
        arguments.one_of("replicas", replicas, (1, 2, 3, 4, 5).__contains__, "a whole number from 1 to 5")
        arguments.one_of("storage", storage, ("file", "memory").__contains__, '"file" or "memory"')
        arguments.duration("wait", wait)
        if wait > _LONGEST_WAIT:
            arguments.refuse("wait", f"at most {_LONGEST_WAIT.seconds} seconds", wait)
        for option, value in (("prefix", prefix), ("domain", "none" if domain is None else domain)):
            expected = "up to 40 letters, digits, hyphens and underscores"
            arguments.one_of(option, value, lambda v: isinstance(v, str) and bool(_PREFIX.fullmatch(v)), expected)
        self.wait, self._domain, self._client_options = wait, domain, client_options
        self._settings = Settings(
            prefix=prefix,
            lease=lease,
            keep_completed=keep_completed,
            keep_failed=keep_failed,
            replicas=replicas,
            storage=storage,
        )

    def for_queue(self, queue_name: str) -> NatsProvider:
        """A provider bound to that queue."""
        if len(token(queue_name)) > _LONGEST_NAME:
            Arguments("Nats", queue_name).refuse(
                "name", f"at most {_LONGEST_NAME} characters, as in an URL", queue_name
            )
        events = self.events_of(queue_name)
        return NatsProvider(queue_name, self, events, settings=self._settings, wait=self.wait)

    async def _open(self) -> Link:
        link = Link(self._servers, self._domain, self._client_options)
        await link.client()
        return link

    async def _close(self, connection: Link) -> None:
        await connection.close()


def _checked_servers(arguments: ProviderArguments, servers: object) -> list[str]:
    given = [servers] if isinstance(servers, str) else servers
    if not isinstance(given, Sequence) or isinstance(given, bytes) or not given:
        arguments.refuse_because("servers must be an address like nats://localhost:4222, or several of them")
    for server in given:
        if problem := wrong_address("servers", server, _SCHEMES):
            arguments.refuse_because(problem)
        if not urlsplit(server).hostname:
            arguments.refuse_because("servers must be an address like nats://localhost:4222, or several of them")
    return list(given)


def _check_options(arguments: ProviderArguments, options: Mapping[str, Any], servers: Sequence[str]) -> None:
    arguments.client_options(options, _CLIENT_OPTIONS, _ELSEWHERE)
    tls = options.get("tls")
    if tls is not None and not isinstance(tls, ssl.SSLContext):
        arguments.refuse("tls", "an ssl.SSLContext: ssl.create_default_context(cafile=…)", tls)
    if tls is not None and any(urlsplit(server).scheme == "ws" for server in servers):
        arguments.refuse_because("there is no TLS with a ws:// address, whatever tls= says: use wss://")

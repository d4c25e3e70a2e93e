"""A connection that is opened when it is needed, and again after it was lost, to whichever server is there.

Not by the client's own reconnecting: there a call during an outage waits, and what it sent may be done after it failed.
Here a lost connection is an error for whoever uses it; whoever comes next opens another. Jobs do not go with it: they
are held by a lease, and may be settled over any connection.
"""

import asyncio
import socket
import ssl
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from onward.errands import Errands
from onward.errors import QueueConfigurationError

try:
    from nats import errors
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext
    from nats.js import errors as js_errors
except ImportError as missing:  # pragma: no cover - the tests have it
    # Whoever imports the client by itself imports this one before.
    raise QueueConfigurationError("nats-py is not installed: pip install 'onward[nats]'") from missing


R = TypeVar("R")
ANSWER, CONNECT, FAREWELL = 5.0, 5.0, 2.0
"""Seconds that the server has for an answer, for letting us in, and for letting us go."""
_PING = 5
"""Seconds between looks whether the server is there; after two that were not answered it is given up."""


async def sound(calls: Errands, call: Coroutine[Any, Any, R], lost: "asyncio.Future[None] | None" = None) -> R:
    """What it answers, unless the connection is `lost` before; and a cancellation that comes with the answer is not.

    `asyncio.wait_for` of Python 3.11, which the client uses, loses it: a caller's timeout then never ends.
    """
    task = calls.begin(call)
    first: list[asyncio.Future[Any]] = [task] if lost is None else [task, lost]
    try:
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if task.done() and not task.cancelled():
        return task.result()
    task.cancel()  # or it was, with all others of this connection
    raise ConnectionError("the connection to NATS was lost")


_TASKS = ("_reading_task", "_ping_interval_task", "_flusher_task")
"""Of the client, which does not end them where it was lost while it still connected."""


class Unencrypted(errors.Error):
    """The application asked for TLS, and the server has none."""


class SoundClient(Client):
    """Every request to JetStream goes through this one."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Errands()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """The server says what it wants, and has heard nothing yet: who asked for TLS never speaks in plain text.

        nats-py uses TLS where the server insists on it, whatever the address or the options say.
        """
        if initial_connection and self._is_asked_for_tls() and not info.get("tls_required"):
            if not info.get("tls_available"):
                raise Unencrypted
            info["tls_required"] = True  # it may: so it does
        await super()._process_info(info, initial_connection)

    def _is_asked_for_tls(self) -> bool:
        server = self._current_server
        is_asked = "tls" in self.options or (server is not None and server.uri.scheme == "tls")
        return is_asked and not self.options["tls_handshake_first"] and not (server and server.uri.scheme == "wss")

    async def request(self, *args: Any, **kwargs: Any) -> Msg:
        return await sound(self.calls, super().request(*args, **kwargs), self.lost)


class Link:
    """A connection."""

    def __init__(self, servers: Sequence[str], domain: str | None, options: Mapping[str, Any]) -> None:
        self._servers, self._domain, self._options = list(servers), domain, options
        self._client: SoundClient | None = None
        self._turn = asyncio.Lock()

    @property
    def api(self) -> str:
        """Where JetStream is asked."""
        return "$JS.API" if self._domain is None else f"$JS.{self._domain}.API"

    async def client(self) -> SoundClient:
        """The connection, made now if there is none."""
        async with self._turn:
            if self._client is None or not self._client.is_connected:
                await self._leave()
                self._client = await self._connected()
            return self._client

    async def streams(self) -> JetStreamContext:
        """JetStream, to make and to ask for streams and consumers."""
        client = await self.client()
        return client.jetstream(domain=self._domain, timeout=ANSWER)

    async def request(self, subject: str, payload: bytes = b"", headers: Mapping[str, str] | None = None) -> Msg:
        """One answer."""
        client = await self.client()
        try:
            return await client.request(
                subject, payload, timeout=ANSWER, headers=dict(headers) if headers is not None else None
            )
        except errors.TimeoutError as error:
            raise TimeoutError(f"NATS gave no answer within {ANSWER:g} s") from error

    async def close(self) -> None:
        async with self._turn:
            await self._leave()

    async def _connected(self) -> SoundClient:
        client = SoundClient()

        async def lost() -> None:
            if not client.lost.done():
                client.lost.set_result(None)

        troubles: list[Exception] = []

        async def note(error: Exception) -> None:
            """Whoever calls gets its errors; these are why there is no connection."""
            if not client.is_connected:
                troubles.append(error)

        try:
            async with asyncio.timeout(CONNECT):
                connecting = client.connect(
                    self._servers,
                    **{"name": "onward queues", "ping_interval": _PING, "max_outstanding_pings": 2, **self._options},
                    closed_cb=lost,
                    error_cb=note,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                )
                await sound(client.calls, connecting)
        except errors.NoServersError as error:
            await _closed(client)
            raise error from _reason(troubles)
        except BaseException:
            await _closed(client)
            raise
        return client

    async def _leave(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await _closed(client)


def _reason(troubles: Sequence[Exception]) -> Exception | None:
    """Why none of the servers can be had: what may pass, rather than what does not."""
    lasting = troubles[0] if troubles else None
    return next((error for error in troubles if not isinstance(error, socket.gaierror)), lasting)


async def _closed(client: SoundClient) -> None:
    """In vain if it is lost."""
    with suppress(Exception):
        async with asyncio.timeout(FAREWELL):
            await sound(client.calls, client.close())
            await client.calls.end()
    for name in _TASKS:
        task: asyncio.Task[Any] | None = getattr(client, name, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()


def refused_in_words(error: BaseException) -> str | None:
    """What is wrong with an address or the server behind it, in words."""
    match error:
        case errors.AuthorizationError():
            return "NATS does not accept the user, the password, the token or the key"
        case js_errors.ServiceUnavailableError() | errors.NoRespondersError():
            return "this NATS has no JetStream: start it with -js, or say jetstream {} in its configuration"
        case Unencrypted():
            return "this NATS does not speak TLS, which was asked for: nothing was said to it"
        case ssl.SSLCertVerificationError():
            return f"the certificate of NATS is not trusted: {error.verify_message}"
        case ssl.SSLError():
            return f"NATS does not speak TLS as we do: {error.reason}"
        case errors.NoServersError() | errors.Error() if "Authorization" in str(error):
            return "NATS does not accept the user, the password, the token or the key"
    return None

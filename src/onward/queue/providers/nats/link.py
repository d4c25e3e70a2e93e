"""A connection that is opened when it is needed, and again after it was lost, to whichever server is there.

Not by the client's own reconnecting: there a call during an outage waits, and what it sent may be done after it failed.
Here a lost connection is an error for whoever uses it; whoever comes next opens another. Jobs do not go with it: they
are held by a lease, and may be settled over any connection.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from onward.queue.providers.nats.native import Client, JetStreamContext, Msg, errors, js_errors

R = TypeVar("R")
ANSWER, CONNECT, FAREWELL = 5.0, 5.0, 2.0
"""Seconds that the server has for an answer, for letting us in, and for letting us go."""
_PING = 5
"""Seconds between looks whether the server is there; after two that were not answered it is given up."""


async def sound(call: Coroutine[Any, Any, R]) -> R:
    """What it answers; and a cancellation that comes with the answer is not lost.

    `asyncio.wait_for` of Python 3.11, which the client uses, loses it: a caller's timeout then never ends.
    """
    task = asyncio.get_running_loop().create_task(call)  # owned here: waited for, or cancelled
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        raise
    return task.result()


class _SoundClient(Client):
    """Every request to JetStream goes through this one."""

    async def request(self, *args: Any, **kwargs: Any) -> Msg:
        return await sound(super().request(*args, **kwargs))


class Link:
    """A connection."""

    def __init__(self, servers: Sequence[str], domain: str | None, options: Mapping[str, Any]) -> None:
        self._servers, self._domain, self._options = list(servers), domain, options
        self._client: Client | None = None
        self._turn = asyncio.Lock()
        self._watchers: list[Callable[[], None]] = []

    @property
    def api(self) -> str:
        """Where JetStream is asked."""
        return "$JS.API" if self._domain is None else f"$JS.{self._domain}.API"

    def on_lost(self, watcher: Callable[[], None]) -> None:
        """Have it called when a connection is lost."""
        self._watchers.append(watcher)

    def forget(self, watcher: Callable[[], None]) -> None:
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    async def client(self) -> Client:
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

    async def _connected(self) -> Client:
        client = _SoundClient()

        async def lost() -> None:
            for watcher in list(self._watchers):
                watcher()

        async def quiet(error: Exception) -> None:
            """Whoever calls gets its errors."""

        try:
            async with asyncio.timeout(CONNECT):
                connecting = client.connect(
                    self._servers,
                    **{"name": "onward queues", "ping_interval": _PING, "max_outstanding_pings": 2, **self._options},
                    closed_cb=lost,
                    error_cb=quiet,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                )
                await sound(connecting)
        except BaseException:
            await _closed(client)
            raise
        return client

    async def _leave(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await _closed(client)


async def _closed(client: Client) -> None:
    """In vain if it is lost."""
    with suppress(Exception):
        async with asyncio.timeout(FAREWELL):
            await sound(client.close())


def refused_in_words(error: BaseException) -> str | None:
    """What is wrong with an address or the server behind it, in words."""
    match error:
        case errors.AuthorizationError():
            return "NATS does not accept the user, the password, the token or the key"
        case js_errors.ServiceUnavailableError() | errors.NoRespondersError():
            return "this NATS has no JetStream: start it with -js, or say jetstream {} in its configuration"
        case errors.NoServersError() | errors.Error() if "Authorization" in str(error):
            return "NATS does not accept the user, the password, the token or the key"
    return None

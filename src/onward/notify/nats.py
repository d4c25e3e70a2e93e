"""Hints through NATS, on one connection per process."""

import asyncio
import inspect
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NoReturn
from urllib.parse import quote, urlsplit

from onward.addresses import wrong_address
from onward.errors import ConfigurationError, require
from onward.notify.connected import ANSWER, QUIET, ConnectedNotify
from onward.notify.contract import Hint, HintKind, Listener
from onward.notify.encoding import encode_hints

logger = logging.getLogger("onward.notify")
_SCHEMES = ("nats", "tls", "ws", "wss")
_MOST_MESSAGES = 32
"""For ready jobs of one type in one announcement; with more jobs than that, a message stands for several."""
_OURS = {"allow_reconnect", "closed_cb", "error_cb", "max_reconnect_attempts", "reconnect_time_wait", "servers"}


class NatsNotify(ConnectedNotify["_NatsHints"]):
    """Publishes and receives hints over a connection that is opened when first needed.

        app = Onward("postgresql://…", jobs=[…], notify=NatsNotify("nats://localhost"))

    Further arguments go to `nats.connect`: `user=` and `password=`, `token=`, `user_credentials=`, `nkeys_seed=`,
    `name=`, `tls=` (an SSL context). With a `tls://` address, or `tls=`, nothing is said to a server that does not
    speak TLS.

    Scheduled jobs are announced to a queue group per type, one message per job: NATS hands each to one process, and
    about as many listeners wake as there are jobs. A process in which none waits passes its message on to all. A
    counter in JetStream's key-value store could say no more, and would cost every process two round trips for each
    announcement (read, then write if unchanged) and a server that has JetStream; this costs nothing.
    """

    def __init__(self, servers: str | Sequence[str], *, subject: str = "onward", **client_options: Any) -> None:
        super().__init__()
        self._servers = [servers] if isinstance(servers, str) else list(servers)
        require(*(wrong_address("servers", server, _SCHEMES) for server in self._servers))
        _check_options(client_options)
        if client_options.get("tls") and any(urlsplit(server).scheme == "ws" for server in self._servers):
            raise ConfigurationError("NatsNotify: there is no TLS with a ws:// address, whatever tls= says: use wss://")
        self._subject, self._options = subject, {"name": "onward hints", **client_options}
        self._types: Counter[str] = Counter()
        """How many listen to each."""

    @asynccontextmanager
    async def listen(
        self, *, types: Collection[str] = (), ended: Collection[str] = (), lost: bool = False, awaited: bool = False
    ) -> AsyncIterator[Listener]:
        async with super().listen(types=types, ended=ended, lost=lost, awaited=awaited) as listener:
            self._types.update(set(types))
            try:
                await self._follow()
                yield listener
            finally:
                self._types.subtract(set(types))
                await self._follow()

    async def _follow(self) -> None:
        connection = self._connection
        if connection is not None:
            try:
                async with asyncio.timeout(ANSWER):
                    await connection.follow(+self._types)
            except Exception as error:  # noqa: BLE001 - the connection is lost, and the next one begins with this
                logger.debug("no answer about subscriptions: %s", error)

    @asynccontextmanager
    async def _connect(self) -> "AsyncIterator[_NatsHints]":
        wants_tls = bool(self._options.get("tls")) or any(urlsplit(server).scheme == "tls" for server in self._servers)
        client, ended = _client(wants_tls), asyncio.Event()

        async def end() -> None:
            ended.set()

        refusals: list[Exception] = []

        async def err(error: Exception) -> None:
            logger.debug("NATS: %s", error)
            if "permissions violation" in str(error).lower():
                refusals.append(error)  # hints that only seem to be up would have workers wait for them
                ended.set()

        try:
            async with asyncio.timeout(ANSWER):
                await client.connect(
                    self._servers, **self._options, closed_cb=end, error_cb=err, allow_reconnect=False,
                    max_reconnect_attempts=1, reconnect_time_wait=0,
                )  # fmt: skip
                connection = _NatsHints(client, ended, refusals, self._subject, self._receive, self._receive_one)
                await connection.listen()
                await connection.follow(+self._types)
            yield connection
        finally:
            with suppress(Exception):  # nothing is under way that would be worth a farewell
                async with asyncio.timeout(ANSWER):
                    await client.close()

    async def _receive(self, payload: bytes) -> None:
        self._listeners.deliver(self._read(payload)[1])

    async def _receive_one(self, payload: bytes) -> None:
        """A hint that only this process got."""
        for hint in self._read(payload)[1]:
            if hint.kind is not HintKind.READY or not self._types[hint.key]:
                continue  # not of ours: they are sent to those who follow the type
            here = min(self._listeners.idle(hint), hint.count)
            if here:
                self._listeners.deliver([Hint(hint.kind, hint.key, here)])
            if here < hint.count:
                self._pass_on([Hint(hint.kind, hint.key, hint.count - here)])

    async def _redirect(self, connection: "_NatsHints", hints: Sequence[Hint]) -> None:
        await connection.broadcast(hints)


class _NatsHints:
    def __init__(
        self,
        client: Any,
        ended: asyncio.Event,
        refusals: Sequence[Exception],
        subject: str,
        receive: Callable[[bytes], Any],
        one: Callable[[bytes], Any],
    ) -> None:
        self._client, self._ended, self._refusals, self._subject = client, ended, refusals, subject
        self._receive, self._receive_one = receive, one
        self._followed: dict[str, Any] = {}
        self._turn = asyncio.Lock()
        self._heard = time.monotonic()

    async def listen(self) -> None:
        await self._client.subscribe(self._subject, cb=self._hearing(self._receive))
        await self._client.flush(ANSWER)

    async def follow(self, types: Collection[str]) -> None:
        """Be in the queue groups of these types, and in no others."""
        async with self._turn:
            for name in self._followed.keys() - set(types):
                await self._followed.pop(name).unsubscribe()
            for name in set(types) - self._followed.keys():
                subject = self._queue(name)
                answer = self._hearing(self._receive_one)
                self._followed[name] = await self._client.subscribe(subject, queue="onward", cb=answer)
            await self._client.flush(ANSWER)

    def _hearing(self, receive: Callable[[bytes], Any]) -> Callable[[Any], Any]:
        async def hear(message: Any) -> None:
            self._heard = time.monotonic()
            await receive(message.data)

        return hear

    def _queue(self, type_name: str) -> str:
        return f"{self._subject}.scheduled.{quote(type_name, safe='').replace('.', '%2E')}"

    async def send(self, hints: Sequence[Hint]) -> None:
        await self.broadcast([hint for hint in hints if hint.kind is not HintKind.READY])
        for hint in hints:
            if hint.kind is HintKind.READY:
                for part in _parts(hint):
                    await self._client.publish(self._queue(hint.key), encode_hints([part], "")[0].encode())
        await self._client.flush(ANSWER)

    async def broadcast(self, hints: Sequence[Hint]) -> None:
        for payload in encode_hints(hints, ""):
            await self._client.publish(self._subject, payload.encode())

    async def hold(self) -> NoReturn:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(self._heard + QUIET - time.monotonic(), 0.0)):
                    await self._ended.wait()
                    raise next(iter(self._refusals), ConnectionResetError("the connection to NATS was closed"))
            if self._heard + QUIET <= time.monotonic():
                await self._client.flush(ANSWER)
                self._heard = time.monotonic()


def _parts(hint: Hint) -> list[Hint]:
    """A hint as one per job; as the most there may be, about alike, if there are more jobs."""
    number = min(hint.count, _MOST_MESSAGES)
    whole, rest = divmod(hint.count, number)
    return [Hint(hint.kind, hint.key, whole + (i < rest)) for i in range(number)]


def _check_options(options: Mapping[str, Any]) -> None:
    from nats.aio.client import Client

    known = inspect.signature(Client.connect).parameters.keys() - _OURS - {"self"}
    for option in options:
        if option not in known:
            raise ConfigurationError(
                f"NatsNotify: {option} is not an option of its client; these are: {', '.join(sorted(known))}"
            )


def _client(wants_tls: bool) -> Any:
    """A client of NATS that says nothing in clear where TLS is wanted: its own only uses what the server offers."""
    from nats.aio.client import Client

    class SafeClient(Client):
        def _connect_command(self) -> bytes:
            # With it go user and password. The only thing sent before is what begins TLS.
            writer = getattr(self._transport, "_io_writer", None)
            if wants_tls and writer is not None and writer.get_extra_info("ssl_object") is None:
                raise ConnectionError("this NATS server does not offer TLS, which was asked for")
            return super()._connect_command()

    return SafeClient()

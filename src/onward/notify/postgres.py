"""Hints through LISTEN/NOTIFY, on one connection per process."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from importlib.util import find_spec
from typing import Any, NoReturn, Protocol

from onward.notify.contract import Hint, HintKind, Listener, merged
from onward.notify.switchboard import Switchboard
from onward.transport import CONNECT, Patience, cut_off, watch

logger = logging.getLogger("onward.notify")
_MOST_BYTES = 7_900
"""NOTIFY takes payloads of less than 8,000 bytes."""
_MOST_UNSENT = 1_000
_QUIET, _ANSWER = 2.0, 2.0
"""Seconds without a word from the server after which it is asked for one, and that it has to answer: together with what
a worker needs to look, less than five."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 0.5
"""Seconds between tries to connect: few enough that hints are back when the server is."""


class Wire(Protocol):
    """One connection that can both send and receive notifications."""

    async def listen(self, channel: str, receive: Callable[[str], None]) -> None: ...
    async def notify(self, channel: str, payloads: Sequence[str]) -> None:
        """Send; a server that does not answer in time ends the connection."""
        ...

    async def hold(self) -> NoReturn:
        """Receive, and ask an idle server for a sign of life now and again; raises when the connection is lost."""
        ...


class PostgresNotify:
    """Sends hints with NOTIFY and receives them with LISTEN, over a connection that is opened when first needed.

    `lost` is told when hints go down; they come back by themselves.
    """

    sees_commits = False
    crosses_processes = True

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Wire]],
        *,
        channel: str,
        lost: Callable[[Exception], None] | None = None,
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._lost = lost
        self._switchboard = Switchboard()
        self._wire: asyncio.Future[Wire] | None = None
        self._unsent: list[Hint] = []
        self._tried = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def is_up(self) -> bool:
        return self._wire is not None and self._wire.done()

    async def open(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
        if self._wire is not None and not self._wire.done():
            self._wire.set_exception(OSError("hints are closed"))
            self._wire.exception()
        self._keeper = self._tasks = self._wire = None
        self._tried.clear()
        self._switchboard.wake_all()

    def within_transaction(self, hints: Sequence[Hint]) -> tuple[str, dict[str, object]] | None:
        parameters: dict[str, object] = {"channel": self._channel, "payloads": encode_hints(hints)}
        return "SELECT pg_notify(:channel::text, p) FROM unnest(:payloads::text[]) AS p", parameters

    async def announce(self, hints: Sequence[Hint]) -> None:
        if not self.is_up:
            self._switchboard.deliver(hints)  # those in this process need no server to hear of it
        try:
            wire = await asyncio.shield(self._connected())
            await wire.notify(self._channel, encode_hints(hints))
        except BaseException:
            self._send_later(hints)
            raise

    def _send_later(self, hints: Sequence[Hint]) -> None:
        self._unsent = merged([*self._unsent, *hints])[:_MOST_UNSENT]

    @asynccontextmanager
    async def listen(
        self, *, scheduled: Collection[str] = (), ended: Collection[str] = (), lost: bool = False, awaited: bool = False
    ) -> AsyncIterator[Listener]:
        async with self._switchboard.listen(scheduled=scheduled, ended=ended, lost=lost, awaited=awaited) as line:
            # The listener is active once we are connected; if the first try fails, it is by polling.
            with suppress(OSError, TimeoutError):
                self._connected()
                async with asyncio.timeout(CONNECT):
                    await self._tried.wait()
            yield line

    def _connected(self) -> "asyncio.Future[Wire]":
        if self._wire is None:
            self._wire = asyncio.get_running_loop().create_future()
        if self._keeper is None:
            if self._tasks is None:
                raise OSError("hints are closed")
            self._keeper = self._tasks.create_task(self._keep())
        return self._wire

    async def _keep(self) -> None:
        """Hold the connection, and make a new one when it is lost."""
        pause, is_news = _SHORTEST_PAUSE, True
        while True:
            try:
                async with self._connect() as wire:
                    await wire.listen(self._channel, self._receive)
                    self._connected().set_result(wire)
                    self._tried.set()
                    pause, is_news = _SHORTEST_PAUSE, True
                    # What was announced meanwhile is lost: have everybody look.
                    self._switchboard.wake_all()
                    await self._send_unsent(wire)
                    await wire.hold()
            except Exception as error:  # noqa: BLE001 - one turn of a loop
                self._went_down(error, is_news=is_news)
            is_news = False
            await asyncio.sleep(pause * random.uniform(0.75, 1.25))
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _send_unsent(self, wire: Wire) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent:
            try:
                await wire.notify(self._channel, encode_hints(unsent))
            except BaseException:
                self._send_later(unsent)
                raise

    def _went_down(self, error: Exception, *, is_news: bool) -> None:
        if self.is_up:
            self._wire = None
        self._tried.set()
        if is_news:
            if self._lost is not None:
                self._lost(error)
            # From now on they look by themselves, and more often.
            self._switchboard.wake_all()
        logger.debug("hints are down, polling goes on: %s", error)

    def _receive(self, payload: str) -> None:
        self._switchboard.deliver(decode_hints(payload))


def encode_hints(hints: Sequence[Hint]) -> list[str]:
    """Hints as few payloads."""
    payloads: list[str] = []
    size = _MOST_BYTES
    for hint in hints:
        line = f"{hint.kind}{hint.count}:{hint.key}"
        size += len(line.encode()) + 1
        if size >= _MOST_BYTES or not payloads:
            payloads.append(line)
            size = len(line.encode())
        else:
            payloads[-1] += "\n" + line
    return payloads


def decode_hints(payload: str) -> list[Hint]:
    """The hints in a payload; what cannot be read, say from a newer version, is left out."""
    hints: list[Hint] = []
    for line in payload.split("\n"):
        head, _, key = line.partition(":")
        with suppress(ValueError):
            hints.append(Hint(HintKind(head[:1]), key, int(head[1:])))
    return hints


class _AsyncpgWire:
    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._turn = asyncio.Lock()
        self._lost = asyncio.Event()
        self._heard = 0.0
        raw.add_termination_listener(lambda _: self._lost.set())

    async def listen(self, channel: str, receive: Callable[[str], None]) -> None:
        def heard(_connection: Any, _process: int, _channel: str, payload: str) -> None:
            self._heard = time.monotonic()
            receive(payload)

        with Patience(_ANSWER, self._raw.terminate):
            await self._raw.add_listener(channel, heard)
        self._heard = time.monotonic()

    async def notify(self, channel: str, payloads: Sequence[str]) -> None:
        await self._ask("SELECT pg_notify($1, p) FROM unnest($2::text[]) p", channel, list(payloads))

    async def _ask(self, *statement: Any) -> None:
        with Patience(_ANSWER, self._raw.terminate):
            async with self._turn:
                await self._raw.execute(*statement)
                self._heard = time.monotonic()

    async def hold(self) -> NoReturn:
        while True:
            quiet_at = self._heard + _QUIET
            with suppress(TimeoutError):
                async with asyncio.timeout(max(quiet_at - time.monotonic(), 0.0)):
                    await self._lost.wait()
                    raise ConnectionResetError("the listening connection was closed")
            if self._heard + _QUIET <= time.monotonic():
                await self._ask("SELECT 1")


def asyncpg_wire(dsn: str) -> Callable[[], AbstractAsyncContextManager[Wire]]:
    """Connects with asyncpg."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[Wire]:
        import asyncpg

        raw: Any = await asyncpg.connect(dsn, timeout=CONNECT, server_settings={"application_name": "onward hints"})
        watch(raw._transport.get_extra_info("socket"))
        try:
            yield _AsyncpgWire(raw)
        finally:
            raw.terminate()  # nothing is under way that would be worth a farewell

    return connect


class _PsycopgWire:
    def __init__(self, listening: Any, sending: Any) -> None:
        self._listening, self._sending = listening, sending
        self._turn = asyncio.Lock()
        self._receive: Callable[[str], None] | None = None

    async def listen(self, channel: str, receive: Callable[[str], None]) -> None:
        self._receive = receive
        await self._ask(self._listening, f'LISTEN "{channel}"')

    async def notify(self, channel: str, payloads: Sequence[str]) -> None:
        statement = "SELECT pg_notify(%s, p) FROM unnest(%s::text[]) p"
        await self._ask(self._sending, statement, (channel, list(payloads)), prepare=True)

    async def _ask(self, raw: Any, *statement: Any, **options: Any) -> None:
        number = raw.pgconn.socket
        with Patience(_ANSWER, lambda: cut_off(number)):
            async with self._turn:
                await raw.execute(*statement, **options)

    async def hold(self) -> NoReturn:
        while True:
            async for notification in self._listening.notifies(timeout=_QUIET):
                if self._receive is not None:
                    self._receive(notification.payload)
            await self._ask(self._listening, "SELECT 1")
            await self._ask(self._sending, "SELECT 1")


def psycopg_wire(dsn: str) -> Callable[[], AbstractAsyncContextManager[Wire]]:
    """Connects with psycopg, which cannot send on the connection on which it waits: one more."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[Wire]:
        import psycopg

        async with AsyncExitStack() as stack:
            pair: list[Any] = []
            for _ in range(2):
                raw = await psycopg.AsyncConnection.connect(dsn, autocommit=True, connect_timeout=int(CONNECT))
                stack.push_async_callback(raw.close)
                watch(raw.pgconn.socket)
                pair.append(raw)
            yield _PsycopgWire(*pair)

    return connect


def wire_for(dsn: str) -> Callable[[], AbstractAsyncContextManager[Wire]]:
    """asyncpg where it is installed, else psycopg."""
    return asyncpg_wire(dsn) if find_spec("asyncpg") else psycopg_wire(dsn)

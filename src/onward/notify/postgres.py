"""Hints through LISTEN/NOTIFY, on one connection per process."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from importlib.util import find_spec
from typing import Any, Protocol

from onward.notify.contract import Hint, HintKind, Listener
from onward.notify.switchboard import Switchboard

logger = logging.getLogger("onward.notify")
_MOST_BYTES = 7_900
"""NOTIFY takes payloads of less than 8,000 bytes."""


class Wire(Protocol):
    """One connection that can both send and receive notifications."""

    async def listen(self, channel: str, receive: Callable[[str], None]) -> None: ...
    async def notify(self, channel: str, payloads: Sequence[str]) -> None: ...
    async def closed(self) -> None:
        """Returns when the connection is lost."""
        ...


class PostgresNotify:
    """Sends hints with NOTIFY and receives them with LISTEN, over a connection that is opened when first needed."""

    sees_commits = False
    crosses_processes = True

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Wire]], *, channel: str) -> None:
        self._connect = connect
        self._channel = channel
        self._switchboard = Switchboard()
        self._wire: asyncio.Future[Wire] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._tasks: asyncio.TaskGroup | None = None

    async def open(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
        if self._wire is not None and not self._wire.done():
            self._wire.set_exception(OSError("hints are closed"))
            self._wire.exception()
        self._keeper = self._tasks = self._wire = None
        self._switchboard.wake_all()

    def within_transaction(self, hints: Sequence[Hint]) -> tuple[str, dict[str, object]] | None:
        parameters: dict[str, object] = {"channel": self._channel, "payloads": encode_hints(hints)}
        return "SELECT pg_notify(:channel::text, p) FROM unnest(:payloads::text[]) AS p", parameters

    async def announce(self, hints: Sequence[Hint]) -> None:
        wire = await asyncio.shield(self._connected())
        await wire.notify(self._channel, encode_hints(hints))

    @asynccontextmanager
    async def listen(
        self, *, scheduled: Collection[str] = (), ended: Collection[str] = (), lost: bool = False, awaited: bool = False
    ) -> AsyncIterator[Listener]:
        async with self._switchboard.listen(scheduled=scheduled, ended=ended, lost=lost, awaited=awaited) as line:
            with suppress(OSError, TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._connected()), timeout=5)
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
        """Hold the connection, and make a new one, slower and slower, when it is lost."""
        pause = 0.1
        while True:
            try:
                async with self._connect() as wire:
                    await wire.listen(self._channel, self._receive)
                    self._connected().set_result(wire)
                    # What was announced meanwhile is lost: have everybody look.
                    self._switchboard.wake_all()
                    pause = 0.1
                    await wire.closed()
            except Exception as error:  # noqa: BLE001 - one turn of a loop
                logger.warning("hints are down, polling goes on; next try in %.1f s: %s", pause, error)
            self._wire = None
            await asyncio.sleep(pause)
            pause = min(pause * 2, 5.0)

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
        raw.add_termination_listener(lambda _: self._lost.set())

    async def listen(self, channel: str, receive: Callable[[str], None]) -> None:
        await self._raw.add_listener(channel, lambda _c, _p, _ch, payload: receive(payload))

    async def notify(self, channel: str, payloads: Sequence[str]) -> None:
        async with self._turn:
            await self._raw.execute("SELECT pg_notify($1, p) FROM unnest($2::text[]) p", channel, list(payloads))

    async def closed(self) -> None:
        await self._lost.wait()


def asyncpg_wire(dsn: str) -> Callable[[], AbstractAsyncContextManager[Wire]]:
    """Connects with asyncpg."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[Wire]:
        import asyncpg

        raw = await asyncpg.connect(dsn, server_settings={"application_name": "onward hints"})
        try:
            yield _AsyncpgWire(raw)
        finally:
            with suppress(OSError, asyncpg.InterfaceError, TimeoutError):
                await raw.close(timeout=2)

    return connect


class _PsycopgWire:
    def __init__(self, listening: Any, sending: Any) -> None:
        self._listening, self._sending = listening, sending
        self._turn = asyncio.Lock()
        self._receive: Callable[[str], None] | None = None

    async def listen(self, channel: str, receive: Callable[[str], None]) -> None:
        self._receive = receive
        await self._listening.execute(f'LISTEN "{channel}"')

    async def notify(self, channel: str, payloads: Sequence[str]) -> None:
        async with self._turn:
            await self._sending.execute(
                "SELECT pg_notify(%s, p) FROM unnest(%s::text[]) p", (channel, list(payloads)), prepare=True
            )

    async def closed(self) -> None:
        async for notification in self._listening.notifies():
            if self._receive is not None:
                self._receive(notification.payload)


def psycopg_wire(dsn: str) -> Callable[[], AbstractAsyncContextManager[Wire]]:
    """Connects with psycopg, which cannot send on the connection on which it waits: one more."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[Wire]:
        import psycopg

        async with (
            await psycopg.AsyncConnection.connect(dsn, autocommit=True) as listening,
            await psycopg.AsyncConnection.connect(dsn, autocommit=True) as sending,
        ):
            yield _PsycopgWire(listening, sending)

    return connect


def wire_for(dsn: str) -> Callable[[], AbstractAsyncContextManager[Wire]]:
    """asyncpg where it is installed, else psycopg."""
    return asyncpg_wire(dsn) if find_spec("asyncpg") else psycopg_wire(dsn)

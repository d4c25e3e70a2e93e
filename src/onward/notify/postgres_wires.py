"""Connections for LISTEN/NOTIFY by asyncpg and by psycopg."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from importlib.util import find_spec
from typing import Any, NoReturn, Protocol

from onward.notify.link import ANSWER, QUIET
from onward.transport import CONNECT, Patience, cut_off, watch

_NAME = "onward hints"


class PostgresWire(Protocol):
    """A connection that can both send and receive notifications. One that is not answered in time ends."""

    can_listen_later: bool
    """Whether `listen` may be called while it is held."""

    async def listen(self, channel: str, receive: Callable[[str], None]) -> None: ...
    async def notify(self, channel: str, payloads: Sequence[str]) -> None: ...
    async def hold(self, channel: str, due: Callable[[], Sequence[str]]) -> NoReturn:
        """Receive; send what is due; ask a quiet server for a sign of life. Raises when the connection is lost."""
        ...


Connect = Callable[[], AbstractAsyncContextManager[PostgresWire]]


class _AsyncpgWire:
    can_listen_later = True

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

        with Patience(ANSWER, self._raw.terminate):
            async with self._turn:
                await self._raw.add_listener(channel, heard)
                self._heard = time.monotonic()

    async def notify(self, channel: str, payloads: Sequence[str]) -> None:
        await self._ask("SELECT pg_notify($1, p) FROM unnest($2::text[]) p", channel, list(payloads))

    async def _ask(self, *statement: Any) -> None:
        with Patience(ANSWER, self._raw.terminate):
            async with self._turn:
                await self._raw.execute(*statement)
                self._heard = time.monotonic()

    async def hold(self, channel: str, due: Callable[[], Sequence[str]]) -> NoReturn:
        while True:
            if payloads := due():
                await self.notify(channel, payloads)
            elif self._heard + QUIET <= time.monotonic():
                await self._ask("SELECT 1")
            with suppress(TimeoutError):
                async with asyncio.timeout(self._heard + QUIET - time.monotonic()):
                    await self._lost.wait()
                    raise ConnectionResetError("the listening connection was closed")


def asyncpg_wire(dsn: str) -> Connect:
    """Connects with asyncpg."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[PostgresWire]:
        import asyncpg

        raw: Any = await asyncpg.connect(dsn, timeout=CONNECT, server_settings={"application_name": _NAME})
        watch(raw._transport.get_extra_info("socket"))
        try:
            yield _AsyncpgWire(raw)
        finally:
            raw.terminate()  # nothing is under way that would be worth a farewell

    return connect


class _PsycopgWire:
    can_listen_later = False

    def __init__(self, listening: Any, sending: Any) -> None:
        self._listening, self._sending = listening, sending
        self._turn = asyncio.Lock()
        self._receive: Callable[[str], None] | None = None
        self._sent = 0.0

    async def listen(self, channel: str, receive: Callable[[str], None]) -> None:
        self._receive = receive
        await self._ask(self._listening, f'LISTEN "{channel}"')

    async def notify(self, channel: str, payloads: Sequence[str]) -> None:
        statement = "SELECT pg_notify(%s, p) FROM unnest(%s::text[]) p"
        await self._ask(self._sending, statement, (channel, list(payloads)), prepare=True)
        self._sent = time.monotonic()

    async def _ask(self, raw: Any, *statement: Any, **options: Any) -> None:
        number = raw.pgconn.socket
        with Patience(ANSWER, lambda: cut_off(number)):
            async with self._turn:
                await raw.execute(*statement, **options)

    async def hold(self, channel: str, due: Callable[[], Sequence[str]]) -> NoReturn:
        while True:
            if payloads := due():
                await self.notify(channel, payloads)
            elif self._sent + 2 * QUIET <= time.monotonic():
                await self._ask(self._sending, "SELECT 1")
                self._sent = time.monotonic()
            if not await self._hear():
                await self._ask(self._listening, "SELECT 1")

    async def _hear(self) -> bool:
        heard = False
        async for notification in self._listening.notifies(timeout=QUIET):
            heard = True
            if self._receive is not None:
                self._receive(notification.payload)
        return heard


def psycopg_wire(dsn: str) -> Connect:
    """Connects with psycopg, which cannot send on the connection on which it waits: one more."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[PostgresWire]:
        import psycopg

        async with AsyncExitStack() as stack:
            pair: list[Any] = []
            for _ in range(2):
                raw = await psycopg.AsyncConnection.connect(
                    dsn, autocommit=True, connect_timeout=int(CONNECT), application_name=_NAME
                )
                stack.push_async_callback(raw.close)
                watch(raw.pgconn.socket)
                pair.append(raw)
            yield _PsycopgWire(*pair)

    return connect


def wire_for(dsn: str) -> Connect:
    """asyncpg where it is installed, else psycopg."""
    return asyncpg_wire(dsn) if find_spec("asyncpg") else psycopg_wire(dsn)

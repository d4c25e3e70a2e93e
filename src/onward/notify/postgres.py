"""Hints through LISTEN/NOTIFY, on one connection per process."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import NoReturn

from onward.notify.contract import Changed, Hint, HintKind, ignore
from onward.notify.encoding import decode_hints, encode_hints
from onward.notify.link import ANSWER, LinkedNotify
from onward.notify.local import LocalNotify
from onward.notify.postgres_wires import PostgresWire
from onward.notify.presence import Presence

_HINTS, _NEWS, _FAREWELL = "#", "@", "-"
"""How the heading of a payload begins; then come a random word, or the name of a process."""
NOTIFY = "SELECT pg_notify(:channel::text, p) FROM unnest(:payloads::text[]) AS p"


class PostgresNotify(LinkedNotify["_Channel"]):
    """Sends hints with NOTIFY and receives them with LISTEN, over a connection that is opened when first needed.

    Every process hears every hint; `presence.py` explains who wakes.
    """

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[PostgresWire]], *, channel: str) -> None:
        super().__init__()
        self._connect_wire, self._name = connect, channel
        self._presence = Presence(secrets.token_hex(6))

    def within_transaction(self, hints: Sequence[Hint]) -> tuple[str, dict[str, object]] | None:
        return notify_statement(self._name, hints)

    def riding(self, hints: Sequence[Hint]) -> tuple[str, dict[str, object]] | None:
        # Whoever listens here does so over the wire; while that is down, they are told by `announce`.
        return self.within_transaction(hints) if self._wire is not None or self._keeper is None else None

    async def open(self, tasks: asyncio.TaskGroup, changed: Changed = ignore) -> None:
        await super().open(tasks, changed)
        self._presence = Presence(secrets.token_hex(6))  # others have forgotten who was here before

    async def close(self) -> None:
        if self._wire is not None and self._presence.is_known:
            with suppress(Exception):  # then we are missed
                async with asyncio.timeout(ANSWER):
                    await self._wire.say([_FAREWELL + self._presence.me])
        await super().close()

    @asynccontextmanager
    async def _connect(self) -> "AsyncIterator[_Channel]":
        async with self._connect_wire() as wire:
            channel = _Channel(wire, self._name, self._due, self._receive)
            if self._switchboard.is_used or not wire.can_listen_later:
                await channel.listen()
            yield channel

    async def _hear(self) -> None:
        # A process that only starts jobs is not woken by every hint there is.
        if self._wire is not None:
            await self._wire.listen()

    def _due(self) -> list[str]:
        """What is to be said without being asked; called about once a second."""
        for process in self._presence.missed():
            self._share_out(process, self._presence.forget(process))
        return self._news() if self._presence.is_due() else []

    def _news(self) -> list[str]:
        able = self._switchboard.able_by_type()
        heading = _NEWS + self._presence.me
        news = encode_hints(self._presence.news(able), heading)
        return news or ([heading] if able else [])

    def _receive(self, payload: str) -> None:
        heading, hints = decode_hints(payload)
        kind, name = heading[:1], heading[1:]
        if kind == _NEWS:
            self._presence.hear(name, hints)
        elif kind == _FAREWELL:
            self._share_out(name, self._presence.forget(name))
        elif kind == _HINTS:
            self._switchboard.deliver([hint for hint in hints if hint.kind is not HintKind.SCHEDULED])
            self._share_out(name, [hint for hint in hints if hint.kind is HintKind.SCHEDULED])

    def _share_out(self, word: str, hints: Sequence[Hint]) -> None:
        for hint in hints:
            mine, rest = self._presence.share(word, hint, self._switchboard.able(hint))
            if mine:
                self._switchboard.deliver([Hint(hint.kind, hint.key, mine)])
            if rest:
                self._pass_on([Hint(hint.kind, hint.key, rest)])

    async def _redirect(self, wire: "_Channel", hints: Sequence[Hint]) -> None:
        await wire.say([*self._news(), *encode_hints(hints, _heading())])


@dataclass(slots=True)
class _Channel:
    """A connection that sends on a channel, and listens to it once somebody here does."""

    wire: PostgresWire
    name: str
    due: Callable[[], Sequence[str]]
    receive: Callable[[str], None]
    _is_listening: bool = False
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def listen(self) -> None:
        async with self._turn:
            if not self._is_listening:
                await self.wire.listen(self.name, self.receive)
                self._is_listening = True

    async def send(self, hints: Sequence[Hint]) -> None:
        await self.say(encode_hints(hints, _heading()))

    async def say(self, payloads: Sequence[str]) -> None:
        await self.wire.notify(self.name, payloads)

    async def hold(self) -> NoReturn:
        await self.wire.hold(self.name, self.due)


class SendingNotify(LocalNotify):
    """Sends hints with NOTIFY over the application's own connections, and hears only those of its own process.

    For those who have no connection to keep for LISTEN: behind PgBouncer, or on a pool whose address is not known.
    """

    def __init__(self, run: Callable[[str, dict[str, object]], Awaitable[object]], *, channel: str) -> None:
        super().__init__()
        self._run, self._channel = run, channel

    def within_transaction(self, hints: Sequence[Hint]) -> tuple[str, dict[str, object]] | None:
        return notify_statement(self._channel, hints)

    async def announce(self, hints: Sequence[Hint]) -> None:
        self._switchboard.deliver(hints)
        await self._run(*notify_statement(self._channel, hints))


def notify_statement(channel: str, hints: Sequence[Hint]) -> tuple[str, dict[str, object]]:
    """Sends hints when its transaction commits."""
    return NOTIFY, {"channel": channel, "payloads": encode_hints(hints, _heading())}


def _heading() -> str:
    return _HINTS + secrets.token_hex(4)

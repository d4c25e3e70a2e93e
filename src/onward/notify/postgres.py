"""Hints through LISTEN/NOTIFY, on one connection per process."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import NoReturn

from onward.notify.connected import ANSWER, ConnectedNotify
from onward.notify.contract import Changed, Hint, HintKind, ignore
from onward.notify.encoding import HintStatement, encode_hints
from onward.notify.local import LocalNotify
from onward.notify.postgres_connections import NOTIFY, PostgresHintConnection
from onward.notify.wake_sharing import WakeSharing
from onward.state.command import Command

_HINTS, _NEWS, _FAREWELL = "#", "@", "-"
"""How the heading of a payload begins; after the first comes a random word."""
_UNLESS_FULL = "WHERE (SELECT pg_catalog.pg_notification_queue_usage()) < 0.9::pg_catalog.float8"
"""With work that is to commit: a full queue takes nothing, and COMMIT is refused for it. It is full where a session
listens and never ends its transaction, and any that may connect can bring that about.
"""
_NOTIFY = f"{NOTIFY.format(channel=':channel::text', payloads=':payloads')} {_UNLESS_FULL}"
_MOST_STRANGERS = 1_000
_BETWEEN_QUESTIONS, _ASK_AGAIN = 0.25, 30.0
"""Seconds at least, and at most, between two questions to the server who is there."""


class PostgresNotify(ConnectedNotify["_Channel"]):
    """Sends hints with NOTIFY and receives them with LISTEN, over a connection that is opened when first needed.

    Every process hears every hint; `wake_sharing.py` explains who wakes. Whoever may connect to the database may send a
    hint, which costs a look; but to be believed that it takes jobs, and so have others leave them to it, a process must
    have a session whose role may change `table` (without one: our own role), as the server says.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[PostgresHintConnection]],
        *,
        channel: str,
        table: str | None = None,
    ) -> None:
        super().__init__()
        self.command = self._statement = HintStatement(_NOTIFY, channel, _HINTS)
        self._connect_hints, self._table = connect, table
        self.hears_commands = True
        self._sharing = WakeSharing("")
        self._known: set[int] = set()
        """The sessions of others that are believed."""
        self._strangers: dict[int, list[Hint]] = {}
        """What sessions have told that may not be."""
        self._refused: set[int] = set()
        self._asked_at = 0.0
        self._is_asking = False

    async def open(self, tasks: asyncio.TaskGroup, changed: Changed = ignore) -> None:
        await super().open(tasks, changed)
        self.hears_commands = True  # since nobody listens yet
        self._sharing = WakeSharing("")  # what was known of others is old
        self._known, self._strangers, self._refused, self._is_asking = set(), {}, set(), False

    async def close(self) -> None:
        if self._connection is not None and self._sharing.is_known:
            with suppress(Exception):  # then we are missed
                async with asyncio.timeout(ANSWER):
                    await self._connection.say([_FAREWELL])
        await super().close()
        self.hears_commands = True

    @asynccontextmanager
    async def _connect(self) -> "AsyncIterator[_Channel]":
        # Whoever listens here does so over the connection; while that is down, they are told by `announce`.
        self.hears_commands = False
        async with self._connect_hints() as connection:
            self._sharing.become(str(connection.process))
            self._known.discard(connection.process)
            channel = _Channel(connection, self._statement, self._due, self._receive)
            if self._listeners.is_used or not connection.can_listen_later:
                await channel.listen()
            self.hears_commands = True
            try:
                yield channel
            finally:
                self.hears_commands = False

    async def _hear(self) -> None:
        # A process that only starts jobs is not woken by every hint there is.
        if self._connection is not None:
            await self._connection.listen()

    def _due(self) -> list[str]:
        """What is to be said without being asked; called about once a second."""
        for process in self._sharing.missed():
            self._forget(int(process))
        if (self._known or self._refused) and self._asked_at + _ASK_AGAIN <= time.monotonic():
            self._refused.clear()
            self._ask_who_is_there()  # the server may have given the number of one that is gone to another
        return self._news() if self._sharing.is_due() else []

    def _news(self) -> list[str]:
        room = self._listeners.room_by_type()
        news = encode_hints(self._sharing.news(room), _NEWS)
        return news or ([_NEWS] if room else [])

    def _receive(self, process: int, payload: str) -> None:
        heading, hints = self._read(payload)
        if heading[:1] == _HINTS:
            self._share_out(heading[1:], hints)
        elif heading == _NEWS:
            self._hear_from(process, hints)
        elif heading == _FAREWELL:
            self._strangers.pop(process, None)
            self._forget(process)

    # -- who is there

    def _hear_from(self, process: int, news: list[Hint]) -> None:
        if process in self._known or str(process) == self._sharing.me:
            self._sharing.hear(str(process), news)
        elif process not in self._refused and len(self._strangers) < _MOST_STRANGERS:
            self._strangers[process] = news
            self._ask_who_is_there()

    def _forget(self, process: int) -> None:
        self._known.discard(process)
        self._share_out(str(process), self._sharing.forget(str(process)))

    def _ask_who_is_there(self) -> None:
        if not self._is_asking:
            self._is_asking = True
            self._run(self._ask)

    async def _ask(self) -> None:
        try:
            await asyncio.sleep(max(self._asked_at + _BETWEEN_QUESTIONS - time.monotonic(), 0.0))
            if self._connection is None:
                return
            asked = {*self._known, *self._strangers}
            there = await self._connection.connection.present(asked, self._table)
            self._asked_at = time.monotonic()
            self._learn(asked, there)
        finally:
            self._is_asking = False
        if self._strangers:  # they came while the server was asked
            self._ask_who_is_there()

    def _learn(self, asked: set[int], there: set[int]) -> None:
        for process in self._known - there:
            self._forget(process)
        if len(self._refused) >= _MOST_STRANGERS:
            self._refused.clear()
        for process in asked:
            news = self._strangers.pop(process, None)
            if process not in there:
                self._refused.add(process)
            elif news is not None:  # it has not said farewell meanwhile
                self._known.add(process)
                self._sharing.hear(str(process), news)

    def _share_out(self, nonce: str, hints: Sequence[Hint]) -> None:
        """Of jobs that are ready, a share is for us; all other hints are for everybody."""
        for hint in hints:
            concerned, mine, rest = self._listeners.concerned(hint), hint.count, 0
            if hint.kind is HintKind.READY:
                mine, rest = self._sharing.share(nonce, hint, len(concerned))
            if mine:
                self._listeners.give(Hint(hint.kind, hint.key, mine), concerned)
            if rest:
                self._pass_on([Hint(hint.kind, hint.key, rest)])

    async def _redirect(self, connection: "_Channel", hints: Sequence[Hint]) -> None:
        await connection.say([*self._news(), *_payloads(hints)])


@dataclass(slots=True)
class _Channel:
    """A connection that sends on a channel, and listens to it once somebody here does."""

    connection: PostgresHintConnection
    statement: HintStatement
    due: Callable[[], Sequence[str]]
    receive: Callable[[int, str], None]
    _is_listening: bool = False
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def listen(self) -> None:
        async with self._turn:
            if not self._is_listening:
                await self.connection.listen(self.statement.channel, self.receive)
                self._is_listening = True

    async def send(self, hints: Sequence[Hint]) -> None:
        await self.say(_payloads(hints))

    async def say(self, payloads: Sequence[str]) -> None:
        await self.connection.notify(self.statement.channel, payloads)

    async def hold(self) -> NoReturn:
        await self.connection.hold(self.statement.channel, self.due)


class SendingNotify(LocalNotify):
    """Sends hints with NOTIFY over the application's own connections, and hears only those of its own process.

    For those who have no connection to keep for LISTEN: behind PgBouncer, or on a pool whose address is not known.
    """

    def __init__(self, run: Callable[[Command[None]], Awaitable[object]], *, channel: str) -> None:
        super().__init__()
        self._run, self._statement = run, HintStatement(_NOTIFY, channel, _HINTS)
        self.command = self._statement

    async def announce(self, hints: Sequence[Hint]) -> None:
        self._listeners.deliver(hints)
        await self._run(self._statement(hints))


def _payloads(hints: Sequence[Hint]) -> list[str]:
    return encode_hints(hints, _HINTS + secrets.token_hex(4))

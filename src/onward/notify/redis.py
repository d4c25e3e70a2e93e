"""Hints through Redis: one connection of a process listens, one sends."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NoReturn

from onward.notify.contract import Hint, HintKind, Listener
from onward.notify.link import ANSWER, QUIET, Link
from onward.notify.postgres import decode_hints, encode_hints
from onward.notify.switchboard import Switchboard

if TYPE_CHECKING:
    from redis.asyncio import Redis

logger = logging.getLogger("onward.notify")
_BUDGET_MILLISECONDS = 5_000
"""How long a budget is kept for those who have not claimed yet."""
_PRECEDENCE = 0.02
"""Seconds that idle listeners, wherever they are, have the budget for themselves."""


class RedisNotify:
    """Sends hints with PUBLISH and receives them with SUBSCRIBE, over connections that are opened when first needed.

        app = Onward("postgresql://…", jobs=[…], notify=RedisNotify("redis://localhost"))

    A client that is handed over lends its settings, not its connections. Every announcement of scheduled jobs leaves a
    budget in Redis, from which processes claim as many wake-ups as they have listeners: about as many wake as there are
    jobs, across processes. `lost` is told when hints go down; they come back by themselves.
    """

    sees_commits = False
    crosses_processes = True

    def __init__(
        self, target: "str | Redis", *, channel: str = "onward", lost: Callable[[Exception], None] | None = None
    ) -> None:
        self._target, self._channel = target, channel
        self._switchboard = Switchboard()
        self._link = Link(self._connect, self._switchboard, lost)

    @property
    def is_up(self) -> bool:
        return self._link.wire is not None

    async def open(self, tasks: asyncio.TaskGroup) -> None:
        self._link.open(tasks)

    async def close(self) -> None:
        await self._link.close()

    def within_transaction(self, hints: Sequence[Hint]) -> tuple[str, dict[str, object]] | None:
        return None

    async def announce(self, hints: Sequence[Hint]) -> None:
        await self._link.send(hints)

    @asynccontextmanager
    async def listen(
        self, *, scheduled: Collection[str] = (), ended: Collection[str] = (), lost: bool = False, awaited: bool = False
    ) -> AsyncIterator[Listener]:
        async with self._switchboard.listen(scheduled=scheduled, ended=ended, lost=lost, awaited=awaited) as line:
            await self._link.attempted()
            yield line

    @asynccontextmanager
    async def _connect(self) -> "AsyncIterator[_Wire]":
        async with _client(self._target) as client, client.pubsub() as subscription:
            async with asyncio.timeout(ANSWER):
                await subscription.subscribe(self._channel)
                while (answer := await subscription.get_message(timeout=ANSWER)) is None or answer[
                    "type"
                ] != "subscribe":
                    pass
            yield _Wire(client, subscription, self._channel, self._receive)

    def _receive(self, payload: str) -> None:
        budget, _, lines = payload.partition("\n")
        hints = decode_hints(lines)
        self._switchboard.deliver([hint for hint in hints if hint.kind is not HintKind.SCHEDULED])
        scheduled = [hint for hint in hints if hint.kind is HintKind.SCHEDULED and self._switchboard.concerned(hint)]
        if scheduled:
            self._link.run(self._claim(budget, scheduled))

    async def _claim(self, budget: str, hints: list[Hint]) -> None:
        """Wake as many as the budget grants: first those who wait; then, of what is left, those who are awake.

        The latter may have looked just before the jobs were there.
        """
        left = await self._claim_for(budget, hints, self._switchboard.idle)
        if left:
            await asyncio.sleep(_PRECEDENCE)
            await self._claim_for(budget, left, self._switchboard.concerned)

    async def _claim_for(self, budget: str, hints: list[Hint], number: Callable[[Hint], int]) -> list[Hint]:
        """Claim for this number of listeners per hint; the hints whose budget was not used up, as far as is known."""
        wanted = {hint.key: min(number(hint), hint.count) for hint in hints}
        granted = await self._ask(budget, {key: count for key, count in wanted.items() if count})
        self._switchboard.deliver([Hint(HintKind.SCHEDULED, key, count) for key, count in granted.items() if count])
        return [
            Hint(hint.kind, hint.key, hint.count - wanted[hint.key])
            for hint in hints
            if granted.get(hint.key, 0) == wanted[hint.key] < min(hint.count, self._switchboard.concerned(hint))
        ]

    async def _ask(self, budget: str, wanted: dict[str, int]) -> dict[str, int]:
        wire = self._link.wire
        if not wanted or wire is None:
            return wanted
        try:
            async with asyncio.timeout(ANSWER):
                return await wire.claim(budget, wanted)
        except Exception as error:  # noqa: BLE001 - whatever happened, one who wakes in vain is better than one too few
            logger.debug("no answer about a wake budget: %s", error)
            return wanted


class _Wire:
    def __init__(self, client: Any, subscription: Any, channel: str, receive: Callable[[str], None]) -> None:
        self._client, self._subscription, self._channel, self._receive = client, subscription, channel, receive
        scripts = files("onward.notify").joinpath("scripts")
        self._announce = client.register_script(scripts.joinpath("announce.lua").read_text())
        self._claim = client.register_script(scripts.joinpath("claim.lua").read_text())

    async def send(self, hints: Sequence[Hint]) -> None:
        budget = f"{self._channel}:budget:{secrets.token_hex(8)}"
        payloads = [f"{budget}\n{payload}" for payload in encode_hints(hints)]
        counts = [word for hint in hints if hint.kind is HintKind.SCHEDULED for word in (hint.key, hint.count)]
        arguments = [self._channel, _BUDGET_MILLISECONDS, len(payloads), *payloads, *counts]
        await self._announce(keys=[budget], args=arguments)

    async def claim(self, budget: str, wanted: dict[str, int]) -> dict[str, int]:
        answer = await self._claim(keys=[budget], args=[word for pair in wanted.items() for word in pair])
        return dict(zip(wanted, answer, strict=True))

    async def hold(self) -> NoReturn:
        while True:
            if not await self._hear(QUIET):
                await self._subscription.ping()
                if not await self._hear(ANSWER):
                    raise ConnectionError("Redis does not answer")

    async def _hear(self, timeout: float) -> bool:
        message = await self._subscription.get_message(timeout=timeout)
        if message is not None and message["type"] == "message":
            self._receive(message["data"])
        return message is not None


@asynccontextmanager
async def _client(target: "str | Redis") -> "AsyncIterator[Redis]":
    """A client of our own, which says at once when a connection is lost: `Link` sees to the rest."""
    from redis.asyncio import ConnectionPool, Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    settings: dict[str, Any] = {
        "decode_responses": True,
        "retry": Retry(NoBackoff(), 0),
        "socket_connect_timeout": ANSWER,
        "socket_timeout": ANSWER,
        "socket_keepalive": True,
    }
    if isinstance(target, str):
        pool = ConnectionPool.from_url(target, **settings)
    else:
        lent = target.connection_pool
        pool = ConnectionPool(lent.connection_class, **{**lent.connection_kwargs, **settings})
    async with Redis(connection_pool=pool) as client:
        try:
            yield client
        finally:
            await pool.disconnect()

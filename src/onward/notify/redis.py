"""Hints through Redis: one connection of a process listens, one sends; in a cluster, one to every node."""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, NoReturn
from urllib.parse import urlsplit

from onward.addresses import wrong_address
from onward.errors import require
from onward.notify.connected import ANSWER, QUIET, ConnectedNotify
from onward.notify.contract import Hint, HintKind
from onward.notify.encoding import encode_hints, is_nonce
from onward.redis.connection import Redis, exceptions, own_client, own_cluster, timeouts
from onward.redis.scripts import load

logger = logging.getLogger("onward.notify")
_BUDGET_MILLISECONDS = 5_000
"""How long a budget is kept for those who have not claimed yet."""
_PRECEDENCE = 0.02
"""Seconds that idle listeners, wherever they are, have the budget for themselves."""
_NONCE = 16
"""Letters of the random word that names a budget."""
_MOST_CLAIMS = 32
"""Under way at a time, each on a connection of its own, of which redis-py gives no more than 100; with more than that,
listeners look without asking."""
_CLUSTER = "+cluster://"
_SCHEMES = ("redis", "rediss", "redis+cluster", "rediss+cluster", "unix")


class RedisNotify(ConnectedNotify["_RedisHints"]):
    """Sends hints with PUBLISH and receives them with SUBSCRIBE, over connections that are opened when first needed.

        app = Onward("postgresql://…", jobs=[…], notify=RedisNotify("redis://localhost"))

    A client that is handed over lends its settings, not its connections. A cluster is `redis+cluster://host,host:7001`
    (or `rediss+cluster://`), with any of its nodes. Every announcement of ready jobs leaves a budget in Redis, from
    which processes claim as many wake-ups as they have listeners: about as many wake as there are jobs, across
    processes. In a cluster each budget is one key on some node, and what is published at a node reaches them all.
    """

    def __init__(self, target: str | Redis, *, channel: str = "onward") -> None:
        super().__init__()
        if isinstance(target, str):
            require(wrong_address("target", target, _SCHEMES))
        self._target, self._channel = target, channel

    @asynccontextmanager
    async def _connect(self) -> "AsyncIterator[_RedisHints]":
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(ANSWER):
                listening, sending = await _clients(self._target, stack)
                subscription = await stack.enter_async_context(listening.pubsub())
                await subscription.subscribe(self._channel)
                while (answer := await subscription.get_message(timeout=ANSWER)) is None or answer[
                    "type"
                ] != "subscribe":
                    pass
            yield _RedisHints(sending, subscription, self._channel, self._receive)

    async def _redirect(self, connection: "_RedisHints", hints: Sequence[Hint]) -> None:
        await connection.send(hints)

    def _receive(self, payload: bytes) -> None:
        nonce, hints = self._read(payload)
        self._listeners.deliver([hint for hint in hints if hint.kind is not HintKind.READY])
        ready = [hint for hint in hints if hint.kind is HintKind.READY and self._listeners.concerned(hint)]
        if not ready or not is_nonce(nonce, _NONCE):
            return
        if len(self._errands) < _MOST_CLAIMS:
            self._run(partial(self._claim, nonce, ready))
        else:
            self._listeners.deliver(ready)

    async def _claim(self, nonce: str, hints: list[Hint]) -> None:
        """Wake as many as the budget grants: first those who wait; then, of what is left, those who are awake.

        The latter may have looked just before the jobs were there.
        """
        left = await self._claim_for(nonce, hints, self._listeners.idle)
        if left:
            await asyncio.sleep(_PRECEDENCE)
            await self._claim_for(nonce, left, self._listeners.room)

    async def _claim_for(self, nonce: str, hints: list[Hint], number: Callable[[Hint], int]) -> list[Hint]:
        """Claim for this number of listeners per hint; the hints whose budget was not used up, as far as is known."""
        wanted = {hint.key: min(number(hint), hint.count) for hint in hints}
        granted = await self._ask(nonce, {key: count for key, count in wanted.items() if count})
        self._listeners.deliver([Hint(HintKind.READY, key, count) for key, count in granted.items() if count])
        return [
            Hint(hint.kind, hint.key, hint.count - wanted[hint.key])
            for hint in hints
            if granted.get(hint.key, 0) == wanted[hint.key] < min(hint.count, self._listeners.room(hint))
        ]

    async def _ask(self, nonce: str, wanted: dict[str, int]) -> dict[str, int]:
        connection = self._connection
        if not wanted or connection is None:
            return wanted
        try:
            async with asyncio.timeout(ANSWER):
                return await connection.claim(nonce, wanted)
        except Exception as error:  # noqa: BLE001 - whatever happened, one who wakes in vain is better than one too few
            logger.debug("no answer about a wake budget: %s", error)
            return wanted


class _RedisHints:
    def __init__(self, client: Any, subscription: Any, channel: str, receive: Callable[[bytes], None]) -> None:
        self._client, self._subscription, self._channel, self._receive = client, subscription, channel, receive

    async def send(self, hints: Sequence[Hint]) -> None:
        try:
            await self._send(hints)
        except exceptions.RedisError:
            await self._send(hints)  # on another connection, and in a cluster most likely on another node

    async def _send(self, hints: Sequence[Hint]) -> None:
        nonce = secrets.token_hex(_NONCE // 2)
        payloads = encode_hints(hints, nonce)
        counts = [part for hint in hints if hint.kind is HintKind.READY for part in (hint.key, hint.count)]
        arguments = [self._channel, _BUDGET_MILLISECONDS, len(payloads), *payloads, *counts]
        # The whole text: in `docs/how-to/hints.md` users are told to allow EVAL, and not EVALSHA.
        await self._client.eval(load("onward.notify", "announce").text, 1, self._budget(nonce), *arguments)

    def _budget(self, nonce: str) -> str:
        """A key of ours, whatever others may have published."""
        return f"{self._channel}:budget:{nonce}"

    async def claim(self, nonce: str, wanted: dict[str, int]) -> dict[str, int]:
        words = [each for pair in wanted.items() for each in pair]
        granted = await self._client.eval(load("onward.notify", "claim").text, 1, self._budget(nonce), *words)
        return dict(zip(wanted, granted, strict=True))

    async def hold(self) -> NoReturn:
        checked = time.monotonic()
        while True:
            if not await self._hear(QUIET):
                await self._subscription.ping()
                if not await self._hear(ANSWER):
                    raise ConnectionError("Redis does not answer")
            await asyncio.sleep(0)  # redis-py hands out what has come in without letting others have their turn
            if checked + QUIET <= time.monotonic():
                # The way out too, in a cluster to one node after another.
                await self._client.exists(self._budget(secrets.token_hex(_NONCE // 2)))
                checked = time.monotonic()

    async def _hear(self, timeout: float) -> bool:
        message = await self._subscription.get_message(timeout=timeout)
        if message is not None and message["type"] == "message":
            self._receive(message["data"])
        return message is not None


async def _clients(target: str | Redis, stack: AsyncExitStack) -> tuple[Any, Any]:
    """Clients of our own to listen and to send with; they say at once when a connection is lost, we see to the rest."""
    cluster: Any = None
    if isinstance(target, str) and _CLUSTER in target:
        cluster = own_cluster(_node(target), timeouts(ANSWER))
        stack.push_async_callback(cluster.aclose)
        node = (await cluster.initialize()).get_random_node()
        target = _node(target, f"{node.host}:{node.port}")
    client = await stack.enter_async_context(own_client(target, timeouts(ANSWER)))
    return client, cluster or client


def _node(address: str, host: str | None = None) -> str:
    """A node of a cluster: this one, or one of those in the address, another each time."""
    url = urlsplit(address.replace(_CLUSTER, "://"))
    login, at, hosts = url.netloc.rpartition("@")
    return url._replace(netloc=login + at + (host or random.choice(hosts.split(",")))).geturl()

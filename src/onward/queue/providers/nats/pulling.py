"""Asking a consumer for messages. An answer that nobody waits for any more is kept for who asks next."""

import asyncio
import itertools
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from onward.queue.providers.nats.link import ANSWER, Link, sound
from onward.queue.providers.nats.native import Client, Msg

_LATE = 1.0
"""Seconds after which the server's word that nothing came is overdue."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message, and when it came: its lease began a moment before."""

    message: Msg
    at: float = field(default_factory=time.monotonic)


class NoAnswer(TimeoutError):
    """The server does not even say that there is nothing: the consumer, or the connection, is gone."""


class _Interrupted: ...


class _Lost: ...


class Pulling:
    """From one consumer, over one connection."""

    def __init__(self, link: Link, client: Client, subject: str) -> None:
        self._link, self.client, self._subject = link, client, subject
        self._inbox = client.new_inbox()
        self._numbers = itertools.count()
        self._waiting: dict[str, asyncio.Queue[Arrival | _Interrupted | _Lost | None]] = {}
        self.spare: deque[Arrival] = deque()
        """What came for nobody."""

    async def open(self) -> None:
        self._subscription = await self.client.subscribe(f"{self._inbox}.*", cb=self._receive)
        self._link.on_lost(self._lose)

    async def close(self) -> list[Arrival]:
        """Nothing more comes; what came and was not wanted."""
        self._link.forget(self._lose)
        with suppress(Exception):  # else the connection is lost, and with it whatever was on its way
            async with asyncio.timeout(ANSWER):
                await sound(self._subscription.drain())  # type: ignore[no-untyped-call]
        spare, self.spare = list(self.spare), deque()
        return spare

    def interrupt(self) -> None:
        """End the waits under way."""
        for queue in self._waiting.values():
            queue.put_nowait(_Interrupted())

    async def some(self, count: int) -> list[Arrival]:
        """As many as there are now, at most so many."""
        came = self._claim(count)
        if len(came) < count:
            came += await self._ask(count - len(came), {"no_wait": True}, ANSWER)
        return came

    async def one(self, wait: float, *, every: float, meanwhile: Callable[[], Awaitable[None]]) -> list[Arrival]:
        """The next one, if it comes in that time, or none when interrupted; `meanwhile` is done now and then."""
        expires = {"expires": int(wait * 1e9)}
        return self._claim(1) or await self._ask(1, expires, wait + _LATE, every=every, meanwhile=meanwhile)

    def _claim(self, count: int) -> list[Arrival]:
        return [self.spare.popleft() for _ in range(min(count, len(self.spare)))]

    async def _ask(
        self,
        count: int,
        how: Mapping[str, object],
        within: float,
        *,
        every: float = ANSWER,
        meanwhile: Callable[[], Awaitable[None]] | None = None,
    ) -> list[Arrival]:
        number, came, until = str(next(self._numbers)), list[Arrival](), time.monotonic() + within
        queue = self._waiting[number] = asyncio.Queue()
        try:
            request = json.dumps({"batch": count, **how}).encode()
            await self.client.publish(self._subject, request, reply=f"{self._inbox}.{number}")
            while len(came) < count:
                try:
                    async with asyncio.timeout(min(every, until - time.monotonic())):
                        item = await queue.get()
                except TimeoutError:
                    if meanwhile is not None:
                        await meanwhile()
                    if time.monotonic() >= until:
                        raise NoAnswer(f"NATS gave no answer within {within:g} s") from None
                    continue
                match item:
                    case Arrival():
                        came.append(item)
                    case _Lost():
                        raise ConnectionError("the connection to NATS was lost")
                    case _:
                        break
        except BaseException:
            self.spare.extend(came)
            raise
        finally:
            del self._waiting[number]
            self.spare.extend(item for item in _left_in(queue) if isinstance(item, Arrival))
        return came

    async def _receive(self, message: Msg) -> None:
        # Only a job has somewhere to answer to; the rest are words about a request.
        if message.reply:
            # It does not say for which request it comes: whoever waits may have it.
            waiting = next(iter(self._waiting.values()), None)
            (self.spare.append if waiting is None else waiting.put_nowait)(Arrival(message))
        elif (message.headers or {}).get("Status") != "100":  # that one only says that the server is there
            waiting = self._waiting.get(message.subject.rpartition(".")[2])
            if waiting is not None:
                waiting.put_nowait(None)

    def _lose(self) -> None:
        for queue in self._waiting.values():
            queue.put_nowait(_Lost())


def _left_in(queue: "asyncio.Queue[Arrival | _Interrupted | _Lost | None]") -> list[object]:
    return [queue.get_nowait() for _ in range(queue.qsize())]

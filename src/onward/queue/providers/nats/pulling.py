"""Asking consumers for messages. An answer that nobody waits for any more is kept for who asks next."""

import asyncio
import itertools
import json
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from nats.aio.msg import Msg

from onward.queue.providers.nats.link import ANSWER, Link, SoundClient, sound
from onward.queue.providers.nats.messages import MESSAGE_ID, ONLY_IF_NEW, Record, read, text_of, token
from onward.queue.providers.nats.store import AlreadyThere, NatsStore
from onward.queue.providers.together import each

_LATE = 1.0
"""Seconds after which the server's word that nothing came is overdue."""
_DOUBT = 0.5
"""Seconds without an answer that should come at once, after which it is asked whether there is a consumer at all."""
_LOOK = 0.5
"""Seconds between looks at those that are delayed."""
_AT_A_TIME = 500
_DELETING = 1.0
"""Seconds in which the server has deleted a queue."""
NAK, TERMINAL = b"-NAK", b"+ACK"
"""What a consumer is told of a message: it comes again, or it is done."""
_GONE, _TOO_MANY = ("Deleted", "503"), "Exceeded"
"""What the server says where there is no consumer any more, and where it does not listen to one more request."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message, and when it came: its lease began a moment before."""

    message: Msg
    at: float = field(default_factory=time.monotonic)


class NoAnswer(TimeoutError):
    """The server does not even say that there is nothing: the consumer, or the connection, is gone."""


class Pulling:
    """From one consumer, over one connection."""

    def __init__(self, client: SoundClient, subject: str, when_made: Callable[[], Awaitable[object]]) -> None:
        self.client, self._subject, self._when_made = client, subject, when_made
        self._inbox = client.new_inbox()
        self._numbers = itertools.count()
        self._waiting: dict[str, asyncio.Queue[Arrival | Exception | None]] = {}
        """By the number of a request: what came for it, why it failed, or that nothing more comes."""
        self.spare: deque[Arrival] = deque()
        """What came for nobody."""

    async def open(self) -> None:
        self._made = await self._when_made()
        self._subscription = await self.client.subscribe(f"{self._inbox}.*", cb=self._receive)
        self.client.lost.add_done_callback(self._lose)

    async def close(self) -> None:
        """Nothing more comes."""
        self.client.lost.remove_done_callback(self._lose)
        with suppress(Exception):  # else the connection is lost, and with it whatever was on its way
            async with asyncio.timeout(ANSWER):
                await sound(self.client.calls, self._subscription.drain())  # type: ignore[no-untyped-call]

    def interrupt(self) -> None:
        """End the waits under way."""
        for queue in self._waiting.values():
            queue.put_nowait(None)

    async def some(self, count: int) -> list[Arrival]:
        """As many as there are now, at most so many."""
        came = self._claim(count)
        if len(came) < count:
            wanted = count - len(came)
            try:
                came += await self._ask(wanted, {"no_wait": True}, ANSWER, every=_DOUBT, meanwhile=self._doubt)
            except BaseException:
                self.spare.extendleft(reversed(came))
                raise
        return came

    async def _doubt(self) -> None:
        """Whether anybody was asked at all. One that was made after we asked is asked next."""
        before, self._made = self._made, await self._when_made()
        if self._made is None or self._made != before:
            raise NoAnswer("the consumer was deleted")

    async def one(self, wait: float, *, every: float, meanwhile: Callable[[], Awaitable[None]]) -> list[Arrival]:
        """The next one, if it comes in that time, or none when interrupted; `meanwhile` is done now and then."""
        # Not always as long: when a request expires just as a message is to be delivered again, NATS 2.9 miscounts.
        wait *= random.uniform(0.8, 1.0)
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
        every: float,
        meanwhile: Callable[[], Awaitable[None]],
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
                    await meanwhile()
                    if time.monotonic() >= until:
                        raise NoAnswer(f"NATS gave no answer within {within:g} s") from None
                    continue
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    break
                came.append(item)
        except BaseException:
            self.spare.extend(came)
            raise
        finally:
            del self._waiting[number]
            left = [queue.get_nowait() for _ in range(queue.qsize())]
            self.spare.extend(item for item in left if isinstance(item, Arrival))
        return came

    async def _receive(self, message: Msg) -> None:
        # Only a job has somewhere to answer to; the rest are words about a request.
        if message.reply:
            # It does not say for which request it comes: whoever waits may have it.
            waiting = next(iter(self._waiting.values()), None)
            (self.spare.append if waiting is None else waiting.put_nowait)(Arrival(message))
            return
        headers = message.headers or {}
        waiting, status = self._waiting.get(message.subject.rpartition(".")[2]), headers.get("Status")
        if waiting is not None and status != "100":  # that one only says that the server is there
            waiting.put_nowait(_refusal(f"{status} {headers.get('Description', '')}"))

    def _lose(self, lost: object) -> None:
        for queue in self._waiting.values():
            queue.put_nowait(ConnectionError("the connection to NATS was lost"))


def _refusal(words: str) -> Exception | None:
    if any(word in words for word in _GONE):
        return NoAnswer(f"NATS has nothing to deliver from: {words}")
    return ConnectionError(f"NATS does not deliver: {words}") if _TOO_MANY in words else None


class Incoming:
    """What comes to one queue: jobs that wait, and the delayed ones whose time has come."""

    def __init__(self, link: Link, store: NatsStore) -> None:
        self._link, self._store = link, store
        self.pullers: dict[str, Pulling] = {}
        self._turn = asyncio.Lock()
        self._next_look, self._interruptions = 0.0, 0
        self._deleted_at: float | None = None

    @property
    def spare(self) -> deque[Arrival]:
        """Jobs that came for nobody."""
        return self.pullers["job"].spare

    async def close(self) -> list[Arrival]:
        """Whatever came for nobody, when nothing more comes."""
        for pulling in self.pullers.values():
            await pulling.close()
        return [arrival for pulling in self.pullers.values() for arrival in pulling.spare]

    def interrupt(self) -> None:
        """End the waits under way."""
        self._interruptions += 1
        for pulling in self.pullers.values():
            pulling.interrupt()

    async def some(self, count: int, wait: float) -> list[Arrival]:
        """At most so many; the first of them may take so many seconds to come."""
        interruptions = self._interruptions
        if await self._is_being_deleted(wait):
            return []
        try:
            return await self._arrivals(await self.puller("job"), count, wait, interruptions)
        except NoAnswer:
            self._deleted_at = time.monotonic()
            return []

    async def _is_being_deleted(self, wait: float) -> bool:
        """Somebody deleted the queue: it is made again, and not before that is over.

        The server tells of it when it begins, and removes files that have the same names as those of a new one.
        """
        if self._deleted_at is None:
            return False
        missing = self._deleted_at + _DELETING - time.monotonic()
        if missing > 0:
            await asyncio.sleep(min(missing, wait))
            return True
        await self._store.declare()
        self._deleted_at = None
        return False

    async def _arrivals(self, pulling: Pulling, count: int, wait: float, interruptions: int) -> list[Arrival]:
        await self._look_at_delayed()
        arrivals = await pulling.some(count)
        # Who was interrupted before it came to wait does not wait.
        if not arrivals and wait > 0 and self._interruptions == interruptions:
            arrivals = await pulling.one(wait, every=_LOOK / 2, meanwhile=self._look_at_delayed)
            if arrivals and count > 1:
                arrivals += await self._rest(pulling, arrivals, count - 1)
        return arrivals

    async def _rest(self, pulling: Pulling, first: list[Arrival], count: int) -> list[Arrival]:
        try:
            return await pulling.some(count)
        except BaseException:
            pulling.spare.extend(first)
            raise

    async def puller(self, kind: str) -> Pulling:
        client = await self._link.client()
        async with self._turn:
            old = self.pullers.get(kind)
            if old is None or old.client is not client:
                subject = f"{self._link.api}.CONSUMER.MSG.NEXT.{self._store.jobs}.{kind}"
                pulling = Pulling(client, subject, lambda: self._store.consumer_made(kind))
                await pulling.open()
                self.pullers[kind] = pulling
                if old is not None:
                    pulling.spare = old.spare  # shared, for something may be on its way there
                    await old.close()
            return self.pullers[kind]

    async def _look_at_delayed(self) -> None:
        """Let those wait whose time has come."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK
        pulling = await self.puller("later")
        while True:
            arrivals = await pulling.some(_AT_A_TIME)
            await each(self._move_if_due, arrivals)
            if len(arrivals) < _AT_A_TIME:
                return

    async def _move_if_due(self, arrival: Arrival) -> None:
        message = arrival.message
        record = read(Record, message.headers)
        missing = (record.scheduled_for - datetime.now(UTC)).total_seconds() if record.scheduled_for else 0.0
        if missing > 0:
            self._next_look = min(self._next_look, time.monotonic() + missing)
            await self._link.request(message.reply, after(missing))
            return
        job_id = text_of(message.subject)
        # Its id is remembered as that of one whose time has come: dying before the next line does not move it twice.
        headers = {**(message.headers or {}), MESSAGE_ID: f"{token(job_id)} is due", **ONLY_IF_NEW}
        with suppress(AlreadyThere):
            await self._store.publish(self._store.subject("job", job_id), message.data, headers)
        await self._link.request(message.reply, TERMINAL)


def after(seconds: float) -> bytes:
    """The word for: give it to somebody then."""
    return NAK + b" " + json.dumps({"delay": int(seconds * 1e9)}).encode() if seconds > 0 else NAK

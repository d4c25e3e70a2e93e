"""Keeps a process connected to a broker: what the adapters over Redis and NATS share."""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from onward.notify.contract import Hint, merged
from onward.notify.switchboard import Switchboard

logger = logging.getLogger("onward.notify")
QUIET, ANSWER = 2.0, 2.0
"""Seconds without a word from the broker after which it is asked for one, and that it has to answer."""
_MOST_UNSENT = 1_000
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 0.5
"""Seconds between tries to connect: few enough that hints are back when the broker is."""


class Wire(Protocol):
    """A connection to a broker that hands what it receives to whoever made it."""

    async def send(self, hints: Sequence[Hint]) -> None: ...
    async def hold(self) -> NoReturn:
        """Receive, and ask a quiet broker for a sign of life now and again; raises when the connection is lost."""
        ...


W = TypeVar("W", bound=Wire)


class Link(Generic[W]):
    """A connection that is made when first needed, and made again when it is lost."""

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[W]],
        switchboard: Switchboard,
        lost: Callable[[Exception], None] | None,
    ) -> None:
        self._connect, self._switchboard, self._lost = connect, switchboard, lost
        self._wire: W | None = None
        self._unsent: list[Hint] = []
        self._tried = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._errands: set[asyncio.Task[None]] = set()

    @property
    def wire(self) -> W | None:
        """The connection, while there is one."""
        return self._wire

    def open(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks

    async def close(self) -> None:
        ending = [*self._errands, *([self._keeper] if self._keeper else [])]
        self._keeper = self._tasks = self._wire = None
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)
        self._tried.clear()
        self._switchboard.wake_all()

    async def send(self, hints: Sequence[Hint]) -> None:
        """Send, or raise soon; what could not be sent leaves when the broker is back."""
        hints = merged(hints)
        if self._wire is None:
            self._switchboard.deliver(hints)  # those in this process need no broker to hear of it
        try:
            async with asyncio.timeout(ANSWER):
                await self._first_try()
                if self._wire is None:
                    raise ConnectionError("hints are down: the broker cannot be reached")
                await self._wire.send(hints)
        except BaseException:
            self._send_later(hints)
            raise

    async def attempted(self) -> None:
        """Return when connected, or when that did not work at the first try: then it goes on in the background."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(ANSWER):
                await self._first_try()

    def run(self, errand: Coroutine[Any, Any, None]) -> None:
        """Run something that ends with the link at the latest."""
        if self._tasks is None:
            errand.close()
            return
        task = self._tasks.create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _first_try(self) -> None:
        if self._keeper is None:
            if self._tasks is None:
                raise ConnectionError("hints are closed")
            self._keeper = self._tasks.create_task(self._keep(), name="onward hints")
        await self._tried.wait()

    async def _keep(self) -> None:
        pause, was_down = _SHORTEST_PAUSE, False
        while self._tasks is not None:  # also where a library turned our cancellation into an error of its own
            try:
                async with self._connect() as wire:
                    self._wire = wire
                    self._tried.set()
                    if was_down:
                        # What was announced meanwhile is lost: have everybody look.
                        self._switchboard.wake_all()
                    pause, was_down = _SHORTEST_PAUSE, False
                    await self._send_unsent(wire)
                    await wire.hold()
            except Exception as error:  # noqa: BLE001 - one turn of a loop
                self._went_down(error, is_news=not was_down)
            was_down = True
            await asyncio.sleep(pause * random.uniform(0.75, 1.25))
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _send_unsent(self, wire: W) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent:
            try:
                async with asyncio.timeout(ANSWER):
                    await wire.send(unsent)
            except BaseException:
                self._send_later(unsent)
                raise

    def _send_later(self, hints: Sequence[Hint]) -> None:
        self._unsent = merged([*self._unsent, *hints])[:_MOST_UNSENT]

    def _went_down(self, error: Exception, *, is_news: bool) -> None:
        self._wire = None
        self._tried.set()
        if is_news:
            if self._lost is not None:
                self._lost(error)
            # From now on they look by themselves, and more often.
            self._switchboard.wake_all()
        logger.debug("hints are down, polling goes on: %s", error)

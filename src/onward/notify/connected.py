"""What adapters share that send hints over a connection: it is made when first needed, and again when it is lost.

Whoever may connect to the server may have written what comes in. A hint only ever says that a look may be worth it, so
that the worst a forged one can do is to cost a look. That stays true because everything in a payload is checked and cut
to size (`encoding.py`), because no name of a key or process is taken from it, and because no more is read than a
process can afford: beyond that its listeners look by themselves.
"""

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from onward.errors import ConfigurationError
from onward.notify.contract import Changed, Hint, Listener, ignore
from onward.notify.encoding import RationedReader, merged, no_command
from onward.notify.listeners import Listeners
from onward.pacing import Pacing
from onward.state.command import Command
from onward.transport import CONNECT

logger = logging.getLogger("onward.notify")
QUIET, ANSWER = 1.0, 1.5
"""Seconds without a word from the other end after which it is asked for one, and that it has to answer: a connection
that has silently died is noticed in less than three."""
_MOST_UNSENT = 1_000
_GATHER = 0.005
"""Seconds in which hints to pass on are gathered: where all are busy, one in a while says as much as many."""
_AFTER_FLOOD = 0.25
"""Seconds after which all look by themselves when more came in than is read."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 0.5
"""Seconds between tries to connect: few enough that hints are back when the other end is."""


class HintConnection(Protocol):
    """A connection that hands what it receives to whoever made it."""

    async def send(self, hints: Sequence[Hint]) -> None: ...
    async def hold(self) -> NoReturn:
        """Receive, and ask a quiet other end for a sign of life now and again; raises when the connection is lost."""
        ...


C = TypeVar("C", bound=HintConnection)


class ConnectedNotify(ABC, Generic[C]):
    """Keeps the connection, says when it is lost and when it is back, and sends later what could not be sent."""

    crosses_processes = True
    sees_commits = False
    hears_commands = False

    def __init__(self) -> None:
        self.command: Callable[[Sequence[Hint]], Command[None] | None] = no_command
        self._listeners = Listeners(self._pass_on)
        self._connection: C | None = None
        self.is_up = False
        self._unsent: list[Hint] = []
        self._tried = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._errands: set[asyncio.Task[None]] = set()
        self._passing: list[Hint] = []
        self._read = RationedReader(self._look_soon).read
        self._looks_at: asyncio.TimerHandle | None = None
        self._changed: Changed = ignore
        self._process = os.getpid()
        self._inherited: list[Any] = []

    @abstractmethod
    def _connect(self) -> AbstractAsyncContextManager[C]:
        """A connection that already listens."""
        ...

    async def _hear(self) -> None:
        """Somebody listens, perhaps the first one since the connection was made."""
        return

    @abstractmethod
    async def _redirect(self, connection: C, hints: Sequence[Hint]) -> None:
        """Have others follow hints about ready jobs that nobody here can follow."""
        ...

    # -- the contract

    async def open(self, tasks: asyncio.TaskGroup, changed: Changed = ignore) -> None:
        self._come_home()
        if self._tasks is not None:
            raise ConfigurationError("this notify adapter is in use already: every app needs one of its own")
        self._tasks, self._changed = tasks, changed
        self._tried = asyncio.Event()  # it may have been closed before, in another event loop

    def _come_home(self) -> None:
        """In a child of the process that opened it: connection and loop are the parent's, also to throw away."""
        if self._process != os.getpid():
            self._inherited.append((self._tasks, self._keeper, self._connection, self._errands, self._listeners))
            self._tasks = self._keeper = None
            self._use(None)
            self._errands, self._passing, self._unsent = set(), [], []
            self._listeners = Listeners(self._pass_on)
            self._process = os.getpid()

    async def close(self) -> None:
        ending = [*self._errands, *([self._keeper] if self._keeper else [])]
        self._keeper = self._tasks = None
        self._use(None)
        for task in ending:
            task.cancel()
        if self._looks_at is not None:
            self._looks_at.cancel()
            self._looks_at = None
        if ending:
            await asyncio.wait(ending)
        self._passing.clear()
        self._listeners.wake_all()

    async def announce(self, hints: Sequence[Hint]) -> None:
        """Send, or raise soon; what could not be sent leaves when the connection is back."""
        hints = merged(hints)
        if self._connection is None:
            self._listeners.deliver(hints)  # those in this process need no connection to hear of it
        try:
            await self._first_try()
            if self._connection is None:
                raise ConnectionError("hints are down: the other end cannot be reached")
            async with asyncio.timeout(ANSWER):
                await self._connection.send(hints)
        except BaseException:
            self._send_later(hints)
            raise

    @asynccontextmanager
    async def listen(
        self, *, types: Collection[str] = (), ended: Collection[str] = (), lost: bool = False, awaited: bool = False
    ) -> AsyncIterator[Listener]:
        async with self._listeners.listen(types=types, ended=ended, lost=lost, awaited=awaited) as listener:
            # The listener is active once we are connected; if the first try fails, it is by polling.
            with suppress(OSError, TimeoutError):
                await self._first_try()
            with suppress(Exception):  # the connection is lost, and listens when it is back
                await self._hear()
            yield listener

    # -- for adapters

    def _look_soon(self) -> None:
        """More came in than is read."""
        if self._looks_at is None:
            self._looks_at = asyncio.get_running_loop().call_later(_AFTER_FLOOD, self._look_by_ourselves)

    def _look_by_ourselves(self) -> None:
        self._looks_at = None
        self._listeners.wake_all()

    def _run(self, errand: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something beside, that ends with the adapter at the latest. If it fails, polling makes up for it."""
        if self._tasks is not None:
            task = self._tasks.create_task(self._quietly(errand))
            self._errands.add(task)
            task.add_done_callback(self._errands.discard)

    async def _quietly(self, errand: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await errand()
        except Exception as error:  # noqa: BLE001 - the connection is lost, and all look when it is back
            logger.debug("hints could not be shared out: %s", error)

    def _pass_on(self, hints: Sequence[Hint]) -> None:
        """Redirect hints, together with others that come at about the same time."""
        if not self._passing:
            self._run(self._pass_on_gathered)
        self._passing.extend(hints)

    async def _pass_on_gathered(self) -> None:
        await asyncio.sleep(_GATHER)
        hints, self._passing = merged(self._passing), []
        if self._connection is None:
            self._listeners.deliver(hints)
        else:
            await self._redirect(self._connection, hints)

    # -- the connection

    async def _first_try(self) -> None:
        if self._keeper is None:
            if self._tasks is None:
                raise ConnectionError("hints are closed")
            self._keeper = self._tasks.create_task(self._keep(), name="onward hints")
        async with asyncio.timeout(CONNECT):
            await self._tried.wait()

    async def _keep(self) -> None:
        pacing, was_down = Pacing(_SHORTEST_PAUSE, _LONGEST_PAUSE), False
        while self._tasks is not None:  # also where a library turned our cancellation into an error of its own
            try:
                async with self._connect() as connection:
                    self._use(connection)
                    self._tried.set()
                    if was_down:
                        self._came_back()
                    pacing.reset()
                    was_down = False
                    await self._send_unsent(connection)
                    await connection.hold()
            except Exception as error:  # noqa: BLE001 - one turn of a loop
                self._went_down(error, is_news=not was_down)
            was_down = True
            await asyncio.sleep(next(pacing))

    async def _send_unsent(self, connection: C) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent:
            try:
                async with asyncio.timeout(ANSWER):
                    await connection.send(unsent)
            except BaseException:
                self._send_later(unsent)
                raise

    def _send_later(self, hints: Sequence[Hint]) -> None:
        self._unsent = merged([*self._unsent, *hints])[:_MOST_UNSENT]

    def _use(self, connection: C | None) -> None:
        self._connection, self.is_up = connection, connection is not None

    def _went_down(self, error: Exception, *, is_news: bool) -> None:
        self._use(None)
        self._tried.set()
        if is_news and self._tasks is not None:
            self._changed(error)
            # From now on they look by themselves, and more often.
            self._listeners.wake_all()
        logger.debug("hints are down, polling goes on: %s", error)

    def _came_back(self) -> None:
        self._changed(None)
        # What was announced meanwhile is lost: have everybody look.
        self._listeners.wake_all()

"""How hints leave after a commit without the caller waiting for them."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from onward.lifecycle.effects import describe
from onward.notify.contract import Changed, Hint, NotifyAdapter
from onward.notify.encoding import merged
from onward.observe import events
from onward.observe.observer import Observers
from onward.state.command import Command
from onward.state.process import HomeProcess, leave_to_parent

logger = logging.getLogger("onward")
_BETWEEN_ROUNDS = 0.002
"""Seconds. The first hint leaves at once; in a stream of them one in so often wakes everybody as well."""
_AFTER_FAILURE = 1.0
"""Seconds for which no commit carries hints after one that did has failed: perhaps because of them."""
_WITH_ANOTHER_AT_MOST = 0.05
"""Seconds for which hints wait for somebody else's commit to take them along: it may have to wait itself."""
_FAREWELL = 2.0


class Carried(NamedTuple):
    """Hints that leave with a commit."""

    command: Command[None]
    hints: Sequence[Hint]
    waiting: Sequence[Hint]
    """Those among them that wait for no commit: to be posted again if this one comes to nothing, or takes its time."""
    too_late: asyncio.TimerHandle | None
    """Posts those again; to be cancelled when the commit is over."""


class Announcer(Protocol):
    """Takes hints after a commit, without waiting."""

    def post(self, hints: Sequence[Hint]) -> None: ...

    def carry(self, hints: Sequence[Hint]) -> Carried | None:
        """A command that sends these hints, and those that wait, with the commit it is part of: saves a round trip.

        None: post them after the commit. At most one commit in so often carries hints, because those that do wait for
        each other.
        """
        ...

    def take_back(self, carried: Carried) -> None:
        """A commit that carried hints came to nothing: those of others are to be sent all the same."""
        ...


class Posting:
    """For announcers that only ever post."""

    def carry(self, hints: Sequence[Hint]) -> Carried | None:
        return None

    def take_back(self, carried: Carried) -> None: ...


class BackgroundAnnouncer:
    """Sends hints from a task of its own: whatever came while the last round was under way goes into the next one."""

    def __init__(self, notify: NotifyAdapter, observers: Observers) -> None:
        self._notify, self._observers = notify, observers
        self._hints: list[Hint] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._home = HomeProcess()
        self._ready = asyncio.Event()
        self._ended = asyncio.Event()
        self._closing = self._is_failing = False
        self._next_round = 0.0
        self._next_carried = 0.0

    @property
    def is_running(self) -> bool:
        return self._loop is not None and not self._home.is_elsewhere

    def post(self, hints: Sequence[Hint]) -> None:
        self._hints.extend(hints)
        self._ready.set()

    def carry(self, hints: Sequence[Hint]) -> Carried | None:
        if self._loop is None or self._loop.time() < self._next_carried or not self._notify.hears_commands:
            return None
        merged_hints = merged([*self._hints, *hints])
        command = self._notify.command(merged_hints)
        if command is None:
            return None
        waiting, self._hints = self._hints, []
        self._next_carried = self._loop.time() + _BETWEEN_ROUNDS
        # A little later than the next that are carried: in a stream of starts, those take along what waits.
        self._next_round = self._next_carried + _BETWEEN_ROUNDS
        too_late = self._loop.call_later(_WITH_ANOTHER_AT_MOST, self.post, waiting) if waiting else None
        return Carried(command, merged_hints, waiting, too_late)

    def take_back(self, carried: Carried) -> None:
        if self._loop is not None:
            self._next_carried = self._loop.time() + _AFTER_FAILURE
        self.post(carried.waiting)

    def post_from_thread(self, hints: Sequence[Hint]) -> None:
        """`post` for code that runs in another thread than the event loop."""
        self._call(self.post, hints)

    def close_from_thread(self) -> None:
        """Have it end when it has sent what is left."""
        self._call(self._close)

    async def close(self) -> None:
        """Send what is left, if that is quickly done, then end."""
        self._close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL):
                await self._ended.wait()

    def start(self, tasks: asyncio.TaskGroup) -> asyncio.Task[None]:
        """Send whatever is posted from now on, until closed."""
        # Made anew: it may have been closed before, in another event loop.
        self._ready, self._ended = asyncio.Event(), asyncio.Event()
        if self._hints:
            self._ready.set()
        self._closing, self._is_failing, self._loop = False, False, asyncio.get_running_loop()
        self._home.move_in()
        self._next_round = self._next_carried = 0.0
        return tasks.create_task(self._run(), name="onward announcer")

    async def _run(self) -> None:
        try:
            await self._send_rounds()
        finally:
            self._loop = None
            self._ended.set()

    def _close(self) -> None:
        self._closing = True
        self._ready.set()

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        loop = self._loop
        if loop is not None and self.is_running:
            with suppress(RuntimeError):  # it has just been closed
                loop.call_soon_threadsafe(function, *arguments)

    async def _send_rounds(self) -> None:
        loop = asyncio.get_running_loop()
        while not (self._closing and not self._hints):
            await self._ready.wait()
            await asyncio.sleep(max(self._next_round - loop.time(), 0))
            self._ready.clear()
            hints, self._hints = self._hints, []
            if hints:
                await self._send(hints)
                self._next_round = loop.time() + _BETWEEN_ROUNDS
                self._next_carried = max(self._next_carried, self._next_round)

    async def _send(self, hints: Sequence[Hint]) -> None:
        try:
            async with asyncio.timeout(5):
                await self._notify.announce(sent := merged(hints))
            if self._observers.wants(events.HintsSent):
                self._observers.emit(events.HintsSent(count=len(sent)))
            if self._is_failing:
                self._is_failing = False
                self._observers.hints_work("announce")
        except Exception as error:  # noqa: BLE001 - one turn of a loop
            if not self._is_failing:  # while hints are down, saying so once is enough
                self._observers.emit(events.NotifyError(doing="announce", error=describe(error)))
            self._is_failing = True


class ThreadAnnouncer(Posting):
    """Sends the hints of threads without an event loop: by way of the open app's, or else from a thread with its own.

    So the adapters need no sync twins, and nobody waits for a broker. The thread runs from the first hint until
    `release`.
    """

    def __init__(
        self, notify: NotifyAdapter, observers: Observers, app: BackgroundAnnouncer, *, changed: Changed
    ) -> None:
        self._notify, self._observers, self._app, self._changed = notify, observers, app, changed
        self._home, self._turn = HomeProcess(), threading.Lock()
        self._own: BackgroundAnnouncer | None = None
        self._thread: threading.Thread | None = None

    @property
    def app_is_open(self) -> bool:
        return self._app.is_running

    def post(self, hints: Sequence[Hint]) -> None:
        if self.app_is_open:
            self._app.post_from_thread(hints)
            return
        self._come_home()
        with self._turn:
            if self._own is None:
                self._own = self._start()
            self._own.post_from_thread(hints)

    def release(self) -> None:
        """Send what is left, and end the thread."""
        self._come_home()
        with self._turn:
            if self._own is not None and self._thread is not None:
                self._own.close_from_thread()
                self._thread.join()
            self._own = self._thread = None

    def _come_home(self) -> None:
        """In a child of the process that opened the client: the thread is not here, and who held the lock neither."""
        if self._home.is_elsewhere:
            leave_to_parent(self._own, self._thread)
            self._turn, self._own, self._thread = threading.Lock(), None, None
            self._home.move_in()

    def _start(self) -> BackgroundAnnouncer:
        own, ready = BackgroundAnnouncer(self._notify, self._observers), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(own, ready), name="onward-announcer", daemon=True)
        self._thread.start()
        ready.wait()
        return own

    def _run(self, own: BackgroundAnnouncer, ready: threading.Event) -> None:
        try:
            asyncio.run(self._announce(own, ready))
        except Exception:
            logger.exception("hints can no longer be sent from threads; workers find jobs by polling")
        finally:
            ready.set()

    async def _announce(self, own: BackgroundAnnouncer, ready: threading.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            await self._notify.open(tasks, self._changed)
            running = own.start(tasks)
            ready.set()
            await asyncio.wait([running])
            await self._notify.close()

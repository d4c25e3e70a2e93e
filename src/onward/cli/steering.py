"""How a worker process is stopped: by signals, by its supervisor, or by a handler that does not stop."""

import asyncio
import faulthandler
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from types import FrameType
from typing import Never, Protocol

from onward.cli.console import say, say_at_once

SIGNALS = (signal.SIGINT, signal.SIGTERM)
NOT_STOPPED = 3
"""The exit code of a process that ended although a handler, or the database, kept it: start a new one."""
KILLED = 130
PATIENCE = 5.0
"""Seconds that handlers have to end when the grace period is over; a `def` handler in its thread may never do so."""
AT_ONCE = 0.75
"""The same after a second signal, which promises that every job is given back within 2 s."""
MARGIN = 0.75
"""Seconds that the event loop has for its last words."""


class Stop(IntEnum):
    """How hard to stop. Only ever rises, so that hearing the same from two sides does no harm."""

    DRAIN = 1
    GIVE_BACK = 2
    END = 3


class Steered(Protocol):
    """A worker, as far as it is stopped."""

    def stop(self) -> None:
        """Take no more jobs and let those running finish, within the grace period."""
        ...

    def give_back(self) -> None:
        """Stop working at once."""
        ...

    async def leave_stuck(self) -> list[str]:
        """Name what does not stop; the process ends next."""
        ...


class Steering:
    """Stops one worker, at the latest when its time is up.

    The first signal drains, the second gives jobs back, the third ends the process, however busy it is. A supervisor
    says the same through a pipe, and its death, the end of the pipe, drains: when a service manager signals every
    process of a service, a worker hears of one stop twice, and must not take that for the second signal.
    """

    def __init__(self, *, grace: float, lifeline: int | None = None) -> None:
        self._grace, self._lifeline = grace, lifeline
        self._reached = 0
        self._signals = 0
        self._deadlines: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._steered: tuple[Steered, asyncio.AbstractEventLoop] | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Heed signals and the supervisor from now on; before there is a worker, a stop ends the process."""
        before = {number: signal.signal(number, self._receive) for number in SIGNALS}
        if self._lifeline is not None:
            threading.Thread(target=self._listen, args=[self._lifeline], daemon=True).start()
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def steer(self, worker: Steered) -> Iterator[None]:
        """Stop this worker from now on."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._watch, args=[worker, loop], daemon=True).start()
        self._steered = worker, loop
        try:
            yield
        finally:
            self._steered = None

    def reach(self, how: Stop, why: str) -> None:
        """Stop at least this hard. For signal handlers and any thread."""
        if how <= self._reached:
            return
        self._reached = how
        if how is Stop.END:
            _last_words("ended at once; running jobs are left to their leases", KILLED)
        if self._steered is None:
            _last_words(f"{why}: stopped while no job was running", 0)
        worker, loop = self._steered
        self._deadlines.put(time.monotonic() + (self._grace + PATIENCE if how is Stop.DRAIN else AT_ONCE))
        loop.call_soon_threadsafe(self._drain if how is Stop.DRAIN else self._give_back, worker, why)

    def leave(self) -> None:
        """End the process now: nothing is left but handlers that do not stop."""
        self._deadlines.put(time.monotonic())

    def blocked(self, why: str) -> Never:
        """End the process now: its event loop does not turn. For any thread."""
        _last_words(why, NOT_STOPPED)

    # -- what is heard

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        self.reach(Stop(min(self._signals, Stop.END)), signal.Signals(number).name)

    def _listen(self, lifeline: int) -> None:
        while said := os.read(lifeline, 1):
            self.reach(Stop(said[0]), "the supervisor stops")
        self.reach(Stop.DRAIN, "the supervisor is gone")

    # -- what is done

    def _drain(self, worker: Steered, why: str) -> None:
        say(
            f"{why}: no more jobs are taken; those running have {self._grace:g} s to finish. "
            "A second signal gives them back at once."
        )
        worker.stop()

    def _give_back(self, worker: Steered, why: str) -> None:
        say(f"{why}: running jobs are given back for other workers. A third signal ends this process.")
        worker.stop()
        worker.give_back()

    def _watch(self, worker: Steered, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread, because a handler may block the event loop: end the process when its time is up."""
        deadline = self._deadlines.get()
        while (left := deadline - time.monotonic()) > 0:
            with suppress(queue.Empty):
                deadline = min(deadline, self._deadlines.get(timeout=left))
        words = self._leave(worker, loop)
        if words is None and self._reached == Stop.GIVE_BACK:
            time.sleep(PATIENCE - AT_ONCE)  # every job is given back: the rest is taking leave of the database
            words = self._leave(worker, loop)
        _last_words(words or "the database does not answer: ended; its jobs are left to their leases", NOT_STOPPED)

    def _leave(self, worker: Steered, loop: asyncio.AbstractEventLoop) -> str | None:
        """Give back what is left; why this process does not end by itself, if handlers are to blame."""
        if loop.is_closed():
            faulthandler.dump_traceback()
            return "the worker has stopped, but another thread (see above) does not end: ended without it"
        try:
            names = asyncio.run_coroutine_threadsafe(worker.leave_stuck(), loop).result(MARGIN)
        except TimeoutError:
            faulthandler.dump_traceback()
            return "a handler blocks the event loop (see above): ended without it; its jobs are left to their leases"
        return f"a handler does not stop ({', '.join(names)}): ended without it" if names else None


def _last_words(words: str, code: int) -> Never:
    say_at_once(words)
    os._exit(code)

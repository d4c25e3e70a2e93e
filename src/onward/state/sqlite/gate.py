"""Who writes next: a queue for the threads of one process, and gaps for the other processes.

SQLite lets one connection write at a time and has no queue for the others: they try again until they find a gap. So
that a busy process leaves gaps to be found, it pauses now and then, for longer than a waiting one sleeps between tries.
"""

import logging
import random
import time
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

from onward.errors import DatabaseLocked

logger = logging.getLogger(__name__)

_POLL = 0.0005
"""The mean sleep between two tries."""
_GAP = 0.0015
"""Longer than any sleep between two tries, so that whoever waits finds the gap."""
_STRETCH_ALONE = 0.2
"""How long a process writes without a gap when nobody else seems to be there."""
_STRETCH_CONTENDED = 0.02
_REMEMBERED = 2.0
"""For how long another writer, once met, is taken to be still there."""
_WARN_AFTER = 10.0


class Abandoned(Exception):
    """Nobody waits for the answer any more; nothing was done."""


class LockLimit(NamedTuple):
    """How long a call waits for the write lock. Workers wait for ever: what they have to say must be stored."""

    seconds: float
    path: str

    def check(self, began: float) -> None:
        """Raise when it has waited for too long."""
        waited = time.monotonic() - began
        if waited > self.seconds:
            raise DatabaseLocked(path=self.path, waited=waited)


class Gate:
    """Lets the threads of this process write one after another, in the order in which they came."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._queue: deque[Lock] = deque()
        self._taken = False
        self._stretch_began = self._left_at = self._met_at = float("-inf")

    @property
    def is_taken(self) -> bool:
        """Whether somebody writes."""
        return self._taken

    def enter(self, is_abandoned: Callable[[], bool], patience: LockLimit | None = None) -> None:
        """Wait for the turn of this thread; raises Abandoned when `is_abandoned` says so meanwhile."""
        with self._mutex:
            if not self._taken:
                self._taken = True
                return
            turn = Lock()
            turn.acquire()
            self._queue.append(turn)
        began = time.monotonic()
        try:
            while True:
                if is_abandoned():  # asked before the first wait too: who is asked tells then what was done before
                    raise Abandoned
                if turn.acquire(timeout=0.05):
                    return
                if patience is not None:
                    patience.check(began)
        except BaseException:
            self._withdraw(turn)
            raise

    def leave(self) -> None:
        """Let the next thread in."""
        self._left_at = time.monotonic()
        with self._mutex:
            if self._queue:
                self._queue.popleft().release()
            else:
                self._taken = False

    def _withdraw(self, turn: Lock) -> None:
        with self._mutex:
            if turn in self._queue:
                self._queue.remove(turn)
                return
        self.leave()  # it was our turn already

    def leave_a_gap(self) -> None:
        """Called before writing, with the gate entered: pause if this process has been writing for long."""
        now = time.monotonic()
        if now - self._left_at >= _GAP:
            self._stretch_began = now
            return
        stretch = _STRETCH_CONTENDED if now - self._met_at < _REMEMBERED else _STRETCH_ALONE
        if now - self._stretch_began >= stretch:
            time.sleep(_GAP)
            self._stretch_began = time.monotonic()

    def met_another(self) -> None:
        """Another process, or a connection of the application's own, was writing."""
        self._met_at = time.monotonic()


class LockWait:
    """The sleeps between tries while somebody else has the lock."""

    def __init__(self, is_abandoned: Callable[[], bool], limit: LockLimit | None = None) -> None:
        self._is_abandoned, self._limit = is_abandoned, limit
        self._began = time.monotonic()
        self._warned = False

    def wait(self) -> None:
        """Sleep for a moment; raises Abandoned when nobody waits for the answer any more."""
        if self._is_abandoned():
            raise Abandoned
        if self._limit is not None:
            self._limit.check(self._began)
        waited = time.monotonic() - self._began
        if waited > _WARN_AFTER and not self._warned:
            self._warned = True
            logger.warning(
                "waiting for the write lock of the SQLite file for %.0f s: is a transaction of your own open? "
                "Pass it as tx=, or end it before you call Onward",
                waited,
            )
        time.sleep(random.uniform(0.5, 1.5) * _POLL)

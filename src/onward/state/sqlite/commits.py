"""The commits to a file, as they happen: who waits for one is woken by the system, and looks now and then anyway."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from threading import Event

from onward.state.process import HomeProcess
from onward.state.sqlite.connection import SyncSqliteConnection
from onward.state.sqlite.gate import Abandoned
from onward.state.sqlite.writes import Writes

_LOOK = 0.01
"""Seconds between two looks at the change counter in a stream of commits, and where nobody tells of writes."""
_LOOK_ANYWAY = 0.1
"""The same where writes are told and there are none."""
_FIRST_AFTER_COMMIT, _FIRST_AFTER_WRITE = _LOOK / 4, _LOOK / 32
_PATIENCE = 1.0
"""Seconds in which a write turns out to be a commit: before others can see it, it may have to reach the disk."""
_MOST_MISSED = 3


class Rhythm:
    """When to look next, from what the last looks found."""

    def __init__(self) -> None:
        self.is_told = True
        """Whether writes are told; a network's file system may tell only of some."""
        self.pause: float | None = None
        """Seconds until the next look; None: it is due when somebody writes."""
        self._missed = 0
        self._due = 0.0
        """For how long what was written may still be committed."""

    def looked(self, *, written: bool, changed: bool) -> None:
        """A look has found what was committed; `written`: something was written since the one before it."""
        if changed and self.pause is None:
            self._missed = 0 if written else self._missed + 1
            self.is_told = self._missed < _MOST_MISSED
        if not (written or changed) and self._due <= 0:
            self.pause = None
            return
        self._due = 0.0 if changed else _PATIENCE if written else self._due - (self.pause or 0.0)
        first = _FIRST_AFTER_COMMIT if changed else _FIRST_AFTER_WRITE
        self.pause = first if self.pause is None else min(2 * self.pause, _LOOK)


class FileCommits:
    """Watches a file from a thread, until another stops it."""

    def __init__(self, connect: Callable[[Callable[[], bool]], SyncSqliteConnection], path: Path) -> None:
        self._connect, self._path = connect, path
        self._stopped, self._home = Event(), HomeProcess()
        self._writes: Writes | None = None

    def seen(self) -> Iterator[None]:
        """A turn for every time that one or several commits are seen, whosever they are."""
        with suppress(Abandoned), closing(self._connect(self._stopped.is_set)) as connection:
            last, rhythm = connection.data_version(), Rhythm()
            self._writes = self._told_of_writes()
            try:
                while not self._stopped.is_set():
                    written = self._wait(rhythm)
                    now = connection.data_version()
                    if now != last:
                        yield
                    rhythm.looked(written=written, changed=now != last)
                    last = now
            finally:
                if self._writes is not None:
                    self._writes.close()

    def stop(self) -> None:
        self._stopped.set()
        if self._writes is not None and not self._home.is_elsewhere:  # else it would wake the parent's thread
            self._writes.wake()

    def _told_of_writes(self) -> Writes | None:
        try:
            # Beside the file that a link leads to. Having looked, we are connected, so that it exists and stays.
            return Writes(f"{os.path.realpath(self._path)}-wal")
        except (OSError, AttributeError, ImportError):  # a C library may lack it, and a Python ctypes
            return None

    def _wait(self, rhythm: Rhythm) -> bool:
        """Until the next look; whether something was written meanwhile."""
        if self._writes is None or not rhythm.is_told:
            self._stopped.wait(_LOOK)
            return False
        if rhythm.pause is None:
            return self._writes.wait(_LOOK_ANYWAY)
        self._stopped.wait(rhythm.pause)
        return self._writes.wait(0)

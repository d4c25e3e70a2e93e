"""The file behind a family of drivers, and how to reach it."""

import os
import sqlite3
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Literal, TypeAlias
from urllib.parse import unquote, urlsplit

from onward.addresses import shown
from onward.errors import ConfigurationError
from onward.state.driver import Address
from onward.state.process import HomeProcess
from onward.state.sqlite.commits import FileCommits
from onward.state.sqlite.connection import SyncSqliteConnection, never
from onward.state.sqlite.gate import Gate, LockLimit
from onward.state.sqlite.private import make_folder
from onward.state.sqlite.version import require_version

Synchronous: TypeAlias = Literal["off", "normal", "full", "extra"]
"""`normal`: a killed process loses nothing, a power failure may lose the last commits; `full` also survives that."""

_SYNCHRONOUS = {
    "off": "PRAGMA synchronous = OFF",
    "normal": "PRAGMA synchronous = NORMAL",
    "full": "PRAGMA synchronous = FULL",
    "extra": "PRAGMA synchronous = EXTRA",
}


def parse_path(url: str) -> str | None:
    """The path in a URL; None for `memory://`, a private file that goes with the app.

    >>> parse_path("sqlite:///jobs.db"), parse_path("sqlite:////var/jobs.db"), parse_path("memory://")
    ('jobs.db', '/var/jobs.db', None)
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # it shows what it does not like
        raise ConfigurationError(f"{shown(url)}: cannot be read; write sqlite:///file.db or memory://") from None
    if parts.scheme == "memory" and not parts.netloc and parts.path in ("", "/"):
        return None
    path = unquote(parts.path[1:])
    if parts.scheme != "sqlite" or parts.netloc or not path or parts.query or parts.fragment:
        raise ConfigurationError(
            f"{shown(url)}: write sqlite:///relative/path.db, sqlite:////absolute/path.db or memory://, without options"
        )
    if path == ":memory:":
        raise ConfigurationError(
            f"{shown(url)}: a database in memory belongs to one connection; write memory:// instead"
        )
    return path


class SqliteFile:
    """A database file, shared by an async driver and its sync sibling: one gate for all their connections."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        synchronous: Synchronous = "normal",
        lock_timeout: float | None = None,
    ) -> None:
        if synchronous not in _SYNCHRONOUS:
            raise ConfigurationError(f"synchronous={synchronous!r}: use one of {', '.join(_SYNCHRONOUS)}")
        self.gate = Gate()
        self._lock_timeout = lock_timeout
        # Absolute from the start: the process may change its directory.
        self._path = None if path is None else Path(path).absolute()
        self._synchronous = "off" if path is None else synchronous
        self._is_private = path is None
        self._users = 0
        self._home = HomeProcess()
        self._mutex = Lock()

    @property
    def path(self) -> Path:
        """Where it is; a private file has a place while a driver is open."""
        if self._path is None:
            raise ConfigurationError("the app is not open: use `async with app:` around this call")
        return self._path

    @property
    def address(self) -> Address | None:
        """How another process finds it; None for a private file, which goes with this process."""
        if self._is_private:
            return None
        return Address("sqlite3", {"path": str(self.path), "pragmas": self._pragmas()})

    def open(self) -> None:
        """One more driver uses it."""
        require_version()
        if not self._is_private and not self.path.parent.is_dir():
            raise ConfigurationError(f"{self.path}: the directory {self.path.parent} does not exist: make it first")
        if self._users and self._home.is_elsewhere:
            self._forked()
        self._home.move_in()
        with self._mutex:
            self._users += 1
            if self._path is None:
                self._folder = make_folder()
                self._path = Path(self._folder) / "jobs.db"
                # Also when nobody closes the app: at the end of the process.
                self._remove = weakref.finalize(self, _remove, self._folder, HomeProcess())

    def make(self) -> None:
        """Make the file for its owner alone, unless it exists; what SQLite puts beside it follows its example."""
        with suppress(OSError):  # it exists, or cannot be made: SQLite will say why
            # Where a link leads, as SQLite does: there may be nothing yet.
            os.close(os.open(os.path.realpath(self.path), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    def _forked(self) -> None:
        """In a child: the parent's threads are not here. One that was writing SQLite takes for one of ours."""
        if self.gate.is_taken:
            self._home.require()
        self.gate, self._mutex, self._users = Gate(), Lock(), 0

    def close(self) -> None:
        """One less; a private file goes with the last."""
        with self._mutex:
            self._users -= 1
            if self._users == 0 and self._is_private:
                self._remove()
                self._path = None

    def impatient(self, is_abandoned: Callable[[], bool] = never) -> SyncSqliteConnection:
        """A connection for calls, which do not wait for ever when somebody else has the lock."""
        return self.connect(is_abandoned, patience=self.patience)

    @property
    def patience(self) -> LockLimit | None:
        """How long calls wait for the lock, and what they say then."""
        return None if self._lock_timeout is None else LockLimit(self._lock_timeout, str(self._path))

    def connect(
        self, is_abandoned: Callable[[], bool] = never, *, patience: LockLimit | None = None
    ) -> SyncSqliteConnection:
        """A connection that works where it is called, for one thread at a time, and waits for the lock for ever; also
        while it is made.
        """
        self.make()
        raw = sqlite3.connect(
            self.path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        connection = SyncSqliteConnection(raw, gate=self.gate)
        connection.is_abandoned, connection.patience = is_abandoned, patience
        try:
            for pragma in self._pragmas():
                connection.prepare(pragma)
        except BaseException:
            connection.close()
            raise
        return connection

    def commits(self) -> FileCommits:
        """What anybody commits to it from now on, for a thread to watch."""
        return FileCommits(self.connect, self.path)

    def _pragmas(self) -> list[str]:
        return [
            "PRAGMA journal_mode = WAL",
            _SYNCHRONOUS[self._synchronous],
            "PRAGMA foreign_keys = OFF",
            "PRAGMA temp_store = MEMORY",
            "PRAGMA cache_size = -8000",
        ]


def _remove(folder: str, home: HomeProcess) -> None:
    import shutil  # for memory:// only

    if not home.is_elsewhere:  # else it is the parent's
        shutil.rmtree(folder, ignore_errors=True)

"""Writes to a file, told by the operating system: by inotify on Linux, by kqueue on macOS and the BSDs."""

import os
import select
from contextlib import suppress
from threading import Lock
from typing import Any, Protocol

_IN_MODIFY = 0x2


class Writes:
    """Wakes a thread that waits for somebody, in whatever process, to write to a file.

    Who writes need not know of it, and nothing is left beside the file. What other machines write is not told.
    """

    def __init__(self, path: str) -> None:
        """Raises OSError where the system cannot tell."""
        self._source = _source(path)
        try:
            self._woken, self._waking = os.pipe()
        except OSError:
            self._source.close()
            raise
        self._poll = select.poll()
        self._poll.register(self._source.fileno(), select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)
        self._mutex, self._is_closed = Lock(), False

    def wait(self, seconds: float) -> bool:
        """Wait until the file is written to, at most that long; whether it was, since the last call."""
        self._poll.poll(seconds * 1000)
        return self._source.heard()

    def wake(self) -> None:
        """End the wait under way and all that follow; for other threads."""
        with self._mutex:
            if not self._is_closed:
                os.write(self._waking, b"\0")

    def close(self) -> None:
        with self._mutex:
            self._is_closed = True
            for descriptor in (self._woken, self._waking):
                os.close(descriptor)
            self._source.close()


class _Source(Protocol):
    def fileno(self) -> int: ...

    def heard(self) -> bool:
        """Whether there is something to be heard, which then is forgotten."""
        ...

    def close(self) -> None: ...


def _source(path: str) -> _Source:
    if hasattr(select, "epoll"):
        return _Inotify(path)
    if hasattr(select, "kqueue"):
        return _Kqueue(path)
    raise OSError("this system does not tell of writes")


class _Inotify:
    def __init__(self, path: str) -> None:
        import ctypes  # which is not needed by those who only start jobs

        libc: Any = ctypes.CDLL(None, use_errno=True)
        self._descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        if libc.inotify_add_watch(self._descriptor, os.fsencode(path), _IN_MODIFY) < 0:
            number = ctypes.get_errno()
            self.close()
            raise OSError(number, "inotify_add_watch", path)

    def fileno(self) -> int:
        return self._descriptor

    def heard(self) -> bool:
        with suppress(BlockingIOError):
            return bool(os.read(self._descriptor, 65_536))
        return False

    def close(self) -> None:
        os.close(self._descriptor)


class _Kqueue:
    def __init__(self, path: str) -> None:
        queue: Any = select
        self._queue = queue.kqueue()
        # To close it would end the locks that this process has on the file; on a write-ahead log SQLite keeps none.
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        wanted = queue.kevent(
            self._file,
            filter=queue.KQ_FILTER_VNODE,
            flags=queue.KQ_EV_ADD | queue.KQ_EV_CLEAR,
            fflags=queue.KQ_NOTE_WRITE | queue.KQ_NOTE_EXTEND,
        )
        self._queue.control([wanted], 0)

    def fileno(self) -> int:
        number: int = self._queue.fileno()
        return number

    def heard(self) -> bool:
        return bool(self._queue.control(None, 8, 0))

    def close(self) -> None:
        self._queue.close()
        os.close(self._file)

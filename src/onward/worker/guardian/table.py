"""What a worker tells its guardian in memory that both see, so that a worker stuck in a call has already said it all.

Nothing but the standard library: the child process imports this file without the rest of Onward.

    renewed, turned, waited   seconds, written by the child
    beat                      seconds, written by the worker's event loop
    stopping                  seconds, since when it takes no more jobs; 0: it takes some
    lease × leases            attempt (0: free), seconds, deadline (0: none), job id
    process × processes       pid (0: free), when it was started

A lease is published by writing its attempt last and withdrawn by writing 0 there, so that a worker killed in the middle
leaves nothing half-said. A reader copies everything twice and believes what is in both.
"""

import mmap
import os
import struct
import zlib
from dataclasses import dataclass
from typing import NamedTuple

_HEADER = struct.Struct("<ddddd")
_TIME = struct.Struct("<d")
_LEASE = struct.Struct("<iidd16s")
_LEASE_BODY = struct.Struct("<dd16s")
_ATTEMPT = struct.Struct("<i")
_PROCESS = struct.Struct("<qq")
_TURNED, _WAITED, _BEAT, _STOPPING = 8, 16, 24, 32
_BODY = 8
_PROC = "/proc"
_BLOCKED = 2.0
"""Seconds without a beat after which an event loop counts as blocked."""


def is_overdue(deadline: float, beat: float, now: float) -> bool:
    """Whether an attempt's time ran out while the event loop was blocked; while it turns, it sees to that itself."""
    return beat < deadline < now and now > beat + _BLOCKED


def blocked_for(beat: float, now: float) -> float | None:
    """For how many seconds an event loop that last turned at `beat` has been blocked; None: it turns."""
    return now - beat if now > beat + _BLOCKED else None


def overdue_message(blocked_for: float) -> str:
    """What the error of such an attempt says."""
    return f"the event loop was blocked beyond the attempt's timeout and grace period ({blocked_for:.1f} s so far)"


class Entry(NamedTuple):
    """A lease in the table."""

    job_id: bytes
    attempt: int
    seconds: float
    deadline: float
    """When the attempt should have ended (monotonic; 0.0: whenever it likes)."""


class TableFull(Exception):
    """More leases or processes than the table has places for."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How many fit in."""

    leases: int
    processes: int

    @property
    def size(self) -> int:
        """In bytes."""
        return _HEADER.size + self.leases * _LEASE.size + self.processes * _PROCESS.size


class Writer:
    """The worker's side. One thread writes."""

    def __init__(self, shape: Shape) -> None:
        self.descriptor = _shared_memory(shape.size)
        self._memory = mmap.mmap(self.descriptor, shape.size)
        lease_end = _HEADER.size + shape.leases * _LEASE.size
        self._free = list(range(_HEADER.size, lease_end, _LEASE.size))
        self._free_processes = list(range(lease_end, shape.size, _PROCESS.size))
        self._processes: dict[int, int] = {}

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()
        os.close(self.descriptor)

    def put(self, job_id: bytes, attempt: int, seconds: float, deadline: float = 0.0) -> int:
        """Publish a lease; its place."""
        if not self._free:
            raise TableFull
        place = self._free.pop()
        _LEASE_BODY.pack_into(self._memory, place + _BODY, seconds, deadline, job_id)
        _ATTEMPT.pack_into(self._memory, place, attempt)
        return place

    def clear(self, place: int) -> None:
        """Withdraw a lease."""
        _ATTEMPT.pack_into(self._memory, place, 0)
        self._free.append(place)

    def add_process(self, pid: int) -> None:
        """Publish a process."""
        if not self._free_processes:
            raise TableFull
        self._processes[pid] = place = self._free_processes.pop()
        _PROCESS.pack_into(self._memory, place, pid, started_at(pid))

    def remove_process(self, pid: int) -> None:
        """Withdraw a process; harmless for one that is not there."""
        place = self._processes.pop(pid, None)
        if place is not None:
            _PROCESS.pack_into(self._memory, place, 0, 0)
            self._free_processes.append(place)

    def beat(self, now: float) -> None:
        """The event loop turns."""
        _TIME.pack_into(self._memory, _BEAT, now)

    def stopping(self, now: float) -> None:
        """The worker takes no more jobs."""
        _TIME.pack_into(self._memory, _STOPPING, now)

    def anew(self) -> None:
        """Another child is about to come up."""
        _TIME.pack_into(self._memory, _TURNED, 0.0)

    @property
    def renewed(self) -> float:
        """When the last renewal that succeeded was begun (monotonic; 0.0: none has)."""
        return float(_TIME.unpack_from(self._memory, 0)[0])

    @property
    def turned(self) -> float:
        """When the child last said that it is alive (monotonic; 0.0: never)."""
        return float(_TIME.unpack_from(self._memory, _TURNED)[0])

    @property
    def waited(self) -> float:
        """When the child last said that its renewal waits for the file's write lock (monotonic; 0.0: it does not)."""
        return float(_TIME.unpack_from(self._memory, _WAITED)[0])


class Reader:
    """The child's side."""

    def __init__(self, descriptor: int, shape: Shape) -> None:
        self._memory = mmap.mmap(descriptor, shape.size)
        self._leases = slice(_HEADER.size, _HEADER.size + shape.leases * _LEASE.size)
        self._processes = slice(self._leases.stop, shape.size)

    def held(self) -> list[Entry]:
        """Every lease that was held all the while this took."""
        copies = [_LEASE.iter_unpack(self._memory[self._leases]) for _ in range(2)]
        return [
            Entry(one[4], one[0], one[2], one[3]) for one, again in zip(*copies, strict=True) if one[0] and one == again
        ]

    @property
    def beat(self) -> float:
        """When the worker's event loop last turned (monotonic)."""
        return float(_TIME.unpack_from(self._memory, _BEAT)[0])

    @property
    def is_stopping(self) -> bool:
        """Whether the worker takes no more jobs."""
        return bool(_TIME.unpack_from(self._memory, _STOPPING)[0])

    def processes(self) -> list[int]:
        """The processes of the worker that are still the same: a pid may be used again."""
        published = _PROCESS.iter_unpack(self._memory[self._processes])
        return [pid for pid, started in published if pid and started != -1 and started_at(pid) == started]

    def renewed(self, begun: float) -> None:
        """Everything held at that time has been renewed."""
        _TIME.pack_into(self._memory, 0, begun)

    def turned(self, now: float) -> None:
        """The child is alive."""
        _TIME.pack_into(self._memory, _TURNED, now)

    def waited(self, now: float) -> None:
        """The child waits for the write lock; 0.0: no longer."""
        _TIME.pack_into(self._memory, _WAITED, now)


def started_at(pid: int) -> int:
    """When a process was started, as a number that is another for another process; -1 where the system does not say,
    or it has ended.
    """
    if os.path.exists(f"{_PROC}/self/stat"):
        fields = _stat(pid)
        return int(fields[19]) if len(fields) > 19 else -1
    said = _ask_ps(pid, "lstart=")
    return zlib.crc32(said) if said else -1


def is_stopped(pid: int) -> bool:
    """Whether somebody has stopped a process, and may let it go on; False where the system does not say."""
    if os.path.exists(f"{_PROC}/self/stat"):
        return _stat(pid)[:1] in ([b"T"], [b"t"])
    return _ask_ps(pid, "state=")[:1] == b"T"


def _stat(pid: int) -> list[bytes]:
    """What Linux says of a process, behind its name; nothing if it has ended."""
    try:
        with open(f"{_PROC}/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def _ask_ps(pid: int, what: str) -> bytes:
    """The same on macOS and the BSDs, which have no /proc."""
    import subprocess  # not before it is needed: the child of a worker starts without it

    command, surroundings = ["ps", "-o", what, "-p", str(pid)], {"PATH": "/bin:/usr/bin", "LC_ALL": "C", "TZ": "UTC"}
    try:
        return subprocess.run(command, capture_output=True, env=surroundings, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return b""


def _shared_memory(size: int) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("onward-leases")
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor

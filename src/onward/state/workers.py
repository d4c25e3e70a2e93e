"""Workers as rows: alike on every database but for how times and ids are spelled."""

import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from onward.model import WorkerId
from onward.operating import RunningJob, WorkerInfo
from onward.state.command import Command, Operation, Rows, Steps, steps
from onward.state.driver import Connection, transaction
from onward.state.rows import as_integer, as_text, optional
from onward.state.statement import Statements

_KEPT = 86_400.0
"""Seconds for which a dead worker is remembered."""
AHEAD = 60.0
"""Seconds that a sign of life may lie in the future: a clock was set back, and whoever lives soon gives another."""
LATELY = 600.0
"""Seconds after its promise for which a worker on a file, kept from writing by others, may still be alive."""
_COLUMNS = (
    "id", "host", "pid", "version", "onward_version", "types", "concurrency", "started_at", "seen_at", "is_alive",
    "is_stopping", "blocked_since", "job_id", "chain_id", "type_name", "payload_version", "attempt", "leased_until",
)  # fmt: skip
"""What `list_workers.sql` returns: first those of workers, then those of the jobs that run."""
_STATES = ("alive", "stopping", "dead")
T = TypeVar("T")
Fetch: TypeAlias = Callable[[Connection, str, dict[str, Any], int], Awaitable[Rows]]
"""The rows of a statement that has a name, and so many columns."""
_decode_types = msgspec.json.Decoder(dict[str, tuple[int, ...]]).decode


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of itself once and for all."""

    id: WorkerId
    host: str
    pid: int
    version: str | None
    onward_version: str
    types: Mapping[str, Sequence[int]]
    concurrency: int


class SignOfLife(msgspec.Struct, frozen=True, kw_only=True):
    """What it says again and again."""

    age: float
    """Seconds since it was started."""
    promise: float
    """Seconds until it counts as dead if it gives no other."""
    is_stopping: bool = False
    blocked_for: float | None = None
    """Seconds for which its event loop has not turned; None: it turns."""


class WorkerCommands(msgspec.Struct, frozen=True):
    """What the methods of the same name run, for a process that puts in its own values."""

    sign: tuple[Command[Any], ...]
    """Several make one transaction."""
    bury: Command[Any]


class WorkerStatements:
    """Who works, and for what jobs somebody should."""

    def __init__(
        self,
        sql: Statements,
        *,
        signs: Sequence[str],
        now: Callable[[], Any],
        read_time: Callable[[Any], datetime],
        read_id: Callable[[Any], Any],
        fetch: Fetch | None = None,
    ) -> None:
        """`signs`: the statements of a sign of life. `fetch`: how to read where a file may hold anything."""
        self._sql, self._signs, self._now = sql, signs, now
        self._read_time, self._read_id, self._fetch = read_time, read_id, fetch

    def commands(self, worker: WorkerRow) -> WorkerCommands:
        """What a process of its own runs to keep the row of a worker."""
        return WorkerCommands(self._sign(worker, SignOfLife(age=0.0, promise=0.0)), self.bury(worker.id))

    def sign(self, worker: WorkerRow, sign: SignOfLife) -> Operation[None]:
        """A sign of life. The row is made where there is none; rows of workers that died long ago are removed.

        Waits for nobody who has locked a row.
        """
        commands = self._sign(worker, sign)
        return commands[0] if len(commands) == 1 else self._together(commands)

    @steps
    async def _together(self, connection: Connection, commands: Sequence[Command[None]]) -> None:
        async with transaction(connection):
            for command in commands:
                await connection.run(command)

    def _sign(self, worker: WorkerRow, sign: SignOfLife) -> tuple[Command[None], ...]:
        parameters = {
            "worker": worker.id,
            "host": worker.host,
            "pid": worker.pid,
            "version": worker.version,
            "onward_version": worker.onward_version,
            "types": msgspec.json.encode(worker.types).decode(),
            "concurrency": worker.concurrency,
            **msgspec.structs.asdict(sign),
            "kept": _KEPT,
            "now": self._now(),
        }
        return tuple(Command(self._sql(name), parameters) for name in self._signs)

    def bury(self, worker: WorkerId) -> Command[None]:
        """A worker was seen to die: it counts as dead from now on, unless it gives a sign of life."""
        return Command(self._sql("bury_worker"), {"worker": worker, "now": self._now()})

    def remove(self, worker: WorkerId) -> Command[None]:
        """A worker has stopped in order."""
        return Command(self._sql("remove_worker"), {"worker": worker})

    def list(self) -> Operation[Sequence[WorkerInfo]]:
        """Every worker that has a row or holds a job: those that live first, then in the order in which they started.

        Reads as many index entries as jobs run. A row that cannot be read is left out.
        """
        parameters = {"ahead": AHEAD, "lately": LATELY, "now": self._now()}
        return self._asked("list_workers", parameters, len(_COLUMNS), self._read)

    # -- rows

    def _asked(self, name: str, parameters: dict[str, Any], columns: int, read: Callable[[Rows], T]) -> Operation[T]:
        fetch = self._fetch
        if fetch is None:
            return Command(self._sql(name), parameters, read)

        async def look(connection: Connection) -> T:
            return read(await fetch(connection, name, parameters, columns))

        return Steps(look)

    def _read(self, rows: Rows) -> Sequence[WorkerInfo]:
        found: list[dict[str, Any]] = [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
        held: dict[WorkerId, list[_Held]] = {}
        for row in found:
            if row["job_id"] is not None and (one := _if_readable(self._held, row)) is not None:
                held.setdefault(one.worker, []).append(one)
        known = [_if_readable(self._known, row, held) for row in found if row["job_id"] is None]
        workers = [worker for worker in known if worker is not None]
        workers += [_stranger(id, jobs) for id, jobs in held.items() if id not in {worker.id for worker in workers}]
        return sorted(workers, key=lambda worker: (_STATES.index(worker.state), worker.started_at, worker.id))

    def _known(self, row: dict[str, Any], held: Mapping[WorkerId, Sequence["_Held"]]) -> WorkerInfo:
        is_alive = _lives_here(row["host"], row["pid"]) if row["is_alive"] is None else row["is_alive"]
        return WorkerInfo(
            id=as_text(row["id"]),
            host=as_text(row["host"]),
            pid=as_integer(row["pid"]),
            version=optional(as_text)(row["version"]),
            onward_version=as_text(row["onward_version"]),
            types=_decode_types(row["types"]),
            concurrency=as_integer(row["concurrency"]),
            started_at=self._read_time(row["started_at"]),
            seen_at=self._read_time(row["seen_at"]),
            state="dead" if not is_alive else "stopping" if row["is_stopping"] else "alive",
            blocked_since=None if row["blocked_since"] is None else self._read_time(row["blocked_since"]),
            running=_running(held.get(row["id"], ())),
        )

    def _held(self, row: dict[str, Any]) -> "_Held":
        job = RunningJob(
            job_id=self._read_id(row["job_id"]),
            chain_id=self._read_id(row["chain_id"]),
            type_name=as_text(row["type_name"]),
            attempt=row["attempt"],
            leased_until=self._read_time(row["leased_until"]),
        )
        seen_at = self._read_time(row["seen_at"])
        return _Held(as_text(row["id"]), job, row["payload_version"], seen_at, bool(row["is_alive"]))


class _Held(NamedTuple):
    worker: WorkerId
    job: RunningJob
    payload_version: int
    seen_at: datetime
    is_alive: bool


def _stranger(id: WorkerId, jobs: Sequence[_Held]) -> WorkerInfo:
    """A worker of an older version, or one whose row was just deleted: what its leases tell."""
    types: dict[str, set[int]] = {}
    for held in jobs:
        types.setdefault(held.job.type_name, set()).add(held.payload_version)
    seen_at = max(held.seen_at for held in jobs)
    return WorkerInfo(
        id=id,
        host="",
        pid=0,
        version=None,
        onward_version="",
        types={name: tuple(sorted(versions, reverse=True)) for name, versions in types.items()},
        concurrency=0,
        started_at=seen_at,
        seen_at=seen_at,
        state="alive" if any(held.is_alive for held in jobs) else "dead",
        running=_running(jobs),
        is_known=False,
    )


def _running(jobs: Sequence[_Held]) -> Sequence[RunningJob]:
    return sorted((held.job for held in jobs), key=lambda job: job.job_id)


def _if_readable(read: Callable[..., T], *arguments: Any) -> T | None:
    try:
        return read(*arguments)
    except Exception:  # noqa: BLE001 - whatever a hand has written there
        return None


def _lives_here(host: str, pid: int) -> bool:
    """Whether a process of this machine has not ended, as far as the system says."""
    if host != socket.gethostname() or os.name != "posix":
        return False
    try:
        if not os.path.exists("/proc/self/stat"):
            os.kill(pid, 0)
            return True
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[:1] != [b"Z"]
    except OSError:
        return False

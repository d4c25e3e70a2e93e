"""Schedules as rows. Every method is one statement, alike on every database but for how times and ids are spelled."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from onward.model import ChainId
from onward.state.command import Command, Rows, nothing
from onward.state.statement import Statements


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it is stored."""

    name: str
    type_name: str
    definition: str
    """As the code declares it; JSON text."""
    fingerprint: str
    """Of the definition."""
    superseded: str
    """The fingerprints it has replaced, newest last; JSON text."""
    changed: str | None = None
    """What was changed of it at run time; JSON text."""
    next_at: datetime | None
    """The next tick; None: it is over."""
    last_tick: datetime | None = None
    last_chain_id: ChainId | None = None
    is_running: bool = False
    """Whether that chain has not ended."""
    skipped: int = 0
    paused_at: datetime | None = None
    error: str | None = None
    declared_at: datetime


class FoundSchedules(msgspec.Struct, frozen=True):
    """Schedules, and the database's time when they were read."""

    now: datetime
    next_in: float | None
    """Seconds until the next one is due that is not yet; only when asked for what is due."""
    rows: Sequence[ScheduleRow]


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """What the code says of a schedule that is not stored like that."""

    name: str
    type_name: str
    definition: str
    fingerprint: str
    superseded: str
    next_at: datetime | None
    instead_of: str | None = None
    """The fence: the fingerprint that was read; None where there was no such schedule."""
    seen_at: datetime | None = None
    """The fence, unless it `keeps`: the `next_at` that was read."""
    keeps: bool = False
    """Whether its time is as it was, so that it goes on from where it is."""


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A tick to claim: what was read, which is the fence, and what follows."""

    name: str
    fingerprint: str
    changed: str | None
    tick: datetime
    """The `next_at` that was read."""
    next_at: datetime | None
    last_tick: datetime | None = None
    """None: nothing was started; the last one stays."""
    last_chain_id: ChainId | None = None
    skipped: int = 0
    behind: ChainId | None = None
    """The chain that what is started waits for."""


class ScheduleStatements:
    """What can be done with the rows, on one database."""

    def __init__(
        self,
        sql: Statements,
        *,
        now: Callable[[], Any],
        write_time: Callable[[datetime | None], Any],
        read_time: Callable[[Any], datetime],
        read_id: Callable[[Any], UUID],
    ) -> None:
        self._sql, self._now, self._write_time = sql, now, write_time
        self._read_time, self._read_id = read_time, read_id

    def find(self, names: Sequence[str] | None = None) -> Command[FoundSchedules]:
        """Those that exist of these, or all, in the order of their names."""
        wanted = None if names is None else self._many([{"name": name} for name in names])
        return Command(self._sql("find_schedules"), {"wanted": wanted, "now": self._now()}, self._found)

    def due(self, known: Sequence[tuple[str, str]], *, limit: int) -> Command[FoundSchedules]:
        """Of those stored with just these names and fingerprints, and not paused, the ones whose time has come."""
        parameters = {"known": self._known(known), "limit": limit, "now": self._now()}
        return Command(self._sql("due_schedules"), parameters, self._found)

    def declare(self, said: Sequence[Declaration], *, impatient: bool = False) -> Command[set[str]]:
        """Store new declarations, as far as the rows are as they were read; the names of those stored.

        `impatient`: as in `StateAdapter.settle`.
        """
        parameters = {"said": self._many(said), "now": self._now(), "impatient": impatient}
        return Command(self._sql("declare_schedules"), parameters, _names)

    def refresh(self, known: Sequence[tuple[str, str]], *, older_than: float) -> Command[None]:
        """Live code still declares these; those of whom it was said so many seconds ago are left alone."""
        parameters = {"known": self._known(known), "older_than": older_than, "now": self._now()}
        return Command(self._sql("refresh_schedules"), parameters, nothing)

    def move(self, moves: Sequence[Move]) -> Command[set[str]]:
        """Claim ticks for whoever commits; the names of those that could be. Those that others have locked are
        skipped, and those behind a chain that others have locked.
        """
        return Command(self._sql("move_schedules"), {"moves": self._many(moves)}, _names)

    def fail(self, name: str, tick: datetime, error: str) -> Command[None]:
        """Keep why a tick could not be started, while it is the next one."""
        parameters = {"name": name, "tick": self._write_time(tick), "error": error}
        return Command(self._sql("fail_schedule"), parameters, nothing)

    def change(self, row: ScheduleRow, *, changed: str | None, next_at: datetime | None) -> Command[bool]:
        """Change when it is due, or go back to the declaration; whether it still was as it was read."""
        parameters = {
            "name": row.name,
            "fingerprint": row.fingerprint,
            "seen_at": self._write_time(row.next_at),
            "changed": changed,
            "next_at": self._write_time(next_at),
        }
        return Command(self._sql("change_schedule"), parameters, bool)

    def pause(self, name: str, *, paused: bool) -> Command[bool]:
        """Have it start nothing, or go on; whether there is one."""
        return Command(self._sql("pause_schedule"), {"name": name, "paused": paused, "now": self._now()}, bool)

    def forget(self, name: str) -> Command[bool]:
        """Remove it; whether there was one."""
        return Command(self._sql("forget_schedule"), {"name": name}, bool)

    def _known(self, known: Sequence[tuple[str, str]]) -> str:
        return self._many([{"name": name, "fingerprint": fingerprint} for name, fingerprint in known])

    def _many(self, rows: Sequence[Any]) -> str:
        """As one parameter, with times as the database keeps them."""
        plain = [row if isinstance(row, dict) else msgspec.structs.asdict(row) for row in rows]
        spelled = [
            {name: self._write_time(value) if isinstance(value, datetime) else value for name, value in row.items()}
            for row in plain
        ]
        return msgspec.json.encode(spelled).decode()

    def _found(self, rows: Rows) -> FoundSchedules:
        now, next_in, *_ = rows[0]
        return FoundSchedules(self._read_time(now), next_in, [self._row(row[2:]) for row in rows if row[2] is not None])

    def _row(self, row: Sequence[Any]) -> ScheduleRow:
        values = dict(zip(ScheduleRow.__struct_fields__, row, strict=True))
        for field in ("next_at", "last_tick", "paused_at", "declared_at"):
            values[field] = None if values[field] is None else self._read_time(values[field])
        chain_id = values["last_chain_id"]
        values["last_chain_id"] = None if chain_id is None else self._read_id(chain_id)
        values["is_running"] = bool(values["is_running"])
        return ScheduleRow(**values)


def _names(rows: Rows) -> set[str]:
    return {row[0] for row in rows}

"""Schedules as rows. Every method is one statement, alike on every database but for how times and ids are spelled."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from onward.model import ChainId
from onward.options import EARLIEST, LATEST
from onward.state.command import Command, Operation, Rows, Steps
from onward.state.driver import Connection
from onward.state.rows import Columns, as_integer, as_text, optional, shown
from onward.state.statement import Statements
from onward.state.workers import Fetch


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
    problem: str | None = None
    """What of it cannot be read, and so starts nothing."""


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
        fetch: Fetch | None = None,
    ) -> None:
        """`fetch`: how to read where a file may hold anything."""
        self._sql, self._now, self._write_time = sql, now, write_time
        self._read_time, self._read_id, self._fetch = read_time, read_id, fetch

    def find(self, names: Sequence[str] | None = None) -> Operation[FoundSchedules]:
        """Those that exist of these, or all, in the order of their names."""
        wanted = None if names is None else self._many([{"name": name} for name in names])
        return self._asked("find_schedules", {"wanted": wanted, "now": self._now()})

    def due(self, known: Sequence[tuple[str, str]], *, limit: int) -> Operation[FoundSchedules]:
        """Of those stored with just these names and fingerprints, and not paused, the ones whose time has come."""
        return self._asked("due_schedules", {"known": self._known(known), "limit": limit, "now": self._now()})

    def declare(self, said: Sequence[Declaration], *, impatient: bool = False) -> Command[set[str]]:
        """Store new declarations, as far as the rows are as they were read; the names of those stored.

        `impatient`: as in `StateAdapter.settle`.
        """
        parameters = {"said": self._many(said), "now": self._now(), "impatient": impatient}
        return Command(self._sql("declare_schedules"), parameters, _names)

    def refresh(self, known: Sequence[tuple[str, str]], *, older_than: float) -> Command[None]:
        """Live code still declares these; those of whom it was said so many seconds ago are left alone."""
        parameters = {"known": self._known(known), "older_than": older_than, "now": self._now()}
        return Command(self._sql("refresh_schedules"), parameters)

    def move(self, moves: Sequence[Move]) -> Command[set[str]]:
        """Claim ticks for whoever commits; the names of those that could be. Those that others have locked are
        skipped, and those behind a chain that others have locked.
        """
        return Command(self._sql("move_schedules"), {"moves": self._many(moves)}, _names)

    def fail(self, name: str, tick: datetime, error: str) -> Command[None]:
        """Keep why a tick could not be started, while it is the next one."""
        parameters = {"name": name, "tick": self._write_time(tick), "error": error}
        return Command(self._sql("fail_schedule"), parameters)

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

    def _asked(self, name: str, parameters: dict[str, Any]) -> Operation[FoundSchedules]:
        fetch = self._fetch
        if fetch is None:
            return Command(self._sql(name), parameters, self._found)

        async def look(connection: Connection) -> FoundSchedules:
            return self._found(await fetch(connection, name, parameters, 2 + len(_COLUMNS)))

        return Steps(look)

    def _found(self, rows: Rows) -> FoundSchedules:
        now, next_in, *_ = rows[0]
        return FoundSchedules(self._read_time(now), next_in, [self._row(row[2:]) for row in rows if row[2] is not None])

    def _row(self, row: Sequence[Any]) -> ScheduleRow:
        """Column by column: a hand may have written anything there, and others are read beside it."""
        column = Columns(dict(zip(_COLUMNS, row, strict=True)))
        found: dict[str, Any] = {
            **{name: column.read(name, as_text, shown) for name in _TEXTS},
            "changed": column.read("changed", optional(as_text), shown),
            "next_at": column.read("next_at", optional(self._time), _nothing),
            "last_tick": column.read("last_tick", optional(self._time), _nothing),
            "last_chain_id": column.read("last_chain_id", optional(self._read_id), _nothing),
            "is_running": column.read("is_running", bool, bool),
            "skipped": column.read("skipped", as_integer, lambda value: 0),
            "paused_at": column.read("paused_at", optional(self._time), lambda value: EARLIEST),
            "error": column.read("error", optional(as_text), shown),
            "declared_at": column.read("declared_at", self._time, lambda value: EARLIEST),
        }
        return ScheduleRow(**found, problem="; ".join(column.problems) or None)

    def _time(self, value: Any) -> datetime:
        moment = self._read_time(value)
        if not EARLIEST <= moment <= LATEST:  # nor can there be a tick after it
            raise ValueError(value)
        return moment


_TEXTS = ("name", "type_name", "definition", "fingerprint", "superseded")
_COLUMNS = ScheduleRow.__struct_fields__[:-1]
"""What `schedule_columns.sql` returns."""


def _nothing(value: Any) -> None:
    return None


def _names(rows: Rows) -> set[str]:
    return {row[0] for row in rows}

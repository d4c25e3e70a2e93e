"""What a state adapter sees when it looks at its database for whoever is to judge it: facts as values, no verdicts."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

Catalogue: TypeAlias = Mapping[tuple[str, str, str], str]
"""By kind, table and name: the definitions of what is in a schema."""
STRAYS = ("jobs", "steps", "blockers", "leases", "keys")
"""The statements that look for rows which are not as they should be."""
ALL = 1 << 62
"""As many rows as there are."""
_PART_OF_A_TABLE = ("column", "constraint", "index", "trigger")


class DueType(msgspec.Struct, frozen=True):
    """A type, in one version of its payload, that has jobs which are due."""

    type_name: str
    payload_version: int
    oldest: float
    """For how many seconds the oldest has been due, as far as was looked."""
    paused: bool


class Drift(msgspec.Struct, frozen=True):
    """Something in the schema that is not as migrations make it."""

    kind: str
    """table, column, constraint, index, trigger, function."""
    table: str
    name: str
    problem: Literal["missing", "different", "extra"]
    wanted: str | None = None
    found: str | None = None


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A Postgres server, and the session that asked it."""

    version: int
    """As 150004."""
    is_standby: bool
    user: str
    sees_others: bool
    """Whether this role may see what the sessions of others do."""
    connections: int
    role_limit: int | None
    database_limit: int | None
    transaction_age: int
    """For how many transactions nothing in the database has been frozen."""
    multixact_age: int
    is_pooled: bool | None
    """Whether somebody stands between: the session is another than the client believes. None: it cannot be told."""


class TableFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A table, by its size and by what the server believes is in it."""

    name: str
    bytes: int
    rows: float
    """Below 0: it was never looked at."""
    dead: int
    width: float | None
    """Of a row, in bytes."""
    autovacuum_off: bool
    threshold: float | None
    scale: float | None
    """Of its own, for autovacuum."""
    vacuumed: float | None
    """How many seconds ago."""
    transaction_age: int


class IndexFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An index, by its size and by what the server believes is in it."""

    name: str
    table: str
    is_usable: bool
    bytes: int
    rows: float
    width: float | None


class Holder(msgspec.Struct, frozen=True):
    """Who may hold back vacuum."""

    kind: str
    name: str
    seconds: float | None
    transactions: int | None
    wal: float | None
    """Bytes of the write-ahead log that are kept for it."""


class Lock(msgspec.Struct, frozen=True):
    """Who keeps others from tables of Onward's."""

    session: str
    """Its process, and who it is."""
    tables: str
    mode: str
    seconds: float | None
    waiting: int
    """How many sessions wait for it."""


class FileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A SQLite file."""

    path: str
    journal_mode: str
    synchronous: int
    bytes: int
    free: int
    """Bytes in it that nothing uses."""
    wal: int
    """Bytes of the file of commits that are still to be moved into it."""
    filesystem: str | None
    """Its kind, where the system tells."""
    is_writable: bool
    readable_by_others: bool
    disk_free: int
    disk_total: int
    damage: Sequence[str] | None
    """What is broken; None: nobody asked."""


class Stray(msgspec.Struct, frozen=True):
    """A row that is not as it should be."""

    kind: str
    id: str
    """Of the job; of a limit, the key."""
    type_name: str | None
    seconds: float | None


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All of it; what does not apply to the database is None or empty."""

    version: int
    """Of the tables; where it is not the newest, nothing else was looked at but the server or the file."""
    newest: int
    clock_ahead: float | None = None
    """Seconds by which the database's clock is ahead of ours, as far as is certain."""
    server: ServerFacts | None = None
    settings: Mapping[str, str] = {}
    """Of the server; times in milliseconds."""
    file: FileFacts | None = None
    drift: Sequence[Drift] = ()
    tables: Sequence[TableFacts] = ()
    indexes: Sequence[IndexFacts] = ()
    holders: Sequence[Holder] = ()
    locks: Sequence[Lock] = ()
    lacking: Sequence[tuple[str, str]] = ()
    """What this role may not do, and with what."""
    strays: Sequence[Stray] = ()
    most: int | None = None
    """How many of the newest rows were looked through for them; None: all."""
    unseen: Mapping[str, str] = {}
    """What could not be looked at, and why."""


def catalogue(rows: Iterable[Sequence[Any]]) -> Catalogue:
    """Of rows of kind, table, name and definition."""
    return {(kind, table, name): " ".join((definition or "").split()) for kind, table, name, definition in rows}


def differences(wanted: Catalogue, found: Catalogue) -> list[Drift]:
    """What is missing, different, or was added to a table of ours. A table that is missing is not told in parts."""
    tables = {table for kind, table, _ in wanted if kind == "table"}
    gone = {table for table in tables if ("table", table, table) not in found}
    drift: list[Drift] = []
    for key in sorted(wanted.keys() | found.keys()):
        kind, table, name = key
        if key not in found and (kind == "table" or table not in gone):
            drift.append(Drift(kind, table, name, "missing", wanted=wanted[key]))
        elif key not in wanted and kind in _PART_OF_A_TABLE and table in tables:
            drift.append(Drift(kind, table, name, "extra", found=found[key]))
        elif key in wanted and key in found and wanted[key] != found[key]:
            drift.append(Drift(kind, table, name, "different", wanted=wanted[key], found=found[key]))
    return drift


def ahead_by(there: datetime, before: datetime, after: datetime) -> float:
    """Seconds by which another clock is certainly ahead (or, below 0, behind), which was read between two of ours.

    >>> from datetime import timedelta
    >>> now = datetime(2026, 1, 1)
    >>> second = timedelta(seconds=1)
    >>> ahead_by(now, now - second, now + second), ahead_by(now + 5 * second, now, now + second)
    (0.0, 4.0)
    """
    if before <= there <= after:
        return 0.0
    return (there - after if there > after else there - before).total_seconds()

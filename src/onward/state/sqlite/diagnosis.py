"""What there is to see of a SQLite file for whoever judges it: its tables beside new ones, and where it lies."""

import os
import shutil
import sqlite3
import stat
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onward.state.command import Rows
from onward.state.driver import Connection
from onward.state.facts import ALL, STRAYS, Diagnosis, Drift, FileFacts, Stray, catalogue, differences
from onward.state.sqlite.values import duration
from onward.state.statement import Statements, spell

_MOUNTS = "/proc/self/mounts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """One look at everything."""

    sql: Statements
    prefix: str
    script: str
    """Makes the tables as they should be."""
    now: int
    newest: int
    most: int | None
    """How many of the newest rows are looked through; None: all, and the file itself."""
    late: float
    unseen: dict[str, str] = field(default_factory=dict)

    async def take(self, connection: Connection, version: int) -> Diagnosis:
        """Version: that of the tables."""
        facts: dict[str, Any] = {
            "version": version,
            "newest": self.newest,
            "file": await self._file(connection),
            "most": self.most,
            "unseen": self.unseen,
        }
        if version == self.newest:
            facts |= {"drift": await self._drift(connection), "strays": await self._strays(connection)}
        return Diagnosis(**facts)

    async def _file(self, connection: Connection) -> FileFacts | None:
        rows = await self._look(connection, "file", {})
        if not rows:
            return None
        damage = None
        if self.most is None:
            damage = [text for (text,) in await self._look(connection, "integrity", {}) if text != "ok"]
        path, journal_mode, page, pages, free, synchronous = rows[0]
        try:
            return _facts_of(
                path,
                journal_mode=journal_mode,
                synchronous=synchronous,
                bytes=page * pages,
                free=page * free,
                damage=damage,
            )
        except OSError as error:
            self.unseen["file"] = str(error)
            return None

    async def _drift(self, connection: Connection) -> list[Drift]:
        found = await self._look(connection, "catalogue", {"prefix": self.prefix})
        statement = spell(self.sql("diagnose_catalogue"), "qmark")
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as anew:
            anew.executescript(self.script)
            wanted = anew.execute(statement.sql, statement.positional({"prefix": self.prefix})).fetchall()
        return differences(catalogue(wanted), catalogue(found))

    async def _strays(self, connection: Connection) -> list[Stray]:
        since = {"now": self.now, "late": duration(self.late)}
        asked: Mapping[str, Mapping[str, Any]] = {
            "leases": since,
            "keys": {**since, "most": 1000 if self.most else ALL},
        }
        strays: list[Stray] = []
        for name in STRAYS:
            rows = await self._look(connection, name, asked.get(name, {"most": self.most or ALL}))
            strays += [Stray(*row) for row in rows]
        return strays

    async def _look(self, connection: Connection, name: str, parameters: Mapping[str, Any]) -> Rows:
        try:
            return await connection.fetch(self.sql(f"diagnose_{name}"), parameters)
        except Exception as error:  # noqa: BLE001 - told as what could not be looked at
            self.unseen[name] = " ".join(str(error).split()) or type(error).__name__
            return []


def _facts_of(path: str, **known: Any) -> FileFacts:
    file, disk = Path(path), shutil.disk_usage(Path(path).parent)
    beside = Path(f"{path}-wal")
    return FileFacts(
        path=path,
        wal=beside.stat().st_size if beside.exists() else 0,
        filesystem=_filesystem(file),
        is_writable=os.access(file, os.W_OK) and os.access(file.parent, os.W_OK),
        readable_by_others=bool(file.stat().st_mode & stat.S_IROTH),
        disk_free=disk.free,
        disk_total=disk.total,
        **known,
    )


def _filesystem(file: Path) -> str | None:
    """The kind of the file system, as Linux tells: of the longest path that leads to the file."""
    try:
        lines = Path(_MOUNTS).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    mounts = [(fields[1].replace("\\040", " "), fields[2]) for fields in map(str.split, lines) if len(fields) > 2]
    real = os.path.realpath(file)
    around = [(len(place), kind) for place, kind in mounts if _is_in(real, place)]
    return max(around)[1] if around else None


def _is_in(real: str, place: str) -> bool:
    return os.path.commonpath([real, place]) == place

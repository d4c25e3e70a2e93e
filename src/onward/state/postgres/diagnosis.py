"""What there is to see of a Postgres database for whoever judges it: by reading, in seconds, without special rights.

Each look is a transaction of its own that only reads and is rolled back: what is refused, or takes too long, is told
and keeps nobody from seeing the rest. To know how the schema should be, it is made once more under another name, in a
transaction that is rolled back too.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from onward.state.command import Rows
from onward.state.driver import Connection
from onward.state.facts import (
    ALL,
    STRAYS,
    Diagnosis,
    Drift,
    Holder,
    IndexFacts,
    Lock,
    ServerFacts,
    Stray,
    TableFacts,
    ahead_by,
    catalogue,
    differences,
)
from onward.state.statement import Statements

_SETTINGS = (
    "autovacuum",
    "autovacuum_vacuum_scale_factor",
    "autovacuum_vacuum_threshold",
    "default_transaction_isolation",
    "default_transaction_read_only",
    "fsync",
    "full_page_writes",
    "idle_in_transaction_session_timeout",
    "max_connections",
    "reserved_connections",
    "statement_timeout",
    "superuser_reserved_connections",
    "synchronous_commit",
    "track_counts",
    "transaction_timeout",
)
_IN_MILLISECONDS = {"s": 1000, "min": 60_000}
_BOUNDS = (
    "SET LOCAL statement_timeout = {seconds}; SET LOCAL lock_timeout = '2s';"
    "SET LOCAL search_path = pg_catalog, pg_temp;"
    "SET LOCAL enable_seqscan = {whole}; SET LOCAL enable_hashjoin = {whole}; SET LOCAL enable_mergejoin = {whole}"
)
"""Whatever else the connection is for. `whole`: whether to read whole tables; for a few thousand rows that takes longer
than to look up one after another what belongs to them."""
_QUICK, _DEEP = "'5s'", "'10min'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """One look at everything."""

    sql: Statements
    schema: str
    script: str
    """Makes the schema as it should be, under the name `scratch`."""
    scratch: str
    now: datetime | None
    newest: int
    most: int | None
    """How many of the newest rows are looked through; None: all."""
    late: float
    unseen: dict[str, str] = field(default_factory=dict)

    async def take(self, connection: Connection, version: int) -> Diagnosis:
        """Version: that of the tables."""
        server, ahead = await self._server(connection)
        settings = await self._look(connection, "settings", {"names": list(_SETTINGS)}, bounded=False)
        facts: dict[str, Any] = {
            "version": version,
            "newest": self.newest,
            "clock_ahead": ahead,
            "server": server,
            "settings": {name: _plain(value, unit) for name, value, unit in settings},
            "holders": [Holder(*row) for row in await self._look(connection, "holders", {})],
            "locks": [Lock(*row) for row in await self._look(connection, "locks", {"schema": self.schema})],
            "most": self.most,
            "unseen": self.unseen,
        }
        if version == self.newest:
            facts |= await self._schema(connection)
        return Diagnosis(**facts)

    async def _schema(self, connection: Connection) -> dict[str, Any]:
        schema = {"schema": self.schema}
        tables = await self._look(connection, "tables", schema)
        indexes = await self._look(connection, "indexes", schema)
        return {
            "drift": await self._drift(connection),
            "tables": [TableFacts(**dict(zip(TableFacts.__struct_fields__, row, strict=True))) for row in tables],
            "indexes": [IndexFacts(**dict(zip(IndexFacts.__struct_fields__, row, strict=True))) for row in indexes],
            "lacking": [tuple(row) for row in await self._look(connection, "privileges", schema)],
            "strays": await self._strays(connection),
        }

    async def _server(self, connection: Connection) -> tuple[ServerFacts | None, float | None]:
        before = datetime.now(UTC)
        rows = await self._look(connection, "server", {}, alone=True)
        after = datetime.now(UTC)
        if not rows:
            return None, None
        there, version, is_standby, process, *rest = rows[0]
        known = _process_of(connection.raw)
        user, sees_others, connections, role_limit, database_limit, age, multixact_age = rest
        facts = ServerFacts(
            version=version,
            is_standby=is_standby,
            user=user,
            sees_others=sees_others,
            connections=connections,
            role_limit=role_limit,
            database_limit=database_limit,
            transaction_age=age,
            multixact_age=multixact_age,
            is_pooled=None if known is None else known != process,
        )
        return facts, ahead_by(there, before, after)

    async def _drift(self, connection: Connection) -> list[Drift]:
        statement = self.sql("diagnose_catalogue")
        found = await self._look(connection, "catalogue", {"schema": self.schema})
        try:
            async with _rolled_back(connection, _BOUNDS.format(seconds=_QUICK, whole="on")):
                await connection.script(self.script)
                wanted = await connection.fetch(statement, {"schema": self.scratch})
        except Exception as error:  # noqa: BLE001 - told as what could not be looked at
            self.unseen["schema drift"] = f"{_words(error)}; it takes a role that may create a schema in this database"
            return []
        return differences(catalogue(wanted), catalogue(found)) if found else []

    async def _strays(self, connection: Connection) -> list[Stray]:
        asked: Mapping[str, Mapping[str, Any]] = {
            "leases": {"now": self.now, "late": self.late},
            "keys": {"now": self.now, "late": self.late, "most": 1000 if self.most else ALL},
        }
        strays: list[Stray] = []
        for name in STRAYS:
            parameters = asked.get(name, {"most": self.most or ALL})
            rows = await self._look(connection, name, parameters, deep=not self.most, looks_up=bool(self.most))
            strays += [Stray(*row) for row in rows]
        return strays

    async def _look(
        self,
        connection: Connection,
        name: str,
        parameters: Mapping[str, Any],
        *,
        bounded: bool = True,
        alone: bool = False,
        deep: bool = False,
        looks_up: bool = False,
    ) -> Rows:
        """The rows of a statement; none if it is refused, or takes too long. `alone`: in no transaction."""
        statement = self.sql(f"diagnose_{name}")
        try:
            if alone:
                return await connection.fetch(statement, parameters)
            bounds = _BOUNDS.format(seconds=_DEEP if deep else _QUICK, whole="off" if looks_up else "on")
            async with _rolled_back(connection, bounds if bounded else None, reads=True):
                return await connection.fetch(statement, parameters)
        except Exception as error:  # noqa: BLE001 - told as what could not be looked at
            self.unseen[name] = _words(error)
            return []


@asynccontextmanager
async def _rolled_back(connection: Connection, bounds: str | None, *, reads: bool = False) -> AsyncIterator[None]:
    await connection.begin()
    try:
        if reads:
            await connection.fetch("SET TRANSACTION READ ONLY", {})
        if bounds is not None:
            await connection.script(bounds)
        yield
    finally:
        await connection.rollback()


def _process_of(raw: Any) -> int | None:
    """The server's process, as the client was told when it connected."""
    if hasattr(raw, "get_server_pid"):
        process: int = raw.get_server_pid()
        return process
    return getattr(getattr(raw, "info", None), "backend_pid", None)


def _plain(value: str, unit: str) -> str:
    return str(int(value) * _IN_MILLISECONDS[unit]) if unit in _IN_MILLISECONDS else value


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__

"""What the end or the deletion of chains does to the jobs that wait for them.

The single writer makes races impossible, so what Postgres does in functions is a few statements with Python in between,
in one transaction.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from onward.errors import ChainReferenced
from onward.model import ChainId, FailureReason
from onward.state.command import Rows
from onward.state.contract import Change
from onward.state.driver import Connection
from onward.state.sqlite.values import many, some_id, texts
from onward.state.statement import Statements


class Graph:
    """Jobs and the chains they wait for."""

    def __init__(self, sql: Statements) -> None:
        self._sql = sql

    async def end(self, connection: Connection, jobs: Iterable[Sequence[Any]], *, now: int) -> list[Change]:
        """Jobs have ended their chains: tell the headers, and whoever waits.

        A row is (id, chain_id, chain_index, type_name, status, …, has_dependents).
        """
        first: list[Sequence[Any]] = []
        later: list[Sequence[Any]] = []
        for row in jobs:
            (later if row[2] else first).append(row)
        ended = [row[0] for row in first if row[-1]]
        if later:
            chains = many([(row[1], row[4] == "failed") for row in later])
            headers = await connection.fetch(self._sql("end_chains"), {"chains": chains, "now": now})
            ended.extend(header[0] for header in headers if header[1])
        return await self._unblock(connection, ended, now=now)

    async def _unblock(self, connection: Connection, ended: Sequence[str], *, now: int) -> list[Change]:
        """Unblock, or fail, what waited for these chains, and so on for the chains that fail by it."""
        if not ended:
            return []
        found = await connection.fetch(self._sql("unblock"), {"chain_ids": many(ended), "now": now})
        rows = [tuple(map(_as_text, row)) for row in found]
        failed = [row for row in rows if row[4] == "failed"]
        changes = [_unblocked(row) for row in _by_id(rows) if row[4] != "blocked"]
        return changes + await self.end(connection, failed, now=now)

    async def only_serving(self, connection: Connection, chain_ids: Sequence[ChainId]) -> set[str]:
        """The chains that these wait for, and so on, which have not ended and nothing else unfinished waits for."""
        asked = set(texts(list(chain_ids)))
        below = await self._doomed(connection, asked, cascade=True) - asked
        rows = await connection.fetch(self._sql("waiting_for"), {"chain_ids": many(sorted(below))})
        waiting: dict[str, set[str]] = {}
        for chain_id, by in rows:
            waiting.setdefault(chain_id, set()).update({by} - {None})
        serving: set[str] = set()
        while more := {id for id, by in waiting.items() if by <= asked | serving} - serving:
            serving |= more
        return serving

    async def delete(self, connection: Connection, chain_ids: Sequence[ChainId], *, cascade: bool) -> list[Change]:
        """Delete whole chains, unless an unfinished job elsewhere waits for one of them."""
        chains = await connection.fetch(self._sql("headers"), {"ids": many(list(chain_ids))})
        doomed = await self._doomed(connection, {row[0] for row in chains}, cascade=cascade)
        parameters = {"chain_ids": many(sorted(doomed))}
        references = await connection.fetch(self._sql("delete_references"), parameters)
        if references:
            raise ChainReferenced([(some_id(row[0]), some_id(row[1])) for row in references])
        await connection.fetch(self._sql("delete_edges"), parameters)
        gone = await connection.fetch(self._sql("delete"), parameters)
        return [Change(some_id(row[1]), some_id(row[0]), "", "deleted") for row in gone]

    async def _doomed(self, connection: Connection, chains: set[str], *, cascade: bool) -> set[str]:
        doomed, more = set(chains), chains if cascade else set()
        while more:
            rows = await connection.fetch(self._sql("delete_blockers"), {"chain_ids": many(sorted(more))})
            more = {row[0] for row in rows} - doomed
            doomed |= more
        return doomed


def _by_id(rows: Rows) -> list[Sequence[Any]]:
    """RETURNING has no order of its own."""
    return sorted(rows, key=lambda row: str(row[0]))


def _as_text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _unblocked(row: Sequence[Any]) -> Change:
    if row[4] == "failed":
        return Change(some_id(row[0]), some_id(row[1]), row[3], "failed", reason=FailureReason.BLOCKER)
    return Change(some_id(row[0]), some_id(row[1]), row[3], "scheduled" if row[5] else "unblocked")

"""What the end, the return or the deletion of chains does to the jobs that wait for them.

The single writer makes races impossible, so what Postgres does in functions is a few statements with Python in between,
in one transaction.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any
from uuid import UUID

from onward.errors import ChainReferenced
from onward.model import ChainId
from onward.state.contract import Change, ChangeKind
from onward.state.driver import Connection, Rows
from onward.state.sqlite.values import many
from onward.state.statement import Statements


def change(row: Sequence[Any], kind: ChangeKind) -> Change:
    """A change to the job in a row of (id, chain_id, type_name, …)."""
    return Change(UUID(row[0]), UUID(row[1]), row[2], kind)


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
        rows = await connection.fetch(self._sql("unblock"), {"chain_ids": many(ended), "now": now})
        failed = [row for row in rows if row[4] == "failed"]
        changes = [_unblocked(row) for row in _by_id(rows) if row[4] != "blocked"]
        return changes + await self.end(connection, failed, now=now)

    async def retry(self, connection: Connection, chain_ids: Sequence[ChainId], *, now: int) -> list[Change]:
        """Bring failed chains back: their last job may run again, and what failed only through them waits again."""
        failed = await connection.fetch(self._sql("retry_failed"), {"chain_ids": many(list(chain_ids))})
        if not failed:
            return []
        edges = await connection.fetch(self._sql("retry_edges"), {"ids": many([row[0] for row in failed])})
        wanted = _retryable(failed, edges)
        jobs = many([(row[0], open_blockers) for row, open_blockers in wanted])
        await connection.fetch(self._sql("retry"), {"jobs": jobs, "now": now})
        changes = [change(row, "blocked" if open_blockers else "retried") for row, open_blockers in wanted]
        return changes + await self._block_again(connection, {row[1] for row, _ in wanted})

    async def _block_again(self, connection: Connection, chains: Collection[str]) -> list[Change]:
        changes: list[Change] = []
        while chains:
            chain_ids = {"chain_ids": many(list(chains))}
            await connection.fetch(self._sql("retry_headers"), chain_ids)
            await connection.fetch(self._sql("retry_waiting"), chain_ids)
            rows = _by_id(await connection.fetch(self._sql("retry_dependents"), chain_ids))
            changes.extend(change(row, "blocked") for row in rows)
            chains = {row[1] for row in rows}
        return changes

    async def delete(self, connection: Connection, chain_ids: Sequence[ChainId], *, cascade: bool) -> list[Change]:
        """Delete whole chains, unless an unfinished job elsewhere waits for one of them."""
        chains = await connection.fetch(self._sql("headers"), {"ids": many(list(chain_ids))})
        doomed = await self._doomed(connection, {row[0] for row in chains}, cascade=cascade)
        parameters = {"chain_ids": many(sorted(doomed))}
        references = await connection.fetch(self._sql("delete_references"), parameters)
        if references:
            raise ChainReferenced([(UUID(row[0]), UUID(row[1])) for row in references])
        await connection.fetch(self._sql("delete_edges"), parameters)
        gone = await connection.fetch(self._sql("delete"), parameters)
        return [Change(UUID(row[1]), UUID(row[0]), "", "deleted") for row in gone]

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


def _unblocked(row: Sequence[Any]) -> Change:
    return Change(UUID(row[0]), UUID(row[1]), row[3], "failed" if row[4] == "failed" else "unblocked")


def _retryable(failed: Rows, edges: Rows) -> list[tuple[Sequence[Any], int]]:
    """The jobs that come back, each with how many chains it waits for.

    In the order of their ids: a chain that comes back counts as running for the jobs behind it.
    """
    state: dict[str, tuple[bool, bool]] = {}
    blockers: dict[str, list[str]] = {}
    for job_id, chain_id, ended, has_failed in edges:
        blockers.setdefault(job_id, []).append(chain_id)
        state[chain_id] = bool(ended), bool(has_failed)
    found: list[tuple[Sequence[Any], int]] = []
    for row in failed:
        states = [state[chain_id] for chain_id in blockers.get(row[0], [])]
        # A job whose blocker is still failed would fail again: that blocker is what must be retried.
        if row[3] == "blocker" and any(has_failed for _, has_failed in states):
            continue
        found.append((row, sum(not ended for ended, _ in states)))
        state[row[1]] = False, False
    return found

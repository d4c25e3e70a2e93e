"""Bringing failed chains back, all or none, with what failed only through them.

Everything is read and decided before anything is written, so that a refusal leaves nothing behind in the caller's
transaction.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from onward.model import ChainId
from onward.state.contract import Change
from onward.state.driver import Connection
from onward.state.refusals import Problem, refuse
from onward.state.sqlite.values import many, some_id, texts
from onward.state.statement import Statements


class _Ended(NamedTuple):
    """The last job of a chain."""

    chain_id: str
    chain_type: str
    key: str | None
    job_id: str
    type_name: str
    status: str
    blockers: int
    runs_anyway: int


class _Edge(NamedTuple):
    """A chain that a job waits for."""

    chain_id: str
    has_ended: int
    has_failed: int


class Comeback:
    """The chains that come back, and what is known of those they depend on."""

    def __init__(self, connection: Connection, sql: Statements) -> None:
        self._connection, self._sql = connection, sql
        self._targets: dict[str, _Ended] = {}
        self._coming: dict[str, _Ended] = {}
        """By chain, the targets among them."""
        self._edges: dict[str, list[_Edge]] = {}
        """By job."""
        self._holders: dict[str, str] = {}
        """The live chain that has the key of another, by that one."""

    async def retry(self, chain_ids: Sequence[ChainId], *, now: int) -> list[Change]:
        """Bring chains back. Raises ChainNotFound and RetryRefused."""
        asked = set(texts(list(chain_ids)))
        self._targets = {job.chain_id: job for job in await self._look("retry_chains", sorted(asked))}
        await self._find_dependents()
        refuse([*(Problem("missing", some_id(id)) for id in asked - set(self._targets)), *self._problems()])
        return await self._bring_back(now=now)

    async def _look(self, name: str, chain_ids: Iterable[str]) -> list[_Ended]:
        rows = await self._connection.fetch(self._sql(name), {"chain_ids": many(list(chain_ids))})
        found = [_Ended(*row) for row in rows]
        self._edges.update((job.job_id, []) for job in found)
        jobs = many([job.job_id for job in found])
        for job_id, *edge in await self._connection.fetch(self._sql("retry_edges"), {"ids": jobs}):
            self._edges[job_id].append(_Edge(*edge))
        chains = {"chain_ids": many([job.chain_id for job in found if job.key is not None])}
        self._holders.update((row[0], row[1]) for row in await self._connection.fetch(self._sql("retry_keys"), chains))
        return found

    async def _find_dependents(self) -> None:
        """What failed only through these, and so on; of several with one key the newest."""
        self._coming, frontier = dict(self._targets), list(self._targets)
        keys = {_key(job) for job in self._targets.values()}
        while frontier:
            found = {job.chain_id: job for job in await self._look("retry_dependents", frontier)}
            fresh: dict[str, _Ended] = {}
            for chain_id in sorted(found.keys() - self._coming.keys(), reverse=True):
                job = found[chain_id]
                if self._can_come_back(job) and _key(job) not in keys:
                    fresh[chain_id] = job
                    keys.add(_key(job))
            self._coming |= fresh
            frontier = list(fresh)

    def _can_come_back(self, job: _Ended) -> bool:
        return not (self._still_failed(job) or self._lacks_blockers(job) or job.chain_id in self._holders)

    def _still_failed(self, job: _Ended) -> list[str]:
        """The failed chains that a job waits for and that do not come back."""
        edges = () if job.runs_anyway else self._edges[job.job_id]
        return [edge.chain_id for edge in edges if edge.has_failed and edge.chain_id not in self._coming]

    def _lacks_blockers(self, job: _Ended) -> bool:
        """Whether a chain that it waited for has been deleted, with the output that it was to see."""
        return not job.runs_anyway and job.blockers > len(self._edges[job.job_id])

    def _problems(self) -> Iterable[Problem]:
        newest = {_key(self._targets[chain_id]): chain_id for chain_id in sorted(self._targets)}
        for chain_id, job in self._targets.items():
            id, twin = some_id(chain_id), newest[_key(job)]
            if job.status != "failed":
                yield Problem("not_failed", id)
            if chain_id in self._holders:
                yield Problem("key_taken", id, some_id(self._holders[chain_id]))
            if twin != chain_id:
                yield Problem("key_taken", id, some_id(twin))
            if self._lacks_blockers(job):
                yield Problem("blocker_deleted", id)
            for blocker in self._still_failed(job):
                yield Problem("blocker_failed", id, some_id(blocker))

    async def _bring_back(self, *, now: int) -> list[Change]:
        chains = {"chain_ids": many(list(self._coming))}
        jobs = sorted(self._coming.values(), key=lambda job: job.job_id)
        opened = [(job, self._open_blockers(job)) for job in jobs]
        rows: list[tuple[Any, ...]] = [(job.job_id, n, job.chain_id in self._targets) for job, n in opened]
        await self._connection.fetch(self._sql("retry_headers"), chains)
        await self._connection.fetch(self._sql("retry"), {"jobs": many(rows), "now": now})
        await self._connection.fetch(self._sql("retry_waiting"), chains)
        return [
            Change(some_id(job.job_id), some_id(job.chain_id), job.type_name, "blocked" if n else "retried")
            for job, n in opened
        ]

    def _open_blockers(self, job: _Ended) -> int:
        edges = self._edges[job.job_id]
        return sum(not edge.has_ended or edge.chain_id in self._coming for edge in edges)


def _key(job: _Ended) -> tuple[str, str]:
    """What only one live chain may have: the key, or for want of one its own id."""
    return (job.chain_type, job.key) if job.key is not None else ("", job.chain_id)

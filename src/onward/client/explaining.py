"""Why a job is where it is: what the database knows of it, of its line, its limits, its blockers and its workers.

Every look is by an index, and bounded: also among a million jobs it is answered at once.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from onward.client import reasons
from onward.client.reasons import MOST_AHEAD, Crew, Reason, Through
from onward.define.registry import Registry
from onward.model import BlockedJob, Chain, ChainId, CompletedJob, FailedJob, FailureReason, Job, PendingJob, RunningJob
from onward.operating import Explanation
from onward.state.command import Operation, Steps
from onward.state.contract import Line, StateAdapter
from onward.state.driver import Connection

_MOST_LEVELS = 20
"""So many chains in a row are followed."""
_MOST_CHAINS = 20
"""Of so many of a level it is seen what they wait for."""
_MOST_ROOTS = 5
_MOST_HOLDERS = 10
_MOST_CLAIMS = 500


def explanation(
    state: StateAdapter,
    registry: Registry,
    show: Callable[[Job], Job],
    id: UUID,
    *,
    ageing: timedelta | None,
) -> Operation[Explanation | None]:
    """Why the job of this id, or the one to which the chain of this id has come, is where it is."""

    async def look(connection: Connection) -> Explanation | None:
        crew = Crew(await connection.run(state.workers.list()))
        seconds = None if ageing is None else ageing.total_seconds()
        return await _Explaining(connection, state, registry, crew, show, seconds).explain(id)

    return state.at_one_moment(Steps(look))


class _Explaining:
    """One look, on one connection."""

    def __init__(
        self,
        connection: Connection,
        state: StateAdapter,
        registry: Registry,
        crew: Crew,
        show: Callable[[Job], Job],
        ageing: float | None,
    ) -> None:
        self._connection, self._state, self._registry = connection, state, registry
        self._crew, self._show, self._ageing = crew, show, ageing
        self._paused: Sequence[str] = ()

    async def explain(self, id: UUID) -> Explanation | None:
        chains = await self._connection.run(self._state.find_chains([id]))
        found = [chain.current for chain in chains]
        if not found:
            found = [*await self._connection.run(self._state.find_jobs([id]))]
        if not found:
            return None
        job = self._show(found[0])
        self._paused = await self._connection.run(self._state.paused())
        first, *others = await self._reasons(job)
        alike = [other for other in others if other.why is first.why]
        later = [other for other in others if other.why is not first.why]
        facts = _facts(job, self._max_attempts(job))
        for one in (*later, first):
            facts |= one.facts
        problem = [] if job.problem is None else [f"Its row cannot be read: {job.problem}."]
        also = [*(one.sentence for one in alike), *(one.afterwards for one in later), *problem]
        return Explanation(job_id=job.id, why=first.why, sentence=first.sentence, facts=facts, also=also)

    async def _reasons(self, job: Job) -> list[Reason]:
        """The first of them, and what else would stand in its way."""
        match job:
            case BlockedJob():
                return [*await self._blocked(job), *await self._afterwards(job)]
            case PendingJob():
                return await self._waiting(job)
            case RunningJob():
                line = await self._line(job)
                return [reasons.running(job, self._crew, line.now, self._max_attempts(job))]
            case CompletedJob():
                chains = await self._connection.run(self._state.find_chains([job.chain_id]))
                others = [chain.current for chain in chains if chain.current.id != job.id]
                return [reasons.completed(job, others[0] if others else None)]
            case FailedJob():
                return [await self._failed(job)]

    async def _reason(self, job: Job) -> Reason:
        """The first of them."""
        return (await self._reasons(job))[0]

    # -- what waits for a worker

    async def _waiting(self, job: PendingJob) -> list[Reason]:
        line = await self._line(job)
        found: list[Reason] = []
        if job.scheduled_at > line.now:
            found.append(reasons.not_due(job, line.now, self._max_attempts(job)))
        found += await self._afterwards(job)
        if line.is_held:
            found.append(await self._held(job, line))
        return found or [reasons.in_line(job, line, self._crew.taking(job))]

    async def _afterwards(self, job: Job) -> list[Reason]:
        """What keeps workers from a job that is due."""
        found: list[Reason] = []
        kind = self._registry.get(job.type_name)
        if kind is not None and kind.step.run is None and not self._crew.of_type(job.type_name):
            return [reasons.awaits_completion(job)]
        if job.type_name in self._paused:
            found.append(reasons.paused(job))
        if not self._crew.taking(job):
            found.append(reasons.no_worker(job, self._crew, is_known=kind is not None))
        return found

    async def _held(self, job: PendingJob, line: Line) -> Reason:
        key = job.limit_key or ""
        name = key.partition("/")[0]
        rules = {one.rule.name: one.rule for one in await self._connection.run(self._state.limits())}
        holders = await self._connection.run(self._state.placed_jobs(key, limit=_MOST_HOLDERS))
        return reasons.held(job, line, rules.get(name), holders)

    async def _line(self, job: Job) -> Line:
        takers = self._crew.taking(job)
        claims = {
            (name, version) for worker in takers for name, versions in worker.types.items() for version in versions
        }
        own = (job.type_name, job.payload_version)
        types = sorted(claims, key=lambda claim: claim != own)[:_MOST_CLAIMS]
        line = self._state.line_of(job.id, types=types, ageing=self._ageing, most=MOST_AHEAD + 1)
        return await self._connection.run(line)

    # -- what waits for chains

    async def _blocked(self, job: BlockedJob) -> list[Reason]:
        """By the chain that is worst off of those it waits for in the end; then by the others."""
        roots, farthest = await self._roots(job)
        told = [(path, await self._reason(self._show(chain.current))) for path, chain in roots]
        told.sort(key=lambda one: one[1].ease)
        counts = [job.open_blockers] + [1] * len(told)
        found = [reasons.blocked(*one, count=count) for one, count in zip(told, counts, strict=False)]
        return found or [reasons.blocked_far(farthest, count=job.open_blockers)]

    async def _roots(self, job: BlockedJob) -> tuple[list[tuple[Through, Chain]], Through]:
        """The chains that it waits for in the end, each with the way there, the nearest first; and how far it went."""
        ways: dict[UUID, list[tuple[ChainId, str]]] = {job.id: []}
        seen, roots = {job.chain_id}, list[tuple[Through, Chain]]()
        level: list[Job] = [job]
        way = ways[job.id]
        for _ in range(_MOST_LEVELS):
            edges = await self._blocking(level, failed=False)
            met = {chain_id: job_id for job_id, chain_id in reversed(edges) if chain_id not in seen}
            seen |= met.keys()
            chains = {chain.id: chain for chain in await self._connection.run(self._state.find_chains(list(met)))}
            level = []
            for chain_id in reversed(met):
                chain = chains.get(chain_id)
                if chain is None:
                    continue
                way = [*ways[met[chain_id]], (chain.id, chain.type_name)]
                if isinstance(chain.current, BlockedJob):
                    ways[chain.current.id] = way
                    level.append(chain.current)
                else:
                    roots.append((way, chain))
            if not level or len(roots) >= _MOST_ROOTS:
                break
        return roots[:_MOST_ROOTS], way

    async def _failed(self, job: FailedJob) -> Reason:
        """Why it failed; of what failed through a blocker, why the chain did with which that began."""
        way: list[tuple[ChainId, str]] = []
        seen, root = {job.chain_id}, job
        while root.reason is FailureReason.BLOCKER and len(way) < _MOST_LEVELS:
            edges = [chain_id for _, chain_id in await self._blocking([root], failed=True) if chain_id not in seen]
            chains = await self._connection.run(self._state.find_chains(edges[:1]))
            if not chains or not isinstance(chains[0].current, FailedJob):
                break
            seen.add(chains[0].id)
            way.append((chains[0].id, chains[0].type_name))
            root = chains[0].current
        if not way:
            return reasons.failed(job, self._max_attempts(job), None)
        shown = self._show(root)
        assert isinstance(shown, FailedJob)
        return reasons.failed(job, None, (way, reasons.failed(shown, self._max_attempts(shown), None)))

    async def _blocking(self, jobs: Sequence[Job], *, failed: bool) -> Sequence[tuple[UUID, ChainId]]:
        look = self._state.list_blocking([job.id for job in jobs], failed=failed, limit=_MOST_CHAINS)
        return await self._connection.run(look)

    def _max_attempts(self, job: Job) -> int | None:
        kind = self._registry.get(job.type_name)
        return None if kind is None else kind.definition.max_attempts


def _facts(job: Job, max_attempts: int | None) -> dict[str, Any]:
    """What is said of every job."""
    return {
        "type": job.type_name,
        "version": job.payload_version,
        "status": job.status,
        "chain_id": job.chain_id,
        "step": job.chain_index + 1,
        "attempt": job.attempt,
        "failures": job.failures,
        "max_attempts": max_attempts,
    }

"""Starts that need a look first: a deduplication key, blockers, or an id chosen by the caller.

Everything is read and decided before anything is written, so that a refusal leaves nothing behind in the caller's
transaction.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from onward.errors import BlockerNotFound, DuplicateJobId
from onward.model import ChainId, Deduplication, FailureReason, JobId, JobStatus
from onward.state.contract import Change, NewJob, Started
from onward.state.driver import Connection
from onward.state.sqlite.graph import Graph
from onward.state.sqlite.values import duration, is_id, many, new_row
from onward.state.statement import Statements


@dataclass(slots=True)
class _Plan:
    """What is to be done with the jobs of one call."""

    answers: dict[int, Started] = field(default_factory=dict)
    new: list[tuple[int, NewJob]] = field(default_factory=list)
    """With their positions in the call."""
    actual: dict[ChainId, ChainId] = field(default_factory=dict)
    """Chains of this call by the ids they were to have; a duplicate's is the chain it duplicates."""

    def blockers(self, job: NewJob) -> list[ChainId]:
        return [self.actual.get(chain_id, chain_id) for chain_id in job.blockers]


@dataclass(frozen=True, slots=True)
class _Verdict:
    """How a job starts."""

    status: JobStatus
    open_blockers: int = 0


async def start_checked(
    connection: Connection, sql: Statements, jobs: Sequence[NewJob], *, now: int
) -> tuple[Sequence[Started], Sequence[Change]]:
    """Start jobs in the open transaction; also the continuations that failed at once, and what they did to others."""
    winners = await _winners(connection, sql, jobs, now=now)
    plan = _plan(jobs, winners)
    await _refuse_taken_ids(connection, sql, jobs, plan)
    heads = {job.id for _, job in plan.new if job.chain_index == 0}
    edges = {chain_id for _, job in plan.new for chain_id in plan.blockers(job)}
    elsewhere = await _headers(connection, sql, sorted(edges - heads), jobs)
    verdicts = _verdicts(plan, {**elsewhere, **dict.fromkeys(heads, (False, False))})

    rows = [_row(job, verdicts[position], now=now, awaited=job.id in edges) for position, job in plan.new]
    await connection.fetch(sql("start_checked"), {"jobs": many(rows), "now": now})
    blockers = [(job.id, n, chain) for _, job in plan.new for n, chain in enumerate(plan.blockers(job), 1)]
    if blockers:
        await connection.fetch(sql("start_blockers"), {"blockers": many(blockers)})
    if elsewhere:
        await connection.fetch(sql("mark_dependents"), {"ids": many(list(elsewhere))})
    failed = _failed_continuations(plan, verdicts)
    changes = [Change(job.id, job.chain_id, job.type_name, "failed", reason=FailureReason.BLOCKER) for job in failed]
    ended = [(str(job.id), str(job.chain_id), job.chain_index, job.type_name, JobStatus.FAILED, 0) for job in failed]
    changes += await Graph(sql).end(connection, ended, now=now)
    return [_answer(position, job, plan, verdicts) for position, job in enumerate(jobs)], changes


async def _winners(connection: Connection, sql: Statements, jobs: Sequence[NewJob], *, now: int) -> dict[int, UUID]:
    """The stored chain that each keyed job duplicates, by position."""
    keys = [
        _key(position, job.type_name, job.deduplication, now)
        for position, job in enumerate(jobs)
        if job.deduplication is not None
    ]
    if not keys:
        return {}
    rows = await connection.fetch(sql("start_winners"), {"keys": many(keys)})
    # A row that only a hand can have written does not count: nobody could wait for it.
    return {position: UUID(winner) for position, winner in rows if winner is not None and is_id(winner)}


def _key(position: int, type_name: str, wanted: Deduplication, now: int) -> tuple[Any, ...]:
    since = None if wanted.window is None else now - duration(wanted.window.total_seconds())
    return position, wanted.key, type_name, wanted.scope, since, list(wanted.exclude)


def _plan(jobs: Sequence[NewJob], winners: dict[int, UUID]) -> _Plan:
    plan = _Plan()
    skipped: set[int] = set()
    created: dict[tuple[str, str], list[JobId]] = {}
    for position, job in enumerate(jobs):
        if job.parent in skipped:
            skipped.add(position)
            plan.answers[position] = Started(job.id, None, False)
            continue
        winner = _winner(job, winners.get(position), created)
        plan.actual[job.id] = winner or job.id
        if winner is not None:
            skipped.add(position)
            plan.answers[position] = Started(winner, None, winner != job.id)
            continue
        plan.new.append((position, job))
        if job.deduplication is not None and job.chain_index == 0:
            created.setdefault((job.type_name, job.deduplication.key), []).append(job.id)
    return plan


def _winner(job: NewJob, stored: UUID | None, created: dict[tuple[str, str], list[JobId]]) -> UUID | None:
    """The chain that a job duplicates, the newest if there are several: one stored, or one of this call."""
    wanted = job.deduplication
    if wanted is None:
        return None
    here = created.get((job.type_name, wanted.key), [])
    if wanted.window is not None and wanted.window.total_seconds() <= 0:
        here = []
    found = [id for id in here if id not in wanted.exclude]
    return max(found if stored is None else [*found, stored], default=None)


async def _refuse_taken_ids(connection: Connection, sql: Statements, jobs: Sequence[NewJob], plan: _Plan) -> None:
    rows = await connection.fetch(sql("start_existing"), {"ids": many([job.id for job in jobs])})
    stored = {UUID(row[0]) for row in rows}
    new = Counter(job.id for _, job in plan.new)
    if any(count > 1 or id in stored for id, count in new.items()):
        asked = Counter(job.id for job in jobs)
        raise DuplicateJobId(sorted(id for id, count in asked.items() if count > 1 or id in stored))


async def _headers(
    connection: Connection, sql: Statements, chain_ids: Sequence[ChainId], jobs: Sequence[NewJob]
) -> dict[ChainId, tuple[bool, bool]]:
    """Of the stored chains that are to be waited for: whether each has ended, whether it failed."""
    if not chain_ids:
        return {}
    rows = await connection.fetch(sql("headers"), {"ids": many(chain_ids)})
    found = {UUID(row[0]): (bool(row[1]), bool(row[2])) for row in rows}
    missing = [chain_id for chain_id in chain_ids if chain_id not in found]
    if missing:
        needing = next(job.type_name for job in jobs if not set(missing).isdisjoint(job.blockers))
        raise BlockerNotFound(job_type=needing, chain_ids=missing)
    return found


def _verdicts(plan: _Plan, state: dict[ChainId, tuple[bool, bool]]) -> dict[int, _Verdict]:
    """Blockers before the jobs that wait for them, so that a failure spreads within the call."""
    verdicts: dict[int, _Verdict] = {}
    for position, job in reversed(plan.new):
        states = [state[chain_id] for chain_id in plan.blockers(job)]
        open_blockers = sum(not ended for ended, _ in states)
        if any(failed for _, failed in states) and not job.runs_anyway:
            verdicts[position] = _Verdict(JobStatus.FAILED, open_blockers)
            state[job.chain_id] = True, True
        else:
            status = JobStatus.BLOCKED if open_blockers else JobStatus.PENDING
            verdicts[position] = _Verdict(status, open_blockers)
    return verdicts


def _row(job: NewJob, verdict: _Verdict, *, now: int, awaited: bool) -> tuple[Any, ...]:
    return (
        *new_row(job, now),
        verdict.status,
        len(job.blockers),
        verdict.open_blockers,
        int(job.runs_anyway),
        None if job.deduplication is None else job.deduplication.key,
        int(awaited),
    )


def _failed_continuations(plan: _Plan, verdicts: dict[int, _Verdict]) -> list[NewJob]:
    return [job for position, job in plan.new if job.chain_index and verdicts[position].status is JobStatus.FAILED]


def _answer(position: int, job: NewJob, plan: _Plan, verdicts: dict[int, _Verdict]) -> Started:
    if position in plan.answers:
        return plan.answers[position]
    return Started(job.id, verdicts[position].status, False)

"""START: chains to start become jobs to store, checked, encoded, and with their provenance filled in."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from onward.define.outcome import Next
from onward.define.registry import Registered, Registry
from onward.define.request import BlockerSource, NewChain
from onward.errors import StartRefused
from onward.lifecycle.after_commit import Effects
from onward.lifecycle.context import Origin, current_origin
from onward.lifecycle.store import Store
from onward.model import ChainId, Deduplication, JobId, JobStatus, new_ids
from onward.state.contract import NewJob, Started
from onward.state.driver import Connection

MOST_PRIORITY = 2**31 - 1
_NOTHING: dict[str, Any] = {}


class Family(NamedTuple):
    """Where a job comes from; the blockers it starts come from there too."""

    origin_id: JobId | None
    root_id: JobId | None
    """None: the job is a root itself."""


class _Plan:
    """The jobs of one call, parents before the blockers they start."""

    def __init__(self, registry: Registry, ids: Iterator[JobId]) -> None:
        self._registry, self._ids = registry, ids
        self._jobs: list[NewJob | None] = []

    def add(self, chain: NewChain[Any], parent: int | None, family: Family) -> ChainId:
        """Plan a chain and the blockers it starts; the chain's id."""
        kind = self._registry.entry(chain.job_type)
        chain_id = chain.id or next(self._ids)
        root_id = family.root_id or chain_id
        position = len(self._jobs)
        self._jobs.append(None)
        self._jobs[position] = NewJob(
            id=chain_id,
            chain_id=chain_id,
            type_name=kind.name,
            payload_version=kind.definition.version,
            input=kind.input.encode(chain.input),
            priority=_checked_priority(kind, chain.priority),
            delay=_checked_delay(kind, chain.delay, chain.at),
            at=chain.at,
            origin_id=family.origin_id,
            root_id=root_id,
            parent=parent,
            **self._waiting(kind, chain.blockers, position, Family(family.origin_id, root_id)),
            deduplication=_checked_key(kind, chain.deduplication),
            id_is_callers=chain.id is not None,
        )
        return chain_id

    def add_continuation(self, outcome: Next[Any], after: "Predecessor") -> None:
        """Plan the job that follows `after`."""
        self._registry.find(after.type_name).may_continue_to(outcome.step.name)
        kind = self._registry.find(outcome.step.name)
        position = len(self._jobs)
        self._jobs.append(None)
        self._jobs[position] = NewJob(
            id=next(self._ids),
            chain_id=after.chain_id,
            chain_index=after.chain_index + 1,
            type_name=kind.name,
            payload_version=kind.definition.version,
            input=kind.input.encode(outcome.input),
            priority=after.priority if outcome.priority is None else _checked_priority(kind, outcome.priority),
            delay=_checked_delay(kind, outcome.delay, outcome.at),
            at=outcome.at,
            origin_id=after.job_id,
            root_id=after.root_id,
            **self._waiting(kind, outcome.blockers, position, Family(after.job_id, after.root_id)),
        )

    def finished(self) -> list[NewJob]:
        return [job for job in self._jobs if job is not None]

    def _waiting(
        self, kind: Registered, sources: Sequence[BlockerSource], parent: int, family: Family
    ) -> dict[str, Any]:
        """What a job says of those it waits for."""
        if not sources:
            return _NOTHING
        ids: list[ChainId] = []
        for source in sources:
            kind.may_be_blocked_by(source.job_type.name)
            ids.append(self.add(source, parent, family) if isinstance(source, NewChain) else source.id)
        there = {source.job_type.name for source in sources if not isinstance(source, NewChain)}
        runs_anyway = kind.definition.on_blocker_failure == "run"
        return {"blockers": tuple(ids), "blocker_types": tuple(there), "runs_anyway": runs_anyway}


class Predecessor(NamedTuple):
    """The job that continues."""

    job_id: JobId
    chain_id: ChainId
    chain_index: int
    root_id: JobId
    type_name: str
    priority: int


def plan_chains(registry: Registry, chains: Sequence[NewChain[Any]], *, origin: Origin | None = None) -> list[NewJob]:
    """The jobs of these chains and of the blockers they start. Raises what is wrong with them, before any I/O.

    Without `origin` they come from the job whose handler runs here, if there is one.
    """
    origin = origin or current_origin.get()
    family = Family(origin.job_id, origin.root_id) if origin else Family(None, None)
    plan = _Plan(registry, iter(new_ids(sum(map(_size, chains)))))
    for chain in chains:
        plan.add(chain, None, family)
    return plan.finished()


def plan_continuation(registry: Registry, outcome: Next[Any], after: Predecessor) -> list[NewJob]:
    """The job that continues a chain, followed by the blockers it starts."""
    plan = _Plan(registry, iter(new_ids(1 + sum(_size(b) for b in outcome.blockers if isinstance(b, NewChain)))))
    plan.add_continuation(outcome, after)
    return plan.finished()


async def start_jobs(store: Store, jobs: Sequence[NewJob], *, tx: object) -> list[Started]:
    """Store planned jobs; the answers for the chains the caller asked for, in order."""
    tries = 0

    async def operation(connection: Connection) -> tuple[list[Started], Effects]:
        nonlocal tries
        tries += 1
        if tries > 1:
            there = await _already_stored(store, connection, jobs)
            if there is not None:
                return there, Effects()
            started = await store.state.start(connection, jobs, repeated=True)
            effects = store.consequences.of_start(jobs, started)
        elif tx is None and all(job.is_plain for job in jobs):
            started, effects = await _start_riding(store, connection, jobs)
        else:
            started = await store.state.start(connection, jobs)
            effects = store.consequences.of_start(jobs, started)
        return [answer for job, answer in zip(jobs, started, strict=True) if job.parent is None], effects

    return await store.write(operation, tx=tx, doing="start")


async def _start_riding(
    store: Store, connection: Connection, jobs: Sequence[NewJob]
) -> tuple[Sequence[Started], Effects]:
    """Nothing stands in the way of these jobs, and they are committed at once: their hints may leave with them."""
    effects = store.consequences.of_start(jobs, [Started(job.id, JobStatus.PENDING, False) for job in jobs])
    ride = store.ride(effects)
    try:
        return await store.state.start(connection, jobs, rider=ride and ride.statement), effects
    except BaseException:
        if ride is not None:
            store.release(Effects(hints=list(ride.hints)))  # there may be those of others among them
        raise


async def _already_stored(store: Store, connection: Connection, jobs: Sequence[NewJob]) -> list[Started] | None:
    """After a commit of unknown outcome: our own jobs, if that commit went through."""
    found = {job.id: job for job in await store.state.find_jobs(connection, [job.id for job in jobs])}
    asked = [job for job in jobs if job.parent is None]
    if not all(job.id in found and found[job.id].type_name == job.type_name for job in asked):
        return None
    return [Started(job.id, JobStatus(found[job.id].status), False) for job in asked]


def _size(chain: NewChain[Any]) -> int:
    if not chain.blockers:
        return 1
    return 1 + sum(_size(blocker) for blocker in chain.blockers if isinstance(blocker, NewChain))


def _checked_priority(kind: Registered, priority: int) -> int:
    if not -MOST_PRIORITY <= priority <= MOST_PRIORITY:
        raise StartRefused(f"{kind.name!r}: priority={priority} does not fit in 32 bits")
    return priority


def _checked_delay(kind: Registered, delay: timedelta | None, at: datetime | None) -> float:
    if delay is not None and at is not None:
        raise StartRefused(f"{kind.name!r}: give delay= or at=, not both")
    if at is not None and at.tzinfo is None:
        raise StartRefused(f"{kind.name!r}: at={at} has no time zone; use datetime.now(UTC) or astimezone()")
    if delay is None:
        return 0.0
    if delay < timedelta(0):
        raise StartRefused(f"{kind.name!r}: delay={delay} is negative; use 0 or omit it to start now")
    return delay.total_seconds()


def _checked_key(kind: Registered, deduplication: Deduplication | None) -> Deduplication | None:
    if deduplication is not None:
        if not deduplication.key or "\0" in deduplication.key or len(deduplication.key) > 1000:
            raise StartRefused(f"{kind.name!r}: a deduplication key has 1 to 1000 characters and no NUL")
        if deduplication.window is not None and deduplication.window <= timedelta(0):
            raise StartRefused(f"{kind.name!r}: a deduplication window must be positive")
    return deduplication

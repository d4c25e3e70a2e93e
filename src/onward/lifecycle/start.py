"""START: chains to start become jobs to store, checked, encoded, and with their provenance filled in."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import msgspec

from onward.define.limit import limit_key_of
from onward.define.meta import encode_meta, merged, trace_of
from onward.define.outcome import Next
from onward.define.registry import RegisteredType, Registry
from onward.define.request import BlockerSource, ChainReference, NewChain
from onward.errors import BlockerMissing, StartRefused
from onward.lifecycle.store import Store
from onward.model import (
    BlockedJob,
    ChainId,
    Deduplication,
    FailedJob,
    FailureReason,
    Job,
    JobId,
    JobStatus,
    fresh_ids,
)
from onward.observe.observer import Sent
from onward.observe.running import Running, current_attempt
from onward.options import (
    MOST_JOBS,
    MOST_JSON,
    MOST_PRIORITY,
    given,
    wrong_call,
    wrong_id,
    wrong_kind,
    wrong_priority,
    wrong_time,
)
from onward.state.command import Steps
from onward.state.contract import NewJob, Started
from onward.state.driver import Connection

_NOTHING: dict[str, Any] = {}
_NONE: tuple[()] = ()
"""What is waited for where nothing was said."""
_TO_COME: Any = None
"""Holds the place of a job whose blockers are planned before it is made."""
_DEEPEST = 100
_TOO_DEEP = f"blockers that start blockers, more than {_DEEPEST} levels deep: start the innermost first"


class Family(NamedTuple):
    """Where a job comes from; the blockers it starts come from there too."""

    origin_id: JobId | None
    root_id: JobId | None
    """None: the job is a root itself."""
    trace: Mapping[str, Any] = _NOTHING
    """Where it belongs, if that is known."""


class _Plan(msgspec.Struct):
    """The jobs of one call, parents before the blockers they start."""

    registry: Registry
    ids: Iterator[JobId]
    count: int
    """How many chains were asked for, with those they wait for."""
    jobs: list[NewJob] = []
    json: int = 0
    """Characters of their inputs."""

    def add(self, chain: NewChain[Any], parent: int | None, family: Family) -> ChainId:
        """Plan a chain and the blockers it starts; the chain's id."""
        job_type = self.registry.entry(chain.job_type)
        chain_id = next(self.ids) if chain.id is None else _checked_id(job_type, chain.id)
        root_id = family.root_id or chain_id
        waits = chain.blockers is not _NONE or job_type.required
        if waits and parent is None:
            self.count = _counted(chain.blockers, self.count)
        position = len(self.jobs)
        self.jobs.append(_TO_COME)
        self.jobs[position] = NewJob(
            id=chain_id,
            chain_id=chain_id,
            type_name=job_type.name,
            payload_version=job_type.definition.version,
            input=self._encoded(job_type, chain.input, chain_id),
            priority=chain.priority,
            delay=_checked_delay(job_type, chain.priority, chain.delay, chain.at),
            at=chain.at,
            origin_id=family.origin_id,
            root_id=root_id,
            limit_key=limit_key_of(job_type.limits, chain.input) if job_type.limits else None,
            parent=parent,
            **(self._waiting(job_type, chain.blockers, position, family, root_id) if waits else _NOTHING),
            deduplication=_checked_key(job_type, chain.deduplication) if chain.deduplication is not None else None,
            id_is_callers=chain.id is not None,
            meta=_checked_meta(job_type, chain.meta, family.trace) if chain.meta is not None or family.trace else None,
        )
        return chain_id

    def add_continuation(self, outcome: Next[Any], after: "Predecessor") -> None:
        """Plan the job that follows `after`."""
        job_type = self.registry.step(outcome.step)
        self.registry.find(after.type_name).may_continue_to(job_type.name)
        position = len(self.jobs)
        self.jobs.append(_TO_COME)
        job_id = next(self.ids)
        priority = outcome.priority
        waits = outcome.blockers is not _NONE or job_type.required
        if waits:
            self.count = _counted(outcome.blockers, self.count)
        self.jobs[position] = NewJob(
            id=job_id,
            chain_id=after.chain_id,
            chain_index=after.chain_index + 1,
            type_name=job_type.name,
            payload_version=job_type.definition.version,
            input=self._encoded(job_type, outcome.input, job_id),
            priority=after.priority if priority is None else priority,
            delay=_checked_delay(job_type, 0 if priority is None else priority, outcome.delay, outcome.at),
            at=outcome.at,
            origin_id=after.job_id,
            root_id=after.root_id,
            limit_key=limit_key_of(job_type.limits, outcome.input) if job_type.limits else None,
            **(self._waiting(job_type, outcome.blockers, position, after.family, after.root_id) if waits else _NOTHING),
            meta=after.meta if outcome.meta is None else _checked_meta(job_type, outcome.meta, after.family.trace),
        )

    def _encoded(self, job_type: RegisteredType, input: Any, job_id: JobId) -> str:
        text = job_type.input.encode(input, job_id)
        self.json += len(text)
        if self.json > MOST_JSON:
            _refuse(job_type, wrong_call(0, self.json))
        return text

    def _waiting(
        self, job_type: RegisteredType, sources: Sequence[BlockerSource], parent: int, family: Family, root_id: JobId
    ) -> dict[str, Any]:
        """What a job says of those it waits for, which come from where it comes from."""
        _refuse(job_type, _wrong_blockers(sources))
        if not sources and not job_type.required:
            return _NOTHING
        ids: list[ChainId] = []
        family = family._replace(root_id=root_id)
        for source in sources:
            job_type.may_be_blocked_by(source.job_type.name)
            ids.append(self.add(source, parent, family) if isinstance(source, NewChain) else source.id)
        missing = job_type.required.difference(source.job_type.name for source in sources)
        if missing:
            raise BlockerMissing(job_type=job_type.name, missing=sorted(missing))
        there = {source.job_type.name for source in sources if not isinstance(source, NewChain)}
        runs_anyway = job_type.definition.on_blocker_failure == "run"
        return {"blockers": tuple(ids), "blocker_types": tuple(there), "runs_anyway": runs_anyway}


class Predecessor(NamedTuple):
    """The job that continues."""

    job_id: JobId
    chain_id: ChainId
    chain_index: int
    root_id: JobId
    type_name: str
    priority: int
    meta: str | None

    @property
    def family(self) -> Family:
        """Of those it starts."""
        return Family(self.job_id, self.root_id, trace_of(self.meta))


def plan_chains(registry: Registry, chains: Sequence[NewChain[Any]], *, origin: Running | None = None) -> list[NewJob]:
    """The jobs of these chains and of the blockers they start. Raises what is wrong with them, before any I/O.

    Without `origin` they come from the job whose handler runs here, if there is one.
    """
    if not isinstance(chains, list | tuple):
        raise StartRefused(f"{given('chains', chains)}: expected a list of what job_type.with_input(…) makes")
    origin = origin or current_attempt.get()
    family = Family(origin.job_id, origin.root_id) if origin else Family(None, None)
    plan = _Plan(registry, fresh_ids(), len(chains))
    if plan.count > MOST_JOBS:
        raise StartRefused(wrong_call(plan.count, 0))
    for chain in chains:
        if not isinstance(chain, NewChain):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise StartRefused(f"{given('chains', chain)}: start_many takes what job_type.with_input(…) makes")
        plan.add(chain, None, family)
    return plan.jobs


def plan_continuation(registry: Registry, outcome: Next[Any], after: Predecessor) -> list[NewJob]:
    """The job that continues a chain, followed by the blockers it starts."""
    plan = _Plan(registry, fresh_ids(), 1)
    plan.add_continuation(outcome, after)
    return plan.jobs


async def start_jobs(store: Store, jobs: Sequence[NewJob], *, tx: object) -> list[Started]:
    """Store planned jobs; the answers for the chains the caller asked for, in order."""
    if not jobs:
        return []
    jobs, sent = _traced(store, jobs) if store.observers.are_tracing else (jobs, None)
    started = await store.write(
        store.state.start(jobs),
        partial(store.effects_of.start, jobs, sent=sent),
        tx=tx,
        doing="start",
        again=lambda _: Steps(partial(_start_again, store, jobs)),
    )
    asked: list[Started] = []
    for job, answer in zip(jobs, started, strict=True):
        if job.parent is None:
            asked.append(answer)
    return asked


def _traced(store: Store, jobs: Sequence[NewJob]) -> tuple[Sequence[NewJob], Sent | None]:
    """The jobs with where they belong written on them, and whom to tell once they are there."""
    starting = store.observers.starting([job for job in jobs if job.parent is None])
    if starting is None:
        return jobs, None
    return [msgspec.structs.replace(job, meta=merged(job.meta, starting.carried)) for job in jobs], starting.sent


async def _start_again(store: Store, jobs: Sequence[NewJob], connection: Connection) -> Sequence[Started]:
    """After a commit of unknown outcome: our own jobs are there if it went through, and nobody has told of them."""
    found = {job.id: job for job in await connection.run(store.state.find_jobs([job.id for job in jobs]))}
    asked = [job for job in jobs if job.parent is None]
    if not all(job.id in found and found[job.id].type_name == job.type_name for job in asked):
        return await connection.run(store.state.start(jobs, repeated=True))
    return [Started(job.id, _status_when_started(found.get(job.id)), False) for job in jobs]


def _status_when_started(job: Job | None) -> JobStatus | None:
    """None for a blocker that is not there: it was a duplicate. Whatever became of the others, they began like this."""
    if job is None:
        return None
    if isinstance(job, FailedJob) and job.reason is FailureReason.BLOCKER:
        return JobStatus.FAILED
    return JobStatus.BLOCKED if isinstance(job, BlockedJob) else JobStatus.PENDING


def _counted(blockers: object, count: int) -> int:
    """How many chains these are, with those they wait for in turn, and with those counted before; what else may have
    been given is refused later.
    """
    found = [(1, blockers)]
    for depth, sources in found:  # which grows meanwhile
        if not isinstance(sources, list | tuple):
            continue
        count += len(sources)
        if count > MOST_JOBS or depth > _DEEPEST:
            raise StartRefused(wrong_call(count, 0) or _TOO_DEEP)
        for source in sources:
            if isinstance(source, NewChain) and source.blockers is not _NONE:
                found.append((depth + 1, source.blockers))
    return count


def _checked_id(job_type: RegisteredType, id: ChainId) -> ChainId:
    _refuse(job_type, wrong_id("id", id))
    return id


def _checked_delay(job_type: RegisteredType, priority: int, delay: timedelta | None, at: datetime | None) -> float:
    """The delay in seconds, if all that says when the job is taken can be stored."""
    if type(priority) is not int or not -MOST_PRIORITY <= priority <= MOST_PRIORITY:
        _refuse(job_type, wrong_priority(priority))
    if delay is None and at is None:
        return 0.0
    _refuse(job_type, wrong_time(delay, at))
    return 0.0 if delay is None else delay.total_seconds()


def _checked_key(job_type: RegisteredType, deduplication: Deduplication) -> Deduplication:
    such = 'a Deduplication, such as Deduplication("key")'
    _refuse(job_type, wrong_kind("deduplication", deduplication, Deduplication, such=such))
    return deduplication


def _checked_meta(job_type: RegisteredType, meta: Mapping[str, Any] | None, trace: Mapping[str, Any]) -> str | None:
    return merged(None if meta is None else encode_meta(meta, job_type.name), trace)


def _wrong_blockers(sources: object) -> str | None:
    if not isinstance(sources, list | tuple):
        return f"{given('blockers', sources)}: expected a list of chains"
    for source in sources:
        if not isinstance(source, NewChain | ChainReference):
            such = "app.chain(job_type, id)" if isinstance(source, ChainId) else "a handle, or job_type.with_input(…)"
            return f"{given('blockers', source)}: expected {such}"
    return None


def _refuse(job_type: RegisteredType, problem: str | None) -> None:
    if problem is not None:
        raise StartRefused(f"{job_type.name!r}: {problem}")

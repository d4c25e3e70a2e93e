"""What can keep a job where it is, in words: each a clause that has the job, or its chain, as its subject."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from onward.client.causes import place_of
from onward.client.untaken import OF_QUEUES, is_of_queue
from onward.client.words import in_short, listed, moment, several, span
from onward.define.limit import shown_name
from onward.model import CompletedJob, FailedJob, FailureReason, Job, PendingJob, RunningJob
from onward.operating import Why, WorkerInfo
from onward.state.contract import LimitRule, Line

MOST_AHEAD = 1000
"""So far those before a job are counted."""
_SHOWN = 10
_HARDEST = (
    Why.NO_WORKER_OF_VERSION,
    Why.NO_WORKER,
    Why.PAUSED,
    Why.FAILED,
    Why.AWAITS_COMPLETION,
    Why.LEASE_EXPIRED,
    Why.RETRYING,
    Why.LIMIT,
    Why.SCHEDULED,
    Why.RUNNING,
    Why.NEXT_IN_LINE,
)
"""What lasts until somebody does something comes first."""


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Something that stands in a job's way."""

    why: Why
    clause: str
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def sentence(self) -> str:
        return f"It {self.clause}."

    @property
    def afterwards(self) -> str:
        """The same, of what comes once something else is out of the way."""
        return f"Then it {self.clause}."

    @property
    def ease(self) -> int:
        """Less is worse."""
        return _HARDEST.index(self.why) if self.why in _HARDEST else len(_HARDEST)


class Crew:
    """The workers there are, by what they take."""

    def __init__(self, workers: Sequence[WorkerInfo]) -> None:
        self._all = {worker.id: worker for worker in workers}
        self.alive = [worker for worker in workers if worker.state == "alive"]

    def find(self, id: str) -> WorkerInfo | None:
        return self._all.get(id)

    def of_type(self, name: str) -> list[WorkerInfo]:
        """Those alive that take some version of a type."""
        return [worker for worker in self.alive if worker.types.get(name)]

    def taking(self, job: Job) -> list[WorkerInfo]:
        """Those alive that would take it."""
        return [worker for worker in self.alive if job.payload_version in worker.types.get(job.type_name, ())]

    def gone(self, job: Job) -> list[WorkerInfo]:
        """Those that would take it, and stop or are dead."""
        others = [worker for worker in self._all.values() if worker.state != "alive"]
        return [worker for worker in others if job.payload_version in worker.types.get(job.type_name, ())]


def is_retry(job: Job) -> bool:
    """Whether its last attempt failed; else it was scheduled, given back or rescheduled."""
    return job.last_error is not None and job.last_error.attempt in (None, job.attempt)


def not_due(job: PendingJob, now: datetime, max_attempts: int | None) -> Reason:
    """It has a time, which has not come."""
    at = f"{moment(job.scheduled_at)}, in {span((job.scheduled_at - now).total_seconds())}"
    facts = {"scheduled_at": job.scheduled_at}
    if not is_retry(job) or job.last_error is None:
        return Reason(why=Why.SCHEDULED, clause=f"is scheduled for {at}", facts=facts)
    told = f"is tried again at {at}, after {_attempt(job, max_attempts)} failed: {in_short(job.last_error)}"
    return Reason(why=Why.RETRYING, clause=told, facts={**facts, **error_facts(job)})


def paused(job: Job) -> Reason:
    """Its type is."""
    told = f"waits because its type {job.type_name!r} is paused; `onward resume {job.type_name}` lets it go on"
    return Reason(why=Why.PAUSED, clause=told, facts={"paused": True})


def awaits_completion(job: Job) -> Reason:
    """Its type has no handler, and no worker takes it."""
    told = f"awaits completion: its type {job.type_name!r} has no handler, and app.complete(…) is to end it"
    return Reason(why=Why.AWAITS_COMPLETION, clause=told)


def no_worker(job: Job, crew: Crew, *, is_known: bool) -> Reason:
    """Nobody alive would take it; `is_known`: its type has a handler."""
    gone = [f"{worker.id} ({worker.state})" for worker in crew.gone(job)]
    left = f"; {listed(gone)} would have" if gone else ""
    facts: dict[str, Any] = {"live_workers": len(crew.alive), "would_have_taken_it": gone[:_SHOWN]}
    others = crew.of_type(job.type_name)
    if is_of_queue(job.type_name):
        queue = job.type_name.removeprefix(OF_QUEUES)
        told = (
            f"waits for a worker of its queue {queue!r}: such are known while they run something, and none does{left}"
        )
        return Reason(why=Why.NO_WORKER, clause=told, facts=facts)
    if not others:
        some = (
            "there is no live worker" if not crew.alive else f"none of {several(len(crew.alive), 'live worker')} does"
        )
        perhaps = (
            ""
            if is_known or gone
            else "; or its type has no handler, and it awaits completion: only an app knows (--app)"
        )
        told = f"waits for a worker that takes its type {job.type_name!r}: {some}{left}{perhaps}"
        return Reason(why=Why.NO_WORKER, clause=told, facts=facts)
    known = {worker.id: sorted(worker.types[job.type_name]) for worker in others}
    read = listed([f"{id} reads {_versions(versions)}" for id, versions in known.items()])
    told = f"waits for a worker that reads version {job.payload_version} of its type {job.type_name!r}: {read}{left}"
    facts["readable"] = [f"{id}: {_versions(versions)}" for id, versions in known.items()][:_SHOWN]
    return Reason(why=Why.NO_WORKER_OF_VERSION, clause=told, facts=facts)


def held(job: Job, line: Line, rule: LimitRule | None, holders: Sequence[Job]) -> Reason:
    """It has no place of its limit."""
    name, _, key = (job.limit_key or "").partition("/")
    shown = shown_name(name)
    limit = f"limit {shown!r}" + (f", key {key!r}" if key else "")
    by = [f"{one.id} ({one.type_name})" for one in holders]
    facts: dict[str, Any] = {"limit": shown, "key": key, "holding": line.placed, "ahead": line.ahead, "held_by": by}
    if rule is not None:
        facts |= {"concurrency": rule.places, "every": rule.every}
    behind = "" if line.ahead == 0 else f", behind {_count(line.ahead)} more"
    if rule is None:
        why = "no worker has declared that limit yet"
    elif rule.places is not None and line.placed >= rule.places:
        why = f"{'the one' if rule.places == 1 else f'all {rule.places:,}'} are held by {listed(by)}"
        why = why.replace("the one are", "the only one is")
    elif line.next_at is not None:
        facts["next_at"] = line.next_at
        why = f"its rate has the next one at {moment(line.next_at)}"
    else:
        why = "a live worker gives it one within moments"
    return Reason(why=Why.LIMIT, clause=f"waits for a place of {limit}{behind}: {why}", facts=facts)


def in_line(job: PendingJob, line: Line, takers: Sequence[WorkerInfo]) -> Reason:
    """Nothing stands in its way but those before it."""
    slots = sum(worker.concurrency for worker in takers)
    free = sum(max(worker.concurrency - len(worker.running), 0) for worker in takers)
    since = span(max((line.now - job.scheduled_at).total_seconds(), 0.0))
    who = takers[0].id if len(takers) == 1 else several(len(takers), "worker")
    busy = (
        f"{free} of {several(slots, 'slot')} of {who} free" if free else f"all {several(slots, 'slot')} of {who} busy"
    )
    busy = busy if slots else f"{who} to take it"  # of those without a row it is not known how many they have
    stuck = [worker.id for worker in takers if worker.blocked_since is not None]
    busy += f"; the event loop of {listed(stuck)} stands still" if stuck else ""
    place = "is next in line" if line.ahead == 0 else f"is in line behind {_count(line.ahead)} more"
    facts = {
        "ahead": line.ahead,
        "due_for": round((line.now - job.scheduled_at).total_seconds(), 3),
        "workers": [worker.id for worker in takers[:_SHOWN]],
        "slots": slots,
        "free_slots": free,
        "blocked_workers": stuck[:_SHOWN],
    }
    return Reason(why=Why.NEXT_IN_LINE, clause=f"{place}, due for {since}, with {busy}", facts=facts)


def running(job: RunningJob, crew: Crew, now: datetime, max_attempts: int | None) -> Reason:
    """A worker has it, or had it."""
    holder = crew.find(job.leased_by)
    seen = "" if holder is None else f", which gave its last sign of life {_ago(now, holder.seen_at)}"
    if holder is not None and holder.blocked_since is not None:
        seen += f" and whose event loop had stood still since {moment(holder.blocked_since)}"
    facts: dict[str, Any] = {
        "worker": job.leased_by,
        "leased_until": job.leased_until,
        "seen_at": holder and holder.seen_at,
        "worker_state": holder and holder.state,
    }
    if job.progress is not None:
        facts |= {"progress": job.progress.fraction, "progress_note": job.progress.note}
    if job.leased_until > now:
        facts["cancel_requested"] = job.cancel_requested
        asked = "; it was asked to stop" if job.cancel_requested else ""
        left = f"until {moment(job.leased_until)}, for {span((job.leased_until - now).total_seconds())} more"
        told = f"is running, {_attempt(job, max_attempts)}: leased by {job.leased_by}{seen}, {left}{asked}"
        return Reason(why=Why.RUNNING, clause=told, facts=facts)
    heirs = crew.of_type(job.type_name)
    facts["would_take_it"] = [worker.id for worker in heirs[:_SHOWN]]
    next = (
        f"{listed([worker.id for worker in heirs])} will take it over within moments, unless it is just being completed"
        if heirs
        else f"it is taken over when a worker of its type {job.type_name!r} is started"
    )
    is_let_go = job.leased_until.timestamp() <= 0  # in a file: by the dead worker's guardian, which says no time
    ran_out = "was let go of" if is_let_go else f"ran out {_ago(now, job.leased_until)}"
    told = f"was being run by {job.leased_by}{seen}, but its lease {ran_out}; {next}"
    return Reason(why=Why.LEASE_EXPIRED, clause=told, facts=facts)


def completed(job: CompletedJob, current: Job | None) -> Reason:
    """It has ended well; `current`: what its chain has come to, if that is another job."""
    by = f" by {job.completed_by}" if job.completed_by else ""
    went_on = (
        "" if current is None else f", and its chain went on to {current.id} ({current.type_name}, {current.status})"
    )
    facts = {"completed_at": job.completed_at, "completed_by": job.completed_by, "went_on_to": current and current.id}
    return Reason(why=Why.COMPLETED, clause=f"completed at {moment(job.completed_at)}{by}{went_on}", facts=facts)


def failed(job: FailedJob, max_attempts: int | None, through: "tuple[Through, Reason] | None") -> Reason:
    """It has ended badly; `through`: the chains through which it did, and why the last of them failed."""
    at, error = moment(job.failed_at), job.last_error
    facts: dict[str, Any] = {"failed_at": job.failed_at, "reason": job.reason, **error_facts(job)}
    what = "" if error is None else f": {in_short(error)}{_at(place_of(error))}"
    match job.reason:
        case FailureReason.ATTEMPTS:
            told = f"failed at {at} after {_attempt(job, max_attempts)}{what}"
        case FailureReason.PERMANENT:
            told = f"failed at {at}, for good{what}"
        case FailureReason.CANCELLED:
            told = f"was cancelled at {at}"
        case FailureReason.UNREADABLE:
            told = f"failed at {at}, because it cannot be read{what}"
        case FailureReason.BLOCKER if through is None:
            told = f"failed at {at}, because a chain that it waited for did, which was retried or deleted since"
        case FailureReason.BLOCKER:
            assert through is not None
            path, root = through
            told = f"failed at {at}, because {in_a_row(path, 'waited')}, which {root.clause}"
            facts |= {**path_facts(path), **{f"root_{name}": value for name, value in root.facts.items()}}
    return Reason(why=Why.FAILED, clause=told, facts=facts)


Through = Sequence[tuple[Any, str]]
"""Chains in a row, each the one that the one before waits for: their ids and types."""


def blocked(path: Through, root: Reason, *, count: int) -> Reason:
    """It waits for a chain, and that perhaps for another: in the end for one that does not wait for a chain."""
    first, *rest = path
    told = (
        f"waits for chain {_chain(first)}" if count == 1 else f"waits for {count:,} chains, among them {_chain(first)}"
    )
    told += "".join(f", which waits for {_chain(one)}" for one in _ends(rest))
    facts = {"open_blockers": count, **path_facts(path), "root_why": root.why}
    facts |= {f"root_{name}": value for name, value in root.facts.items()}
    return Reason(why=Why.BLOCKED, clause=f"{told}, which {root.clause}", facts=facts)


def blocked_far(path: Through, *, count: int) -> Reason:
    """What it waits for in the end is too far away to be looked at, or ends at this moment."""
    facts: dict[str, Any] = {"open_blockers": count}
    if not path:
        return Reason(why=Why.BLOCKED, clause=f"waits for {several(count, 'chain')}", facts=facts)
    row = f"which is the first of more than {len(path)} in a row; the last one seen is {_chain(path[-1])}"
    told = f"waits for chain {_chain(path[0])}, {row}"
    return Reason(why=Why.BLOCKED, clause=told, facts={**facts, "path": [_chain(one) for one in path]})


def in_a_row(path: Through, word: str) -> str:
    first, *rest = path
    return f"chain {_chain(first)}, which it {word} for, did" + "".join(
        f", through {_chain(one)}" for one in _ends(rest)
    )


def path_facts(path: Through) -> dict[str, Any]:
    return {"path": [_chain(one) for one in path], "root_chain": path[-1][0], "root_type": path[-1][1]}


def error_facts(job: Job) -> dict[str, Any]:
    error = job.last_error
    if error is None:
        return {}
    return {"error": in_short(error), "error_type": error.type, "place": place_of(error) or None}


def _ends(chains: Sequence[tuple[Any, str]]) -> Sequence[tuple[Any, str]]:
    """Where there are very many, the last ones: they are what it is about."""
    return chains if len(chains) <= 3 else chains[-3:]


def _chain(one: tuple[Any, str]) -> str:
    return f"{one[0]} ({one[1]})"


def _attempt(job: Job, max_attempts: int | None) -> str:
    of = "" if max_attempts is None or job.attempt > max_attempts else f" of {max_attempts}"
    return f"attempt {job.attempt}{of}"


def _versions(versions: Sequence[int]) -> str:
    """Without a break, as from its first to its last.

    >>> _versions([1, 2, 3]), _versions([2]), _versions([1, 3])
    ('versions 1 to 3', 'version 2', 'versions 1 and 3')
    """
    if len(versions) == 1:
        return f"version {versions[0]}"
    is_row = len(versions) > 2 and [*versions] == [*range(versions[0], versions[-1] + 1)]
    return f"versions {f'{versions[0]} to {versions[-1]}' if is_row else listed(versions)}"


def _count(ahead: int) -> str:
    return f"more than {MOST_AHEAD:,}" if ahead > MOST_AHEAD else f"{ahead:,}"


def _ago(now: datetime, at: datetime) -> str:
    return f"{span(max((now - at).total_seconds(), 0.0))} ago"


def _at(place: str) -> str:
    return f", at {place}" if place else ""

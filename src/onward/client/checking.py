"""Whether what is stored can be read by this code: the payloads that jobs wait, or run, with, and every schedule."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from onward.client.arguments import filter_of
from onward.client.listing import Listing
from onward.client.queries import page_of
from onward.client.untaken import is_of_queue
from onward.define.registry import RegisteredType, Registry
from onward.errors import OnwardError
from onward.lifecycle.schedules import rules_of
from onward.lifecycle.store import Store
from onward.model import Blocker, Job, JobId, JobStatus, Page
from onward.state.schedules import ScheduleRow

_BATCH, _AMONG, _EXAMPLES = 500, 50_000, 5
_NO_SUCH_TYPE = "there is no such job type: was it renamed, or removed?"
_OPEN = (JobStatus.BLOCKED, JobStatus.PENDING, JobStatus.RUNNING)


@dataclass(slots=True, kw_only=True)
class Stranded:
    """Jobs that this code could not go on with, and why."""

    type_name: str
    version: int
    part: str
    """`type`, `input`, or `blocker`: the output of a chain that it waits, or waited, for."""
    problem: str
    count: int = 0
    examples: list[JobId] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class StrandedSchedule:
    """A schedule that this code would not go on with, or whose chains it could not, and why."""

    name: str
    type_name: str
    part: str
    """`definition`, `type`, `input`, or `declaration`: this code does not declare it."""
    problem: str


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What came of a check."""

    checked: int = 0
    """Jobs whose payloads were decoded."""
    skipped: int = 0
    """Jobs of a type and version of which enough had been checked."""
    stranded: list[Stranded] = field(default_factory=list)
    schedules: int = 0
    """Those that were checked: neither paused nor over."""
    stranded_schedules: list[StrandedSchedule] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.stranded and not self.stranded_schedules


async def check_stored(
    registry: Registry, store: Store, *, declared: Collection[str] = (), limit: int | None = None
) -> Verdict:
    """Decode what every job waits or runs with, and the outputs it was given; `limit`: of so many jobs per type and
    version. Reads page by page, newest first; changes nothing. `declared`: the schedules of this code.
    """
    verdict, seen = Verdict(), Counter[tuple[str, int]]()
    found: dict[tuple[str, int, str, str], Stranded] = {}
    async for batch in _batches(store):
        chosen = [job for job in batch if _counts(job, seen, limit)]
        verdict.skipped += len(batch) - len(chosen)
        verdict.checked += len(chosen)
        blockers = await store.read(store.state.blockers_of([job.id for job in chosen]))
        for job in chosen:
            for part, problem in _problems(registry, job, blockers.get(job.id, ())):
                key = job.type_name, job.payload_version, part, problem
                if key not in found:
                    kind, version, *_ = key
                    found[key] = Stranded(type_name=kind, version=version, part=part, problem=problem)
                found[key].count += 1
                if len(found[key].examples) < _EXAMPLES:
                    found[key].examples.append(job.id)
    verdict.stranded = sorted(found.values(), key=lambda one: (one.type_name, one.version, one.part, one.problem))
    await _check_schedules(verdict, registry, store, declared)
    return verdict


async def _check_schedules(verdict: Verdict, registry: Registry, store: Store, declared: Collection[str]) -> None:
    """What is paused, or over, starts nothing."""
    rows = (await store.read(store.state.schedules.find())).rows
    for row in rows:
        if row.next_at is None or row.paused_at is not None:
            continue
        verdict.schedules += 1
        verdict.stranded_schedules += [
            StrandedSchedule(name=row.name, type_name=row.type_name, part=part, problem=problem)
            for part, problem in _schedule_problems(registry, row, declared)
        ]


def _schedule_problems(registry: Registry, row: ScheduleRow, declared: Collection[str]) -> list[tuple[str, str]]:
    """Until the last worker with the old code is gone, it starts chains as it is stored."""
    rules, kind = rules_of(row), registry.get(row.type_name)
    if rules is None:
        return [("definition", "it cannot be read by this code: newer code has written it")]
    problems = []
    if row.name not in declared:
        told = (
            "this code does not declare it, and will not start it: if it is to go, pause it first, and forget it later"
        )
        problems.append(("declaration", told))
    if kind is None:
        problems.append(("type", _NO_SUCH_TYPE))
    elif rules.input is not None and (told := _unreadable(kind, rules.input, rules.payload_version, UUID(int=0))):
        problems.append(("input", told))
    return problems


def _counts(job: Job, seen: Counter[tuple[str, int]], limit: int | None) -> bool:
    seen[job.type_name, job.payload_version] += 1
    return limit is None or seen[job.type_name, job.payload_version] <= limit


async def _batches(store: Store) -> AsyncIterator[Sequence[Job]]:
    """All that has not ended, as it is stored."""
    state, filter = store.state, filter_of({"status": _OPEN, "among": _AMONG})

    async def look(after: JobId | None) -> Page[Job]:
        return await store.read(page_of(state, state.list_jobs, filter, after=after, limit=_BATCH, by_chain=True))

    batch: list[Job] = []
    async for job in Listing(look, None):
        batch.append(job)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    yield batch


def _problems(registry: Registry, job: Job, blockers: Sequence[Blocker]) -> list[tuple[str, str]]:
    """What a worker with these types would stumble over."""
    kind = registry.get(job.type_name)
    if kind is None:
        return [] if is_of_queue(job.type_name) else [("type", _NO_SUCH_TYPE)]
    problems = [("input", _input_problem(kind, job))]
    for blocker in blockers:
        if blocker.type_name == job.type_name and blocker.type_name not in kind.blocked_by:
            continue  # the chain before it of a schedule whose chains wait for each other; nobody reads its output
        if blocker.type_name not in kind.blocked_by:
            problems.append(("blocker", f"it does not declare blocked_by {blocker.type_name}"))
        elif blocker.status is JobStatus.COMPLETED:
            problems.append(("blocker", _output_problem(registry, blocker)))
    return list(dict.fromkeys((part, problem) for part, problem in problems if problem))


def _input_problem(kind: RegisteredType, job: Job) -> str:
    if job.problem is not None:
        return f"the row cannot be read: {job.problem}"
    return _unreadable(kind, msgspec.json.encode(job.input), job.payload_version, job.id)


def _unreadable(kind: RegisteredType, input: str | bytes, version: int, id: JobId) -> str:
    """Why an input cannot be read."""
    if version > kind.definition.version:
        return f"it is of version {version}, this code is at {kind.definition.version}"
    if version not in kind.versions:
        return f"there is no way up from version {version}: register it with @….upcast(…)"
    try:
        kind.read_input(input, version, id)
    except asyncio.CancelledError:
        raise
    except Exception as error:  # noqa: BLE001 - upcasters are the application's
        return _in_words(kind, error)
    return ""


def _output_problem(registry: Registry, blocker: Blocker) -> str:
    kind = registry.get(blocker.current_type_name)
    if kind is None:
        return f"{blocker.current_type_name} has put out what it waits for, and there is no such job type"
    if blocker.payload_version > kind.definition.version:
        version = blocker.payload_version
        return f"{kind.name}: its output is of version {version}, this code is at {kind.definition.version}"
    try:
        kind.read_output(blocker.output or "null", blocker.payload_version, blocker.chain_id)
    except asyncio.CancelledError:
        raise
    except Exception as error:  # noqa: BLE001 - as above
        return _in_words(kind, error)
    return ""


def _in_words(kind: RegisteredType, error: Exception) -> str:
    """What the application's own code raises may tell what is secret."""
    text = " ".join(str(error).split())
    if isinstance(error, OnwardError):
        return text
    return f"{type(error).__name__}: {text}" if kind.guard is None else type(error).__name__

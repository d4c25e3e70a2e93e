"""All that is known of one job: its chain, what it waits for, what waits for it, and where it came from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onward.client.app import Onward
from onward.model import Blocker, Chain, Job, JobId

_MOST_STEPS, _MOST_WAITING, _MOST_KIN, _MOST_ANCESTORS = 200, 100, 100, 100
_KIN_AMONG = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A job and its surroundings, each as far as it can be shown."""

    job: Job
    chain: Chain | None
    steps: Sequence[Job]
    """The jobs of its chain, the first one first; the last ones, where there are very many."""
    blockers: Sequence[Blocker]
    waiting: Sequence[Job]
    """The jobs that wait, or waited, for its chain, newest first."""
    kin: Sequence[Job]
    """Those it comes from, those of its chain, and others of the same root among the newest jobs; oldest first."""


async def story_of(app: Onward, job: Job, *, kin_among: int = _KIN_AMONG) -> Story:
    """What there is to tell of a job; its kin are looked for among so many of the newest jobs."""
    steps = [*await app.jobs(chains=[job.chain_id], limit=_MOST_STEPS)]
    others = await app.jobs(root_id=job.root_id, limit=_MOST_KIN, among=kin_among)
    return Story(
        job=job,
        chain=await app.find_chain(job.chain_id),
        steps=sorted(steps, key=lambda step: step.chain_index),
        blockers=await app.blockers_of(job.id),
        waiting=[*await app.blocked_by(job.chain_id, limit=_MOST_WAITING)],
        kin=_each_once([*await _ancestors(app, steps[-1] if steps else job), job, *steps, *others]),
    )


async def _ancestors(app: Onward, job: Job) -> list[Job]:
    found: list[Job] = []
    origin = job.origin_id
    while origin is not None and len(found) < _MOST_ANCESTORS:
        above = await app.find_job(origin)
        if above is None:
            break
        found.append(above)
        origin = above.origin_id
    return found


def _each_once(jobs: Iterable[Job]) -> list[Job]:
    return sorted({job.id: job for job in jobs}.values(), key=lambda job: (job.created_at, job.chain_index, job.id))


def as_tree(jobs: Sequence[Job]) -> list[tuple[int, Job]]:
    """Jobs with how deep each is below the one it all began with, every one behind that which started it."""
    known = {job.id for job in jobs}
    below: dict[JobId | None, list[Job]] = {}
    for job in jobs:
        below.setdefault(job.origin_id if job.origin_id in known else None, []).append(job)
    tree: list[tuple[int, Job]] = []
    todo = [(0, job) for job in reversed(below.get(None, []))]
    while todo:
        depth, job = todo.pop()
        tree.append((depth, job))
        todo += [(depth + 1, child) for child in reversed(below.pop(job.id, []))]
    return tree

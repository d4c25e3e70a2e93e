"""One job with its chain: what happened to it, what it waits for, and where it comes from."""

from collections.abc import Sequence
from dataclasses import dataclass

from onward.client.story import as_tree, story_of
from onward.dashboard.chain_picture import chain_plan
from onward.dashboard.page import Ask, Data, Page
from onward.dashboard.pages.acting import may_be_completed
from onward.dashboard.refusal import NotThere
from onward.dashboard.timeline import time_line
from onward.model import CompletedJob, FailedJob, Job, JobStatus
from onward.operating import Explanation

_KIN_AMONG = 20_000
"""Fewer than a command looks through: this is read again and again."""
OPEN = (JobStatus.BLOCKED, JobStatus.PENDING, JobStatus.RUNNING)


async def job(ask: Ask) -> Data:
    """A job."""
    found = await ask.app.find_job(ask.id())
    if found is None:
        raise NotThere(f"There is no job {ask.id()}; it may have been deleted.")
    return await _told(ask, found, of_chain=False)


async def chain(ask: Ask) -> Data:
    """A chain, told by the job it has come to. It may be named by any of its jobs."""
    found = await ask.app.find_job(ask.id())
    chain = None if found is None else await ask.app.find_chain(found.chain_id)
    if chain is None:
        raise NotThere(f"There is no chain {ask.id()}; it may have been deleted.")
    return await _told(ask, chain.current, of_chain=True)


async def _told(ask: Ask, job: Job, *, of_chain: bool) -> Data:
    story = await story_of(ask.app, job, kin_among=_KIN_AMONG)
    current = story.chain.current if story.chain is not None else job
    blockers = {job.id: story.blockers}
    if story.steps and story.steps[0].id != job.id:
        blockers[story.steps[0].id] = await ask.app.blockers_of(story.steps[0].id)
    return {
        "plan": chain_plan(story, blockers),
        "time_line": time_line(story.steps or [job]),
        "job": job,
        "of_chain": of_chain,
        "chain": story.chain,
        "current": current,
        "steps": story.steps,
        "blockers": story.blockers,
        "waiting": story.waiting,
        "tree": as_tree(story.kin) if len(story.kin) > 1 else (),
        "explanation": await _explained(ask, job),
        "shows_payloads": {step.id: ask.shows_payloads_of(step.type_name) for step in (job, *story.steps)},
        "can": actions_for(ask, current),
    }


async def _explained(ask: Ask, job: Job) -> Explanation | None:
    """Why a job waits, or who runs it; what has ended says so itself."""
    return None if isinstance(job, CompletedJob | FailedJob) else await ask.app.explain(job.id)


@dataclass(frozen=True, slots=True)
class Can:
    """Something that can be done to a chain as it is now."""

    action: str
    label: str
    is_final: bool = False


def actions_for(ask: Ask, current: Job) -> Sequence[Can]:
    """What can be done to a chain that has come to this job."""
    found: list[Can] = []
    if current.status is JobStatus.PENDING:
        found.append(Can("trigger", "Run now"))
    if current.status in OPEN:
        if may_be_completed(ask.app, current):
            found.append(Can("complete", "Complete by hand"))
        found.append(Can("cancel", "Cancel", is_final=True))
    if current.status is JobStatus.FAILED:
        found.append(Can("retry", "Retry"))
    found.append(Can("delete", "Delete", is_final=True))
    return found


PAGES = (
    Page(path="/chains/{id}", title="Chain", template="job.html", look=chain, cost=13),
    Page(path="/jobs/{id}", title="Job", template="job.html", look=job, cost=13),
)

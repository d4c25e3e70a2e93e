"""Queues: how many jobs are where, and those that failed for good, with what can be done about them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onward.dashboard.beside import Answer, anchor
from onward.dashboard.page import Action, Ask, Data, Form, Page, asking
from onward.dashboard.refusal import Refusal
from onward.queue import Queue, QueueError, QueueJob, QueueJobStatus, QueueStats

_MOST = 50
_MOST_AT_ONCE = 1_000
_LACKS = {
    "dead_letters": "It keeps no dead letters that could be read: look into the tools of its server.",
    "listing": "It does not list jobs by their state.",
    "pausing": "It cannot be paused.",
    "remove": "Single jobs cannot be taken out of it.",
}
"""What a provider may not be able to do, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A queue in the list."""

    queue: Queue[Any]
    stats: Answer[QueueStats]


async def queues(ask: Ask) -> Data:
    """All of them; one whose server is away does not stop the others."""
    given = [*ask.beside.queues.values()]
    stats = await ask.beside.ask_all(queue.stats for queue in given)
    return {"cards": [Card(queue=queue, stats=found) for queue, found in zip(given, stats, strict=True)]}


async def queue(ask: Ask) -> Data:
    """One queue, with the jobs that failed for good, or those of another state."""
    found = ask.beside.queue(ask.query.get("name", ""))
    can = found.capabilities
    wanted = _status(ask.query.get("status", ""))
    stats = await ask.beside.ask(found.stats)
    jobs: Answer[Sequence[QueueJob[Any]]] = Answer(found=())
    if stats.problem is None and wanted is None and can.dead_letters:
        jobs = await ask.beside.ask(lambda: found.dead_letters(_MOST))
    elif stats.problem is None and wanted is not None and can.listing:
        jobs = await ask.beside.ask(lambda: _listed(found, wanted))
    return {
        "queue": found,
        "stats": stats,
        "status": wanted,
        "statuses": [*QueueJobStatus] if can.listing else [],
        "jobs": jobs,
        "most": _MOST,
        "can": can,
        "lacks": [words for name, words in _LACKS.items() if not getattr(can, name)],
        "shows_payloads": not ask.hide_payloads,
        "shown": {job.id: found.masked(job) for job in jobs.found or ()} if not ask.hide_payloads else {},
        "anchor": anchor,
        "errors": {job.id: found.error_of(job) for job in jobs.found or ()},
    }


def _status(text: str) -> QueueJobStatus | None:
    if not text:
        return None
    if text not in list(QueueJobStatus):
        raise Refusal(400, f"{text[:100]!r} is no state of a queue's jobs: expected {', '.join(QueueJobStatus)}.")
    return QueueJobStatus(text)


async def _listed(queue: Queue[Any], status: QueueJobStatus) -> Sequence[QueueJob[Any]]:
    return (await queue.jobs(status, limit=_MOST)).items


# -- what can be done


def _chosen(form: Form) -> tuple[Queue[Any], str]:
    return form.beside.queue(form.one("queue")), form.one("job")


async def _retry(form: Form) -> str:
    queue, job = _chosen(form)
    await queue.retry(job)
    return f"Put job {job} back into the queue {queue.name}."


async def _remove(form: Form) -> str:
    queue, job = _chosen(form)
    await queue.remove(job)
    return f"Deleted job {job} of the queue {queue.name}."


async def _retry_all(form: Form) -> str:
    queue = form.beside.queue(form.one("queue"))
    jobs = await queue.dead_letters(_MOST_AT_ONCE)
    gone = 0
    for job in jobs:
        try:
            await queue.retry(job.id)
        except QueueError as error:
            if error.retryable:
                raise
            gone += 1  # somebody else has put it back, or deleted it
    more = f" {gone:,} were no longer there." if gone else ""
    return f"Put {len(jobs) - gone:,} jobs back into the queue {queue.name}.{more}"


async def _purge(form: Form) -> str:
    queue = form.beside.queue(form.one("queue"))
    count = await queue.purge([QueueJobStatus.FAILED])
    return f"Deleted {count:,} dead letters of the queue {queue.name}."


async def _pause(form: Form) -> str:
    queue = form.beside.queue(form.one("queue"))
    await queue.pause()
    return f"Paused the queue {queue.name}."


async def _resume(form: Form) -> str:
    queue = form.beside.queue(form.one("queue"))
    await queue.resume()
    return f"Resumed the queue {queue.name}."


PAGES = (
    Page(
        path="/queues",
        title="Queues",
        template="queues.html",
        look=queues,
        navigation="Queues",
        needs="queues",
        every=5.0,
        cost=1,
    ),
    Page(path="/queues/one", title="Queue", template="queue.html", look=queue, every=5.0, cost=1),
)
_ONE, _ALL = ("queue", "job"), ("queue",)
_ASK_RETRY = asking(
    "Put a job back into the queue {queue}?", "Put back", "Job {job}", "It waits again, with no attempts counted."
)
_ASK_REMOVE = asking(
    "Delete a job of the queue {queue}?", "Delete", "Job {job}", "Gone for good, with its data.", is_final=True
)
_ASK_RETRY_ALL = asking(
    "Put all dead letters of the queue {queue} back?",
    "Put back",
    f"At most {_MOST_AT_ONCE:,} at once, the newest. They wait again, with no attempts counted.",
)
_ASK_PURGE = asking(
    "Delete all dead letters of the queue {queue}?", "Delete", "Gone for good, with their data.", is_final=True
)
_ASK_PAUSE = asking(
    "Pause the queue {queue}?", "Pause", "No worker gets jobs of it until it is resumed. What runs goes on."
)
_ASK_RESUME = asking("Resume the queue {queue}?", "Resume", "Workers get jobs of it again.")
ACTIONS = (
    Action(name="queue-retry", ask=_ASK_RETRY, do=_retry, records=_ONE),
    Action(name="queue-remove", ask=_ASK_REMOVE, do=_remove, records=_ONE),
    Action(name="queue-retry-all", ask=_ASK_RETRY_ALL, do=_retry_all, records=_ALL),
    Action(name="queue-purge", ask=_ASK_PURGE, do=_purge, records=_ALL),
    Action(name="queue-pause", ask=_ASK_PAUSE, do=_pause, records=_ALL),
    Action(name="queue-resume", ask=_ASK_RESUME, do=_resume, records=_ALL),
)

"""Lists of chains and jobs, newest first, and the search."""

from typing import Any
from uuid import UUID

from onward.dashboard.filters import filters_of, id_of, is_filtered, limit_of
from onward.dashboard.page import Ask, Data, Page
from onward.dashboard.refusal import Elsewhere, NotThere, Refusal
from onward.dashboard.rendering import pretty
from onward.model import FailureReason, Job, JobStatus

_READ_FOR_TEXT = 200
"""Jobs whose inputs are looked through for a page: they are read one by one."""


async def chains(ask: Ask) -> Data:
    """A page of chains."""
    filters, limit = filters_of(ask.query, chains=True), limit_of(ask.query)
    page = await ask.app.chains(after=id_of(ask.query, "after"), limit=limit, **filters)
    return {"rows": page.items, "next": page.next, **_choices(ask, filters, is_short=len(page) < limit)}


async def jobs(ask: Ask) -> Data:
    """A page of jobs; with `input`, those whose input has this text, as it may be shown."""
    filters, limit = filters_of(ask.query), limit_of(ask.query)
    after = id_of(ask.query, "after")
    text = ask.query.get("input", "").strip()
    if text:
        return await _with_text(ask, text, filters, after)
    page = await ask.app.jobs(after=after, limit=limit, **filters)
    return {"rows": page.items, "next": page.next, **_choices(ask, filters, is_short=len(page) < limit)}


async def _with_text(ask: Ask, text: str, filters: Any, after: UUID | None) -> Data:
    if ask.hide_payloads:
        raise Refusal(403, "Inputs are hidden here, and so cannot be searched.")
    page = await ask.app.jobs(after=after, limit=_READ_FOR_TEXT, **filters)
    wanted = text.casefold()
    rows = [job for job in page if ask.shows_payloads_of(job.type_name) and wanted in _text_of(job)]
    looked = {**_choices(ask, filters, is_short=page.next is not None), "looked_through": len(page)}
    return {"rows": rows, "next": page.next, **looked}


def _text_of(job: Job) -> str:
    return pretty(job.input).casefold()


def _choices(ask: Ask, filters: Any, *, is_short: bool) -> dict[str, Any]:
    return {
        "statuses": list(JobStatus),
        "reasons": list(FailureReason),
        "types": sorted(ask.app.registry),
        "is_filtered": is_filtered(ask.query) or bool(ask.query.get("input", "").strip()),
        "looked_through": filters.get("among") if is_short else None,
    }


async def find(ask: Ask) -> Data:
    """Where a search leads: to the job or chain of an id, or to what has this text in its error, input or type."""
    text = ask.query.get("q", "").strip()
    if not text:
        raise NotThere("Nothing was looked for.")
    try:
        id = UUID(text)
    except ValueError:
        wanted = text.casefold()
        return {"text": text, "types": [name for name in sorted(ask.app.registry) if wanted in name.casefold()]}
    job = await ask.app.find_job(id)
    if job is None:
        raise NotThere(f"There is no chain or job {id}.")
    raise Elsewhere(f"/chains/{id}" if id == job.chain_id else f"/jobs/{id}")


PAGES = (
    Page(path="/chains", title="Chains", template="chains.html", look=chains, navigation="Chains", cost=3),
    Page(path="/jobs", title="Jobs", template="jobs.html", look=jobs, navigation="Jobs", cost=3),
    Page(path="/find", title="Search", template="find.html", look=find, cost=1),
)

"""What failed, by cause."""

from typing import Any

from onward.client.causes import Group, grouped
from onward.dashboard.filters import filters_of
from onward.dashboard.page import Ask, Data, Page
from onward.dashboard.refusal import NotThere
from onward.model import Chain, FailureReason, JobStatus

MOST = 1_000
"""Failed jobs that are looked at, the newest: each is read with its errors."""
_MOST_AGAIN = 50


async def groups(ask: Ask) -> Data:
    """Why jobs failed."""
    found, is_all = await _newest(ask)
    return {
        "groups": found,
        "is_all": is_all,
        "most": MOST,
        "reasons": list(FailureReason),
        "types": sorted(ask.app.registry),
        "replays": ask.replays.newest_first()[:5],
    }


async def group(ask: Ask) -> Data:
    """The jobs that failed for one cause."""
    found, is_all = await _newest(ask)
    for one in found:
        if one.cause.id == ask.path["group"]:
            return {"group": one, "is_all": is_all, "most": MOST}
    raise NotThere("No failed jobs are in this group: they were retried, deleted, or failed again for another cause.")


async def _newest(ask: Ask) -> tuple[list[Group], bool]:
    """Of one page only, however few are on it: whoever looks waits."""
    filters: Any = {**filters_of(ask.query), "status": JobStatus.FAILED}
    page = await ask.app.jobs(limit=MOST, **filters)
    return grouped(page), page.next is None


async def replay(ask: Ask) -> Data:
    """What has come of chains that were retried together; of the first ones, where they are very many."""
    found = ask.replays.find(ask.path["replay"])
    if found is None:
        raise NotThere("This is not known here, or no longer: it was retried by another process, or long ago.")
    looked_at = found.chain_ids[:MOST]
    counts = dict.fromkeys(JobStatus, 0)
    again: list[Chain] = []
    for chain in await ask.app.chains(chains=looked_at, limit=MOST):
        counts[chain.status] += 1
        if chain.status is JobStatus.FAILED and len(again) < _MOST_AGAIN:
            again.append(chain)
    gone = len(looked_at) - sum(counts.values())
    return {"replay": found, "looked_at": len(looked_at), "counts": counts, "gone": gone, "again": again}


PAGES = (
    Page(path="/failed", title="Failed", template="failed.html", look=groups, navigation="Failed", every=5.0),
    Page(path="/failed/replays/{replay}", title="Retried", template="replay.html", look=replay, cost=2),
    Page(path="/failed/{group}", title="Failed", template="group.html", look=group, every=5.0),
)

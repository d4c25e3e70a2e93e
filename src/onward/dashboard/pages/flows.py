"""Flows: how many jobs are at each stage, and those that failed, with what can be done about them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from onward.dashboard.beside import Answer, anchor
from onward.dashboard.page import Action, Ask, Data, Form, Page, asking
from onward.dashboard.picture import Edge, Node, Plan
from onward.errors import FlowJobNotFound

if TYPE_CHECKING:
    from onward.flow import Flow, FlowJob, Positions
    from onward.flow.views import Place

_MOST = 50
OPEN: "Sequence[Place]" = ("waiting", "delayed", "processing", "parked")
"""Where a job of a stage can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A flow in the list."""

    flow: "Flow[Any]"
    positions: "Answer[Positions]"


async def flows(ask: Ask) -> Data:
    """All of them; one whose server is away does not stop the others."""
    looks = [partial(_positions, ask, name, 0) for name in ask.beside.flows]
    found = await ask.beside.ask_all(looks)
    cards = [Card(flow=flow, positions=one) for flow, one in zip(ask.beside.flows.values(), found, strict=True)]
    return {"cards": cards, "places": OPEN}


async def flow(ask: Ask) -> Data:
    """One flow: its stages, and the jobs that failed."""
    name = ask.query.get("name", "")
    found = ask.beside.flow(name)
    positions = await ask.beside.ask(lambda: _positions(ask, name, _MOST))
    failed: Answer[Sequence[FlowJob]] = Answer(found=())
    if positions.found is not None:
        ended = [one for one in positions.found.jobs if one.place == "failed"]
        jobs = await ask.beside.ask_all(partial(_job, found, one.job_id) for one in ended[:_MOST])
        failed = Answer(
            found=[one.found for one in jobs if one.found is not None],
            problem=next((one.problem for one in jobs if one.problem is not None), None),
        )
    return {
        "flow": found,
        "positions": positions,
        "plan": _plan(found, positions.found),
        "places": OPEN,
        "held": [one for one in (positions.found.jobs if positions.found else ()) if one.place == "processing"],
        "failed": failed,
        "most": _MOST,
        "shows_payloads": not ask.hide_payloads,
        "shown": {job.id: found.masked(job) for job in failed.found or ()} if not ask.hide_payloads else {},
        "anchor": anchor,
        "errors": {job.id: found.error_of(job) for job in failed.found or ()},
    }


async def _positions(ask: Ask, name: str, limit: int) -> "Positions":
    return await (await ask.beside.opened(name)).positions(limit=limit)


async def _job(flow: "Flow[Any]", job_id: str) -> "FlowJob | None":
    try:
        return await flow.get(job_id)
    except FlowJobNotFound:
        return None  # it is gone since


def _plan(flow: "Flow[Any]", positions: "Positions | None") -> Plan:
    nodes: list[Node] = []
    edges: list[Edge] = []
    for name, leads_to in flow.stages.items():
        counts = [(place, positions.count(stage=name, place=place)) for place in OPEN] if positions else []
        words = ", ".join(f"{count:,} {place}" for place, count in counts if count) or ("empty" if positions else "")
        busy = dict(counts).get("processing", 0)
        nodes.append(
            Node(
                id=name,
                words=name,
                more=words,
                kind="running" if busy else "pending" if any(count for _, count in counts) else "",
                title=f"{name}: {words}" if words else name,
            )
        )
        edges += [Edge(name, other, "continues") for other in leads_to]
    return Plan(nodes=nodes, edges=edges, words=f"The {len(nodes)} stages of the flow {flow.name}.")


# -- what can be done


async def _retry(form: Form) -> str:
    flow, job = await form.beside.opened(form.one("flow")), form.one("job")
    await flow.retry(job)
    return f"Retried job {job} of the flow {flow.name}."


async def _delete(form: Form) -> str:
    flow, job = await form.beside.opened(form.one("flow")), form.one("job")
    count = await flow.delete(job)
    return f"Deleted job {job} of the flow {flow.name}" + (f", {count:,} jobs in all." if count > 1 else ".")


PAGES = (
    Page(
        path="/flows",
        title="Flows",
        template="flows.html",
        look=flows,
        navigation="Flows",
        needs="flows",
        every=5.0,
        cost=1,
    ),
    Page(path="/flows/one", title="Flow", template="flow.html", look=flow, every=5.0, cost=1),
)
_ASK_RETRY = asking(
    "Retry a job of the flow {flow}?",
    "Retry",
    "Job {job}",
    "It goes back to the stage it failed in. A parent that failed with it waits again.",
)
_ASK_DELETE = asking(
    "Delete a job of the flow {flow}?",
    "Delete",
    "Job {job}",
    "Gone for good, with its children. A parent that waits for it fails.",
    is_final=True,
)
ACTIONS = (
    Action(name="flow-retry", ask=_ASK_RETRY, do=_retry, records=("flow", "job")),
    Action(name="flow-delete", ask=_ASK_DELETE, do=_delete, records=("flow", "job")),
)

"""The declared types, what leads from one to another, and how many jobs of each there are."""

from urllib.parse import quote

from onward.client.declared import continuations, waits
from onward.dashboard.page import Ask, Data, Page
from onward.dashboard.picture import Edge, Node, Plan
from onward.operating import Stats, TypeStats

_MOST = 200


async def look(ask: Ask) -> Data:
    """Types that lead to others as a picture, the others as a list."""
    stats = await ask.app.stats()
    registry = ask.app.registry
    onwards = [Edge(one, other, "continues") for one, other in continuations(registry)]
    edges = onwards + [Edge(other, one, "blocks") for one, other in waits(registry)]
    joined = {end for edge in edges if edge.start != edge.end for end in (edge.start, edge.end)}
    shown = [name for name in registry if name in joined][:_MOST]
    plan = Plan(
        nodes=[_node(name, stats, begins=not registry.find(name).definition.internal) for name in shown],
        edges=edges,
        words=f"{len(shown)} declared job types, and what leads from one to another.",
    )
    return {
        "plan": plan if shown else None,
        "left_out": len(joined) - len(shown),
        "alone": [(name, stats.types.get(name, TypeStats())) for name in sorted(set(registry) - joined)],
        "undeclared": [(name, stats.types[name]) for name in sorted(set(stats.types) - set(registry))],
        "stats": stats,
    }


def _node(name: str, stats: Stats, *, begins: bool) -> Node:
    found = stats.types.get(name, TypeStats())
    words = counts_of(found)
    return Node(
        id=name,
        words=name,
        more=words,
        at=f"jobs?type={quote(name, safe='')}",
        kind=f"{_mood(found)} {'begins' if begins else 'inner'}",
        title=f"{name}: {words}" + (", paused" if found.paused else "") + ("" if begins else ". A step inside chains."),
    )


def counts_of(found: TypeStats) -> str:
    """How many jobs of a type are where, in words."""
    counts = (
        (found.failed, "failed"),
        (found.running, "running"),
        (found.pending, "pending"),
        (found.blocked, "blocked"),
        (found.scheduled, "scheduled"),
    )
    told = ", ".join(f"{count:,} {word}" for count, word in counts if count) or "nothing waits"
    return f"paused; {told}" if found.paused else told


def _mood(found: TypeStats) -> str:
    """What a type looks like: by what needs somebody's attention first."""
    if found.failed:
        return "failed"
    if found.running:
        return "running"
    return "pending" if found.pending or found.scheduled else "blocked" if found.blocked else ""


PAGES = (Page(path="/graph", title="Graph", template="graph.html", look=look, navigation="Graph", every=5.0, cost=4),)

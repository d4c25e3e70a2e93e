"""A chain as a picture: where it comes from, its steps, what they wait for and started, and what waits for it."""

from collections.abc import Iterable, Mapping, Sequence

from onward.client.story import Story
from onward.client.words import state_of
from onward.dashboard.picture import Edge, Node, Plan
from onward.model import Blocker, ChainId, Job, JobId, JobStatus

_MOST_STEPS = 12
_MOST_BLOCKERS = 6
_MOST_WAITING = 6
_MOST_STARTED = 4
_URGENCY = (JobStatus.FAILED, JobStatus.RUNNING, JobStatus.PENDING, JobStatus.BLOCKED, JobStatus.COMPLETED)
"""What is folded away first is what has ended well."""


def chain_plan(story: Story, blockers: Mapping[JobId, Sequence[Blocker]]) -> Plan:
    """What there is to draw of a chain; `blockers` are those of its steps, as far as they are known."""
    return _ChainPlan(story, blockers).plan()


class _ChainPlan:
    def __init__(self, story: Story, blockers: Mapping[JobId, Sequence[Blocker]]) -> None:
        self._story, self._blockers = story, blockers
        self._nodes: dict[str, Node] = {}
        self._edges: list[Edge] = []
        self._place_of: dict[ChainId, str] = {}
        """Where a chain that is waited for is drawn: alone, or folded with others."""

    def plan(self) -> Plan:
        steps = self._story.steps or [self._story.job]
        self._come_from(steps[0])
        shown = self._steps(steps)
        self._wait_for(shown)
        self._started(steps, shown)
        self._waiting(shown[-1])
        return Plan(nodes=[*self._nodes.values()], edges=self._edges, words=self._words(steps))

    def _words(self, steps: Sequence[Job]) -> str:
        told = [f"A chain of {len(steps)} step{'s' * (len(steps) != 1)}"]
        count = sum(len(found) for found in self._blockers.values())
        if count:
            told.append(f"waits, or waited, for {count} chain{'s' * (count != 1)}")
        if self._story.waiting:
            told.append(f"{len(self._story.waiting)} job{'s' * (len(self._story.waiting) != 1)} wait or waited for it")
        return "; ".join(told) + "."

    def _steps(self, steps: Sequence[Job]) -> Sequence[Job]:
        """The first one, the one that is looked at, and the last ones; what lies between is folded."""
        here = next((n for n, step in enumerate(steps) if step.id == self._story.job.id), 0)
        kept = {0, here - 1, here, here + 1, *range(len(steps) - _MOST_STEPS + 4, len(steps))}
        if len(steps) <= _MOST_STEPS:
            kept = set(range(len(steps)))
        before: str | None = None
        folded = 0
        shown: list[Job] = []
        for n, step in enumerate(steps):
            if n not in kept:
                folded += 1
                continue
            if folded:
                id = f"steps before {n}"
                self._fold(id, f"{folded:,} more step{'s' * (folded != 1)}", at=f"jobs?root={step.root_id}")
                self._edges.append(Edge(before or "", id, "continues"))
                before, folded = id, 0
            self._nodes[str(step.id)] = self._job(step, f"Step {step.chain_index + 1}")
            if before is not None:
                self._edges.append(Edge(before, str(step.id), "continues"))
            before = str(step.id)
            shown.append(step)
        return shown

    def _come_from(self, first: Job) -> None:
        kin = {job.id: job for job in self._story.kin}
        parent = kin.get(first.origin_id) if first.origin_id is not None else None
        if parent is None:
            return
        self._nodes[str(parent.id)] = self._job(parent, "Started by")
        self._edges.append(Edge(str(parent.id), str(first.id), "started"))
        root = kin.get(first.root_id)
        if root is None or root.id in (parent.id, first.id):
            return
        self._nodes[str(root.id)] = self._job(root, "Began with")
        self._edges.append(Edge(str(root.id), str(parent.id), "started far"))

    def _wait_for(self, steps: Sequence[Job]) -> None:
        for step in steps:
            found = sorted(self._blockers.get(step.id, ()), key=lambda one: _URGENCY.index(one.status))
            shown, rest = _some(found, _MOST_BLOCKERS)
            for one in shown:
                self._nodes.setdefault(
                    str(one.chain_id),
                    Node(
                        id=str(one.chain_id),
                        words=one.type_name,
                        more=f"{one.status}",
                        at=f"chains/{one.chain_id}",
                        kind=f"blocker {one.status}",
                        title=f"Waits for: {one.type_name}, {one.status}, chain {one.chain_id}",
                    ),
                )
                self._place_of[one.chain_id] = str(one.chain_id)
                self._edges.append(Edge(str(one.chain_id), str(step.id), "blocks"))
            if rest:
                id = f"blockers of {step.id}"
                self._fold(id, f"and {len(rest):,} more", more=_counted(rest), at=f"jobs/{step.id}")
                self._place_of |= {one.chain_id: id for one in rest if one.chain_id not in self._place_of}
                self._edges.append(Edge(id, str(step.id), "blocks"))

    def _started(self, steps: Sequence[Job], drawn: Sequence[Job]) -> None:
        own = {step.chain_id for step in steps}
        by = {step.id for step in drawn}
        found = [
            job for job in self._story.kin if job.origin_id in by and job.chain_id not in own and job.chain_index == 0
        ]
        for job in found:
            if job.chain_id in self._place_of:
                self._edges.append(Edge(str(job.origin_id), self._place_of[job.chain_id], "started"))
        others = [job for job in found if job.chain_id not in self._place_of and str(job.id) not in self._nodes]
        shown, rest = _some(sorted(others, key=lambda job: _URGENCY.index(job.status)), _MOST_STARTED)
        for job in shown:
            self._nodes[str(job.id)] = self._job(job, "Started")
            self._edges.append(Edge(str(job.origin_id), str(job.id), "started"))
        if rest:
            self._fold("started", f"and {len(rest):,} more", more=_counted(rest), at=f"jobs?root={steps[0].root_id}")
            self._edges += [Edge(id, "started", "started") for id in {str(job.origin_id) for job in rest}]

    def _waiting(self, last: Job) -> None:
        found = sorted(self._story.waiting, key=lambda job: _URGENCY.index(job.status))
        shown, rest = _some(found, _MOST_WAITING)
        for job in shown:
            self._nodes.setdefault(str(job.id), self._job(job, "Waits for it"))
            self._edges.append(Edge(str(last.id), str(job.id), "blocks"))
        if rest:
            self._fold("waiting", f"and {len(rest):,} more", more=_counted(rest), at=f"chains/{last.chain_id}")
            self._edges.append(Edge(str(last.id), "waiting", "blocks"))

    def _job(self, job: Job, role: str) -> Node:
        words = state_of(job)
        progress = f" {job.progress.fraction:.0%}" if job.progress is not None and job.status == "running" else ""
        tries = f", attempt {job.attempt:,}" if job.attempt > 1 else ""
        return Node(
            id=str(job.id),
            words=job.type_name,
            more=f"{job.status}{progress}{tries}",
            at=f"jobs/{job.id}",
            kind=f"{job.status} here" if job.id == self._story.job.id else f"{job.status}",
            title=f"{role}: {job.type_name}, {job.status}{progress}{tries}, job {job.id}"
            + (f". {words}" if words else ""),
        )

    def _fold(self, id: str, words: str, *, more: str = "", at: str | None = None) -> None:
        self._nodes[id] = Node(id=id, words=words, more=more, at=at, kind="fold", title=f"{words} {more}".strip())


def _some(found: Sequence[Job] | Sequence[Blocker], most: int) -> tuple[Sequence, Sequence]:  # type: ignore[type-arg]
    """Those to draw, and those to fold: one alone is drawn, since the fold would take as much room."""
    return (found, ()) if len(found) <= most + 1 else (found[:most], found[most:])


def _counted(found: Iterable[Job | Blocker]) -> str:
    counts: dict[JobStatus, int] = {}
    for one in found:
        counts[one.status] = counts.get(one.status, 0) + 1
    return ", ".join(f"{counts[status]:,} {status}" for status in _URGENCY if status in counts)

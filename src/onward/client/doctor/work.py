"""Whether jobs are where they should be, and somebody sees to them."""

from collections.abc import Iterator, Mapping, Sequence

from onward.client.doctor.case import LATE, Case
from onward.client.doctor.words import Level, counted, named, span, wrong
from onward.operating import Finding
from onward.state.facts import Stray

_MOST = 100
"""Of a kind that are looked for."""
_ORPHANS: Mapping[str, tuple[Level, str, str]] = {
    "job without chain": (
        "error",
        "part of a chain whose first job is gone",
        "somebody deleted rows by hand: `DELETE` these as well, or restore the first jobs from a backup",
    ),
    "chain without end": (
        "error",
        "first of a chain that has not ended, though nothing of it runs or waits",
        "somebody changed rows by hand: `onward chains show ID`; then start the work anew and delete the chain",
    ),
    "blocked by nothing": (
        "error",
        "blocked, though all that it waited for has ended",
        "`onward cancel ID`, then `onward retry ID`, which looks at the blockers anew; and please report it",
    ),
    "blocked by what is gone": (
        "error",
        "blocked by a chain that is gone",
        "somebody deleted rows by hand: `onward cancel ID`, and start the work anew",
    ),
    "blocker of nothing": (
        "warning",
        "gone, though what it waited for is still written down",
        "harmless; somebody deleted rows by hand, and may delete those of `blocker` as well",
    ),
}


def of_orphans(strays: Sequence[Stray]) -> Iterator[Finding]:
    """Rows that no statement of ours leaves so."""
    for kind, (level, words, advice) in _ORPHANS.items():
        found = [stray.id for stray in strays if stray.kind == kind]
        if found:
            yield wrong("orphans", level, f"{words}: {_many(found, 'job')} ({named(found)})", advice)


def of_leases(case: Case) -> Iterator[Finding]:
    """A lease that ran out is noticed by any worker that takes the type."""
    found = [stray for stray in case.diagnosis.strays if stray.kind == "expired lease"]
    if found:
        longest = max((stray.seconds or 0.0 for stray in found), default=0.0)
        ids = named([stray.id for stray in found])
        words = (
            f"leases ran out, up to {span(longest)} ago, and nobody took the jobs back: {_many(found, 'job')} ({ids})"
        )
        types = named(sorted({stray.type_name or "" for stray in found}))
        yield wrong("leases", "error", words, f"start a worker that takes {types}: it takes them back")


def of_limits(case: Case) -> Iterator[Finding]:
    """Whoever takes the types of a limit gives its places."""
    found = [stray for stray in case.diagnosis.strays if stray.kind == "stuck limit"]
    if found:
        words = (
            f"jobs have waited for a place for over {span(LATE.total_seconds())}, though none is taken: "
            f"{_many(found, 'key')} of limits ({named([stray.id for stray in found])})"
        )
        types = named(sorted({stray.type_name or "" for stray in found}))
        yield wrong("limits", "error", words, f"start a worker that takes {types}: workers give places to their types")


def of_paused(case: Case) -> Iterator[Finding]:
    """Forgotten, perhaps."""
    waiting = {one.type_name: one.oldest for one in case.waiting if one.paused}
    if waiting:
        told = named([f"{name} (the oldest for {span(oldest)})" for name, oldest in sorted(waiting.items())])
        advice = "`onward resume TYPE` when they may go on"
        yield wrong("paused", "warning", f"types are paused, and their jobs wait: {told}", advice)


def of_schedules(case: Case) -> Iterator[Finding]:
    """A schedule that no live code declares starts nothing; one that fails says why."""
    gone = [one.name for one in case.schedules if not one.is_declared]
    if gone:
        advice = (
            "start a worker whose code declares them, or app.schedules.forget(name) if they are not wanted any more"
        )
        yield wrong("schedules", "warning", f"no live worker declares these schedules: {named(gone)}", advice)
    broken = [f"{one.name}: {one.error}" for one in case.schedules if one.error]
    if broken:
        advice = "mend the schedule or its input, and deploy; it is tried again at every look"
        yield wrong("schedules", "error", f"schedules cannot be started: {named(broken)}", advice)


def _many(found: Sequence[object], noun: str) -> str:
    return f"{_MOST} {noun}s or more" if len(found) >= _MOST else counted(len(found), noun)

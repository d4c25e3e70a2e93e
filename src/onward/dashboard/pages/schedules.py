"""Schedules: when each is due next, and what its last tick started."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from onward.dashboard.page import Action, Ask, Data, Form, Page, asking
from onward.dashboard.pages.figures import part_of
from onward.define.timing import Timing
from onward.model import StoredSchedule

_PER_PAGE = 100
_MOST_TICKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    name: str
    stored: StoredSchedule
    then: Sequence[datetime]
    """The ticks after the next one."""
    can_run: bool
    """Whether this app knows what to start."""


async def schedules(ask: Ask) -> Data:
    """All of them, by name."""
    found = await ask.app.schedules.list()
    part, after = part_of(found, ask.query, "name", most=_PER_PAGE)
    ours = ask.app.declared_schedules
    stored = {one.name for one in found}
    return {
        "rows": [_Row(name=one.name, stored=one, then=_then(one), can_run=one.name in ours) for one in part],
        "next": after,
        # They are stored when a worker starts, or when something is done with them.
        "not_stored": sorted(name for name in ours if name not in stored),
    }


def _then(schedule: StoredSchedule) -> list[datetime]:
    timing = Timing(cron=schedule.cron, every=schedule.every, tz=schedule.tz, start=schedule.start, end=schedule.end)
    if schedule.next_at is None or schedule.paused_at is not None or timing.problem():
        return []
    ticks = [schedule.next_at]
    while len(ticks) <= _MOST_TICKS - 1 and (tick := timing.after(ticks[-1])) is not None:
        ticks.append(tick)
    return [later for _, later in pairwise(ticks)]


# -- what can be done


async def _pause(form: Form) -> str:
    await form.app.schedules.pause(form.one("schedule"))
    return f"Paused the schedule {form.one('schedule')}."


async def _resume(form: Form) -> str:
    await form.app.schedules.resume(form.one("schedule"))
    return f"Resumed the schedule {form.one('schedule')}."


async def _run(form: Form) -> str:
    chain = await form.app.schedules.run(form.one("schedule"))
    return f"Started chain {chain.id} by the schedule {form.one('schedule')}."


PAGES = (
    Page(
        path="/schedules", title="Schedules", template="schedules.html", look=schedules, navigation="Schedules", cost=1
    ),
)
ACTIONS = (
    Action(
        name="pause-schedule",
        ask=asking(
            "Pause the schedule {schedule}?",
            "Pause",
            "Nothing is started until it is resumed. What it has started goes on.",
        ),
        do=_pause,
        records=["schedule"],
    ),
    Action(
        name="resume-schedule",
        ask=asking(
            "Resume the schedule {schedule}?",
            "Resume",
            "It goes on. Of the ticks meanwhile its own rule says what becomes: none, the last, or all of them.",
        ),
        do=_resume,
        records=["schedule"],
    ),
    Action(
        name="run-schedule",
        ask=asking(
            "Run the schedule {schedule} now?",
            "Run now",
            "A chain is started as if this were a tick. The schedule itself goes on as it would have.",
        ),
        do=_run,
        records=["schedule"],
    ),
)

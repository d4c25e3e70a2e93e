"""All that is to be judged, gathered in one visit."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from onward.client.reaching import Unreached, reach
from onward.errors import ConfigurationError
from onward.lifecycle.schedules import shown
from onward.model import StoredSchedule
from onward.operating import WorkerInfo
from onward.state.driver import Connection
from onward.state.facts import Diagnosis, DueType

if TYPE_CHECKING:
    from onward.client.app import Onward

_MOST = 10_000
"""Of the newest rows of a table that are looked through in a moment."""
LATE = timedelta(minutes=10)
"""After which a lease that ran out, or a job that is held though nothing holds it up, is not a matter of moments."""

WORK = "who works, and what waits"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    diagnosis: Diagnosis
    workers: Sequence[WorkerInfo] = ()
    waiting: Sequence[DueType] = ()
    paused: Sequence[str] = ()
    schedules: Sequence[StoredSchedule] = ()
    by_hand: frozenset[str] = frozenset()
    """Types of the app without a handler."""
    told_of_pooler: bool = False
    """Whether the app was made for a transaction pooler."""


async def examine(app: "Onward", *, deep: bool, timeout: timedelta) -> Case | Unreached:
    """Look at an app's database; one that is not open is connected for it. `deep`: at all rows."""

    async def look(connection: Connection) -> Case:
        state = app.state
        diagnosis = await connection.run(state.diagnose(most=None if deep else _MOST, late=LATE.total_seconds()))
        if diagnosis.version != diagnosis.newest:
            return Case(diagnosis=diagnosis)
        if any(lock.waiting or "AccessExclusive" in lock.mode for lock in diagnosis.locks):
            # Whoever reads now waits for as long as they do, and what was seen would be lost with it.
            unseen = {**diagnosis.unseen, WORK: "its tables are locked"}
            return Case(diagnosis=msgspec.structs.replace(diagnosis, unseen=unseen))
        found = await connection.run(state.schedules.find())
        return Case(
            diagnosis=diagnosis,
            workers=await connection.run(state.workers.list()),
            waiting=await connection.run(state.due_types()),
            paused=await connection.run(state.paused()),
            schedules=[shown(row, found.now) for row in found.rows],
            by_hand=frozenset(name for name, kind in app.registry.items() if kind.step.run is None),
            told_of_pooler=app.pgbouncer,
        )

    driver = app.driver if app.is_open else app.reached_anew().driver
    if not driver.is_async:
        raise ConfigurationError("this app is built on a sync engine or pool: name its database instead")
    return await reach(driver, look, seconds=timeout.total_seconds(), is_open=app.is_open)

"""The chore that starts what is scheduled: every tick once, whoever else is at it, and whatever becomes of us."""

import logging
import math
import random
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial

import msgspec

from onward.define.registry import Registry
from onward.define.schedule import Declared
from onward.lifecycle.effects import Effects, describe
from onward.lifecycle.schedules import CHORE, REFRESH, Tick, declarations, plan_tick
from onward.lifecycle.store import Store
from onward.model import JobId
from onward.notify.contract import NotifyAdapter
from onward.observe import events
from onward.pacing import pause_after
from onward.state.contract import NewJob
from onward.state.driver import Connection, Fault, transaction
from onward.state.schedules import Declaration, FoundSchedules, ScheduleRow
from onward.worker.connections import Reserved

logger = logging.getLogger("onward.worker")
_AT_MOST = 100
"""Schedules in one transaction."""
_POLL_WITHOUT_HINTS = 1.0
_LOCKED_FOR, _LOCKED_AT_MOST = 0.02, 1.0
_DECLARE_AGAIN, _DECLARE_AT_LEAST_EVERY = 0.1, 5.0
_TRY_AGAIN, _TRY_AT_LEAST_EVERY = 1.0, 60.0


class _Failure(msgspec.Struct):
    times: int = 0
    again_at: float = 0.0


class StartScheduled:
    """Keeps the promises of `worker.chores.Chore`.

    The row's `next_at` is moved in the transaction that starts the tick's chain, and only if it is as it was read: of
    all who try one gets it, and who tries again after a lost answer gets nothing.
    """

    name = CHORE

    def __init__(
        self, store: Store, registry: Registry, notify: NotifyAdapter, schedules: Mapping[str, Declared]
    ) -> None:
        self._store, self._registry, self._notify, self._ours = store, registry, notify, schedules
        self._rows = store.state.schedules
        self._known = [(one.name, one.fingerprint) for one in schedules.values()]
        self._declare_at = 0.0
        self._reserved: Reserved | None = None
        """That of the worker whose turn it is."""
        self._left_alone: set[str] = set()
        """What newer code declares otherwise."""
        self._kept_waiting: set[str] = set()
        """Whose declarations could not be stored, because somebody has locked them."""
        self._is_overtaken = False
        """Whether rows have changed, say by a tick, between when they were read and when they were to be declared."""
        self._waited = 0
        """How often in a row there were any."""
        self._in_vain = 0
        """How often in a row others had what was due."""
        self._passed_over: set[str] = set()
        """What others had, while more is due than fits into one transaction: they must not keep us from the rest."""
        self._failures: dict[str, _Failure] = {}
        """Schedules whose ticks cannot be started: by how often in a row, and when to try again."""
        self._unsure: tuple[Sequence[JobId], Effects] | None = None
        """What was started if the commit came through, of which nobody was told."""

    async def look(self, reserved: Reserved) -> float:
        if reserved is not self._reserved:  # a worker that starts declares, perhaps to another database in memory
            self._reserved, self._declare_at = reserved, 0.0
        if self._unsure is not None:
            await self._tell_of(reserved, *self._unsure)
        if time.monotonic() >= self._declare_at:
            await reserved.use(self._declare)
            self._declare_at = time.monotonic() + self._declare_in()
        asked = [one for one in self._known if one[0] not in self._passed_over and self._may_try(one[0])]
        found = await reserved.run(self._rows.due(asked, limit=_AT_MOST))
        read_at = time.monotonic()
        for name in {name for name, _ in asked} - {row.name for row in found.rows}:
            self._failures.pop(name, None)  # somebody else could
        planned = [tick for row in found.rows if (tick := await self._planned(reserved, row, found)) is not None]
        random.shuffle(planned)  # where several look at the same moment each begins with others
        ours = await self._start(reserved, planned)
        self._passed_over |= {tick.ours.name for tick in planned} - {tick.ours.name for tick in ours}
        if len(found.rows) < _AT_MOST:
            self._in_vain = self._in_vain + 1 if self._passed_over else 0
            self._passed_over = set()
        waits = [(tick.move.next_at - found.now).total_seconds() for tick in ours if tick.move.next_at is not None]
        waits += [] if found.next_in is None else [found.next_in]
        return min(read_at + min(waits, default=math.inf), self._at_latest(len(found.rows))) - time.monotonic()

    def _at_latest(self, found: int) -> float:
        """When to look though nothing is known to be due: others may have changed something, or have it locked."""
        now = time.monotonic()
        hears = self._notify.is_up and self._notify.crosses_processes and not self._notify.sees_commits
        return min(
            self._declare_at,
            math.inf if hears else now + _POLL_WITHOUT_HINTS,
            now + pause_after(self._in_vain, _LOCKED_FOR, _LOCKED_AT_MOST) if self._in_vain else math.inf,
            now if found == _AT_MOST else math.inf,
            min((failure.again_at for failure in self._failures.values()), default=math.inf),
        )

    def _declare_in(self) -> float:
        if self._kept_waiting:
            return pause_after(self._waited, _DECLARE_AGAIN, _DECLARE_AT_LEAST_EVERY)
        if self._is_overtaken:
            return _DECLARE_AGAIN
        return REFRESH.total_seconds() * random.uniform(0.7, 1.0)

    async def _declare(self, connection: Connection) -> None:
        found = await connection.run(self._rows.find(list(self._ours)))
        said = declarations(self._ours.values(), found)
        self._warn(found, {one.name for one in said})
        self._is_overtaken = False
        self._tell_who_waits(await self._store_declared(connection, said) if said else set())
        await connection.run(self._rows.refresh(self._known, older_than=REFRESH.total_seconds() / 2))

    async def _store_declared(self, connection: Connection, said: Sequence[Declaration]) -> set[str]:
        """Store what nobody has locked; the names of the others, which keep nothing else from going on."""
        try:
            stored = await connection.run(self._rows.declare(said, impatient=True))
        except Exception as error:
            if self._store.fault(error) is not Fault.TIMEOUT:
                raise
            if len(said) == 1:
                return {said[0].name}
            return {name for one in said for name in await self._store_declared(connection, [one])}
        self._is_overtaken = self._is_overtaken or len(stored) < len(said)
        return set()

    def _tell_who_waits(self, names: set[str]) -> None:
        """Once."""
        if news := names - self._kept_waiting:
            logger.warning(
                "the new declaration of schedules %s is kept waiting by a transaction that has locked them: it is "
                "tried again, and until then they are as they are stored",
                sorted(news),
            )
        self._kept_waiting, self._waited = names, self._waited + 1 if names else 0

    def _warn(self, found: FoundSchedules, said: set[str]) -> None:
        """Of what this worker has to leave to newer code, once."""
        theirs = {row.name for row in found.rows if row.fingerprint != self._ours[row.name].fingerprint} - said
        for name in theirs - self._left_alone:
            logger.warning("schedule %r is declared otherwise by newer code, and not started by this worker", name)
        self._left_alone = theirs

    # -- ticks

    def _may_try(self, name: str) -> bool:
        return name not in self._failures or time.monotonic() >= self._failures[name].again_at

    async def _planned(self, reserved: Reserved, row: ScheduleRow, found: FoundSchedules) -> Tick | None:
        ours = self._ours[row.name]
        try:
            return plan_tick(self._registry, ours, row, found.now)
        except Exception as error:  # noqa: BLE001 - the application's, about one schedule: told, and shown with it
            await self._failed(reserved, ours, row.next_at or found.now, error)
            return None

    async def _failed(self, reserved: Reserved, ours: Declared, tick: datetime, error: Exception) -> None:
        failure = self._failures.setdefault(ours.name, _Failure())
        failure.times += 1
        failure.again_at = time.monotonic() + pause_after(failure.times, _TRY_AGAIN, _TRY_AT_LEAST_EVERY)
        told = describe(error)
        self._store.observers.emit(
            events.ScheduleFailed(schedule=ours.name, type_name=ours.type.name, tick=tick, error=told)
        )
        await reserved.run(self._rows.fail(ours.name, tick, f"{told.type}: {told.message}"))

    async def _start(self, reserved: Reserved, ticks: Sequence[Tick]) -> Sequence[Tick]:
        """Start what is due and nobody else has; one that is refused does not keep the others from starting."""
        if not ticks:
            return ()
        try:
            ours = await reserved.use(partial(self._commit, ticks))
        except Exception as error:
            if self._store.is_transient(error):
                raise
            if len(ticks) > 1:
                return [one for tick in ticks for one in await self._start(reserved, [tick])]
            await self._failed(reserved, ticks[0].ours, ticks[0].move.tick, error)
            return ()
        for tick in ours:
            self._failures.pop(tick.ours.name, None)
        return ours

    async def _commit(self, ticks: Sequence[Tick], connection: Connection) -> Sequence[Tick]:
        async with transaction(connection):
            names = await connection.run(self._rows.move([tick.move for tick in ticks]))
            ours = [tick for tick in ticks if tick.ours.name in names]
            effects = Effects()
            for jobs in _together(ours):
                started = await connection.run(self._store.state.start(jobs))
                effects.add(self._store.effects_of.start(jobs, started))
            effects.events.extend(event for tick in ours for event in tick.events)
            self._unsure = [job.id for tick in ours for job in tick.jobs], effects
        self._unsure = None
        self._store.release(effects)
        return ours

    async def _tell_of(self, reserved: Reserved, ids: Sequence[JobId], effects: Effects) -> None:
        """A commit may have come through although its answer did not."""
        found = await reserved.run(self._store.state.find_jobs(ids))
        if found:
            self._store.release(effects)
        self._unsure = None


def _together(ticks: Sequence[Tick]) -> list[list[NewJob]]:
    """The jobs that are stored by one statement: those that wait for each other come one by one."""
    jobs = [job for tick in ticks for job in tick.jobs]
    plain = [job for job in jobs if job.is_plain]
    return ([plain] if plain else []) + [[job] for job in jobs if not job.is_plain]

"""Schedules for people and programs: listed, paused, resumed, run, changed. Written once, for both kinds of client."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec

from onward.client.handle import ChainHandle, SyncChainHandle
from onward.client.operations import Operations
from onward.define.schedule import Declared
from onward.errors import OnwardError, ScheduleNotFound, require
from onward.lifecycle.effects import Effects
from onward.lifecycle.schedules import CHORE, Change, declarations, first_tick, planned_now, rules_of, shown
from onward.lifecycle.start import start_jobs
from onward.model import ChainId, StoredSchedule
from onward.notify.contract import Hint, HintKind
from onward.options import LONGEST_NAME, wrong_text
from onward.state.command import Steps
from onward.state.driver import Connection, run_now, transaction
from onward.state.schedules import ScheduleRow

_TRIES = 5


class ScheduleOperations:
    """What can be done with schedules on one store."""

    def __init__(self, ready: Callable[[], Operations], declared: Callable[[], Mapping[str, Declared]]) -> None:
        self._ready, self._declared = ready, declared

    async def list(self, *, tx: object) -> list[StoredSchedule]:
        store = self._ready().store
        found = await store.read(store.state.schedules.find(), tx=tx)
        return [shown(row, found.now) for row in found.rows]

    async def pause(self, name: str, *, paused: bool, tx: object) -> None:
        await self._write(name, partial(self._pause, paused=paused), tx=tx, doing="pause" if paused else "resume")

    async def change(self, name: str, change: Change | None, *, tx: object) -> None:
        require("give cron=, every= or tz=" if change == Change() else None)
        await self._write(name, partial(self._change, change=change), tx=tx, doing="change")

    async def forget(self, name: str, *, tx: object) -> None:
        await self._write(name, self._forget, tx=tx, doing="forget")

    async def run(self, name: str, *, tx: object) -> tuple[ChainId, Declared]:
        operations = self._ready()
        ours = self._ours(name)
        store = operations.store
        now = (await store.read(store.state.schedules.find([]), tx=tx)).now
        jobs = planned_now(operations.registry, ours, now)
        return (await start_jobs(store, jobs, tx=tx))[0].id, ours

    def _ours(self, name: str) -> Declared:
        name = _plain(name)
        try:
            return self._declared()[name]
        except KeyError:
            raise ScheduleNotFound(name, self._declared()) from None

    async def _write(self, name: str, change: Callable[..., Any], *, tx: object, doing: str) -> None:
        name = _plain(name)
        effects = Effects(hints=[Hint(HintKind.DEFERRED, CHORE)])
        doing = f"{doing} a schedule"

        async def write(connection: Connection) -> None:
            async with transaction(connection):
                await change(name, connection)

        await self._ready().store.write(Steps(write), lambda _: effects, tx=tx, doing=doing)

    async def _pause(self, name: str, connection: Connection, *, paused: bool) -> None:
        rows = self._ready().store.state.schedules
        if not await connection.run(rows.pause(name, paused=paused)):
            await self._stored(name, connection)
            await connection.run(rows.pause(name, paused=paused))

    async def _forget(self, name: str, connection: Connection) -> None:
        rows = self._ready().store.state.schedules
        if not await connection.run(rows.forget(name)):
            raise ScheduleNotFound(name, self._declared())

    async def _change(self, name: str, connection: Connection, *, change: Change | None) -> None:
        rows = self._ready().store.state.schedules
        for _ in range(_TRIES):  # a tick may just be started
            row, now = await self._stored(name, connection)
            rules = rules_of(row)
            if rules is None:
                raise OnwardError(f"schedule {name!r} was declared by newer code, which this does not understand")
            changed = None if change is None else change.after(row)
            timing = rules.timing if changed is None else changed.of(rules.timing)
            problem = timing.problem()
            require(problem and f"schedule {name}: {problem}")
            text = None if changed is None else msgspec.json.encode(changed).decode()
            if await connection.run(rows.change(row, changed=text, next_at=first_tick(timing, now, row))):
                return
        raise OnwardError(f"schedule {name!r} could not be changed, because it changed at the same moment: try again")

    async def _stored(self, name: str, connection: Connection) -> tuple[ScheduleRow, Any]:
        """The row of a schedule; one that no worker has stored yet is stored now."""
        rows = self._ready().store.state.schedules
        found = await connection.run(rows.find([name]))
        if not found.rows:
            await connection.run(rows.declare(declarations([self._ours(name)], found)))
            found = await connection.run(rows.find([name]))
        return found.rows[0], found.now


def _plain(name: str) -> str:
    require(wrong_text("name", name, most=LONGEST_NAME))
    return str.__str__(name)  # a member of an enum shows as something else


class Schedules:
    """The schedules of an app, by name. Made by `app.schedules`.

    >>> import asyncio
    >>> from onward import JobType, Onward, Schedule
    >>> report = JobType("report", input=str, output=str)
    >>> nightly = Schedule("nightly", report, "all", cron="0 3 * * *")
    >>> async def main() -> None:
    ...     async with Onward("memory://", jobs=[report], schedules=[nightly]) as app:
    ...         await app.schedules.pause("nightly")
    ...         print([(one.name, one.cron) for one in await app.schedules.list() if one.paused_at])
    >>> asyncio.run(main())
    [('nightly', '0 3 * * *')]
    """

    def __init__(self, operations: ScheduleOperations, here: Callable[[], Operations]) -> None:
        self._operations, self._here = operations, here

    async def list(self, *, tx: object = None) -> Sequence[StoredSchedule]:
        """Those that a worker, or one of the calls below, has stored, by name."""
        return await self._operations.list(tx=tx)

    async def pause(self, name: str, *, tx: object = None) -> None:
        """Start nothing until it is resumed."""
        await self._operations.pause(name, paused=True, tx=tx)

    async def resume(self, name: str, *, tx: object = None) -> None:
        """Go on; of the ticks meanwhile `missed` says what becomes."""
        await self._operations.pause(name, paused=False, tx=tx)

    async def run(self, name: str, *, tx: object = None) -> ChainHandle[Any]:
        """Start a chain now, as if this were a tick; the schedule itself goes on as it would have."""
        id, ours = await self._operations.run(name, tx=tx)
        return ChainHandle(self._here, ours.job_type, id)

    async def change(
        self,
        name: str,
        *,
        cron: str | None = None,
        every: timedelta | None = None,
        tz: str | None = None,
        tx: object = None,
    ) -> None:
        """Have it due at other times, from now on, until the code declares something else than it does now.

        What is not said stays as it is.
        """
        await self._operations.change(name, Change(cron=cron, every=every, tz=tz), tx=tx)

    async def reset(self, name: str, *, tx: object = None) -> None:
        """Have it due again as the code declares."""
        await self._operations.change(name, None, tx=tx)

    async def forget(self, name: str, *, tx: object = None) -> None:
        """Remove it from the database; workers whose code still declares it bring it back."""
        await self._operations.forget(name, tx=tx)


class SyncSchedules:
    """The same without an event loop: `client.schedules`."""

    def __init__(self, operations: ScheduleOperations, ready: Operations) -> None:
        self._operations, self._ready = operations, ready

    def list(self, *, tx: object = None) -> Sequence[StoredSchedule]:
        """Those that a worker, or one of the calls below, has stored, by name."""
        return run_now(self._operations.list(tx=tx))

    def pause(self, name: str, *, tx: object = None) -> None:
        """Start nothing until it is resumed."""
        run_now(self._operations.pause(name, paused=True, tx=tx))

    def resume(self, name: str, *, tx: object = None) -> None:
        """Go on; of the ticks meanwhile `missed` says what becomes."""
        run_now(self._operations.pause(name, paused=False, tx=tx))

    def run(self, name: str, *, tx: object = None) -> SyncChainHandle[Any]:
        """Start a chain now, as if this were a tick."""
        id, ours = run_now(self._operations.run(name, tx=tx))
        return SyncChainHandle(self._ready, ours.job_type, id)

    def change(
        self,
        name: str,
        *,
        cron: str | None = None,
        every: timedelta | None = None,
        tz: str | None = None,
        tx: object = None,
    ) -> None:
        """Have it due at other times, until the code declares something else. What is not said stays as it is."""
        run_now(self._operations.change(name, Change(cron=cron, every=every, tz=tz), tx=tx))

    def reset(self, name: str, *, tx: object = None) -> None:
        """Have it due again as the code declares."""
        run_now(self._operations.change(name, None, tx=tx))

    def forget(self, name: str, *, tx: object = None) -> None:
        """Remove it from the database; workers whose code still declares it bring it back."""
        run_now(self._operations.forget(name, tx=tx))

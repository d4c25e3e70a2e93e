"""Whether jobs get done: a pulse that is taken of the database, and what to think of it."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from typing_extensions import TypedDict

from onward.client.doctor.words import counted, named, span
from onward.client.reaching import Hints, Unreached, hints_of, reach, reach_now
from onward.client.untaken import is_of_queue
from onward.define.registry import Registry
from onward.errors import require
from onward.notify.contract import NotifyAdapter
from onward.operating import Finding, Health, WorkerInfo
from onward.options import wrong_duration
from onward.state.contract import StateAdapter
from onward.state.driver import Connection, Driver
from onward.state.facts import DueType

_FRESH = 1.0
"""Seconds for which a pulse is good: who asks again meanwhile is told the same, at no cost to the database."""
TIMEOUT = timedelta(seconds=5)


class HealthOptions(TypedDict, total=False):
    """The options of `health`."""

    max_age: timedelta | None
    max_ages: Mapping[str, timedelta]
    timeout: timedelta


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen."""

    at: datetime
    took: float
    """Seconds."""
    unreached: Unreached | None = None
    """Why nothing else was."""
    version: int = 0
    newest: int = 0
    waiting: Sequence[DueType] = ()
    workers: Sequence[WorkerInfo] = ()
    hints: Hints = "unknown"
    by_hand: frozenset[str] = frozenset()
    """Types of the app without a handler: nobody has to take them."""
    is_open: bool = True


class Probe:
    """Takes the pulse of an app that is open; once in a second at the most, however many ask."""

    def __init__(self, state: StateAdapter, driver: Driver, notify: NotifyAdapter | None, registry: Registry) -> None:
        self._state, self._driver, self._notify, self._registry = state, driver, notify, registry
        self._turn = asyncio.Lock()
        self._last: Pulse | None = None
        self._until = 0.0

    async def ask(self, options: HealthOptions, *, is_open: bool = True) -> Health:
        """Of an event loop's app; of one that is not open all is opened for it, without making tables."""
        seconds = _seconds(options)
        try:
            async with asyncio.timeout(seconds), self._turn:
                pulse = self._fresh() or await self._take(seconds, is_open)
        except TimeoutError:
            pulse = _away(Unreached(f"no answer within {seconds:g} s"), seconds)
        return judge(pulse, options)

    def ask_now(self, options: HealthOptions) -> Health:
        """Of a client without an event loop."""
        pulse = self._fresh()
        if pulse is None:
            began, seconds = time.monotonic(), _seconds(options)
            found = reach_now(self._driver, self._look, seconds=seconds)
            pulse = self._seen(found, began, "unknown", is_open=True)
        return judge(pulse, options)

    async def _take(self, seconds: float, is_open: bool) -> Pulse:
        began = time.monotonic()
        hints: Hints = "unknown"
        # A little less than whoever waits for it: the reason is worth more than that time was up.
        found = await reach(self._driver, self._look, seconds=seconds * 0.95, is_open=is_open)
        took = time.monotonic()
        if not isinstance(found, Unreached) and self._notify is not None:
            hints = await hints_of(self._notify, is_open=is_open)
        return self._seen(found, began, hints, is_open=is_open, ended=took)

    async def _look(self, connection: Connection) -> dict[str, Any]:
        state = self._state
        version = await connection.run(state.schema_version())
        if version < state.newest_version:
            return {"version": version}
        waiting = await connection.run(state.due_types())
        return {"version": version, "waiting": waiting, "workers": await connection.run(state.workers.list())}

    def _seen(
        self,
        found: dict[str, Any] | Unreached,
        began: float,
        hints: Hints,
        *,
        is_open: bool,
        ended: float | None = None,
    ) -> Pulse:
        took = (ended or time.monotonic()) - began
        if isinstance(found, Unreached):
            pulse = _away(found, took)
        else:
            pulse = Pulse(
                at=datetime.now(UTC),
                took=took,
                newest=self._state.newest_version,
                hints=hints,
                by_hand=frozenset(name for name, kind in self._registry.items() if kind.step.run is None),
                is_open=is_open,
                **found,
            )
        self._last, self._until = pulse, time.monotonic() + _FRESH
        return pulse

    def _fresh(self) -> Pulse | None:
        return self._last if time.monotonic() < self._until else None


def _seconds(options: HealthOptions) -> float:
    timeout = options.get("timeout", TIMEOUT)
    max_age, max_ages = options.get("max_age"), options.get("max_ages", {})
    require(
        wrong_duration("timeout", timeout),
        None if max_age is None else wrong_duration("max_age", max_age),
        *(wrong_duration(f"max_ages[{name!r}]", age) for name, age in max_ages.items()),
    )
    return timeout.total_seconds()


def _away(unreached: Unreached, took: float) -> Pulse:
    return Pulse(at=datetime.now(UTC), took=took, unreached=unreached)


# -- judging


def judge(pulse: Pulse, options: HealthOptions) -> Health:
    """What to think of a pulse."""
    if pulse.unreached is not None:
        return Health(at=pulse.at, findings=[of_unreached(pulse.unreached)])
    findings = [
        Finding(name="database", level="ok", message=f"answers, in {pulse.took * 1000:.0f} ms"),
        of_schema(pulse.version, pulse.newest, is_open=pulse.is_open),
    ]
    if pulse.version >= pulse.newest:
        findings += [_of_hints(pulse.hints), *of_workers(pulse.workers, pulse.waiting, pulse.by_hand)]
        findings.append(_of_ages(pulse, options))
    return Health(at=pulse.at, findings=findings)


def of_unreached(unreached: Unreached) -> Finding:
    """Why the database could not be looked at."""
    reason = unreached.reason
    if unreached.is_silent:
        return Finding(
            name="database",
            level="error",
            message=f"the database lets us in, but does not tell how its jobs are: {reason}",
            advice="somebody may hold a lock on Onward's tables, or it has too much to do: `onward doctor` says who",
        )
    usual = "see that it runs and can be reached from here, and that it has a connection to spare"
    advice = advice_on_pooler(reason) or usual
    message = f"the database cannot be reached: {reason}"
    return Finding(name="database", level="error", message=message, advice=advice)


def advice_on_pooler(reason: str) -> str | None:
    """What to do where it was a pooler that refused."""
    if "unsupported startup parameter" not in reason:
        return None
    return "there is a pooler in between: say Onward(…, pgbouncer=True), and name the app here (--app)"


def of_schema(found: int, needed: int, *, is_open: bool) -> Finding:
    """Whether the tables are those that this code needs."""
    if found > needed:
        return Finding(
            name="schema",
            level="warning" if is_open else "error",
            message=f"the tables are at version {found}, newer than this code knows ({needed})",
            advice="upgrade the onward package here, and replace this process",
        )
    if found < needed:
        state = f"the tables are at version {found}" if found else "the database has no Onward tables"
        advice = "run `onward migrate` (docs/how-to/migrations.md)"
        return Finding(
            name="schema", level="error", message=f"{state}, this code needs version {needed}", advice=advice
        )
    return Finding(name="schema", level="ok", message=f"the tables are at version {found}, as this code needs")


def _of_hints(hints: Hints) -> Finding:
    match hints:
        case "up":
            return Finding(name="hints", level="ok", message="hints arrive")
        case "local":
            words = "hints stay in each process, as it was set up: workers look for jobs every second"
            return Finding(name="hints", level="ok", message=words)
        case "unknown":
            return Finding(name="hints", level="ok", message="nobody here listens for hints")
        case "down":
            return Finding(
                name="hints",
                level="warning",
                message="hints do not arrive here: workers look for jobs by themselves, and begin them later",
                advice="see whether one more connection can be made to what carries them (docs/how-to/hints.md)",
            )


def of_workers(workers: Sequence[WorkerInfo], waiting: Sequence[DueType], by_hand: frozenset[str]) -> list[Finding]:
    """Whether somebody lives, and takes what waits; paused types, those without a handler, and queues need nobody."""
    alive = [worker for worker in workers if worker.state == "alive"]
    nobodys = {one.type_name for one in waiting if one.paused} | by_hand
    wanted = [one for one in waiting if one.type_name not in nobodys and not is_of_queue(one.type_name)]
    left = {job.type_name for worker in workers if worker.state == "dead" for job in worker.running} - nobodys
    unserved = sorted({*(name for name in left if not is_of_queue(name)), *(one.type_name for one in wanted)})
    findings = [_of_the_living(alive, unserved), *_of_the_dead(workers), *_of_the_blocked(alive)]
    if alive:
        findings.append(_of_types(alive, wanted))
    return findings


def _of_the_living(alive: Sequence[WorkerInfo], unserved: Sequence[str]) -> Finding:
    """`unserved`: the types of jobs that wait, or that the dead have left behind."""
    if alive:
        return Finding(name="workers", level="ok", message=f"{len(alive)} alive")
    if unserved:
        return Finding(
            name="workers",
            level="error",
            message=f"no worker is alive, and jobs wait: {named(unserved)}",
            advice="start one: `onward worker MODULE:APP`",
        )
    return Finding(
        name="workers",
        level="warning",
        message="no worker is alive; nothing waits",
        advice="start one before jobs come",
    )


def _of_the_dead(workers: Sequence[WorkerInfo]) -> list[Finding]:
    holding = [worker for worker in workers if worker.state == "dead" and worker.running]
    if not holding:
        return []
    jobs = sum(len(worker.running) for worker in holding)
    return [
        Finding(
            name="dead_workers",
            level="warning",
            message=f"dead workers hold {counted(jobs, 'job')}: {named([worker.id for worker in holding])}",
            advice="other workers that take these types begin them again when the leases have run out",
        )
    ]


def _of_the_blocked(alive: Sequence[WorkerInfo]) -> list[Finding]:
    blocked = [worker.id for worker in alive if worker.blocked_since is not None]
    if not blocked:
        return []
    return [
        Finding(
            name="blocked_workers",
            level="warning",
            message=f"the event loop stands still of {named(blocked)}",
            advice="the worker's log has the stack of what blocks it: call that in a thread, or in a `def` handler",
        )
    ]


def _of_types(alive: Sequence[WorkerInfo], wanted: Sequence[DueType]) -> Finding:
    stranded = [one for one in wanted if not any(takes(worker, one) for worker in alive)]
    if not stranded:
        return Finding(name="types", level="ok", message="somebody takes each type that waits")
    # Of a worker without a row, one of an older version, only what it runs is known.
    return Finding(
        name="types",
        level="error" if all(worker.is_known for worker in alive) else "warning",
        message="jobs wait that no live worker takes: "
        + named([f"{one.type_name} (version {one.payload_version})" for one in stranded]),
        advice="start a worker whose code has these types, in these versions; types without a handler are known to the "
        "app only (--app)",
    )


def takes(worker: WorkerInfo, waiting: DueType) -> bool:
    """Whether a worker runs such jobs."""
    return waiting.payload_version in worker.types.get(waiting.type_name, ())


def _of_ages(pulse: Pulse, options: HealthOptions) -> Finding:
    limits, usual = options.get("max_ages", {}), options.get("max_age")
    oldest: dict[str, float] = {}
    for one in pulse.waiting:
        if not one.paused:
            oldest[one.type_name] = max(one.oldest, oldest.get(one.type_name, 0.0))
    late = [
        f"{name} for {span(age)} (allowed: {span(limit.total_seconds())})"
        for name, age in oldest.items()
        if (limit := limits.get(name, None if name in pulse.by_hand else usual)) is not None
        and age > limit.total_seconds()
    ]
    if late:
        advice = "more workers, or more concurrency; `onward explain ID` says what a job waits for"
        return Finding(name="age", level="error", message=f"jobs wait for too long: {named(late)}", advice=advice)
    longest = max(oldest.items(), key=lambda item: item[1], default=None)
    words = "nothing waits" if longest is None else f"the oldest has waited for {span(longest[1])}: {longest[0]}"
    return Finding(name="age", level="ok", message=words)

"""One operation, hit at every one of its points, once each."""

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from onward.lifecycle import settle
from onward.state.driver import run_now
from sweep.bench import Bench, Image, Room, at_once, soon_nothing
from sweep.client_operations import JOBS, Operation
from sweep.points import CANCELS, ERRORS, INTERRUPTS, TAP, Blow, Place, Point
from sweep.stepping import Cancelled, stepped
from sweep.taps import can_fail, can_fail_on_sqlite, tapped

SEED = int(os.environ.get("ONWARD_SWEEP_SEED", time.time() // 86400))
"""Which points belong to the share that is tried: others each day, or those of a day that is named."""
SHARE = float(os.environ.get("ONWARD_TEST_SCALE", "0.1"))
_PATIENCE = 6.0
_ENOUGH = 12
"""Problems of one operation after which no more are looked for."""
_APPS_OWN = frozenset({"onward hints", "onward announcer"})
"""Tasks that live as long as the app."""


@dataclass
class Report:
    """What became of the points of an operation."""

    name: str
    points: int = 0
    tried: int = 0
    missed: int = 0
    """Points that were not passed again: waits differ a little from run to run."""
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.points} points, {self.tried} tried (seed {SEED}), {self.missed} not passed again"]
        return "\n  ".join(lines + self.problems)


@contextmanager
def hurried() -> Iterator[None]:
    """Pauses before another try are a tenth as long, and not random."""

    class Least:
        @staticmethod
        def uniform(least: float, most: float) -> float:
            return least / 10

        @staticmethod
        def random() -> float:
            return 0.0

    before = getattr(settle, "random", None)
    settle.random = Least  # type: ignore[assignment,attr-defined]
    try:
        yield
    finally:
        settle.random = before  # type: ignore[assignment,attr-defined]


def points_of(bench: Bench, statements: Iterable[Place], awaits: Iterable[Place]) -> list[Point]:
    """Everything that can happen at these places."""
    found: list[Point] = []
    for place in statements:
        found.extend(Point(place, blow) for blow in _blows(bench, place.label))
    if not bench.is_sync:
        found.append(Point(Place("beginning", 1), Blow.CANCELLED_UNSENT))
        found.extend(
            Point(place, blow) for place in awaits for blow in (Blow.CANCELLED_WAITING, Blow.CANCELLED_ANSWERED)
        )
    return found


def _blows(bench: Bench, label: str) -> list[Blow]:
    if label == "connect":
        return [Blow.CUT_BEFORE, Blow.FULL]
    interrupts = list(INTERRUPTS) if bench.is_sync else []
    if bench.dialect == "sqlite":
        return [*interrupts, *(b for b in (Blow.CUT_BEFORE, *ERRORS) if can_fail_on_sqlite(label, b))]
    errors = [blow for blow in ERRORS if can_fail(label) and not (blow is Blow.READ_ONLY and label == "COMMIT")]
    return [*interrupts, Blow.CUT_BEFORE, Blow.CUT_AFTER, *errors]


class ClientSweep:
    """An operation of a client."""

    def __init__(self, bench: Bench, operation: Operation) -> None:
        self.bench, self.operation = bench, operation
        self.before: Image = ()
        self.after: Image = ()

    def run(self) -> Report:
        """Record, then hit the chosen points; what went wrong."""
        report = Report(f"{self.operation.name} on {self.bench.name}")
        with tapped(), hurried():
            self._drive(self._record())
            points = points_of(self.bench, TAP.statements, TAP.awaits)
            report.points = len(points)
            for point in points:
                if point.is_chosen(SHARE, SEED) and len(report.problems) < _ENOUGH:
                    self._try(point, report)
        return report

    def _try(self, point: Point, report: Report) -> None:
        report.tried += 1
        problems: list[str] = []
        try:
            self._drive(self._hit(point, problems))
        except Hangs as error:
            problems.append(f"hangs for ever: {error}"[:600])
            self.bench.renew()
        except BaseException as error:  # noqa: BLE001 - a point that breaks the sweep itself is a finding
            problems.append(f"the app could not go on: {error!r}"[:300])
        TAP.disarm()
        if not problems or TAP.was_hit:
            problems += at_once(self.bench.remains)
        if problems:
            self.bench.break_locks()
        if not TAP.was_hit:
            report.missed += 1
        report.problems += [f"{point}: {problem}" for problem in problems]

    def _drive(self, work: Coroutine[Any, Any, None]) -> None:
        driven(work, is_sync=self.bench.is_sync)

    async def _record(self) -> None:
        self.bench.clean()
        async with self.bench.room(*JOBS) as room:
            given = await self.operation.arrange(room)
            self.before = self.bench.image()
            TAP.arm(None)
            await self._act(room, given)
            TAP.disarm()
            self.after = self.bench.image()

    async def _act(self, room: Room, given: Any, *, cancel_first: bool = False) -> None:
        act = self.operation.act(room, given)
        if self.bench.is_sync:
            token = _sync_scope()
            try:
                await act
            finally:
                token()
        else:
            await stepped(act, cancel_first=cancel_first)

    async def _hit(self, point: Point, problems: list[str]) -> None:
        beginning = _tasks(self.bench)
        await self._hit_app(point, problems)
        problems += await _left_running(self.bench, beginning, also=())

    async def _hit_app(self, point: Point, problems: list[str]) -> None:
        self.bench.clean()
        async with self.bench.room(*JOBS) as room:
            given = await self.operation.arrange(room)
            tasks = _tasks(self.bench)
            error = await self._struck(room, given, point)
            problems += self._judge(point, error)
            problems += await _left_running(self.bench, tasks)
            problems += await soon_nothing(self.bench.troubles, is_sync=self.bench.is_sync)
            if problems:
                return
            problems += await _said("the pool does not work", room.lend_all())
            problems += await _said("it does not work again", self._repeat(room))

    async def _struck(self, room: Room, given: Any, point: Point) -> BaseException | None:
        """Do it, hit it; the error that came out."""
        first = point.blow is Blow.CANCELLED_UNSENT
        TAP.arm(point)
        TAP.was_hit = first
        try:
            await self._act(room, given, cancel_first=first)
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever comes out is judged
            return error
        finally:
            TAP.disarm()
        return None

    def _judge(self, point: Point, error: BaseException | None) -> list[str]:
        if not TAP.was_hit and error is None:
            return []
        found = self.bench.image()
        if error is None and found != self.after:
            return [f"it said that it was done, but the tables differ: {_difference(self.after, found)}"]
        if found not in (self.before, self.after):
            return [f"half done ({error!r}): {_difference(self.before, found)}"[:600]]
        expected = isinstance(error, Cancelled | KeyboardInterrupt) and point.blow in (*CANCELS, *INTERRUPTS)
        if error is not None and not expected and (self.operation.retries or point.blow in CANCELS):
            return [f"came out as {type(error).__name__}: {error}"[:300]]
        return []

    async def _repeat(self, room: Room) -> None:
        self.bench.clean()
        given = await self.operation.arrange(room)
        await self._act(room, given)
        found = self.bench.image()
        assert found == self.after, f"the tables differ: {_difference(self.after, found)}"


def _sync_scope() -> Any:
    from sweep.points import under_test

    token = under_test.set(True)
    return lambda: under_test.reset(token)


class Hangs(Exception):
    """Nothing came back, not even from a cancellation."""


def driven(work: Coroutine[Any, Any, None], *, is_sync: bool) -> None:
    """Run it in a thread, so that what hangs for ever can be left behind."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            if is_sync:
                run_now(work)
            else:
                asyncio.run(_bounded(work))
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            errors.append(error)

    thread = threading.Thread(target=run, name="sweep", daemon=True)
    thread.start()
    thread.join(_PATIENCE * 2)
    if thread.is_alive():
        stack = traceback.format_stack(sys._current_frames()[thread.ident or 0])
        others = [t.name for t in threading.enumerate() if t.name.startswith("onward")]
        raise Hangs(f"in {stack[-1].strip()}, threads {others}")
    if errors:
        raise errors[0]


async def _bounded(work: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(_PATIENCE):
        await work


async def _said(what: str, check: Coroutine[Any, Any, None]) -> list[str]:
    """The check's complaint, if it has one."""
    try:
        if asyncio._get_running_loop() is None:
            await check
        else:
            async with asyncio.timeout(_PATIENCE / 2):
                await check
    except (Exception, Cancelled) as error:  # noqa: BLE001 - all of it is to be told
        return [f"{what}: {type(error).__name__}: {error}"[:400]]
    return []


def _tasks(bench: Bench) -> set[Any]:
    return set() if bench.is_sync else asyncio.all_tasks()


async def _left_running(bench: Bench, before: set[Any], *, also: Iterable[str] = _APPS_OWN) -> list[str]:
    if bench.is_sync:
        return []
    for _ in range(200):
        left = [task for task in asyncio.all_tasks() - before if task.get_name() not in also]
        if not left:
            return []
        await asyncio.sleep(0.005)
    return [f"a task is left: {task!r}"[:200] for task in left]


def _difference(expected: Image, found: Image) -> str:
    missing = [row for row in expected if row not in found]
    more = [row for row in found if row not in expected]
    if not missing and not more:
        return f"the same rows, {len(found)} instead of {len(expected)} times"
    return f"expected {missing}, found {more}"

"""One operation, hit at every one of its points, once each."""

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from onward.lifecycle import settle
from onward.state.driver import run_now
from sweep.bench import Bench, Image, Room, at_once, soon_nothing
from sweep.client_operations import JOBS, Operation
from sweep.points import CANCELS, ERRORS, INTERRUPTS, TAP, Blow, Place, Point, under_test
from sweep.stepping import Cancelled, all_tasks_stepped, stepped
from sweep.taps import can_fail, can_fail_on_sqlite, tapped
from sweep.worker_operations import SOON, Stage, Work

SEED = int(os.environ.get("ONWARD_SWEEP_SEED", "1"))
"""Which points belong to the share that is tried: always the same, so that a change is judged by what it changed."""
SHARE = float(os.environ.get("ONWARD_TEST_SCALE", "0.06"))
_SHARE_OF_ENGINES = SHARE if SHARE >= 1 else SHARE / 3
"""On SQLAlchemy: three engines that share all but their last inch share the points of one."""
_PATIENCE = 20.0
_ENOUGH = 6
"""Points of one operation with problems after which no more are tried."""
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
    failed: int = 0
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


def share_of(bench: Bench) -> float:
    """How many of its points are tried."""
    return _SHARE_OF_ENGINES if bench.name.startswith("sqlalchemy-") else SHARE


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


def try_point(bench: Bench, point: Point, report: Report, hit: Any) -> None:
    """Hit one point, and add to the report."""
    report.tried += 1
    problems: list[str] = []
    try:
        driven(hit(point, problems), is_sync=bench.is_sync)
    except Hangs as error:
        problems.append(f"hangs for ever: {error}"[:600])
        bench.renew()
    except BaseException as error:  # noqa: BLE001 - a point that breaks the sweep itself is a finding
        problems.append(f"the app could not go on: {error!r}"[:300])
    TAP.disarm()
    if not problems or TAP.was_hit:
        problems += at_once(bench.remains)
    if problems:
        report.failed += 1
        bench.break_locks()
    if not TAP.was_hit:
        report.missed += 1
    report.problems += [f"{point}: {problem}" for problem in problems]


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
                if point.is_chosen(share_of(self.bench), SEED) and report.failed < _ENOUGH:
                    try_point(self.bench, point, report, self._hit)
        return report

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


_TWICE = 2
"""In a worker the same things come again and again: the first and the second time are tried."""


class WorkerSweep:
    """A worker, from its start until its chains have ended; if it is ended by the blow, another one goes on."""

    def __init__(self, bench: Bench, work: Work) -> None:
        self.bench, self.work = bench, work
        self.after: Image = ()

    def run(self) -> Report:
        """Record, then hit the chosen points; what went wrong."""
        report = Report(f"worker: {self.work.name} on {self.bench.name}")
        with tapped(), hurried():
            driven(self._record(), is_sync=False)
            statements = [place for place in TAP.statements if place.nth <= _TWICE]
            awaits = [place for place in TAP.awaits if place.nth <= _TWICE]
            points = [p for p in points_of(self.bench, statements, awaits) if p.blow is not Blow.CANCELLED_UNSENT]
            points += [Point(place, Blow.STOPPED_WAITING) for place in awaits]
            report.points = len(points)
            for point in points:
                if point.is_chosen(share_of(self.bench), SEED) and report.failed < _ENOUGH:
                    try_point(self.bench, point, report, self._hit)
        return report

    async def _record(self) -> None:
        self.bench.clean()
        async with self.bench.room(*self.work.jobs) as room:
            await self._work(room, None)
        self.after = self.bench.image(attempts=False)

    async def _hit(self, point: Point, problems: list[str]) -> None:
        beginning = _tasks(self.bench)
        self.bench.clean()
        async with self.bench.room(*self.work.jobs) as room:
            tasks = asyncio.all_tasks()
            error = await self._work(room, point)
            if error is not None:
                problems.append(f"the worker ended with {error!r}"[:300])
            found = self.bench.image(attempts=False)
            may_count = (self.work.may_crash and point.blow in CANCELS) or _is_handlers_own(point)
            if found != self.after and not (may_count and _differ_by_one_failure(found, self.after)):
                problems += [f"unfinished: {row}" for row in self.bench.unfinished()]
                problems.append(f"the tables differ: {_difference(self.after, found)}"[:900])
            problems += await _left_running(self.bench, tasks)
            problems += await soon_nothing(self.bench.troubles, is_sync=False)
            if not problems:
                problems += await _said("the pool does not work", room.lend_all())
        problems += await _left_running(self.bench, beginning, also=())

    async def _work(self, room: Room, point: Point | None) -> BaseException | None:
        """Workers until all chains have ended, the first of them hit; the error it ended with."""
        Stage.set(room)
        given = await self.work.arrange(room)
        TAP.arm(point, everywhere=True)
        try:
            error = await self._first(room, given)
        finally:
            TAP.disarm()
        for _ in range(3):
            if not self.bench.unfinished():
                break
            error = await self._one(room, given, _ignore) or error
        return error

    async def _first(self, room: Room, given: Any) -> BaseException | None:
        loop = asyncio.get_running_loop()
        blows: list[Any] = []
        loop.set_task_factory(all_tasks_stepped(lambda blow: blows[0](blow)))
        token = under_test.set(True)
        try:
            return await self._one(room, given, blows.append)
        finally:
            under_test.reset(token)
            loop.set_task_factory(None)

    async def _one(self, room: Room, given: Any, tell: Any) -> BaseException | None:
        """A worker until all chains have ended, or it has."""
        soon = timedelta(seconds=0.3)
        worker = room.app.worker(concurrency=3, poll=soon, grace=soon, stall=None, backoff=SOON)
        running = asyncio.get_running_loop().create_task(worker.run())  # owned by this function

        def hit(blow: Blow) -> None:
            if blow is Blow.STOPPED_WAITING:
                worker.stop()
                worker.give_back()
            else:
                running.cancel()

        tell(hit)
        outside = under_test.set(False)
        try:
            if self.work.beside is not None:
                await self.work.beside(room, given, worker, running.done)
            over = lambda: running.done() or not self.bench.unfinished()  # noqa: E731
            await self.bench.wait_until(over, within=_PATIENCE / 2)
        finally:
            under_test.reset(outside)
        if not running.done():
            worker.stop()
        await asyncio.wait([running], timeout=_PATIENCE / 2)
        if not running.done():
            running.cancel()
            return TimeoutError("the worker does not stop")
        return None if running.cancelled() else running.exception()


def _is_handlers_own(point: Point) -> bool:
    """Whether it is a handler's own statement that is too slow: that is the handler's failure, and counted."""
    return point.blow is Blow.TIMEOUT and any(words in point.place.label for words in ("SELECT count", "ledger"))


def _differ_by_one_failure(found: Image, expected: Image) -> bool:
    """Whether all is as expected, but for one failure more that was counted."""

    def failures(image: Image) -> int:
        return sum(row[3] for row in image if len(row) > 4)

    def rest(image: Image) -> list[str]:
        return sorted(repr((*row[:3], *row[4:])) for row in image)

    return rest(found) == rest(expected) and 0 <= failures(found) - failures(expected) <= 1


def _ignore(hit: Any) -> None:
    """Nothing is going to be hit."""


def _sync_scope() -> Any:
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
    thread.join(_PATIENCE * 2.5)
    if thread.is_alive():
        stack = traceback.format_stack(sys._current_frames()[thread.ident or 0])
        others = [t.name for t in threading.enumerate() if t.name.startswith("onward")]
        raise Hangs(f"in {stack[-1].strip()}, threads {others}")
    if errors:
        raise errors[0]


async def _bounded(work: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(_PATIENCE * 2):
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


def _is_pools_own(task: asyncio.Task[Any]) -> bool:
    """Before Python 3.12 psycopg's pool makes another whenever it waits for what is to be done next."""
    frame = getattr(task.get_coro(), "cr_frame", None)
    waited_for = None if frame is None else frame.f_locals.get("self")
    return type(waited_for).__module__.startswith("psycopg_pool.")


async def _left_running(bench: Bench, before: set[Any], *, also: Iterable[str] = _APPS_OWN) -> list[str]:
    if bench.is_sync:
        return []
    for _ in range(200):
        left = [task for task in asyncio.all_tasks() - before if not (task.get_name() in also or _is_pools_own(task))]
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

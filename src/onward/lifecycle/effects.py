"""What leaves only after the commit: hints for those who wait, events for those who watch; how hints leave without the
caller waiting for them; and errors as they are told.
"""

import asyncio
import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import msgspec

from onward.errors import HandlerFailed
from onward.model import FailureReason, JobError, JobStatus
from onward.notify.contract import Changed, Hint, HintKind, NotifyAdapter
from onward.notify.encoding import merged
from onward.observe import events
from onward.observe.events import Event
from onward.observe.observer import Observers, Sent
from onward.options import LONGEST_ERROR, LONGEST_TRACEBACK, cut
from onward.state.command import Command
from onward.state.contract import Change, ChangeKind, NewJob, Pruned, Settlement, Started
from onward.state.process import HomeProcess, leave_to_parent

logger = logging.getLogger("onward")
_BETWEEN_ROUNDS = 0.002
"""Seconds. The first hint leaves at once; in a stream of them one in so often wakes everybody as well."""
_AFTER_FAILURE = 1.0
"""Seconds for which no commit carries hints after one that did has failed: perhaps because of them."""
_WITH_ANOTHER_AT_MOST = 0.05
"""Seconds for which hints wait for somebody else's commit to take them along: it may have to wait itself."""
_FAREWELL = 2.0
_LONGEST_NAME = 200
_MOST_PIECES = 1_000
_AROUND_HANDLERS = ("onward.worker.", "onward.run.", "onward.state.driver", "contextlib", "concurrent.futures.")
"""Modules whose frames lead to a handler, and say nothing of it."""
_OF_STARTS = (events.ChainStarted, events.JobCreated, events.JobBlocked)


class Effects(msgspec.Struct):
    """The hints and events of a change that has not been committed yet."""

    hints: list[Hint] = []
    events: list[Event] = []
    actions: list[Sent] = []

    def add(self, other: "Effects") -> None:
        self.hints.extend(other.hints)
        self.events.extend(other.events)
        self.actions.extend(other.actions)


class Awaited:
    """The chains somebody waits for, as far as this process has heard; forgotten after a while.

    Whoever waits says so again and again, so that it is enough to remember for a little longer than that. Two
    generations, each of bounded size: adding costs the same however many there are.
    """

    def __init__(
        self, *, remember: float = 15.0, most: int = 50_000, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._remember, self._most, self._now = remember, most, now
        self._young: set[str] = set()
        self._old: set[str] = set()
        self._turn_at = self._over_at = 0.0

    def add(self, chain_id: str) -> None:
        now = self._now()
        if now >= self._turn_at or len(self._young) >= self._most:
            self._old, self._young = self._young if now < self._over_at else set(), set()
            self._turn_at = now + self._remember
        self._young.add(chain_id)
        self._over_at = now + self._remember

    def __contains__(self, chain_id: str) -> bool:
        return bool(self) and (chain_id in self._young or chain_id in self._old)

    def __bool__(self) -> bool:
        return self._now() < self._over_at


class EffectsOf:
    """Turns changes of the database into the hints and events that follow from them."""

    def __init__(self, observers: Observers, awaited: Awaited) -> None:
        self._wants, self._awaited = observers.wants, awaited

    def start(self, jobs: Sequence[NewJob], started: Sequence[Started], sent: Sent | None = None) -> Effects:
        """Of chains started; `sent` is told that they were, unless all are duplicates."""
        effects, watched = Effects(), self._wants(*_OF_STARTS)
        if sent is not None and any(answer.status is not None for answer in started):
            effects.actions.append(sent)
        for job, answer in zip(jobs, started, strict=True):
            if answer.status is not None and not answer.duplicate:
                self._created(effects, job, answer.status, watched)
        return effects

    def changes(self, changes: Iterable[Change]) -> Effects:
        """Of what somebody asked for: cancel, retry, trigger, delete."""
        effects = Effects()
        for change in changes:
            self._changed(effects, change, everybody=True)
        return effects

    def pruned(self, pruned: Pruned) -> Effects:
        """Of chains that were kept for long enough."""
        told = pruned.chains and self._wants(events.ChainsPruned)
        event = events.ChainsPruned(
            completed=pruned.completed, failed=pruned.failed, jobs=pruned.jobs, moved=pruned.moved
        )
        return Effects(events=[event] if told else [])

    def settlements(
        self, settlements: Collection[Settlement], changes: Collection[Change], *, everybody: bool = False
    ) -> Effects:
        """Of attempts that ended. `everybody`: tell the end of a chain also when nobody is known to wait for it."""
        effects = Effects()
        if not everybody and self._has_no_audience(settlements, changes):
            return effects
        by_id = {settlement.job_id: settlement for settlement in settlements}
        for change in changes:
            settlement = by_id.get(change.job_id)
            if change.kind != "settled" or settlement is None:
                self._changed(effects, change, everybody)
            elif change.status is JobStatus.PENDING:
                deferred = settlement.delay > 0 or settlement.at is not None
                effects.hints.append(Hint(HintKind.DEFERRED if deferred else HintKind.READY, change.type_name))
            elif change.status is JobStatus.FAILED:
                self._failed(effects, change, everybody)
            else:
                self._completed(effects, change, settlement, everybody)
        return effects

    def _has_no_audience(self, settlements: Collection[Settlement], changes: Collection[Change]) -> bool:
        """Whether chains only completed, and nobody waits or watches: most of what busy workers do."""
        if self._awaited or self._wants(events.JobCompleted, events.ChainCompleted):
            return False
        for settlement in settlements:
            if settlement.kind != "complete":
                return False
        for change in changes:  # noqa: SIM110 - here and above: a generator costs more than all else
            if change.kind != "settled":
                return False
        return True

    def _created(self, effects: Effects, job: NewJob, status: JobStatus, watched: bool) -> None:
        if status is JobStatus.PENDING:
            deferred = job.delay > 0 or job.at is not None
            effects.hints.append(Hint(HintKind.DEFERRED if deferred else HintKind.READY, job.type_name))
        # Starting locked the chains it waits for, and a worker that was told of them meanwhile found nothing to take.
        if job.blocker_types:
            effects.hints += [Hint(HintKind.READY, name) for name in job.blocker_types]
        if watched:
            self._tell_of_start(effects, job, status)
        if status is JobStatus.FAILED:
            self._failed(effects, _failed_at_once(job), everybody=True)

    def _tell_of_start(self, effects: Effects, job: NewJob, status: JobStatus) -> None:
        facts: dict[str, Any] = {"job_id": job.id, "chain_id": job.chain_id, "type_name": job.type_name}
        if job.chain_index == 0 and self._wants(events.ChainStarted):
            effects.events.append(events.ChainStarted(chain_id=job.chain_id, type_name=job.type_name))
        if self._wants(events.JobCreated):
            effects.events.append(events.JobCreated(**facts))
        if status is JobStatus.BLOCKED and self._wants(events.JobBlocked):
            effects.events.append(events.JobBlocked(**facts))

    def _completed(self, effects: Effects, change: Change, settlement: Settlement, everybody: bool) -> None:
        if self._wants(events.JobCompleted):
            effects.events.append(events.JobCompleted(**_facts(change)))
        if settlement.next:
            watched = self._wants(*_OF_STARTS)
            for job in settlement.next:
                self._created(effects, job, JobStatus.BLOCKED if job.blockers else JobStatus.PENDING, watched)
            return
        if self._wants(events.ChainCompleted):
            effects.events.append(events.ChainCompleted(chain_id=change.chain_id, type_name=change.type_name))
        self._ended(effects, change, everybody)

    def _failed(self, effects: Effects, change: Change, everybody: bool) -> None:
        if self._wants(events.JobFailed):
            effects.events.append(events.JobFailed(**_facts(change), reason=change.reason))
        if self._wants(events.ChainFailed):
            effects.events.append(events.ChainFailed(chain_id=change.chain_id, type_name=change.type_name))
        self._ended(effects, change, everybody)

    def _changed(self, effects: Effects, change: Change, everybody: bool) -> None:
        if change.kind == "failed":
            self._failed(effects, change, everybody)
        elif change.kind in _EVENTS:
            event = _EVENTS[change.kind]
            if change.kind != "blocked":
                kind = HintKind.DEFERRED if change.kind == "scheduled" else HintKind.READY
                effects.hints.append(Hint(kind, change.type_name))
            if self._wants(event):
                effects.events.append(event(**_facts(change)))
        elif change.kind in ("cancel_requested", "deleted"):
            effects.hints.append(Hint(HintKind.LOST, str(change.job_id)))
            if change.kind == "deleted" and change.job_id == change.chain_id:
                self._deleted(effects, change, everybody)

    def _deleted(self, effects: Effects, change: Change, everybody: bool) -> None:
        if self._wants(events.ChainDeleted):
            effects.events.append(events.ChainDeleted(chain_id=change.chain_id, type_name=change.type_name))
        self._ended(effects, change, everybody)

    def _ended(self, effects: Effects, change: Change, everybody: bool) -> None:
        if everybody or (self._awaited and str(change.chain_id) in self._awaited):
            effects.hints.append(Hint(HintKind.ENDED, str(change.chain_id)))


_EVENTS: dict[ChangeKind, type[events.JobUnblocked] | type[events.JobTriggered] | type[events.JobBlocked]] = {
    "unblocked": events.JobUnblocked,
    "scheduled": events.JobUnblocked,
    "retried": events.JobTriggered,
    "triggered": events.JobTriggered,
    "blocked": events.JobBlocked,
}


def _failed_at_once(job: NewJob) -> Change:
    """A chain that the job was to wait for had failed."""
    return Change(job.id, job.chain_id, job.type_name, "failed", reason=FailureReason.BLOCKER)


def _facts(change: Change) -> dict[str, Any]:
    return {"job_id": change.job_id, "chain_id": change.chain_id, "type_name": change.type_name}


# -- how hints leave


class Carried(NamedTuple):
    """Hints that leave with a commit."""

    command: Command[None]
    hints: Sequence[Hint]
    waiting: Sequence[Hint]
    """Those among them that wait for no commit: to be posted again if this one comes to nothing, or takes its time."""
    too_late: asyncio.TimerHandle | None
    """Posts those again; to be cancelled when the commit is over."""


class Announcer(Protocol):
    """Takes hints after a commit, without waiting."""

    def post(self, hints: Sequence[Hint]) -> None: ...

    def carry(self, hints: Sequence[Hint]) -> Carried | None:
        """A command that sends these hints, and those that wait, with the commit it is part of: saves a round trip.

        None: post them after the commit. At most one commit in so often carries hints, because those that do wait for
        each other.
        """
        ...

    def take_back(self, carried: Carried) -> None:
        """A commit that carried hints came to nothing: those of others are to be sent all the same."""
        ...


class Posting:
    """For announcers that only ever post."""

    def carry(self, hints: Sequence[Hint]) -> Carried | None:
        return None

    def take_back(self, carried: Carried) -> None: ...


class BackgroundAnnouncer:
    """Sends hints from a task of its own: whatever came while the last round was under way goes into the next one."""

    def __init__(self, notify: NotifyAdapter, observers: Observers) -> None:
        self._notify, self._observers = notify, observers
        self._hints: list[Hint] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._home = HomeProcess()
        self._ready = asyncio.Event()
        self._ended = asyncio.Event()
        self._closing = self._is_failing = False
        self._next_round = 0.0
        self._next_carried = 0.0

    @property
    def is_running(self) -> bool:
        return self._loop is not None and not self._home.is_elsewhere

    def post(self, hints: Sequence[Hint]) -> None:
        self._hints.extend(hints)
        self._ready.set()

    def carry(self, hints: Sequence[Hint]) -> Carried | None:
        if self._loop is None or self._loop.time() < self._next_carried or not self._notify.hears_commands:
            return None
        merged_hints = merged([*self._hints, *hints])
        command = self._notify.command(merged_hints)
        if command is None:
            return None
        waiting, self._hints = self._hints, []
        self._next_carried = self._loop.time() + _BETWEEN_ROUNDS
        # A little later than the next that are carried: in a stream of starts, those take along what waits.
        self._next_round = self._next_carried + _BETWEEN_ROUNDS
        too_late = self._loop.call_later(_WITH_ANOTHER_AT_MOST, self.post, waiting) if waiting else None
        return Carried(command, merged_hints, waiting, too_late)

    def take_back(self, carried: Carried) -> None:
        if self._loop is not None:
            self._next_carried = self._loop.time() + _AFTER_FAILURE
        self.post(carried.waiting)

    def post_from_thread(self, hints: Sequence[Hint]) -> None:
        """`post` for code that runs in another thread than the event loop."""
        self._call(self.post, hints)

    def close_from_thread(self) -> None:
        """Have it end when it has sent what is left."""
        self._call(self._close)

    async def close(self) -> None:
        """Send what is left, if that is quickly done, then end."""
        self._close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL):
                await self._ended.wait()

    def start(self, tasks: asyncio.TaskGroup) -> asyncio.Task[None]:
        """Send whatever is posted from now on, until closed."""
        # Made anew: it may have been closed before, in another event loop.
        self._ready, self._ended = asyncio.Event(), asyncio.Event()
        if self._hints:
            self._ready.set()
        self._closing, self._is_failing, self._loop = False, False, asyncio.get_running_loop()
        self._home.move_in()
        self._next_round = self._next_carried = 0.0
        return tasks.create_task(self._run(), name="onward announcer")

    async def _run(self) -> None:
        try:
            await self._send_rounds()
        finally:
            self._loop = None
            self._ended.set()

    def _close(self) -> None:
        self._closing = True
        self._ready.set()

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        loop = self._loop
        if loop is not None and self.is_running:
            with suppress(RuntimeError):  # it has just been closed
                loop.call_soon_threadsafe(function, *arguments)

    async def _send_rounds(self) -> None:
        loop = asyncio.get_running_loop()
        while not (self._closing and not self._hints):
            await self._ready.wait()
            await asyncio.sleep(max(self._next_round - loop.time(), 0))
            self._ready.clear()
            hints, self._hints = self._hints, []
            if hints:
                await self._send(hints)
                self._next_round = loop.time() + _BETWEEN_ROUNDS
                self._next_carried = max(self._next_carried, self._next_round)

    async def _send(self, hints: Sequence[Hint]) -> None:
        try:
            async with asyncio.timeout(5):
                await self._notify.announce(sent := merged(hints))
            if self._observers.wants(events.HintsSent):
                self._observers.emit(events.HintsSent(count=len(sent)))
            if self._is_failing:
                self._is_failing = False
                self._observers.hints_work("announce")
        except Exception as error:  # noqa: BLE001 - one turn of a loop
            if not self._is_failing:  # while hints are down, saying so once is enough
                self._observers.emit(events.NotifyError(doing="announce", error=describe(error)))
            self._is_failing = True


class ThreadAnnouncer(Posting):
    """Sends the hints of threads without an event loop: by way of the open app's, or else from a thread with its own.

    So the adapters need no sync twins, and nobody waits for a broker. The thread runs from the first hint until
    `release`.
    """

    def __init__(
        self, notify: NotifyAdapter, observers: Observers, app: BackgroundAnnouncer, *, changed: Changed
    ) -> None:
        self._notify, self._observers, self._app, self._changed = notify, observers, app, changed
        self._home, self._turn = HomeProcess(), threading.Lock()
        self._own: BackgroundAnnouncer | None = None
        self._thread: threading.Thread | None = None

    @property
    def app_is_open(self) -> bool:
        return self._app.is_running

    def post(self, hints: Sequence[Hint]) -> None:
        if self.app_is_open:
            self._app.post_from_thread(hints)
            return
        self._come_home()
        with self._turn:
            if self._own is None:
                self._own = self._start()
            self._own.post_from_thread(hints)

    def release(self) -> None:
        """Send what is left, and end the thread."""
        self._come_home()
        with self._turn:
            if self._own is not None and self._thread is not None:
                self._own.close_from_thread()
                self._thread.join()
            self._own = self._thread = None

    def _come_home(self) -> None:
        """In a child of the process that opened the client: the thread is not here, and who held the lock neither."""
        if self._home.is_elsewhere:
            leave_to_parent(self._own, self._thread)
            self._turn, self._own, self._thread = threading.Lock(), None, None
            self._home.move_in()

    def _start(self) -> BackgroundAnnouncer:
        own, ready = BackgroundAnnouncer(self._notify, self._observers), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(own, ready), name="onward-announcer", daemon=True)
        self._thread.start()
        ready.wait()
        return own

    def _run(self, own: BackgroundAnnouncer, ready: threading.Event) -> None:
        try:
            asyncio.run(self._announce(own, ready))
        except Exception:
            logger.exception("hints can no longer be sent from threads; workers find jobs by polling")
        finally:
            ready.set()

    async def _announce(self, own: BackgroundAnnouncer, ready: threading.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            await self._notify.open(tasks, self._changed)
            running = own.start(tasks)
            ready.set()
            await asyncio.wait([running])
            await self._notify.close()


# -- errors, as they are told


def describe(error: BaseException) -> JobError:
    """An exception as it is stored and told: bounded, and free of what a database cannot keep. Never raises."""
    if isinstance(error, HandlerFailed):
        return error.error
    return JobError(
        type=storable(type(error).__name__[:_LONGEST_NAME]),
        message=storable(cut(_made(lambda: str(error)), LONGEST_ERROR)),
        traceback=storable(cut(_made(lambda: _traceback(error)), LONGEST_TRACEBACK, keep_end=True)),
    )


def plain(error: JobError) -> JobError:
    """In ASCII: a database, or whoever talks to it, may be set to another encoding than UTF-8."""
    said = {name: escaped(getattr(error, name)) for name in ("type", "message", "traceback")}
    return msgspec.structs.replace(error, **said)


def escaped(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()


def frames_of(error: BaseException) -> TracebackType | None:
    """Where an error was raised, from the handler on if it got as far."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(_AROUND_HANDLERS):
        trace = trace.tb_next
    return trace or error.__traceback__


def _made(make: Callable[[], str]) -> str:
    """Text that is made by code of the application's: `__str__` and its like may raise anything."""
    try:
        return make()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the first error is the one to tell
        return f"<its text cannot be made: {type(error).__name__}>"


def _traceback(error: BaseException) -> str:
    """Piece by piece: a message or a note may be larger than what is kept."""
    shown = traceback.TracebackException(type(error), error, frames_of(error), lookup_lines=False)
    pieces = shown.format()
    return "".join(deque((cut(piece, LONGEST_TRACEBACK) for piece in pieces), maxlen=_MOST_PIECES))


def storable(text: str) -> str:
    """Free of what a database cannot keep."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()

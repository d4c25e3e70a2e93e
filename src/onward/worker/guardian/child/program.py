"""Renews what the worker holds until it stops, or dies: then kills its processes and gives its leases back."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypedDict
from uuid import UUID

from onward.pacing import Pacing, pause_after
from onward.state.lease_keeper import HeldLease, KeeperStatements, LeaseKeeper, OverdueLease
from onward.state.lease_keepers import lease_keeper_for
from onward.worker.guardian.child.parent import Fate, Parent
from onward.worker.guardian.table import Reader, Shape, blocked_for, is_overdue, is_stopped, overdue_message


class Configuration(TypedDict):
    """What the worker says first, on one line of JSON. By pipe: there may be a password in it."""

    parent: int
    worker: str
    path: list[str]
    client: str
    options: dict[str, Any]
    statements: KeeperStatements
    table: int
    leases: int
    processes: int
    interval: float
    longest: float
    tells_renewals: bool
    ends_worker: bool
    started: float
    next_sign: float
    sign_every: float


_ANSWER = 5.0
"""Seconds a database has to answer; else the connection may be broken, and another one is made."""
_MOMENT = 0.1
"""Seconds in which a connection that is cut off says so."""
_WORDS = 1.0
"""Seconds that a thread of the worker has to say what its event loop is doing."""
_LETTING_GO = 2.0
"""Seconds to let go of what is overdue while the worker lives: a transaction of its own may be in the way."""
_LEAVING = 3.0
"""Seconds that a worker has to end, when it is too stuck to go on, before it is killed."""
_SIGNING = 2.0
"""Seconds that a sign of life may take."""
_BURYING = 10.0
"""Seconds to say that the worker has died, before its promise is left to run out."""
_LOOK_EVERY = 0.25
_SWEEPS = (0.2, 1.0)
"""Seconds until another look: a take that was under way when the worker died may commit after the first."""


def main() -> None:
    """Until the worker ends."""
    # Ctrl-C and a stopping service are the worker's to handle: it needs its leases until it has ended.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent = Parent()
    configuration: Configuration = json.loads(parent.first_line())
    sys.path += [place for place in configuration["path"] if place not in sys.path]
    asyncio.run(_Child(configuration, parent).run())


class _Child:
    def __init__(self, configuration: Configuration, parent: Parent) -> None:
        self._interval, self._longest = configuration["interval"], configuration["longest"]
        self._worker, self._parent, self._parent_pid = configuration["worker"], parent, configuration["parent"]
        self._tells_renewals = configuration["tells_renewals"]
        self._table = Reader(configuration["table"], Shape(configuration["leases"], configuration["processes"]))
        self._keeper: LeaseKeeper = lease_keeper_for(
            configuration["client"], configuration["options"], configuration["statements"]
        )
        self._told: set[tuple[UUID, int, str]] = set()
        self._ends_worker = configuration["ends_worker"]
        self._started, self._next_sign = configuration["started"], configuration["next_sign"]
        self._sign_every, self._unsigned, self._was_stopping = configuration["sign_every"], 0, False
        self._overdue: dict[tuple[UUID, int], str] = {}
        """Attempts whose time ran out while the worker's event loop was blocked, and what is to be kept of that."""
        self._let_go_by = self._look_at = 0.0
        self._excused: set[tuple[UUID, int]] = set()
        """Those among them that had ended before, and only wait to be settled."""

    async def run(self) -> None:
        self._parent.watch(self._parent_pid)
        async with asyncio.TaskGroup() as tasks:
            ticking = tasks.create_task(self._tick())
            renewing = tasks.create_task(self._renew_until_the_end())
            fate = await self._parent.fate()
            ticking.cancel()
            # A renewal under way has a moment to end, so that its connection can be used again.
            await asyncio.wait([renewing], timeout=0.25)
            if renewing.cancel():
                self._keeper.drop()
        if fate is Fate.DIED:
            self._kill(self._table.processes())
            await self._give_back()
            await self._bury()
        self._keeper.drop()

    @asynccontextmanager
    async def _patience(self, seconds: float | None) -> AsyncIterator[None]:
        """Wait for the database no longer than this; being cancelled is not enough to end every client's wait."""
        if seconds is None:
            yield
            return
        cutting = asyncio.get_running_loop().call_later(seconds, self._keeper.cut_off)
        try:
            async with asyncio.timeout(seconds + _MOMENT):
                yield
        finally:
            cutting.cancel()

    # -- while the worker lives

    async def _tick(self) -> None:
        while True:
            self._table.turned(time.monotonic())
            await asyncio.sleep(_LOOK_EVERY)

    async def _renew_until_the_end(self) -> None:
        failures, due, is_woken = 0, 0.0, True
        while not self._parent.has_ended:
            await self._look_for_overdue()
            if is_woken or time.monotonic() >= due:
                failures = 0 if await self._try_to_renew() else failures + 1
                pause = pause_after(failures, 0.2, self._interval, jitter=0) if failures else self._interval
                due = time.monotonic() + pause
            await self._sign()
            coming = min(due, self._next_sign) - time.monotonic()
            is_woken = await self._parent.wake(max(min(coming, self._until_overdue()), 0.0))

    async def _try_to_renew(self) -> bool:
        patience = None if self._keeper.waits_for_writers else min(max(self._interval, 0.5), _ANSWER)
        try:
            async with self._patience(patience):
                await self._keeper.connect()
                if self._held():
                    await self._renew()
                else:
                    self._table.renewed(time.monotonic())
        except _Overdue:
            return False
        except Exception as error:  # noqa: BLE001 - one turn of a loop; the worker is told
            self._keeper.drop()
            self._parent.tell({"error": type(error).__name__, "message": str(error)})
            return False
        finally:
            self._table.waited(0.0)
        return True

    async def _renew(self) -> None:
        async with self._keeper.writing(self._waits):
            begun = time.monotonic()  # not before: what the worker took while others were writing is held as well
            held = self._held()
            answers = await self._keeper.renew(self._worker, held)
        self._table.renewed(begun)
        lost = {(answer.job_id, answer.attempt, answer.lost) for answer in answers if answer.lost is not None}
        # Once each: a worker that is stuck does not read, and what it has been told stays held until it does.
        for job_id, attempt, reason in lost - self._told:
            self._parent.tell({"lost": str(job_id), "attempt": attempt, "reason": reason})
        self._told = lost
        if held and self._tells_renewals:
            self._parent.tell({"renewed": len(held)})

    async def _sign(self) -> None:
        """Give a sign of life if it is time, for no longer than renewals can wait."""
        is_stopping, now = self._table.is_stopping, time.monotonic()
        if self._parent.has_ended or (now < self._next_sign and is_stopping == self._was_stopping):
            return
        self._was_stopping = is_stopping
        said = {
            "age": now - self._started,
            "is_stopping": is_stopping,
            "blocked_for": blocked_for(self._table.beat, now),
        }
        try:
            async with self._patience(min(self._interval / 2, _SIGNING)):
                await self._keeper.connect()
                await self._keeper.sign(said, self._waits)
        except Exception as error:  # noqa: BLE001 - one turn of a loop; the worker is told
            self._was_not_signed(error)
        else:
            self._next_sign = time.monotonic() + self._sign_every
            if self._unsigned:
                self._unsigned = 0
                self._parent.tell({"signed": True})
        finally:
            self._table.waited(0.0)

    def _was_not_signed(self, error: Exception) -> None:
        self._unsigned += 1
        self._next_sign = time.monotonic() + pause_after(self._unsigned, 1.0, self._sign_every, jitter=0)
        waits = self._keeper.waits_for_writers and isinstance(error, TimeoutError | _Overdue)
        if not waits:
            self._keeper.drop()
        if self._unsigned == 1 and not waits:
            self._parent.tell({"unsigned": type(error).__name__, "message": str(error)})

    def _held(self) -> list[HeldLease]:
        """What is to be renewed: not what was let go of."""
        held = [HeldLease(UUID(bytes=entry.job_id), entry.attempt, entry.seconds) for entry in self._table.held()]
        return [one for one in held if (one.job_id, one.attempt) not in self._overdue]

    # -- when its event loop is blocked

    def _until_overdue(self) -> float:
        now, beat = time.monotonic(), self._table.beat
        coming = [
            entry.deadline - now
            for entry in self._table.held()
            if entry.deadline > beat and (UUID(bytes=entry.job_id), entry.attempt) not in self._known
        ]
        return max(min(coming, default=self._interval), _LOOK_EVERY)

    @property
    def _known(self) -> set[tuple[UUID, int]]:
        return self._excused | self._overdue.keys()

    async def _look_for_overdue(self) -> None:
        keys = self._newly_overdue()
        if keys:
            await self._let_go(keys, blocked_for=time.monotonic() - self._table.beat)

    def _newly_overdue(self) -> set[tuple[UUID, int]]:
        beat, now = self._table.beat, time.monotonic()
        keys = {
            (UUID(bytes=entry.job_id), entry.attempt)
            for entry in self._table.held()
            if is_overdue(entry.deadline, beat, now)
        }
        return keys - self._known

    def _waits(self) -> None:
        """Others write, perhaps the very handler that blocks the event loop."""
        now = time.monotonic()
        self._table.waited(now)
        if now >= self._look_at:
            self._look_at = now + _LOOK_EVERY
            if self._newly_overdue():
                raise _Overdue

    async def _let_go(self, keys: set[tuple[UUID, int]], *, blocked_for: float) -> None:
        asked = [[str(job_id), attempt] for job_id, attempt in keys]
        words = await self._parent.ask({"overdue": asked}, within=_WORDS) or {"stack": _NO_STACK, "returned": []}
        self._excused |= {(UUID(job_id), attempt) for job_id, attempt in words["returned"]}
        keys -= self._excused
        if not keys or self._parent.has_ended:
            return
        for job_id, attempt in keys:
            self._overdue[job_id, attempt] = _error(attempt, blocked_for, words["stack"])
        beat = self._table.beat
        try:
            async with self._patience(_LETTING_GO):
                await self._keeper.connect()
                await self._time_out()
        except Exception:  # noqa: BLE001 - again when the worker has ended, or else it is left to run out
            self._keeper.drop()
        self._parent.tell({"timed_out": [[str(job_id), attempt] for job_id, attempt in keys], "for": blocked_for})
        if self._ends_worker:
            await self._see_it_end(beat)

    async def _time_out(self) -> None:
        overdue = [OverdueLease(job_id, attempt, error) for (job_id, attempt), error in self._overdue.items() if error]
        for job_id in await self._keeper.time_out(self._worker, overdue) if overdue else ():
            self._overdue.update({key: "" for key in self._overdue if key[0] == job_id})

    async def _see_it_end(self, beat: float) -> None:
        """It ends by itself if any thread of it can run; one that somebody has stopped is left alone."""
        deadline = time.monotonic() + _LEAVING
        while not self._parent.has_ended and (left := deadline - time.monotonic()) > 0:
            await self._parent.wake(left)
        if not self._parent.has_ended and self._table.beat == beat and not is_stopped(self._parent_pid):
            self._kill([self._parent_pid])

    # -- when it has died

    def _kill(self, pids: Iterable[int]) -> None:
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    async def _give_back(self) -> None:
        """Until nothing is left, or the leases have run out by themselves."""
        deadline, self._let_go_by = time.monotonic() + self._longest, time.monotonic() + _LETTING_GO
        sweeps, total, pacing = list(_SWEEPS), 0, Pacing(0.1, jitter=0)
        while time.monotonic() < deadline:
            try:
                async with self._patience(_ANSWER):
                    await self._keeper.connect()
                    count, locked = await self._release()
            except Exception:  # noqa: BLE001 - one turn of a loop; nobody is left to be told
                self._keeper.drop()
                await asyncio.sleep(next(pacing))
                continue
            total += count
            if locked:
                await asyncio.sleep(0.02)
            elif sweeps:
                await asyncio.sleep(sweeps.pop(0))
            else:
                break
        with suppress(OSError):
            os.write(2, f"onward: worker {self._worker} died; leases given back: {total}\n".encode())

    async def _bury(self) -> None:
        with suppress(Exception):  # then its promise runs out
            async with self._patience(_BURYING):
                await self._keeper.connect()
                await self._keeper.bury(self._worker)

    async def _release(self) -> tuple[int, int]:
        """How many leases were let go of, and how many are locked. That others ran is not to be held against them."""
        if not self._overdue:
            return await self._keeper.expire(self._worker)
        await self._time_out()
        if any(self._overdue.values()) and time.monotonic() < self._let_go_by:
            return 0, 1  # a transaction of its own is still ending
        count, locked = await self._keeper.give_back(self._worker)
        rest, still_locked = await self._keeper.expire(self._worker) if not locked else (0, 0)
        return count + rest, locked + still_locked


class _Overdue(Exception):
    """There is something more urgent than to wait."""


_NO_STACK = "(nothing of the worker ran that could have looked at its stack: something held the GIL, or stopped it)"


def _error(attempt: int, blocked_for: float, stack: str) -> str:
    error = {
        "type": "TimeoutError",
        "message": overdue_message(blocked_for),
        "traceback": stack,
        "attempt": attempt,
    }
    return json.dumps(error).replace("\\u0000", "\ufffd")

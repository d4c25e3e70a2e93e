"""The guardian as a thread: for a worker inside another program, or on an engine that cannot be shared."""

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from onward.errands import to_the_end
from onward.lifecycle.effects import Effects, describe, storable
from onward.lifecycle.store import Store
from onward.model import JobError, JobId, LossReason, WorkerId
from onward.notify.contract import Hint, HintKind
from onward.observe import events
from onward.pacing import pause_after
from onward.state.contract import HeldAttempt, TimedOut
from onward.worker.connections import Reserved
from onward.worker.guardian.blocked import Watch
from onward.worker.guardian.contract import Told
from onward.worker.guardian.leases import Deadlines, Leases
from onward.worker.guardian.table import is_overdue, overdue_message
from onward.worker.guardian.worker_loop import WorkerLoop
from onward.worker.presence import SIGNING, Presence

logger = logging.getLogger("onward.worker")
_LETTING_GO = 2.0
"""Seconds to let go of what is overdue: a transaction of its own may be in the way."""
_RENEWING = "renew leases"
_SIGNING = 2.0
"""Seconds that a sign of life may take."""
_MOMENT = 0.25
"""Seconds that a renewal under way has to end when the worker stops."""


class ThreadGuardian:
    """A thread with an event loop and a connection of its own, so that a busy loop cannot make leases run out.

    A call that holds the GIL stops it too; only a process of its own helps then.
    """

    def __init__(
        self,
        store: Store,
        worker: WorkerId,
        *,
        shortest: float,
        lost: Told,
        watch: Watch,
        presence: Presence,
        why: str,
        leases: Leases | None = None,
    ) -> None:
        self._store, self._worker, self._why = store, worker, why
        self._interval = shortest / 3
        self._lost, self._watch, self._presence = lost, watch, presence
        self.leases = Leases() if leases is None else leases
        self._deadlines = Deadlines(self.leases, shortest=shortest)
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._guardian_loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._stop: asyncio.Event | None = None
        self._waits_for_writers = not store.state.locks_rows
        self._is_renewing = False
        self._is_ending = False
        """The process ends: what is given back must not be renewed."""

    # -- called from the worker's loop

    def check_now(self) -> None:
        self._set(self._wake)

    def say_stopping(self) -> None:
        self._presence.is_stopping, self._presence.next_sign = True, 0.0
        self._set(self._wake)

    def _set(self, event: asyncio.Event | None) -> None:
        if self._guardian_loop is not None and event is not None:
            with suppress(RuntimeError):  # it has ended
                self._guardian_loop.call_soon_threadsafe(event.set)

    def add_process(self, pid: int) -> None:
        """Nothing: this thread dies with the worker."""

    def remove_process(self, pid: int) -> None:
        """Nothing: this thread dies with the worker."""

    def start(self) -> None:
        observers = self._store.observers
        self._watch.start(threading.get_ident())
        loop, let_go = asyncio.get_running_loop(), self.leases.let_go
        self.start_for(WorkerLoop(loop, let_go=let_go, lost=self._lost, observers=observers))

    def start_for(self, worker_loop: WorkerLoop) -> None:
        """`start` for a worker whose event loop is watched already; from any thread."""
        logger.info("worker %s: a thread of this process renews the leases: %s", self._worker, self._why)
        name = f"onward-guardian-{self._worker}"
        self._thread = threading.Thread(target=self._run, args=(worker_loop,), name=name, daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        self._watch.stop()
        await to_the_end(asyncio.to_thread(self.end))

    def end(self) -> None:
        """`stop`, from another thread."""
        self._stopping = True
        self._set(self._stop)
        if self._thread is not None:
            self._thread.join()

    # -- in the thread

    def _run(self, worker_loop: WorkerLoop) -> None:
        try:
            asyncio.run(self._guard(worker_loop))
        except Exception:
            logger.exception("the guardian of worker %s has ended; leases are no longer renewed", self._worker)

    async def _guard(self, worker_loop: WorkerLoop) -> None:
        self._wake, self._stop = asyncio.Event(), asyncio.Event()
        self._guardian_loop = asyncio.get_running_loop()
        reserved, for_overdue = Reserved(self._store.driver), Reserved(self._store.driver)
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._watch_deadlines(worker_loop, for_overdue))
                renewing = tasks.create_task(self._renew_until_stopped(reserved, self._wake, worker_loop))
                if not self._stopping:
                    await self._stop.wait()
                self._wake.set()
                await asyncio.wait([renewing], timeout=_MOMENT)
                renewing.cancel()  # it may be waiting for others who write
                watching.cancel()
        finally:
            await reserved.close()
            await for_overdue.close()

    async def _renew_until_stopped(self, reserved: Reserved, wake: asyncio.Event, worker_loop: WorkerLoop) -> None:
        failures, due = 0, 0.0
        while not self._stopping:
            if wake.is_set() or time.monotonic() >= due:
                wake.clear()
                failures = 0 if await self._renew_all(reserved, worker_loop) else failures + 1
                # After a failure sooner: the database may be back before the leases have run out.
                pause = pause_after(failures, 0.2, self._interval, jitter=0) if failures else self._interval
                due = time.monotonic() + pause
            await self._sign(reserved, worker_loop)
            next_at = due if self._is_ending else min(due, self._presence.next_sign)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(next_at - time.monotonic(), 0.0)):
                    await wake.wait()

    async def _sign(self, reserved: Reserved, worker_loop: WorkerLoop) -> None:
        """Give a sign of life if it is time, for no longer than renewals can wait."""
        presence = self._presence
        if time.monotonic() < presence.next_sign or self._is_ending:
            return
        try:
            async with asyncio.timeout(min(self._interval / 2, _SIGNING)):
                await reserved.run(presence.sign(self._watch.beat))
        except Exception as error:  # noqa: BLE001 - one turn of a loop
            waits = self._waits_for_writers and isinstance(error, TimeoutError)
            if presence.failed() and not waits:
                worker_loop.emit(events.StateError(doing=SIGNING, error=describe(error)))
        else:
            if presence.signed():
                worker_loop.database_works(SIGNING)

    async def _renew_all(self, reserved: Reserved, worker_loop: WorkerLoop) -> bool:
        leases = {job_id: lease for job_id, lease in self.leases.copy().items() if not lease.is_given_up}
        if not leases or self._is_ending:
            return True
        held = [HeldAttempt(job_id, lease.attempt, lease.seconds) for job_id, lease in leases.items()]
        begun = time.monotonic()
        self._is_renewing = True
        try:
            async with asyncio.timeout(None if self._waits_for_writers else max(self._interval, 0.5)):
                renewals = await reserved.run(self._store.state.renew(worker=self._worker, held=held))
        except Exception as error:  # noqa: BLE001 - one turn of a loop
            worker_loop.emit(events.StateError(doing=_RENEWING, error=describe(error)))
            return False
        finally:
            self._is_renewing = False
        worker_loop.database_works(_RENEWING)
        if self._waits_for_writers:
            begun = time.monotonic()  # the lease counts from when the lock was granted
        for renewal in renewals:
            if renewal.lost in (None, LossReason.CANCELLED):
                leases[renewal.job_id].renewed_at(begun)
            if renewal.lost is not None:
                worker_loop.lost(renewal.job_id, renewal.attempt, renewal.lost)
        if self._store.observers.wants(events.LeaseRenewed):
            worker_loop.emit(events.LeaseRenewed(worker=self._worker, count=len(renewals)))
        return True

    async def _watch_deadlines(self, worker_loop: WorkerLoop, reserved: Reserved) -> None:
        """Apart from the renewals, which may be waiting for a database that does not answer."""
        while True:
            # While a renewal waits for others who write, nobody can take the jobs either.
            if not (self._waits_for_writers and self._is_renewing):
                for job_id, attempt in self._deadlines.overdue():
                    worker_loop.lost(job_id, attempt, LossReason.ERROR)
            await self._look_for_overdue(worker_loop, reserved)
            await asyncio.sleep(self._deadlines.look_every)

    # -- when the event loop is blocked

    async def _look_for_overdue(self, worker_loop: WorkerLoop, reserved: Reserved) -> None:
        now, beat = time.monotonic(), self._watch.beat
        overdue = {
            job_id: lease
            for job_id, lease in self.leases.copy().items()
            if is_overdue(lease.deadline, beat, now) and not lease.is_given_up
        }
        keys = [(job_id, lease.attempt) for job_id, lease in overdue.items()]
        keys = [key for key in keys if not self._watch.has_returned(*key)]
        if keys:
            for job_id, _ in keys:
                overdue[job_id].is_given_up = True
            await self._let_go(worker_loop, reserved, keys, blocked_for=now - beat)

    async def _let_go(
        self, worker_loop: WorkerLoop, reserved: Reserved, keys: Sequence[tuple[JobId, int]], *, blocked_for: float
    ) -> None:
        stack = self._watch.stack()
        error = JobError(type="TimeoutError", message=overdue_message(blocked_for), traceback=storable(stack))
        timed_out = [TimedOut(job_id, n, msgspec.structs.replace(error, attempt=n)) for job_id, n in keys]
        await self._quickly(reserved.run(self._store.state.time_out(worker=self._worker, overdue=timed_out)))
        self._watch.report(keys, stack)
        self._store.release(Effects(hints=[Hint(HintKind.EXPIRED, "")]))
        for job_id, attempt in keys:
            worker_loop.lost(job_id, attempt, LossReason.TIMEOUT)
        if await asyncio.to_thread(self._watch.is_to_end):
            self._is_ending = True
            await self._quickly(self._give_back(reserved))
            self._watch.end()

    async def _give_back(self, reserved: Reserved) -> None:
        """The last renewal may still be under way, and have locked what it renews."""
        while (await reserved.run(self._store.state.give_back(worker=self._worker))).locked:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def _quickly(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            async with asyncio.timeout(_LETTING_GO):
                await work
        except Exception as error:  # noqa: BLE001 - then the leases run out by themselves
            logger.warning("worker %s: a lease cannot be let go of: %s", self._worker, error)

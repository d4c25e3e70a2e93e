"""A flow worker: one stage, one job at a time, on the loop that all workers share."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Literal, TypeVar

from onward.errors import FlowPayloadError, Permanent
from onward.flow import events
from onward.flow.events import Reporter
from onward.flow.handling import Handling, Performance
from onward.flow.lock import Lock
from onward.flow.retrying import heed_cancellation
from onward.flow.server import is_transient
from onward.flow.stage import Stage
from onward.flow.store import FlowStore, Settled, StageLease
from onward.lifecycle.effects import describe
from onward.pacing import Pacing, happens
from onward.run.loop import SlotLoop
from onward.run.threads import Threads

T = TypeVar("T")
Status = Literal["ready", "running", "stopping", "stopped"]
End = Literal["ended", "timed out", "lost", "stopped"]
_INSIST_WHILE_STOPPING = 10.0
_RELEASE_WITHIN = 2.0
_UNWINDING = 1.0
"""Seconds that a handler has to end when it was cancelled because its time is up."""


class FlowWorker:
    """Takes, locks, runs, settles. `stop` lets the job in hand finish."""

    def __init__(
        self,
        flow: str,
        stage: Stage,
        store: FlowStore,
        threads: Threads,
        reporter: Reporter,
        *,
        wait: timedelta,
        expect: Callable[[float], None] | None,
    ) -> None:
        """`expect` is told in how many seconds somebody has to wake a worker of the stage; without it, it does so."""
        self.id = f"{socket.gethostname()}-{os.getpid()}-{stage.name}-{secrets.token_hex(4)}"
        self.stage = stage
        self._flow, self._store, self._threads, self._reporter = flow, store, threads, reporter
        self._handling = Handling(flow, stage)
        self._wait, self._expect = wait.total_seconds(), expect
        self._loop: SlotLoop[StageLease] = SlotLoop(self, concurrency=1)
        self._status: Status = "ready"
        self._woken = asyncio.Event()
        self._pacing = Pacing()
        self._tasks = asyncio.TaskGroup()
        self._job: asyncio.Task[object] | None = None
        self._insist_until: float | None = None

    @property
    def status(self) -> Status:
        return self._status

    async def run(self) -> None:
        """Until stopped."""
        self._status = "running"
        self._reporter.tell(events.WorkerStarted(flow=self._flow, stage=self.stage.name, worker=self.id))
        try:
            async with self._tasks:
                await self._loop.run()
        finally:
            self._status = "stopped"
            self._reporter.tell(events.WorkerStopped(flow=self._flow, stage=self.stage.name, worker=self.id))

    def stop(self) -> None:
        """Take no more jobs; the one in hand finishes."""
        if self._status in ("ready", "running"):
            self._status = "stopping"
            self._insist_until = time.monotonic() + _INSIST_WHILE_STOPPING
            self._loop.stop()

    def give_back(self) -> None:
        """Cancel the handler, so that another worker can run the job; nothing is counted."""
        if self._job is not None:
            self._job.cancel()

    # -- the source of the slot loop

    async def fill(self, free: int) -> Sequence[StageLease]:
        job_id = await (self._take_by_script() if self.stage.is_taken_by_script else self._take())
        self._pacing.reset()
        if job_id is None:
            return ()
        answer = await self._claim(job_id)
        if isinstance(answer, StageLease):
            return (answer,)
        if answer == "missing":
            self._reporter.tell(events.JobMissing(**self._facts(job_id, "")))
        return ()

    async def hand_back(self, work: Sequence[StageLease]) -> None:
        for lease in work:
            await self._insist("release", partial(self._store.release, lease))

    async def wait(self) -> None:
        """For the slot; without a job, Redis does the waiting."""
        if self._loop.busy:
            await self._woken.wait()
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()

    async def recover(self, error: Exception) -> None:
        heed_cancellation()
        pause = next(self._pacing)
        self._tell_redis_error("take", error, pause)
        await happens(self._woken, within=pause)

    # -- taking

    async def _take(self) -> str | None:
        taken = await self._store.take(self.stage, self._wait)
        heed_cancellation()
        return taken

    async def _take_by_script(self) -> str | None:
        """Again after a wait: what comes between the first look and the wait has left an entry that ends it."""
        found = await self._look()
        while found == 0.0:
            found = await self._look()
        if isinstance(found, float):
            await self._store.wait_for_wake(self.stage, found)
            found = await self._look()
        return found if isinstance(found, str) else None

    async def _look(self) -> str | float:
        """The id of a job that was taken, or how long to wait; 0 when there is more to look at."""
        taken = await self._store.take_by_script(self.stage)
        heed_cancellation()
        for job_id in taken.put_off:
            self._reporter.tell(events.JobLimited(**self._facts(job_id, "")))
        if taken.job_id is not None:
            return taken.job_id
        if taken.line_moves_in is None:
            return self._wait
        if self._expect is None or taken.line_moves_in == 0.0:
            return min(self._wait, taken.line_moves_in)
        self._expect(taken.line_moves_in)
        return self._wait

    async def _claim(self, job_id: str) -> StageLease | str:
        """Lock it. When that fails for good, or is not wanted any more, it goes back: it has not run."""
        try:
            answer = await self._insist(
                "claim", lambda: self._store.claim(self.stage, self._handling.names, job_id, self.id)
            )
            heed_cancellation()
        except BaseException:
            with suppress(Exception):
                async with asyncio.timeout(_RELEASE_WITHIN):
                    await self._store.release_unrun(self.stage, job_id, self.id)
            raise
        return answer

    # -- one job

    async def run_piece(self, piece: StageLease) -> None:
        self._job = asyncio.current_task()
        try:
            await self._work_on(piece)
        except asyncio.CancelledError:
            await self._release(piece)
            raise
        except Exception as error:  # noqa: BLE001 - Redis refused: the janitor has the job when the lock runs out
            self._tell_redis_error("settle", error, self.stage.lock.total_seconds())
        finally:
            self._job = None

    async def _work_on(self, lease: StageLease) -> None:
        self._reporter.tell(
            events.HandlerStarted(
                **self._facts(lease.job_id, lease.correlation_id), retries=lease.retries, stalls=lease.stalls
            )
        )
        lock = Lock(self._flow, self.stage, self._store, lease, partial(self._tell_redis_error, "renew"))
        async with lock.kept(self._tasks):
            try:
                performance = self._handling.begin(lease, lock.run, self._threads, self._tasks)
            except BaseException as error:  # noqa: BLE001 - types of attributes are the application's
                await self._fail(lease, lock, error)
                return
            end = await self._watch(performance, lock)
            await self._settle(lease, lock, performance, end)
        await self._see_out(performance)
        if end == "timed out":
            self._tell_dropped(lease)

    async def _watch(self, performance: Performance, lock: Lock) -> End:
        """Until there is something to settle. Who is in a thread, or does not heed its cancellation, is waited for."""
        is_stopped = False
        while not performance.work.done():
            try:
                await asyncio.wait(
                    [performance.work, lock.lost], timeout=lock.time_left, return_when=asyncio.FIRST_COMPLETED
                )
            except asyncio.CancelledError:
                is_stopped = True
                performance.work.cancel()
                _take_back_cancellation()
                continue
            if performance.work.done():
                continue
            if lock.lost.done():
                performance.work.cancel()
                return "lost"
            if lock.time_left == 0:
                performance.work.cancel()
                if not performance.is_in_thread:
                    await asyncio.wait([performance.work], timeout=_UNWINDING)
                is_returned = performance.work.done() and performance.error is None
                return "ended" if is_returned else "timed out"
        return "stopped" if is_stopped and isinstance(performance.error, asyncio.CancelledError) else "ended"

    async def _settle(self, lease: StageLease, lock: Lock, performance: Performance, end: End) -> None:
        match end:
            case "ended" if performance.error is None:
                await self._complete(lease, lock, performance.answer)
            case "ended":
                await self._fail(lease, lock, performance.error)
            case "timed out":
                assert self.stage.timeout is not None
                limit = self.stage.timeout.total_seconds()
                await self._fail(lease, lock, TimeoutError(f"the handler did not return within {limit:g} s (timeout=)"))
            case "stopped":
                await self._release(lease)
            case "lost":
                self._tell_dropped(lease)

    async def _see_out(self, performance: Performance) -> None:
        """The slot is taken until the handler has ended."""
        while not performance.work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([performance.work])

    async def _complete(self, lease: StageLease, lock: Lock, answer: Any) -> None:
        try:
            outcome = self._handling.outcome(answer, lease)
        except BaseException as error:  # noqa: BLE001 - types of results are the application's
            await self._fail(lease, lock, error)
            return
        try:
            settled = await self._insist("complete", lambda: self._store.complete(lease, outcome), lock)
        except Exception as error:
            if is_transient(error):
                raise
            await self._fail(lease, lock, error)  # Redis does not take it
        else:
            count = len(outcome.children or ())
            goes_to = None if count else outcome.next
            facts = self._facts(lease.job_id, lease.correlation_id)
            self._tell_settled(lease, settled, events.StageCompleted(**facts, next=goes_to, children=count))

    async def _fail(self, lease: StageLease, lock: Lock, error: BaseException | None) -> None:
        assert error is not None
        permanent = isinstance(error, (Permanent, FlowPayloadError))
        told = describe(error)
        message = told.message if permanent else f"{told.type}: {told.message}"
        settled = await self._insist("fail", lambda: self._store.fail(lease, message, permanent=permanent), lock)
        facts = self._facts(lease.job_id, lease.correlation_id)
        self._tell_settled(
            lease, settled, events.StageFailed(**facts, error=told, will_retry=settled.answer == "retried")
        )

    async def _release(self, lease: StageLease) -> None:
        with suppress(Exception):
            async with asyncio.timeout(_RELEASE_WITHIN):
                await self._store.release(lease)

    async def _insist(self, doing: str, ask: Callable[[], Awaitable[T]], lock: Lock | None = None) -> T:
        """Ask until Redis answers, or the lock has ended. Asked twice, it changes nothing the second time."""
        pacing = Pacing()
        while True:
            try:
                return await ask()
            except Exception as error:
                heed_cancellation()
                pause = next(pacing)
                if self._gives_up(lock, pause) or not is_transient(error):
                    raise
                self._tell_redis_error(doing, error, pause)
                await asyncio.sleep(pause)

    def _gives_up(self, lock: Lock | None, pause: float) -> bool:
        if self._insist_until is not None and time.monotonic() > self._insist_until:
            return True
        return lock is not None and asyncio.get_running_loop().time() + pause > lock.ends_at

    # -- telling

    def _facts(self, job_id: str, correlation_id: str) -> dict[str, Any]:
        return {
            "flow": self._flow,
            "stage": self.stage.name,
            "job_id": job_id,
            "correlation_id": correlation_id,
            "worker": self.id,
        }

    def _tell_settled(self, lease: StageLease, settled: Settled, event: events.FlowEvent) -> None:
        if settled.answer == "lost":
            self._tell_dropped(lease)
        else:
            self._reporter.tell(event)
            self._reporter.tell_ended(self._flow, settled.ended, worker=self.id)

    def _tell_dropped(self, lease: StageLease) -> None:
        self._reporter.tell(events.ResultDropped(**self._facts(lease.job_id, lease.correlation_id)))

    def _tell_redis_error(self, doing: str, error: Exception, retry_in: float) -> None:
        self._reporter.tell(events.RedisError(flow=self._flow, doing=doing, error=describe(error), retry_in=retry_in))


def _take_back_cancellation() -> None:
    """It has been heeded: what follows is to be settled like any other."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()

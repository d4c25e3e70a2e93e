"""One call of the handler: its turn, how it ended for each of its jobs, and what is told of them."""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import Enum, auto
from typing import Any

import msgspec
from msgspec import Raw

from onward.errors import QueueDataError
from onward.model import Progress
from onward.queue.contract import TakenJob, in_words, why_for_good
from onward.queue.events import Active, Completed, Emitter, Failed, Retrying
from onward.queue.handler import Handler
from onward.queue.model import LARGEST_JOB, QueueFailureReason, QueueJobStatus
from onward.run.threads import Threads


class Told(Enum):
    """Why a handler was told to stop."""

    STOPPING = auto()
    LOST = auto()
    TIMEOUT = auto()


class JobOutcome(msgspec.Struct):
    """How it ended for one job: well, unless there is an error."""

    job: TakenJob
    result: Raw | None = None
    error: BaseException | None = None


class Running:
    """From the arrival of its jobs, one or a batch, to the last event about them."""

    def __init__(
        self,
        jobs: Sequence[TakenJob],
        *,
        worker_id: str,
        events: Emitter,
        report: Callable[[TakenJob, Progress], None],
        timeout: float | None,
        is_cancelled: Callable[[], bool],
    ) -> None:
        self.jobs = jobs
        self.told: Told | None = None
        self.lost: set[str] = set()
        """The ids of those that somebody else has."""
        self.is_over = asyncio.Event()
        """Whether nobody waits any more for its outcomes to get through."""
        self._worker_id, self._events, self._report, self._timeout = worker_id, events, report, timeout
        self._is_cancelled = is_cancelled
        """Whether the worker, or whoever gave it the jobs, is ending this: not the handler, and the job goes back."""
        self._task: asyncio.Task[Any] | None = None
        self._in_handler = self._was_cancelled = False
        self._began = time.monotonic()

    def cancel(self, told: Told) -> bool:
        """Have the handler stop; once it has returned there is nothing to stop but the telling."""
        if told is Told.STOPPING:
            self.is_over.set()
        if self.told is not None or not self._in_handler or self._task is None:
            return False
        self.told, self._was_cancelled = told, True
        self._task.cancel()
        return True

    def lose(self, job_id: str) -> bool:
        """Somebody else has one of its jobs; whether that is news while the handler runs."""
        if not self._in_handler or job_id in self.lost:
            return False
        self.lost.add(job_id)
        if len(self.lost) == len(self.jobs):
            self.cancel(Told.LOST)
        return True

    # -- the handler's turn

    async def run(self, handler: Handler[Any], threads: Threads, *, batch: bool) -> list[JobOutcome]:
        """Call the handler. The outcomes to tell; none when `told` says that the jobs are another's, or go back.

        Total: whatever leaves the handler ends its jobs and nothing else.
        """
        self._task = asyncio.current_task()
        for job in self.jobs:
            if self._events.wants(Active):
                self._events.emit(Active(**_facts(job, self._worker_id), attempts=job.attempts, status=job.status))
        read = list(zip(self.jobs, handler.read(self.jobs, self._report), strict=True))
        unread = [JobOutcome(job, error=one) for job, one in read if isinstance(one, QueueDataError)]
        active = [one for _, one in read if not isinstance(one, QueueDataError)]
        jobs = [job for job, one in read if not isinstance(one, QueueDataError)]
        if not active:
            return unread
        given = ([one.data for one in active], active) if batch else (active[0].data, active[0])
        returned, error = await self._call(handler, threads, *given)
        if self.told in (Told.STOPPING, Told.LOST):
            return []
        if error is not None:
            return unread + [JobOutcome(job, error=error) for job in jobs if job.id not in self.lost]
        outcomes = self._each(jobs, returned) if batch else [JobOutcome(jobs[0], self._encoded(jobs[0], returned))]
        return unread + [outcome for outcome in outcomes if outcome.job.id not in self.lost]

    async def _call(
        self, handler: Handler[Any], threads: Threads, data: object, job: object
    ) -> tuple[object, BaseException | None]:
        self._in_handler = True
        clock = asyncio.get_running_loop()
        timer = clock.call_later(self._timeout, self.cancel, Told.TIMEOUT) if self._timeout is not None else None
        try:
            returned = await handler(data, job, threads, is_given_up=lambda: self.told is Told.TIMEOUT)
        except BaseException as error:  # noqa: BLE001 - around the user's handler
            return None, self._after(error)
        else:
            if self.told is not Told.LOST:
                self.told = None  # it came to its end all the same: that counts
            if not self._was_cancelled and self._is_being_cancelled() and not self._is_cancelled():
                await self._forget_cancellation()
            return returned, None
        finally:
            self._in_handler = False
            if timer is not None:
                timer.cancel()
            if self._was_cancelled and self._task is not None:
                self._task.uncancel()

    def _after(self, error: BaseException) -> BaseException:
        """What its jobs fail with; raised, when it is not the handler's but means this task."""
        if isinstance(error, GeneratorExit) and not self._is_current():
            raise error
        if self.told is Told.TIMEOUT:
            assert self._timeout is not None
            return TimeoutError(f"the handler did not return within {self._timeout:g} s")
        if isinstance(error, asyncio.CancelledError) and self.told is None:
            if self._is_cancelled():
                raise error
            while self._is_being_cancelled() and self._task is not None:
                self._task.uncancel()  # the handler cancelled the task it runs in
            return RuntimeError(f"the handler let itself be cancelled: {error!r}")
        return error

    async def _forget_cancellation(self) -> None:
        """A handler that cancelled the task it runs in, and returned, has left that to whoever waits next."""
        while self._is_being_cancelled() and self._task is not None:
            self._task.uncancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self._is_cancelled():
                raise

    def _is_being_cancelled(self) -> bool:
        return self._task is not None and self._task.cancelling() > 0

    def _is_current(self) -> bool:
        try:
            return asyncio.current_task() is self._task
        except RuntimeError:
            return False  # no loop runs any more

    def _each(self, jobs: Sequence[TakenJob], returned: object) -> list[JobOutcome]:
        """What a handler of a batch returned, job by job: an exception fails one, all else is its result."""
        if returned is None:
            return [JobOutcome(job) for job in jobs]
        if not isinstance(returned, Sequence) or isinstance(returned, str | bytes) or len(returned) != len(jobs):
            wrong = TypeError(
                f"a handler with batch=True returns None, or one result or exception for each of its {len(jobs)} jobs"
            )
            return [JobOutcome(job, error=wrong) for job in jobs]
        return [
            JobOutcome(job, error=one) if isinstance(one, BaseException) else JobOutcome(job, self._encoded(job, one))
            for job, one in zip(jobs, returned, strict=True)
        ]

    def _encoded(self, job: TakenJob, result: object) -> Raw | None:
        if result is None:
            return None
        try:
            encoded = msgspec.json.encode(result)
            if len(encoded) > LARGEST_JOB:
                raise ValueError(f"{len(encoded):,} bytes of JSON, more than the limit of {LARGEST_JOB:,}")
            return Raw(encoded)
        except Exception as error:  # noqa: BLE001 - the work is done: a result that cannot be kept must not do it again
            self._events.trouble(error, f"the result of job {job.id!r} cannot be kept: {error}")
            return None

    # -- what is told once the provider knows

    def settled(self, outcome: JobOutcome, retry_delay: timedelta | None) -> None:
        """The provider has the outcome."""
        job = outcome.job
        if outcome.error is not None:
            self._tell_failed(job, outcome.error, retry_delay)
        elif self._events.wants(Completed):
            facts = _facts(job, self._worker_id)
            status = QueueJobStatus.COMPLETED
            self._events.emit(Completed(**facts, attempts=job.attempts, status=status, duration=self._duration()))

    def _tell_failed(self, job: TakenJob, error: BaseException, retry_delay: timedelta | None) -> None:
        reason, status = why_for_good(job, error), QueueJobStatus.FAILED
        if reason is None:
            status = QueueJobStatus.DELAYED if retry_delay else QueueJobStatus.WAITING
        how = {"attempts": job.attempts + 1, "status": status, "retry_delay": retry_delay}
        facts = _facts(job, self._worker_id) | how
        self._events.emit(
            Failed(
                **facts,
                error=in_words(error),
                error_type=type(error).__name__,
                duration=self._duration(),
                will_retry=reason is None,
                permanent=reason is QueueFailureReason.PERMANENT,
                reason=reason,
                stalls=job.stalls,
            )
        )
        if reason is None:
            self._events.emit(Retrying(**facts, max_attempts=job.max_attempts))

    def _duration(self) -> timedelta:
        return timedelta(seconds=time.monotonic() - self._began)


def _facts(job: TakenJob, worker_id: str) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "name": job.name,
        "queue_name": job.queue_name,
        "worker_id": worker_id,
        "metadata": job.metadata,
    }

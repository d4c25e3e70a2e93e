"""One job in a worker's hands: the handler's turn, how it ended, and what is told of it."""

import asyncio
import time
from concurrent.futures import Executor
from datetime import timedelta
from enum import Enum, auto
from typing import Any

import msgspec
from msgspec import Raw

from onward.queue.contract import TakenJob, is_permanent
from onward.queue.events import Active, Completed, Emitter, Failed, Retrying
from onward.queue.handler import Handler
from onward.queue.model import QueueJobStatus


class Told(Enum):
    """Why a handler was told to stop."""

    STOPPING = auto()
    LOST = auto()


class Running:
    """A job from its arrival to the last event about it."""

    def __init__(self, job: TakenJob, *, worker_id: str, events: Emitter) -> None:
        self.job = job
        self.told: Told | None = None
        self.error: Exception | None = None
        self._worker_id, self._events = worker_id, events
        self._task = asyncio.current_task()
        self._in_handler = self._was_cancelled = False
        self._began = time.monotonic()

    def cancel(self, told: Told) -> bool:
        """Have the handler stop; once it has returned there is nothing to stop."""
        if self.told is not None or not self._in_handler or self._task is None:
            return False
        self.told, self._was_cancelled = told, True
        self._task.cancel()
        return True

    async def run(self, handler: Handler[Any], threads: Executor) -> Raw | None:
        """Call the handler. Afterwards `told` or `error` say how it went, and neither that it went well."""
        if self._events.wants(Active):
            self._events.emit(Active(**self._facts(), attempts=self.job.attempts, status=QueueJobStatus.ACTIVE))
        self._in_handler = True
        try:
            result = await handler(self.job, threads)
            if self.told is Told.STOPPING:
                self.told = None  # it came to its end all the same: that counts
            return self._encoded(result)
        except asyncio.CancelledError as error:
            if self.told is None:
                if self._task is not None and self._task.cancelling():
                    raise
                self.error = RuntimeError(f"the handler let itself be cancelled: {error!r}")
        except Exception as error:  # noqa: BLE001 - a handler may raise anything: it is kept, told and given to the provider
            self.error = error
        finally:
            self._in_handler = False
            if self._was_cancelled and self._task is not None:
                self._task.uncancel()
        return None

    def _encoded(self, result: object) -> Raw | None:
        if result is None:
            return None
        try:
            return Raw(msgspec.json.encode(result))
        except Exception as error:  # noqa: BLE001 - the work is done: a result that cannot be kept must not do it again
            self._events.trouble(error, f"the result of job {self.job.id!r} cannot be kept: {error}")
            return None

    # -- what is told once the provider knows

    def settled(self, retry_delay: timedelta | None) -> None:
        """The provider has the outcome."""
        if self.error is not None:
            self._tell_failed(self.error, retry_delay)
        elif self._events.wants(Completed):
            status = QueueJobStatus.COMPLETED
            self._events.emit(
                Completed(**self._facts(), attempts=self.job.attempts, status=status, duration=self._duration())
            )

    def _tell_failed(self, error: Exception, retry_delay: timedelta | None) -> None:
        attempts, permanent = self.job.attempts + 1, is_permanent(error)
        will_retry = attempts < self.job.max_attempts and not permanent
        status = QueueJobStatus.FAILED
        if will_retry:
            status = QueueJobStatus.DELAYED if retry_delay else QueueJobStatus.WAITING
        facts = {**self._facts(), "attempts": attempts, "status": status, "retry_delay": retry_delay}
        self._events.emit(
            Failed(
                **facts,
                error=str(error),
                error_type=type(error).__name__,
                duration=self._duration(),
                will_retry=will_retry,
                permanent=permanent,
            )
        )
        if will_retry:
            self._events.emit(Retrying(**facts, max_attempts=self.job.max_attempts))

    def _facts(self) -> dict[str, Any]:
        job = self.job
        return {
            "job_id": job.id,
            "name": job.name,
            "queue_name": job.queue_name,
            "worker_id": self._worker_id,
            "metadata": job.metadata,
        }

    def _duration(self) -> timedelta:
        return timedelta(seconds=time.monotonic() - self._began)

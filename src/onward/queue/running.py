"""One job in a worker's hands: the handler's turn, how it ended, and what is told of it."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import timedelta
from enum import Enum, auto
from typing import Any

import msgspec
from msgspec import Raw

from onward.queue.contract import TakenJob, is_permanent
from onward.queue.events import Active, Completed, Failed, QueueEvent, Retrying, Trouble
from onward.queue.handler import Handler
from onward.queue.model import QueueJobStatus


class Told(Enum):
    """Why a handler was told to stop."""

    STOPPING = auto()
    LOST = auto()


class Running:
    """A job from its arrival to the last event about it."""

    def __init__(self, job: TakenJob, *, worker_id: str, emit: Callable[[QueueEvent], None]) -> None:
        self.job = job
        self.told: Told | None = None
        self.error: Exception | None = None
        self._emit = emit
        self._task = asyncio.current_task()
        self._in_handler = self._was_cancelled = False
        self._began = time.monotonic()
        self._facts: dict[str, Any] = {
            "job_id": job.id,
            "name": job.name,
            "queue_name": job.queue_name,
            "worker_id": worker_id,
            "metadata": job.metadata,
        }

    def cancel(self, told: Told) -> None:
        """Have the handler stop; once it has returned there is nothing to stop."""
        if self.told is None and self._in_handler and self._task is not None:
            self.told = told
            self._was_cancelled = True
            self._task.cancel()

    async def run(self, handler: Handler[Any], threads: Executor) -> Raw | None:
        """Call the handler. Afterwards `told` or `error` say how it went, and neither that it went well."""
        self._emit(Active(**self._facts, attempts=self.job.attempts, status=QueueJobStatus.ACTIVE))
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
            self.trouble(error, f"the result of job {self.job.id!r} cannot be kept: {error}")
            return None

    # -- what is told once the provider knows

    def settled(self, retry_delay: timedelta | None) -> None:
        """The provider has the outcome."""
        duration = timedelta(seconds=time.monotonic() - self._began)
        if self.error is None:
            status = QueueJobStatus.COMPLETED
            self._emit(Completed(**self._facts, attempts=self.job.attempts, status=status, duration=duration))
            return
        attempts, permanent = self.job.attempts + 1, is_permanent(self.error)
        will_retry = attempts < self.job.max_attempts and not permanent
        status = QueueJobStatus.FAILED
        if will_retry:
            status = QueueJobStatus.DELAYED if retry_delay else QueueJobStatus.WAITING
        facts = {**self._facts, "attempts": attempts, "status": status, "retry_delay": retry_delay}
        self._emit(
            Failed(
                **facts,
                error=str(self.error),
                error_type=type(self.error).__name__,
                duration=duration,
                will_retry=will_retry,
                permanent=permanent,
            )
        )
        if will_retry:
            self._emit(Retrying(**facts, max_attempts=self.job.max_attempts))

    def trouble(self, error: Exception, message: str | None = None) -> None:
        """Something failed that no caller was told."""
        self._emit(Trouble(queue_name=self.job.queue_name, error=error, message=message or str(error)))

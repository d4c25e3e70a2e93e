"""One frozen class per fact about a flow; each is logged, and handed to the flow's observers."""

import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, TypeAlias

import msgspec

from onward.flow.store import Ended
from onward.flow.views import FlowFailureReason
from onward.model import JobError
from onward.observe.logs import log_event
from onward.observe.subscribers import Subscriber, Subscribers

logger = logging.getLogger("onward.flow")
_LAST_WORDS = 1.0


class _Event(msgspec.Struct, frozen=True, kw_only=True):
    level: ClassVar[int] = logging.DEBUG
    flow: str


class _WorkerEvent(_Event, frozen=True, kw_only=True):
    stage: str
    worker: str


class _JobEvent(_Event, frozen=True, kw_only=True):
    stage: str
    job_id: str
    correlation_id: str
    worker: str


class WorkerStarted(_WorkerEvent, frozen=True, kw_only=True):
    """A worker takes jobs of its stage now."""

    level = logging.INFO


class WorkerStopped(_WorkerEvent, frozen=True, kw_only=True):
    """A worker has ended; it holds no job."""

    level = logging.INFO


class HandlerStarted(_JobEvent, frozen=True, kw_only=True):
    """A job is locked and its handler begins."""

    retries: int
    stalls: int = 0


class StageCompleted(_JobEvent, frozen=True, kw_only=True):
    """A result is saved and the job is on its way."""

    next: str | None
    """Where it goes; None when it has ended, or waits for its children."""
    children: int = 0


class StageFailed(_JobEvent, frozen=True, kw_only=True):
    """A handler raised, took too long, or returned what does not fit."""

    level = logging.WARNING
    error: JobError
    will_retry: bool


class JobDone(_JobEvent, frozen=True, kw_only=True):
    """A job has ended well; `worker` is who found it, '' for a janitor."""


class JobFailed(_JobEvent, frozen=True, kw_only=True):
    """A job has failed for good, whatever did it; `worker` is who found it, '' for a janitor or a call of `delete`."""

    level = logging.WARNING
    reason: FlowFailureReason
    message: str


class ResultDropped(_JobEvent, frozen=True, kw_only=True):
    """A worker had lost its lock: what its handler did changed nothing in the flow."""

    level = logging.WARNING


class JobLimited(_JobEvent, frozen=True, kw_only=True):
    """A job has to wait for the rate of its stage."""


class LockExpired(_JobEvent, frozen=True, kw_only=True):
    """A worker died, or did not reach Redis for as long as its lock lives: the janitor took its job away."""

    level = logging.WARNING
    stalls: int
    """How often that has happened to the job at this stage."""
    will_retry: bool


class JobTakenBack(_JobEvent, frozen=True, kw_only=True):
    """A worker died between taking a job and locking it: the janitor put it back."""

    level = logging.WARNING


class JobMissing(_JobEvent, frozen=True, kw_only=True):
    """A queue named a job that is not stored any more: the name was dropped."""

    level = logging.WARNING


class RedisError(_Event, frozen=True, kw_only=True):
    """Redis did not answer as it should; it is asked again."""

    level = logging.WARNING
    doing: str
    error: JobError
    retry_in: float


FlowEvent: TypeAlias = (
    WorkerStarted | WorkerStopped | HandlerStarted | StageCompleted | StageFailed | ResultDropped
    | JobDone | JobFailed | JobLimited | LockExpired | JobTakenBack | JobMissing | RedisError
)  # fmt: skip
"""Anything an observer of a flow may be told."""
FlowObserver: TypeAlias = Callable[[FlowEvent], object]


class Reporter:
    """Logs events and tells observers; what those raise is logged and goes no further."""

    def __init__(self, observers: Sequence[FlowObserver]) -> None:
        self._subscribers = Subscribers[FlowEvent](self._failed)
        for kind, observer in itertools.product(FlowEvent.__args__, observers):
            self._subscribers.add(kind, observer)

    def tell_ended(self, flow: str, ended: Iterable[Ended], *, worker: str = "") -> None:
        """Of each job that a script ended."""
        for job in ended:
            facts = {"stage": job.stage, "job_id": job.job_id, "correlation_id": job.correlation_id, "worker": worker}
            if job.status == "failed":
                self.tell(JobFailed(flow=flow, **facts, reason=job.reason, message=job.message))
            else:
                self.tell(JobDone(flow=flow, **facts))

    def tell(self, event: FlowEvent) -> None:
        log_event(logger, event.level, event)
        self._subscribers.tell(event)

    async def settle(self) -> None:
        """Wait a moment for observers that are awaited."""
        await self._subscribers.settle(_LAST_WORDS)

    def _failed(self, subscriber: Subscriber, event: FlowEvent, error: BaseException) -> None:
        logger.error("observer %r failed on %s", subscriber, type(event).__name__, exc_info=error)

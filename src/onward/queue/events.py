"""What queues and their workers tell those who listen: one frozen class per event."""

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, ClassVar, Literal, TypeAlias, overload
from weakref import WeakSet

import msgspec

from onward.errors import QueueConfigurationError
from onward.observe.logs import log_event
from onward.observe.subscribers import Subscriber, Subscribers
from onward.queue.model import QueueFailureReason, QueueJob, QueueJobStatus

logger = logging.getLogger("onward.queue")


class _QueueEvent(msgspec.Struct, frozen=True, kw_only=True):
    event: ClassVar[str]
    level: ClassVar[int] = logging.DEBUG
    queue_name: str


class _JobEvent(_QueueEvent, frozen=True, kw_only=True):
    job_id: str
    name: str
    attempts: int
    status: QueueJobStatus
    worker_id: str
    metadata: Mapping[str, Any] = {}


class Active(_JobEvent, frozen=True, kw_only=True):
    """A handler begins. `attempts` counts the earlier ones."""

    event = "active"


class Completed(_JobEvent, frozen=True, kw_only=True):
    """The provider has taken the acknowledgement."""

    event = "completed"
    duration: timedelta


class Failed(_JobEvent, frozen=True, kw_only=True):
    """An attempt failed and the provider knows; `attempts` counts the one that just failed. Or a job failed that nobody
    ran: its holders died too often, or it waited for too long."""

    event, level = "failed", logging.WARNING
    error: str
    error_type: str
    duration: timedelta
    will_retry: bool
    permanent: bool
    reason: QueueFailureReason | None = None
    """Why it failed for good; `None` when it will be tried again."""
    stalls: int = 0
    retry_delay: timedelta | None = None

    @classmethod
    def of(cls, job: QueueJob[Any], *, worker_id: str) -> "Failed":
        """The event of a job that failed without anybody running it."""
        reason = job.reason or QueueFailureReason.STALLED
        return cls(
            queue_name=job.queue_name,
            job_id=job.id,
            name=job.name,
            attempts=job.attempts,
            status=QueueJobStatus.FAILED,
            worker_id=worker_id,
            metadata=job.metadata,
            error=job.error or "",
            error_type=reason.capitalize(),
            duration=timedelta(),
            will_retry=False,
            permanent=False,
            reason=reason,
            stalls=job.stalls,
        )


class Retrying(_JobEvent, frozen=True, kw_only=True):
    """The job that just failed will be tried again."""

    event = "job.retrying"
    max_attempts: int
    retry_delay: timedelta | None = None


class ShuttingDown(_QueueEvent, frozen=True, kw_only=True):
    """The worker takes nothing more."""

    event, level = "processor.shutting_down", logging.INFO
    worker_id: str


class ShutdownTimeout(_QueueEvent, frozen=True, kw_only=True):
    """Handlers still run although the time to finish is over."""

    event, level = "processor.shutdown_timeout", logging.WARNING
    worker_id: str
    timeout: timedelta
    active_jobs: int
    message: str


class QueueErrorEvent(_QueueEvent, frozen=True, kw_only=True):
    """Something failed that no caller was told: a fetch, an acknowledgement, a listener."""

    event, level = "queue.error", logging.ERROR
    error: Exception
    message: str


class Drained(_QueueEvent, frozen=True, kw_only=True):
    """Nothing waits and, as far as the provider knows, nothing runs any more. Told once per emptying by the workers
    that share a provider's factory, when they had some of the work."""

    event = "queue.drained"


class Paused(_QueueEvent, frozen=True, kw_only=True):
    """The queue was paused from here."""

    event, level = "queue.paused", logging.INFO


class Resumed(_QueueEvent, frozen=True, kw_only=True):
    """The queue was resumed from here."""

    event, level = "queue.resumed", logging.INFO


QueueEvent: TypeAlias = (
    Active
    | Completed
    | Failed
    | Retrying
    | ShuttingDown
    | ShutdownTimeout
    | QueueErrorEvent
    | Drained
    | Paused
    | Resumed
)
Listener: TypeAlias = Subscriber
End: TypeAlias = Callable[[], None]
"""Ends what was begun."""
_KINDS: dict[str, type[QueueEvent]] = {kind.event: kind for kind in QueueEvent.__args__}


class Crew:
    """The workers of one queue on one factory, who tell together that it is drained: how many jobs they have in their
    hands, and whether they had any since it last was."""

    def __init__(self) -> None:
        self.jobs = 0
        self.had_work = False

    def begin(self) -> None:
        """One more."""
        self.jobs += 1
        self.had_work = True

    def end(self) -> bool:
        """One less; whether it was the last."""
        self.jobs -= 1
        return self.jobs == 0

    def is_idle(self) -> bool:
        """Whether everything they had is done, and nobody was told yet."""
        return self.had_work and self.jobs == 0


class Emitter:
    """Keeps listeners by the event's name, and tells them."""

    def __init__(self, queue_name: str, *, troubles: "Emitter | None" = None) -> None:
        self._queue_name = queue_name
        self._troubles = troubles or self
        self._listeners = Subscribers[QueueEvent](self._failed)
        self.crew = Crew()
        """The workers that share this emitter."""
        self.sharers: WeakSet[Any] = WeakSet()
        """The providers that share it."""

    def on(self, event: str, listener: Listener) -> Callable[[], None]:
        """Have `listener` called; returns what ends that."""
        if not callable(listener):
            raise self._refused(f"a listener for {event!r} must be a function, got: {listener!r}")
        return self._listeners.add(_KINDS[event], listener)

    def check(self, event: str, allowed: Callable[[str], bool]) -> None:
        """Refuse the name of an event that would never come."""
        names = [name for name in _KINDS if allowed(name)]
        if event not in names:
            raise self._refused(f"there is no event {event!r} here; these are: {', '.join(names)}")

    def wants(self, kind: type[QueueEvent]) -> bool:
        """Whether anybody would read an event of this kind: ask before building one per job."""
        return bool(self._listeners.by_kind.get(kind)) or logger.isEnabledFor(kind.level)

    def emit(self, event: QueueEvent) -> None:
        """Tell the log and every listener; one that raises changes nothing, and is itself reported."""
        log_event(logger, event.level, event, name=event.event)
        self._listeners.tell(event)

    def _failed(self, listener: Listener, event: QueueEvent, error: BaseException) -> None:
        logger.error("a listener for %r failed", event.event, exc_info=error)
        if not isinstance(event, QueueErrorEvent):
            told = error if isinstance(error, Exception) else RuntimeError(repr(error))
            self.trouble(told, f"a listener for {event.event!r} failed: {error}")

    async def settle(self, within: float) -> None:
        """Wait for listeners that are awaited; for so many seconds."""
        await self._listeners.settle(within)

    def trouble(self, error: Exception, message: str) -> None:
        """Something failed that no caller was told."""
        self._troubles.emit(QueueErrorEvent(queue_name=self._queue_name, error=error, message=message))

    def _refused(self, problem: str) -> QueueConfigurationError:
        return QueueConfigurationError(problem, queue_name=self._queue_name)


class Listening:
    """`on`, for whatever has listeners: the name of an event tells the type of what the listener receives."""

    def _listen(self, event: str, listener: Listener) -> End:
        raise NotImplementedError

    @overload
    def on(self, event: Literal["active"], listener: Callable[[Active], object]) -> End: ...
    @overload
    def on(self, event: Literal["completed"], listener: Callable[[Completed], object]) -> End: ...
    @overload
    def on(self, event: Literal["failed"], listener: Callable[[Failed], object]) -> End: ...
    @overload
    def on(self, event: Literal["job.retrying"], listener: Callable[[Retrying], object]) -> End: ...
    @overload
    def on(self, event: Literal["processor.shutting_down"], listener: Callable[[ShuttingDown], object]) -> End: ...
    @overload
    def on(
        self, event: Literal["processor.shutdown_timeout"], listener: Callable[[ShutdownTimeout], object]
    ) -> End: ...
    @overload
    def on(self, event: Literal["queue.error"], listener: Callable[[QueueErrorEvent], object]) -> End: ...
    @overload
    def on(self, event: Literal["queue.drained"], listener: Callable[[Drained], object]) -> End: ...
    @overload
    def on(self, event: Literal["queue.paused"], listener: Callable[[Paused], object]) -> End: ...
    @overload
    def on(self, event: Literal["queue.resumed"], listener: Callable[[Resumed], object]) -> End: ...
    def on(self, event: str, listener: Listener) -> End:
        """Have `listener` called with every event of that name; call what is returned to end it.

        Listeners are called between two steps of the worker. One that returns an awaitable, as a coroutine function
        does, is awaited beside the worker's work; `close` waits for it.
        """
        return self._listen(event, listener)

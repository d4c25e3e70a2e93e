"""What a provider of queues is. One is bound to one queue; a factory makes several on one connection."""

import asyncio
import functools
import re
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Raw

from onward.errors import (
    Permanent,
    QueueConfigurationError,
    QueueDataError,
    QueueError,
    QueueErrorCode,
    QueueNotFound,
    QueuePartlyAdded,
    QueueRuntimeError,
)
from onward.model import Progress
from onward.options import LONGEST_ERROR, cut
from onward.queue.events import Emitter, Failed
from onward.queue.model import (
    ActiveJob,
    Capabilities,
    QueueHealth,
    QueueJob,
    QueueJobStatus,
    QueuePage,
    QueueStats,
)
from onward.queue.options import Options, lacking

C = TypeVar("C", bound=Callable[..., Coroutine[Any, Any, Any]])
N = TypeVar("N")
P = TypeVar("P", bound="Provider")

StoredJob: TypeAlias = QueueJob[Raw]
TakenJob: TypeAlias = ActiveJob[Raw]
PushHandler: TypeAlias = Callable[[TakenJob], Awaitable[object]]
"""Runs one delivered job: returns its result, raises its error, or raises GivenBack."""


class GivenBack(Exception):
    """The handler was stopped before it ended: the job goes back to the queue, and no attempt is counted."""


class Consumer(Protocol):
    """A delivery under way, as `process` returns it."""

    def set_concurrency(self, concurrency: int) -> None:
        """Deliver that many at a time from now on."""
        ...

    async def stop(self) -> None:
        """Deliver nothing more; what came and was not yet handed to the handler goes back."""
        ...

    async def wait(self) -> None:
        """After `stop`: until the handlers have returned and the backend has the outcome of each."""
        ...


def reported(code: QueueErrorCode) -> Callable[[C], C]:
    """A call of the provider: SHUTDOWN when it is not connected, and what the native client raises gets this code."""

    def decorate(call: C) -> C:
        @functools.wraps(call)
        async def checked(provider: "Provider", /, *args: Any, **kwargs: Any) -> Any:
            if not provider.is_connected:
                raise provider.shut_down()
            provider.check_loop()
            try:
                return await call(provider, *args, **kwargs)
            except QueueError:
                raise
            except Exception as error:
                subject = args[0] if args else None
                job_id = subject.id if isinstance(subject, QueueJob) else subject if isinstance(subject, str) else None
                raise provider.failure(f"{provider.name}: {call.__name__}() failed", error, code, job_id) from error

        return cast(C, checked)

    return decorate


class Home:
    """The event loop that connections were made in, and a lock in it. Nothing that waits in one works in another."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self.changing = asyncio.Lock()

    @property
    def is_here(self) -> bool:
        return self._loop is asyncio.get_running_loop()

    @property
    def has_ended(self) -> bool:
        """Whether that loop is over, and all that was open in it with it."""
        return self._loop is not None and self._loop.is_closed()

    @property
    def is_changing_elsewhere(self) -> bool:
        """Whether another loop is about to open something, or to close it."""
        return not self.is_here and not self.has_ended and self.changing.locked()

    def move_in(self) -> None:
        """From now on it is the one that runs."""
        if not self.is_here:
            self._loop, self.changing = asyncio.get_running_loop(), asyncio.Lock()


class Provider:
    """One queue at a backend. Subclasses implement `add`, `delete`, `stats`, `_open`, `_close` and what their
    capabilities claim; everything else is refused in words. Calls are marked with `@reported`."""

    name: str
    """As in `provider_options` and in warnings: "redis"."""
    capabilities: Capabilities
    lease: timedelta | None = None
    """How long a job stays with a holder that does not `renew`; `None`: as long as the holder's connection lives."""
    long_poll: timedelta = timedelta()
    """How long a worker's `fetch` waits, where long polling is a capability."""
    is_bound_to_loop: bool = True
    """Whether what it opens works in one event loop only."""

    def __init__(self, queue_name: str, events: Emitter | None = None) -> None:
        self.queue_name = queue_name
        self.events = events or Emitter(queue_name)
        """Who listens to `queue.*` events; shared by every queue and worker of this name on one factory."""
        self.on_ended: Callable[[StoredJob], object] = self._log_ended
        """Called with a job that `fetch` or `process` found to have failed without anybody running it."""
        self.events.sharers.add(self)
        self._holders = 0
        self._home = Home()

    # -- life: a queue and a worker may hold one provider; it opens for the first and closes after the last

    @property
    def is_connected(self) -> bool:
        return self._holders > 0

    async def connect(self) -> None:
        """Be ready; a second holder finds it open."""
        if self._is_left_behind():
            self._holders = 0
        if self._holders == 0 and not self._home.is_changing_elsewhere:
            self._home.move_in()
        else:
            self.check_loop()
        async with self._home.changing:
            if self._holders == 0:
                await self._open_reported()
            self._holders += 1

    async def _open_reported(self) -> None:
        try:
            await self._open()
        except QueueError:
            raise
        except Exception as error:
            raise self.failure(f"cannot connect to {self.name}", error, QueueErrorCode.CONNECTION) from error

    async def disconnect(self, *, everyone: bool = False) -> None:
        """Let go, or close it for every queue and worker of this name on the same factory; harmless when nobody
        holds it."""
        if everyone:
            for other in list(self.events.sharers):
                if other is not self:
                    await other._let_go(everyone=True)
        await self._let_go(everyone=everyone)

    def check_loop(self) -> None:
        """Refuse what would wait for ever: a call from another event loop than the one it was connected in."""
        if self.is_bound_to_loop and not self._home.is_here:
            raise self.elsewhere(has_ended=self._home.has_ended)

    def _is_left_behind(self) -> bool:
        """Whether it was connected in an event loop that ended since: nothing is left to close."""
        return self.is_bound_to_loop and self._holders > 0 and self._home.has_ended

    async def _let_go(self, *, everyone: bool) -> None:
        if self._is_left_behind():
            self._holders = 0
        if self._holders > 0:
            self.check_loop()
        async with self._home.changing:
            if self._holders == 0:
                return
            self._holders = 0 if everyone else self._holders - 1
            if self._holders == 0:
                await self._close()

    async def _open(self) -> None: ...

    async def _close(self) -> None: ...

    # -- adding

    async def add(self, job: StoredJob, options: Options) -> StoredJob:
        """Store it; the answer is what was stored. An id that is taken is DUPLICATE, where the backend can know."""
        raise NotImplementedError

    async def add_many(self, jobs: Sequence[tuple[StoredJob, Options]]) -> list[StoredJob]:
        """Store several, in as few round trips as the backend allows. When it took some and not others it raises
        QueuePartlyAdded, which names the former; any other error means that none was added, or that nobody knows."""
        added: list[StoredJob] = []
        for job, options in jobs:
            try:
                added.append(await self.add(job, options))
            except QueueError as error:
                if not added:
                    raise
                raise self.partly_added([one.id for one in added], len(jobs), error) from error
        return added

    async def add_within(self, tx: Any, job: StoredJob, options: Options) -> StoredJob:
        """Store it as part of the caller's transaction."""
        raise self.unsupported("tx=: pass outbox=app to Queue, which keeps the job in the app's database until then")

    def lacks(self, option: str, value: Any) -> str | None:
        """What is not supported if a job is added with this option, in words; `None`: it is honoured."""
        return lacking(option, self.capabilities)

    # -- pull

    async def fetch(self, count: int, wait: timedelta = timedelta()) -> Sequence[TakenJob]:
        """At most `count` waiting jobs, which nobody else gets from now on; nothing for a count below 1.

        Whoever calls has a free slot for each, so all of them are begun at once. A fetch whose answer was lost, or that
        was cancelled, gives its jobs back uncounted: with the next fetch of this provider, or when it disconnects.

        Here, or in the background, jobs whose lease ran out are found: `stalls` + 1, and back in line; beyond
        `max_stalls` failed as STALLED. Jobs whose `expires_at` has passed fail as EXPIRED. Each that failed is told:
        `self.on_ended(job)`. A record that cannot be read fails alone.
        """
        raise self.unsupported("fetching jobs: it delivers them by itself, with process()")

    def interrupt(self) -> None:
        """End the wait of a `fetch` under way, where that loses nothing: a worker wants to stop."""

    async def ack(self, job: TakenJob, result: Raw | None = None) -> None:
        """It is done. PROCESSING, not retryable, when this holder no longer has it.

        `ack` and `nack` are fenced by the lock token: when the outcome of a call is unknown, the worker calls again
        until the lease has ended.
        """
        raise self.unsupported("acknowledging jobs")

    async def nack(self, job: TakenJob, error: BaseException) -> timedelta | None:
        """It failed: `attempts` + 1, then tried again, or failed for good as ATTEMPTS, or at once as PERMANENT.

        Answers how long until the next attempt, where known.
        """
        raise self.unsupported("refusing jobs")

    async def release(self, jobs: Sequence[TakenJob]) -> None:
        """Give them back as they were, to the front of the line; neither an attempt nor a stall is counted where the
        backend allows that."""
        raise self.unsupported("giving jobs back")

    async def renew(self, jobs: Sequence[TakenJob]) -> Sequence[TakenJob]:
        """Hold them longer. Answers with those that are no longer ours."""
        return []

    async def report_progress(self, job: TakenJob, progress: Progress) -> None:
        """Keep how far its handler has come; nothing happens when this holder no longer has it."""
        raise self.unsupported("the progress of jobs")

    # -- push

    async def process(
        self,
        handler: PushHandler,
        *,
        concurrency: int,
        on_error: Callable[[QueueError], None],
        on_settled: Callable[[TakenJob, timedelta | None], None] | None = None,
    ) -> Consumer:
        """Deliver jobs to `handler` until stopped. `on_settled(job, retry_delay)` after the backend has its outcome;
        `on_error` when that, or delivering, failed: with the id of a job when its outcome is given up. Outcomes that
        could not be told are told again as long as the job is held; `on_ended` as for `fetch`."""
        raise self.unsupported("delivering jobs: ask for them with fetch()")

    # -- the queue

    async def get_job(self, job_id: str) -> StoredJob | None:
        """What is stored under this id."""
        raise self.unsupported("looking up jobs")

    async def pause(self) -> None:
        """No worker gets jobs until `resume`."""
        raise self.unsupported("pausing")

    async def resume(self) -> None:
        """Workers get jobs again."""
        raise self.unsupported("pausing")

    async def delete(self) -> None:
        """Remove the queue with everything in it."""
        raise NotImplementedError

    async def stats(self) -> QueueStats:
        """How many jobs are where."""
        raise NotImplementedError

    async def health(self) -> QueueHealth:
        """Whether the queue is being worked off."""
        return QueueHealth.of(await self.stats())

    async def dead_letters(self, limit: int = 100) -> Sequence[StoredJob]:
        """Jobs that failed for good, the newest first."""
        raise self.unsupported("listing failed jobs")

    async def retry(self, job_id: str) -> None:
        """Put a failed job back, with no attempts and no stalls counted, and without an end to its life."""
        raise self.unsupported("retrying failed jobs")

    async def jobs(self, status: QueueJobStatus, *, after: str | None, limit: int) -> QueuePage[Raw]:
        """Those of one state: finished ones the newest first, the others as they will be taken, where the backend can.

        `after` is what an earlier page answered as `next`, and passed `is_page`; jobs that come or go meanwhile may be
        missed or seen twice.
        """
        raise self.unsupported("listing jobs by their state")

    def is_page(self, status: QueueJobStatus, after: str) -> bool:
        """Whether a page of jobs of this state may have answered that as `next`: a number, unless a provider says
        otherwise."""
        return re.fullmatch("[0-9]{1,16}", after) is not None

    async def remove(self, job_id: str) -> None:
        """Keep nothing of it. NOT_FOUND when there is none; `held` when a worker has it."""
        raise self.unsupported("removing a job")

    async def purge(self, status: QueueJobStatus, older_than: timedelta) -> int:
        """Remove all jobs of one state but ACTIVE that finished, or were added, longer ago than that; how many."""
        before, removed, after = datetime.now(UTC) - older_than, 0, None
        while True:
            page = await self.jobs(status, after=after, limit=1_000)
            old = [job.id for job in page.items if (job.completed_at or job.failed_at or job.created_at) <= before]
            gone = sum([await self._removed(job_id) for job_id in old])
            removed += gone
            if gone == 0:
                after = page.next
                if after is None:
                    return removed

    async def _removed(self, job_id: str) -> bool:
        try:
            await self.remove(job_id)
        except QueueError as error:
            if error.retryable:
                raise
            return False  # it has moved on
        return True

    # -- errors

    def unsupported(self, feature: str) -> QueueConfigurationError:
        return QueueConfigurationError(
            f"{self.name} does not support {feature}; ask queue.capabilities first",
            code=QueueErrorCode.UNSUPPORTED_FEATURE,
            queue_name=self.queue_name,
        )

    def shut_down(self) -> QueueRuntimeError:
        return QueueRuntimeError(
            f"{self.name} is not connected: connect() first, and do not use it after disconnect()",
            code=QueueErrorCode.SHUTDOWN,
            queue_name=self.queue_name,
        )

    def elsewhere(self, *, has_ended: bool) -> QueueConfigurationError:
        problem = elsewhere(self.name, has_ended=has_ended)
        return QueueConfigurationError(problem, code=QueueErrorCode.INVALID_OPTION, queue_name=self.queue_name)

    def duplicate(self, job_id: str) -> QueueDataError:
        return QueueDataError(
            f"a job with id {job_id!r} is already there",
            code=QueueErrorCode.DUPLICATE,
            queue_name=self.queue_name,
            job_id=job_id,
        )

    def partly_added(self, added: Sequence[str], wanted: int, error: Exception) -> QueuePartlyAdded:
        return QueuePartlyAdded(
            f"{self.name} took {len(added)} of {wanted} jobs: {error}",
            added=added,
            queue_name=self.queue_name,
            cause=error,
        )

    def not_active(self, job_id: str) -> QueueRuntimeError:
        return QueueRuntimeError(
            f"job {job_id!r} is not active: it ended, or its lock passed to another worker",
            code=QueueErrorCode.PROCESSING,
            queue_name=self.queue_name,
            job_id=job_id,
        )

    def held(self, job_id: str) -> QueueRuntimeError:
        return QueueRuntimeError(
            f"job {job_id!r} is being run: wait until it has ended",
            code=QueueErrorCode.PROCESSING,
            queue_name=self.queue_name,
            job_id=job_id,
        )

    def not_found(self, job_id: str) -> QueueNotFound:
        return QueueNotFound(queue_name=self.queue_name, resource_id=job_id)

    def failure(
        self, what: str, error: Exception, code: QueueErrorCode, job_id: str | None = None
    ) -> QueueRuntimeError:
        """What the native client raised, in our words."""
        hopeless = self.hopeless(error)
        return QueueRuntimeError(
            f"{what}: {hopeless or f'{type(error).__name__}: {error}'}",
            code=code,
            queue_name=self.queue_name,
            job_id=job_id,
            retryable=hopeless is None and not is_permanent(error),
            cause=error,
        )

    def hopeless(self, error: BaseException) -> str | None:
        """What is wrong, in words, when the same call can never succeed: a password, an address that does not exist."""
        if isinstance(root_of(error), socket.gaierror):
            return f"there is no such host: {error}"
        return None

    def _log_ended(self, job: StoredJob) -> None:
        """Nobody works here: it is told to the log."""
        self.events.emit(Failed.of(job, worker_id=""))


def elsewhere(what: str, *, has_ended: bool) -> str:
    """Why something cannot be used in this event loop."""
    if has_ended:
        return (
            f"{what} was connected in an event loop that has ended, and never disconnected: use `async with queue`, or "
            "`await queue.disconnect()` before its loop ends"
        )
    return (
        f"{what} is connected in another event loop: give each thread, or each loop, a provider object, queues and "
        "workers of its own"
    )


def limited(provider: P, max_job_size: int) -> P:
    """The provider with another largest job than its kind has."""
    provider.capabilities = msgspec.structs.replace(provider.capabilities, max_job_size=max_job_size)
    return provider


def is_permanent(error: BaseException) -> bool:
    """Whether trying again is pointless: `onward.Permanent`, or any error with `retryable = False`."""
    try:
        return isinstance(error, Permanent) or getattr(error, "retryable", None) is False
    except Exception:  # noqa: BLE001 - whatever a property of its own raises
        return False


def in_words(error: BaseException) -> str:
    """The message of an error as it can be stored anywhere, even if it has none or is not proper text."""
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - whatever its own `__str__` raises
        words = f"{type(error).__name__} (its message cannot be read)"
    return cut(words, LONGEST_ERROR).encode(errors="backslashreplace").decode()


def root_of(error: BaseException) -> BaseException:
    """What an error goes back to; some client libraries raise errors that go back to themselves."""
    seen = {error}
    while (cause := error.__cause__ or error.__context__) is not None and cause not in seen:
        seen.add(cause)
        error = cause
    return error


class ProviderFactory(Generic[N]):
    """Providers for many queues on one native connection, opened for the first of them and closed after the last."""

    def __init__(self) -> None:
        self._events: dict[str, Emitter] = {}
        self._connection: N | None = None
        self._holders = 0
        self._home = Home()

    def for_queue(self, queue_name: str) -> Provider:
        """A provider bound to that queue."""
        raise NotImplementedError

    async def _open(self) -> N:
        raise NotImplementedError

    async def _close(self, connection: N) -> None:
        raise NotImplementedError

    def events_of(self, queue_name: str) -> Emitter:
        """Who listens to `queue.*` events of that queue."""
        return self._events.setdefault(queue_name, Emitter(queue_name))

    async def hold(self) -> N:
        """The connection, for a provider that opens."""
        if self._home.has_ended:
            self._connection, self._holders = None, 0  # what was open has ended with its loop
        if self._connection is None and not self._home.is_changing_elsewhere:
            self._home.move_in()
        elif not self._home.is_here:
            raise QueueConfigurationError(
                elsewhere(type(self).__name__, has_ended=False), code=QueueErrorCode.INVALID_OPTION
            )
        async with self._home.changing:
            if self._connection is None:
                self._connection = await self._open()
            self._holders += 1
            return self._connection

    async def let_go(self) -> None:
        """For a provider that closes."""
        async with self._home.changing:
            self._holders -= 1
            if self._holders == 0 and self._connection is not None:
                connection, self._connection = self._connection, None
                await self._close(connection)

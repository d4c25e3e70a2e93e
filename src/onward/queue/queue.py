"""The side that adds jobs: checks them, cuts their options down to what the provider has, and hands them over."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from types import TracebackType
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw
from typing_extensions import Unpack

from onward.client.app import Onward
from onward.define.job_type import Step
from onward.errors import (
    QueueDataError,
    QueueError,
    QueueErrorCode,
    QueueJobFailed,
    QueueRuntimeError,
    QueueWaitTimeout,
)
from onward.model import new_id
from onward.options import LONGEST_KEY, wrong_call
from onward.pacing import Pacing
from onward.queue.checks import A_NAME, Arguments, is_named
from onward.queue.contract import JoinsTransactions, KeepsDeadLetters, Lists, LooksUp, Pauses, Removes, StoredJob
from onward.queue.events import Listener, Listening, Paused, QueueErrorEvent, Resumed
from onward.queue.model import (
    KEEP_COMPLETED,
    Capabilities,
    Keep,
    QueueHealth,
    QueueJob,
    QueueJobStatus,
    QueuePage,
    QueueStats,
)
from onward.queue.options import JobOptions, Options, UnsupportedFeature, problem_with
from onward.queue.outbox import outbox_for
from onward.queue.payload import Payload, with_data
from onward.queue.provider import HomeLoop
from onward.queue.resolve import AnyProvider, bound

logger = logging.getLogger("onward.queue")
T = TypeVar("T")
R = TypeVar("R")
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 0.5
"""Seconds between looks at a job that is waited for."""
_ONE_LOOK = 1.0
"""Seconds that one look may take, however little time there is."""


def _fresh_id(name: str, data: Any) -> str:
    return str(new_id())


def _log_unsupported(feature: UnsupportedFeature) -> None:
    logger.warning("%s", feature.message)


class Queue(Listening, Generic[T]):
    """A queue at a provider; without one, in this process.

    It connects when it is first used. `async with` disconnects at the end; so does `disconnect()`.

    >>> import asyncio
    >>> async def example() -> str:
    ...     async with Queue("letters") as queue:
    ...         job = await queue.add("welcome", {"to": "a@example.org"}, attempts=3)
    ...         return job.status
    >>> asyncio.run(example())
    <QueueJobStatus.WAITING: 'waiting'>
    """

    def __init__(
        self,
        name: str,
        *,
        provider: AnyProvider | None = None,
        data: type[T] | Any = Any,
        defaults: JobOptions | None = None,
        job_id: Callable[[str, T], str] = _fresh_id,
        on_unsupported_feature: Callable[[UnsupportedFeature], object] = _log_unsupported,
        outbox: Onward | None = None,
        keep_published: Keep = KEEP_COMPLETED,
    ) -> None:
        """`keep_published`: what is kept in the outbox of the messages that were published."""
        arguments = Arguments("Queue", name)
        arguments.function("job_id", job_id)
        arguments.function("on_unsupported_feature", on_unsupported_feature)
        arguments.one_of("outbox", outbox, lambda app: app is None or isinstance(app, Onward), "an Onward app")
        arguments.keep("keep_published", keep_published)
        arguments.one_of("defaults", defaults, lambda given: given is None or isinstance(given, Mapping), "JobOptions")
        self._defaults = JobOptions(**defaults) if defaults is not None else JobOptions()
        problem = problem_with(self._defaults)
        if problem is not None:
            arguments.refuse_because(f"defaults.{problem}")
        self.name, self._arguments = name, arguments
        self.provider = bound(provider, name, arguments)
        self._payload = Payload[T](data, queue_name=name, max_bytes=self.capabilities.max_job_size)
        self._job_id, self._on_unsupported = job_id, on_unsupported_feature
        self._outbox = outbox_for(outbox, self.provider, keep=keep_published) if outbox is not None else None
        self._warned: set[str] = set()
        self._home = HomeLoop()
        self._connected_in: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        """What the provider can do: missing options warn, missing methods raise."""
        return self.provider.capabilities

    def _listen(self, event: str, listener: Listener) -> Callable[[], None]:
        self.provider.events.check(event, lambda name: name.startswith("queue."))
        return self.provider.events.on(event, listener)

    # -- life

    async def connect(self) -> None:
        """Connect now rather than at the first use."""
        self._home.move_in()
        async with self._home.changing:
            if not self._is_connected:
                await self.provider.connect()
                self._connected_in, self._closed = asyncio.get_running_loop(), False

    @property
    def _is_connected(self) -> bool:
        """In this event loop: what was connected in another has to do with that."""
        return self._connected_in is asyncio.get_running_loop()

    async def disconnect(self) -> None:
        """Let the provider go; further calls are refused with SHUTDOWN."""
        self._closed = True
        if self._connected_in is not None:
            self._connected_in = None
            await self.provider.disconnect()

    async def __aenter__(self) -> "Queue[T]":
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.disconnect()

    async def _call(self, call: Callable[[], Awaitable[R]]) -> R:
        if self._closed:
            raise self.provider.shut_down()
        try:
            if not self._is_connected:
                await self.connect()
            return await call()
        except QueueRuntimeError as error:
            if error.retryable:
                self.provider.events.emit(QueueErrorEvent(queue_name=self.name, error=error, message=str(error)))
            raise

    # -- adding

    async def add(
        self, name: str | Step[T, Any], data: T, *, id: str | None = None, tx: Any = None, **options: Unpack[JobOptions]
    ) -> QueueJob[T]:
        """Add a job. A job type may stand for its name.

        With `tx=` it is part of that database transaction: on a provider that has transactions, or through
        `Queue(outbox=app)`, whose workers publish it once the transaction has committed.
        """
        name = name.name if isinstance(name, Step) else name
        self._check(name, options)
        if tx is None:
            # Made when it is connected: some providers learn what they support from their server.
            stored = await self._call(lambda: self.provider.add(*self._new(name, data, id, options)))
        elif self._outbox is not None:
            stored = await self._outbox.add_within(tx, *self._new(name, data, id, options))
        else:
            feature = "tx=: pass outbox=app to Queue, which keeps the job in the app's database until then"
            join = partial(self.provider.role, JoinsTransactions, feature)
            stored = await self._call(lambda: join().add_within(tx, *self._new(name, data, id, options)))
        return with_data(stored, data)

    async def add_many(
        self, name: str | Step[T, Any], data: Iterable[T], **options: Unpack[JobOptions]
    ) -> list[QueueJob[T]]:
        """Add a job for each of them, in as few round trips as the provider allows."""
        name = name.name if isinstance(name, Step) else name
        self._check(name, options)
        if isinstance(data, str | bytes | Mapping) or not isinstance(data, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self._invalid(f"add_many takes the data of several jobs, such as a list, got: {data!r}")
        values = list(data)
        stored = await self._call(lambda: self.provider.add_many(self._new_jobs(name, values, options)))
        return [with_data(job, value) for job, value in zip(stored, values, strict=True)]

    def _check(self, name: str, options: JobOptions) -> None:
        self._check_text("name", name)
        problem = problem_with(options)
        if problem is not None:
            raise self._invalid(problem)

    def _check_text(self, what: str, text: str) -> None:
        if not is_named(text):
            raise self._invalid(f"the {what} of a job must be {A_NAME}, got: {text!a}")
        if len(text) > LONGEST_KEY:
            raise self._invalid(f"the {what} of a job must have at most {LONGEST_KEY:,} characters, not {len(text):,}")

    def _new(self, name: str, data: T, id: str | None, options: JobOptions) -> tuple[StoredJob, Options]:
        if id is None:
            id = self._job_id(name, data)
        self._check_text("id", id)
        checked = self._supported({**self._defaults, **options})
        now = datetime.now(UTC)
        job = QueueJob(
            id=id,
            name=name,
            queue_name=self.name,
            data=self._payload.encode(data, job_id=id),
            status=QueueJobStatus.DELAYED if checked.delay else QueueJobStatus.WAITING,
            max_attempts=checked.attempts,
            max_stalls=checked.max_stalls,
            created_at=now,
            scheduled_for=now + checked.delay if checked.delay else None,
            expires_at=now + checked.ttl if checked.ttl else None,
            priority=checked.priority,
            metadata=checked.metadata,
        )
        return job, checked

    def _new_jobs(self, name: str, values: Sequence[T], options: JobOptions) -> list[tuple[StoredJob, Options]]:
        jobs: list[tuple[StoredJob, Options]] = []
        size = 0
        for value in values:
            if problem := wrong_call(len(values), size):
                raise self._invalid(problem)
            jobs.append(self._new(name, value, None, options))
            size += len(bytes(jobs[-1][0].data))
        return jobs

    def _supported(self, options: JobOptions) -> Options:
        """Without what the provider lacks: said once for each option, and the job is still added."""
        given: dict[str, Any] = {**options}
        native = self._native(given.pop("provider_options", {}))
        for option in list(given):
            lacking = self.provider.lacks(option, given[option]) if given[option] else None
            if lacking is not None:
                del given[option]
                self._warn(option, lacking)
        longest = self.capabilities.max_delay
        if longest and given.get("delay", timedelta()) > longest:
            raise self._invalid(f"delay must be at most {longest} on {self.provider.name}, got: {given['delay']}")
        return Options(native=native, **given)

    def _native(self, by_provider: Mapping[str, Any]) -> Mapping[str, Any]:
        own = self.provider.name
        others = [name for name in by_provider if name != own]
        if others:
            raise self._invalid(f"provider_options: this queue is at {own!r}, not at {', '.join(map(repr, others))}")
        native = by_provider.get(own, {})
        if not isinstance(native, Mapping):
            raise self._invalid(f'provider_options["{own}"] must be a mapping, got: {native!r}')
        return native

    def _warn(self, option: str, lacking: str) -> None:
        if option not in self._warned:
            self._warned.add(option)
            own = self.provider.name
            message = f"[Queue:{self.name}] {own} does not support {lacking}. The {option!r} option is ignored."
            self._on_unsupported(UnsupportedFeature(queue_name=self.name, provider=own, option=option, message=message))

    def _invalid(self, problem: str) -> QueueError:
        return QueueDataError(problem, code=QueueErrorCode.VALIDATION, queue_name=self.name)

    # -- asking and steering

    def _check_id(self, job_id: object) -> None:
        self._arguments.one_of("job_id", job_id, is_named, A_NAME)

    async def get_job(self, job_id: str) -> QueueJob[T] | None:
        """What is stored under this id; `None` when nothing is."""
        self._check_id(job_id)
        job = await self._look_up(job_id)
        return None if job is None else self._payload.shown(job)

    async def _look_up(self, job_id: str) -> StoredJob | None:
        return await self._call(lambda: self.provider.role(LooksUp, "looking up jobs").get_job(job_id))

    async def pause(self) -> None:
        """No worker gets jobs until `resume`."""
        await self._call(lambda: self.provider.role(Pauses, "pausing").pause())
        self.provider.events.emit(Paused(queue_name=self.name))

    async def resume(self) -> None:
        """Workers get jobs again."""
        await self._call(lambda: self.provider.role(Pauses, "pausing").resume())
        self.provider.events.emit(Resumed(queue_name=self.name))

    async def delete(self) -> None:
        """Remove the queue with everything in it."""
        await self._call(self.provider.delete)

    async def stats(self) -> QueueStats:
        """How many jobs are where."""
        return await self._call(self.provider.stats)

    async def health(self) -> QueueHealth:
        """Whether the queue is being worked off."""
        return await self._call(self.provider.health)

    async def dead_letters(self, limit: int = 100) -> Sequence[QueueJob[T]]:
        """Jobs that failed for good, the newest first."""
        self._arguments.whole("limit", limit, least=0)
        feature = "listing failed jobs"
        jobs = await self._call(lambda: self.provider.role(KeepsDeadLetters, feature).dead_letters(limit))
        return [self._payload.shown(job) for job in jobs]

    async def retry(self, job_id: str) -> None:
        """Put a failed job back, with no attempts and no stalls counted."""
        self._check_id(job_id)
        await self._call(lambda: self.provider.role(KeepsDeadLetters, "retrying failed jobs").retry(job_id))

    def masked(self, job: QueueJob[T]) -> Any:
        """The data of a job as plain JSON for those who look: what is marked `Secret` is masked."""
        return self._payload.masked(job)

    def error_of(self, job: QueueJob[T]) -> str | None:
        """The message of a job's last error, without the secrets of its data."""
        return self._payload.error_of(job)

    async def wait(self, job_id: str, *, timeout: timedelta | None = None) -> Any:
        """The result of a job, once it has completed; raises QueueJobFailed or QueueWaitTimeout.

        A job that keeps nothing when it ends cannot be waited for: QueueNotFound.
        """
        if not self.capabilities.results:
            raise self.provider.unsupported("results of jobs")
        self._check_id(job_id)
        if timeout is not None:
            self._arguments.duration("timeout", timeout)
        limit = None if timeout is None else timeout.total_seconds()
        try:
            async with asyncio.timeout(None if limit is None else max(limit, _ONE_LOOK)):
                return await self._result(job_id, None if limit is None else time.monotonic() + limit)
        except TimeoutError as error:
            if timeout is None:
                raise
            raise QueueWaitTimeout(queue_name=self.name, job_id=job_id, timeout=timeout) from error

    async def _result(self, job_id: str, until: float | None) -> Any:
        pauses = Pacing(_SHORTEST_PAUSE, _LONGEST_PAUSE, factor=1.5, jitter=0)
        while True:
            job = await self._look_up(job_id)
            if job is None:
                raise self.provider.not_found(job_id)
            if job.status is QueueJobStatus.COMPLETED:
                return msgspec.json.decode(job.result) if isinstance(job.result, Raw) else job.result
            if job.status is QueueJobStatus.FAILED:
                raise QueueJobFailed(queue_name=self.name, job_id=job_id, reason=job.reason, error=job.error)
            left = inf if until is None else until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            await asyncio.sleep(min(next(pauses), left))

    async def jobs(self, status: QueueJobStatus | str, *, after: str | None = None, limit: int = 100) -> QueuePage[T]:
        """Jobs of one state: those that wait as they will be taken, finished ones the newest first."""
        self._arguments.whole("limit", limit, least=1)
        wanted = self._status(status)
        if after is not None and isinstance(self.provider, Lists):
            given: object = after
            if not isinstance(given, str) or not self.provider.is_page(wanted, given):
                raise self._invalid(
                    f"after must be what an earlier page of {wanted} jobs has as `next`, got: {after!r}"
                )
        lists = partial(self.provider.role, Lists, "listing jobs by their state")
        page = await self._call(lambda: lists().jobs(wanted, after=after, limit=limit))
        return QueuePage(items=[self._payload.shown(job) for job in page.items], next=page.next)

    async def remove(self, job_id: str) -> None:
        """Keep nothing of a job; one that is being run is refused."""
        self._check_id(job_id)
        await self._call(lambda: self.provider.role(Removes, "removing a job").remove(job_id))

    async def purge(
        self,
        statuses: Iterable[QueueJobStatus | str] = (QueueJobStatus.COMPLETED, QueueJobStatus.FAILED),
        *,
        older_than: timedelta = timedelta(),
    ) -> int:
        """Remove the jobs of these states that ended, or were added, longer ago than that; returns how many."""
        if isinstance(statuses, str) or not isinstance(statuses, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self._invalid(f'purge takes several states, such as ["failed"], got: {statuses!r}')
        wanted = [self._status(status) for status in statuses]
        if QueueJobStatus.ACTIVE in wanted:
            raise self._invalid("active jobs cannot be purged: close the workers first")
        self._arguments.duration("older_than", older_than)
        return sum([await self._call(partial(self._purge, status, older_than)) for status in wanted])

    def _purge(self, status: QueueJobStatus, older_than: timedelta) -> Awaitable[int]:
        return self.provider.role(Removes, "listing jobs by their state").purge(status, older_than)

    def _status(self, status: QueueJobStatus | str) -> QueueJobStatus:
        if status not in list(QueueJobStatus):
            raise self._invalid(f"a state is one of {', '.join(QueueJobStatus)}, got: {status!r}")
        return QueueJobStatus(status)

"""Queues in the database of an app: one of them, and what makes several."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Raw

from onward.client.app import Onward
from onward.errors import (
    ChainNotFailed,
    ChainNotFound,
    ConfigurationError,
    DatabaseError,
    DatabaseUnavailable,
    DuplicateJobId,
    PayloadError,
    QueueConfigurationError,
    QueueDataError,
    TransactionError,
)
from onward.lifecycle import settle
from onward.lifecycle.effects import Effects
from onward.lifecycle.start import start_jobs
from onward.model import FailedJob, Job, JobStatus, LossReason, Progress, RunningJob
from onward.notify.contract import Hint, HintKind, Listener
from onward.queue.checks import ProviderArguments
from onward.queue.contract import JoinsTransactions, StoredJob, Stores, TakenJob, unfit
from onward.queue.events import Emitter
from onward.queue.model import (
    KEEP_COMPLETED,
    KEEP_FAILED,
    Keep,
    QueueFailureReason,
    QueueJob,
    QueueJobStatus,
    QueuePage,
    QueueStats,
)
from onward.queue.options import Options
from onward.queue.provider import Provider, ProviderFactory, elsewhere
from onward.queue.providers.database.forms import Enveloped, Form, Typed
from onward.queue.providers.database.jobs import (
    EXPIRED,
    STALLED,
    Taken,
    active,
    completed,
    crashed,
    expired,
    failed,
    is_expired,
    new_chain,
    stored,
    unreadable,
)
from onward.queue.providers.database.link import Link
from onward.queue.retention import Retention
from onward.state.contract import HeldAttempt, NewJob, ProgressReport, Settlement, TypeClaim
from onward.state.contract import TakenJob as Row
from onward.state.rows import read_errors
from onward.worker.maintenance import Maintenance

DEFAULT_LEASE = timedelta(seconds=30)
_POLL_WITHOUT_HINTS = 1.0
_LOOK = 15.0
"""Seconds between looks for what is due or expired, when nothing is known to become so."""
_ANSWER_WITHIN = 30.0
"""Seconds that a commit may take; later the outcome is unknown, and the caller is told so."""
_PAGE = 1_000
_REASONS = {STALLED: QueueFailureReason.STALLED, EXPIRED: QueueFailureReason.EXPIRED}
_STATUSES = {
    QueueJobStatus.WAITING: [JobStatus.PENDING],
    QueueJobStatus.DELAYED: [JobStatus.PENDING, JobStatus.BLOCKED],
    QueueJobStatus.ACTIVE: [JobStatus.RUNNING],
    QueueJobStatus.COMPLETED: [JobStatus.COMPLETED],
    QueueJobStatus.FAILED: [JobStatus.FAILED],
}


class DatabaseProvider(Provider, Stores, JoinsTransactions):
    """One queue in a database: a job type whose chains have one job."""

    name = "database"
    long_poll = timedelta(seconds=30)

    def __init__(self, queue_name: str, factory: "Database", events: Emitter, *, form: Form, lease: timedelta) -> None:
        self.capabilities = form.capabilities
        super().__init__(queue_name, events)
        self.lease = lease
        self._factory, self._form, self._hold = factory, form, lease.total_seconds()
        self._claims = [TypeClaim(form.type_name, version, self._hold) for version in form.versions]
        self._listener: Listener | None = None
        self._interrupted = False

    async def _open(self) -> None:
        self._link = await self._factory.hold()
        self._app, self._store = self._link.app, self._link.app.store
        self._listening = AsyncExitStack()
        self._maintenance = Maintenance(
            self._store,
            self._link.reserved,
            self._link.worker,
            (self._form.type_name,),
            crashed=self._crashed,
            held_here=tuple,  # a lease that ran out is over, whoever had it
            every=min(self._hold / 4, _LOOK if self._app.notify.crosses_processes else _POLL_WITHOUT_HINTS),
            lease=self._hold,
        )
        keep = self._factory.keep if self.capabilities.keeps else {}
        self._retention = Retention(self._app, self._form.type_name, keep)

    async def _close(self) -> None:
        self.interrupt()
        await self._retention.close()
        self._listener = None
        await self._listening.aclose()
        await self._factory.let_go()

    def hopeless(self, error: BaseException) -> str | None:
        is_refused = isinstance(error, DatabaseError) and not isinstance(error, DatabaseUnavailable)
        return str(error) if is_refused and not self.was_open else super().hopeless(error)

    # -- adding

    def lacks(self, option: str, value: Any) -> str | None:
        return self._form.lacks(option)

    async def add(self, job: StoredJob, options: Options) -> StoredJob:
        await self._start([(job, options)], tx=None)
        return job

    async def add_many(self, jobs: Sequence[tuple[StoredJob, Options]]) -> list[StoredJob]:
        if jobs:
            await self._start(jobs, tx=None)
        return [job for job, _ in jobs]

    async def add_within(self, tx: Any, job: StoredJob, options: Options) -> StoredJob:
        await self._start([(job, options)], tx=tx)
        return job

    async def _start(self, jobs: Sequence[tuple[StoredJob, Options]], *, tx: object) -> None:
        chains = [self._chain(job, options) for job, options in jobs]
        try:
            await start_jobs(self._store, chains, tx=tx)
        except DuplicateJobId as error:
            taken = next(job for (job, _), chain in zip(jobs, chains, strict=True) if chain.id in error.job_ids)
            raise self.duplicate(taken.id) from error
        except TransactionError as error:
            raise QueueConfigurationError(str(error), queue_name=self.queue_name, cause=error) from error

    def _chain(self, job: StoredJob, options: Options) -> NewJob:
        try:
            return new_chain(self._form, job, options)
        except PayloadError as error:
            raise self._invalid(job, error) from error

    def _invalid(self, job: StoredJob, error: PayloadError) -> QueueDataError:
        at = f" at {error.field}" if error.field != "$" else ""
        return unfit(job, f"{error.part}{at}: {error.problem}", error)

    # -- taking

    async def fetch(self, count: int, wait: timedelta = timedelta()) -> Sequence[TakenJob]:
        if count < 1:
            return []
        until = time.monotonic() + wait.total_seconds()
        self._interrupted = False
        self._retention.begin()
        listener = await self._listen() if wait else None
        while True:
            await self._maintenance.look()
            taken = [await self._begin(row) for row in await self._link.take(self._claims, count)]
            jobs = [job for job in taken if job is not None]
            if taken and not jobs:
                continue  # all of them have ended: there may be more
            if jobs or listener is None or self._interrupted or time.monotonic() >= until:
                break
            await self._wait(listener, until)
        if listener is not None:
            listener.has_room = False  # until it is asked again: hints go to those who can take
        return jobs

    async def _listen(self) -> Listener:
        if self._listener is None:
            listening = self._app.notify.listen(types=[self._form.type_name], awaited=True)
            self._listener = await self._listening.enter_async_context(listening)
        self._listener.has_room = True
        return self._listener

    async def _wait(self, listener: Listener, until: float) -> None:
        """Until there may be something to take, or to look after."""
        notify, now = self._app.notify, time.monotonic()
        if not (notify.crosses_processes and notify.is_up):
            until = min(until, now + _POLL_WITHOUT_HINTS)
        for hint in await listener.wait(max(min(until, self._maintenance.next_scan) - now, 0.0)):
            if hint.kind is HintKind.AWAITED:
                self._store.awaited.add(hint.key)
            else:
                self._maintenance.scan_sooner(hint)

    def interrupt(self) -> None:
        self._interrupted = True
        if self._listener is not None:
            self._listener.wake()

    async def _begin(self, row: Row) -> TakenJob | None:
        job = await self._read(row)
        if job is None or not is_expired(job.native.facts, row):
            return job
        await self._end(job, expired(job.native.facts, row, self._link.worker))
        return None

    async def _crashed(self, row: Row) -> None:
        job = await self._read(row)
        if job is not None:
            await self._end(job, crashed(job.native.facts, row, self._link.worker))

    async def _read(self, row: Row) -> TakenJob | None:
        """The job; None where it cannot be read, and fails for that."""
        try:
            return active(self._form, self.queue_name, row, holder=self._link.worker)
        except PayloadError as error:
            job = QueueJob(
                id=str(row.id), name="", queue_name=self.queue_name, data=Raw(b"null"), created_at=row.created_at
            )
            await self._end(job, unreadable(row, self._link.worker, error), error.problem)
            return None

    async def _end(self, job: StoredJob, settlement: Settlement, problem: str = "") -> None:
        """Have it settled, and tell of what has failed that way."""
        if settlement.kind != "fail":
            await self._link.put(settlement)
            return
        error = read_errors(settlement.errors)[-1] if settlement.errors else None
        reason = _REASONS.get(error.type if error is not None else "", QueueFailureReason.PERMANENT)
        ended = msgspec.structs.replace(
            job,
            status=QueueJobStatus.FAILED,
            stalls=job.stalls + (reason is QueueFailureReason.STALLED),
            reason=reason,
            error=error.message if error is not None else problem,
        )
        await self._link.put(settlement, then=partial(self._has_ended, settlement, ended))

    def _has_ended(self, settlement: Settlement, job: StoredJob) -> None:
        if not settlement.remove:
            self._retention.finished(JobStatus.FAILED, settlement.job_id)
        self.on_ended(job)

    async def renew(self, jobs: Sequence[TakenJob]) -> Sequence[TakenJob]:
        held = {taken.row.id: taken for taken in map(self._held, jobs)}
        renewals = await self._link.renew([HeldAttempt(t.row.id, t.row.attempt, self._hold) for t in held.values()])
        lost = {renewal.job_id: renewal.lost for renewal in renewals if renewal.lost is not None}
        for job_id, reason in lost.items():
            if reason is LossReason.CANCELLED:
                await self._link.put(settle.settlement_of_cancel(held[job_id].row, self._link.worker))
        return [job for job in jobs if job.native.row.id in lost]

    async def report_progress(self, job: TakenJob, progress: Progress) -> None:
        taken = self._held(job)
        await self._link.report(ProgressReport(taken.row.id, taken.row.attempt, progress.fraction, progress.note))

    # -- settling

    async def ack(self, job: TakenJob, result: Raw | None = None) -> None:
        taken = self._held(job)
        try:
            done = completed(self._form, taken, result, job.processed_at)
        except PayloadError as error:
            await self.nack(job, error)
            raise self._invalid(job, error) from error
        if not all(await self._settle([done])):
            raise self.not_active(job.id)
        if not done.remove:
            self._retention.finished(JobStatus.COMPLETED, taken.row.id)

    async def nack(self, job: TakenJob, error: BaseException) -> timedelta | None:
        failure = failed(self._held(job), error)
        if not all(await self._settle([failure])):
            raise self.not_active(job.id) if await self._find(job.id) else self.not_found(job.id)
        if failure.kind == "fail":
            if not failure.remove:
                self._retention.finished(JobStatus.FAILED, failure.job_id)
            return None
        self._maintenance.scan_sooner(Hint(HintKind.DEFERRED, self._form.type_name))
        return timedelta(seconds=failure.delay)

    async def release(self, jobs: Sequence[TakenJob]) -> None:
        given_back = [settle.given_back(taken.row, taken.holder) for taken in map(self._held, jobs)]
        for job, in_time in zip(jobs, await self._settle(given_back), strict=True):
            if not in_time:
                raise self.not_active(job.id)

    def _held(self, job: TakenJob) -> Taken:
        if not isinstance(job.native, Taken) or job.native.token != job.lock_token:
            raise self.not_active(job.id)
        return job.native

    async def _settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return await self._link.settle(settlements, within=min(self._hold, _ANSWER_WITHIN))

    # -- the queue

    async def get_job(self, job_id: str) -> StoredJob | None:
        job = await self._find(job_id)
        return None if job is None else stored(self._form, self.queue_name, job)

    async def _find(self, job_id: str) -> Job | None:
        found = self._form.id_of(job_id)
        job = None if found is None else await self._app.find_job(found)
        return job if job is not None and job.type_name == self._form.type_name else None

    async def pause(self) -> None:
        # Not by way of the app, which knows no job types of this name.
        await self._store.write(self._app.state.pause([self._form.type_name]), lambda _: Effects(), doing="pause")

    async def resume(self) -> None:
        await self._app.resume(self._form.type_name)

    async def delete(self) -> None:
        after = None
        while True:
            page = await self._app.chains(types=[self._form.type_name], after=after, limit=_PAGE)
            await self._app.delete(*[chain.id for chain in page.items])
            after = page.next
            if after is None:
                break
        await self._app.resume(self._form.type_name)

    async def stats(self) -> QueueStats:
        name = self._form.type_name
        counts = (await self._store.read(self._app.state.count_jobs([name])))[name]
        paused = name in await self._store.read(self._app.state.paused())
        return QueueStats(
            waiting=counts.pending,
            delayed=counts.scheduled,
            active=counts.running,
            completed=None,  # to count them would read them all
            failed=counts.failed,
            paused=paused,
        )

    async def dead_letters(self, limit: int = 100) -> Sequence[StoredJob]:
        if limit < 1:
            return []
        failures = await self._store.read(self._app.state.list_failed(self._form.type_name, limit=limit))
        return [stored(self._form, self.queue_name, job) for job in failures]

    async def retry(self, job_id: str) -> None:
        job = await self._find(job_id)
        if not isinstance(job, FailedJob):
            raise self.not_found(job_id)
        try:
            await self._app.retry(job.chain_id)
        except (ChainNotFailed, ChainNotFound) as error:
            raise self.not_found(job_id) from error

    async def jobs(self, status: QueueJobStatus, *, after: str | None, limit: int) -> QueuePage[Raw]:
        """The newest first, whatever the state."""
        found: list[StoredJob] = []
        position = UUID(after) if after else None
        while len(found) < limit:
            page = await self._app.jobs(
                types=[self._form.type_name], status=_STATUSES[status], after=position, limit=limit - len(found)
            )
            listed = [stored(self._form, self.queue_name, job) for job in page.items]
            found += [job for job in listed if job.status is status]
            position = page.next
            if position is None:
                break
        return QueuePage(items=found, next=None if position is None else str(position))

    def is_page(self, status: QueueJobStatus, after: str) -> bool:
        try:
            return str(UUID(after)) == after
        except ValueError:
            return False

    async def remove(self, job_id: str) -> None:
        job = await self._find(job_id)
        if job is None:
            raise self.not_found(job_id)
        if isinstance(job, RunningJob):
            raise self.held(job_id)
        await self._app.delete(job.chain_id)


class Database(ProviderFactory[Link]):
    """Queues in an app's database. The app is opened with the first queue, unless it is open.

    A queue with the name of one of the app's job types is the queue of that type: `queue.add` and `app.start` do the
    same, and queue workers share its jobs with workers of the app. Every other queue has plain data.

    >>> from onward import Onward
    >>> Database(Onward("memory://", jobs=[])).for_queue("emails").capabilities.transactions
    True
    """

    def __init__(
        self,
        app: Onward,
        *,
        lease: timedelta = DEFAULT_LEASE,
        keep_completed: Keep = KEEP_COMPLETED,
        keep_failed: Keep = KEEP_FAILED,
    ) -> None:
        """`lease`: how long a job stays with a worker of which nothing is heard. `keep_completed` and `keep_failed`:
        how many finished jobs of each queue are kept, and for how long; not of the app's own job types."""
        super().__init__()
        arguments = ProviderArguments("Database")
        arguments.one_of("app", app, _is_fit, "an Onward app, and not one on a sync engine or pool")
        arguments.duration("lease", lease, least=timedelta(seconds=1))
        arguments.keep("keep_completed", keep_completed)
        arguments.keep("keep_failed", keep_failed)
        self._app, self._lease = app, lease
        self.keep = {JobStatus.COMPLETED: keep_completed, JobStatus.FAILED: keep_failed}

    def for_queue(self, queue_name: str) -> DatabaseProvider:
        job_type = self._app.registry.get(queue_name)
        if job_type is not None and job_type.definition.internal:
            raise QueueConfigurationError(
                f"job type {queue_name!r} is internal: no chain begins with it, so it cannot be a queue"
            )
        if job_type is not None and job_type.encryption is not None:
            raise QueueConfigurationError(
                f"job type {queue_name!r} is encrypted, which queues are not: run it with app.worker()"
            )
        form = Enveloped(queue_name) if job_type is None else Typed(job_type)
        lease = self._lease if job_type is None or job_type.lease is None else job_type.lease
        provider = DatabaseProvider(queue_name, self, self.events_of(queue_name), form=form, lease=lease)
        return provider.declare(max_job_size=self._app.registry.limits.bytes)

    async def _open(self) -> Link:
        opened_here = self._app.loop is None
        if self._app.loop not in (None, asyncio.get_running_loop()):
            raise QueueConfigurationError(elsewhere("the app of this database", has_ended=self._app.loop.is_closed()))
        if opened_here:
            try:
                await self._app.open()
            except ConfigurationError as error:  # such as tables that are missing
                raise QueueConfigurationError(str(error)) from error
        return Link(self._app, opened_here=opened_here)

    async def _close(self, connection: Link) -> None:
        await connection.close()


def _is_fit(app: object) -> bool:
    return isinstance(app, Onward) and app.driver.is_async

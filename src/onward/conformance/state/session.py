"""The adapter on one connection, in the words that the tests use."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

from onward.model import (
    ChainId,
    FailureReason,
    Job,
    JobError,
    JobId,
    JobStatus,
    LossReason,
    WorkerId,
    new_id,
)
from onward.state.command import Operation
from onward.state.contract import (
    Change,
    Filter,
    HeldAttempt,
    NewJob,
    ProgressReport,
    Reaped,
    Settlement,
    Started,
    StateAdapter,
    TakenJob,
    TypeClaim,
)
from onward.state.driver import Connection, transaction
from onward.state.next_in_line import NextInLine
from onward.state.rows import write_errors

WORKER = "worker-1"
OTHER_WORKER = "worker-2"
LEASE = 60.0


class Session:
    """The adapter on one connection."""

    def __init__(self, state: StateAdapter, connection: Connection) -> None:
        self.state, self.connection = state, connection

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """A transaction that commits, or rolls back when an exception leaves it."""
        return transaction(self.connection)

    @asynccontextmanager
    async def rolled_back(self) -> AsyncIterator[None]:
        """A transaction that comes to nothing."""
        await self.connection.begin()
        try:
            yield
        finally:
            await self.connection.rollback()

    # -- change

    async def start(self, *jobs: NewJob, repeated: bool = False) -> Sequence[Started]:
        return await self.connection.run(self.state.start(jobs, repeated=repeated))

    async def take(
        self,
        *type_names: str,
        limit: int = 10,
        worker: WorkerId = WORKER,
        version: int = 1,
        lease: float = LEASE,
        ageing: timedelta | None = None,
        next_in_line: NextInLine | None = None,
    ) -> Sequence[TakenJob]:
        claims = [TypeClaim(name, version, lease) for name in type_names or ["work"]]
        seconds = None if ageing is None else ageing.total_seconds()
        take = self.state.take(types=claims, limit=limit, worker=worker, ageing=seconds, next_in_line=next_in_line)
        return await self.connection.run(take)

    async def take_one(self, type_name: str = "work", *, worker: WorkerId = WORKER, lease: float = LEASE) -> TakenJob:
        taken = await self.take(type_name, limit=1, worker=worker, lease=lease)
        assert len(taken) == 1
        return taken[0]

    async def start_and_take(self, job: NewJob, *, worker: WorkerId = WORKER, lease: float = LEASE) -> TakenJob:
        """A running job; no other of its type may be waiting."""
        await self.start(job)
        taken = await self.take_one(job.type_name, worker=worker, lease=lease)
        assert taken.id == job.id
        return taken

    async def settle(self, *settlements: Settlement) -> Sequence[Change]:
        return await self.connection.run(self.state.settle(settlements))

    async def finish(self, type_name: str, *, output: str = "null") -> Sequence[Change]:
        """Take the only job of a type and complete it."""
        return await self.settle(completing(await self.take_one(type_name), output=output))

    async def break_(self, type_name: str) -> Sequence[Change]:
        """Take the only job of a type and fail it."""
        return await self.settle(failing(await self.take_one(type_name)))

    async def cancel(self, *chain_ids: ChainId, cascade: bool = False) -> Sequence[Change]:
        return await self.connection.run(self.state.cancel(chain_ids, cascade=cascade))

    async def retry(self, *chain_ids: ChainId) -> Sequence[Change]:
        return await self.connection.run(self.state.retry(chain_ids))

    async def trigger(self, *chain_ids: ChainId) -> Sequence[Change]:
        return await self.connection.run(self.state.trigger(chain_ids))

    async def delete(self, *chain_ids: ChainId, cascade: bool = False) -> Sequence[Change]:
        return await self.connection.run(self.state.delete(chain_ids, cascade=cascade))

    async def lock(self, taken: TakenJob, *, holder: WorkerId = WORKER) -> None:
        await self.connection.run(self.state.lock_attempt(job_id=taken.id, attempt=taken.attempt, holder=holder))

    async def renew(self, taken: TakenJob, *, worker: WorkerId = WORKER, lease: float = LEASE) -> LossReason | None:
        """Why the lease could not be renewed, or None."""
        held = [HeldAttempt(taken.id, taken.attempt, lease)]
        renewals = await self.connection.run(self.state.renew(worker=worker, held=held))
        assert [(renewal.job_id, renewal.attempt) for renewal in renewals] == [(taken.id, taken.attempt)]
        return renewals[0].lost

    async def report(self, taken: TakenJob, fraction: float, note: str | None, *, worker: WorkerId = WORKER) -> None:
        reports = [ProgressReport(taken.id, taken.attempt, fraction, note)]
        await self.connection.run(self.state.report_progress(worker=worker, reports=reports))

    async def reap(
        self,
        *type_names: str,
        worker: WorkerId = OTHER_WORKER,
        held_here: Sequence[JobId] = (),
        limit: int = 10,
        lease: float = LEASE,
    ) -> Reaped:
        return await self.connection.run(
            self.state.reap(
                worker=worker,
                type_names=type_names or ["work"],
                held_here=held_here,
                limit=limit,
                lease=lease,
            )
        )

    # -- read

    async def find(self, job_id: JobId) -> Any:
        """The job, which must exist; typed loosely, since a test knows which kind it expects."""
        found = await self.connection.run(self.state.find_jobs([job_id]))
        assert len(found) == 1
        return found[0]

    async def status(self, job_id: JobId) -> JobStatus | None:
        """The status of a job; None when it does not exist."""
        found = await self.connection.run(self.state.find_jobs([job_id]))
        return found[0].status if found else None

    async def statuses(self, *job_ids: JobId) -> list[JobStatus | None]:
        return [await self.status(job_id) for job_id in job_ids]

    async def has_ended(self, chain_id: ChainId) -> bool:
        return (await self.connection.run(self.state.ended_chains([chain_id])))[chain_id]

    async def everything(self) -> Sequence[Job]:
        return await self.connection.run(self.state.list_jobs(Filter(), after=None, limit=1000))

    async def ask_often(self) -> None:
        """Keep a transaction open for as long as a handful of questions take, while others run into its locks."""
        for _ in range(30):
            await self.connection.run(self.state.ended_chains([]))


def errors(message: str = "it broke") -> str:
    """The errors of a job as they are stored."""
    return write_errors(None, JobError(type="ValueError", message=message))


def completing(taken: TakenJob, *, output: str = "null", holder: WorkerId = WORKER) -> Settlement:
    return Settlement(
        job_id=taken.id, attempt=taken.attempt, holder=holder, kind="complete", output=output, completed_by=holder
    )


def failing(
    taken: TakenJob, *, reason: FailureReason = FailureReason.PERMANENT, holder: WorkerId = WORKER
) -> Settlement:
    return Settlement(
        job_id=taken.id,
        attempt=taken.attempt,
        holder=holder,
        kind="fail",
        reason=reason,
        errors=errors(),
        failures=1,
    )


def retrying(
    taken: TakenJob,
    *,
    delay: float = 0.0,
    at: datetime | None = None,
    failures: int = 1,
    crashes: int = 0,
    transients: int = 0,
    keep_place: bool = False,
    holder: WorkerId = WORKER,
) -> Settlement:
    return Settlement(
        job_id=taken.id,
        attempt=taken.attempt,
        holder=holder,
        kind="requeue",
        errors=errors(),
        delay=delay,
        at=at,
        failures=failures,
        crashes=crashes,
        transients=transients,
        keep_place=keep_place,
    )


def continuing(taken: TakenJob, *next: NewJob, holder: WorkerId = WORKER) -> Settlement:
    return Settlement(
        job_id=taken.id, attempt=taken.attempt, holder=holder, kind="continue", next=next, completed_by=holder
    )


def next_of(taken: TakenJob, type_name: str = "next", *, input: str = "null", **fields: Any) -> NewJob:
    """The job that a chain continues with."""
    return NewJob(
        id=new_id(),
        chain_id=taken.chain_id,
        chain_index=taken.chain_index + 1,
        type_name=type_name,
        payload_version=1,
        input=input,
        origin_id=taken.id,
        root_id=taken.root_id,
        **fields,
    )


def hold(store: Any, taken: TakenJob, *, holder: WorkerId = WORKER) -> Operation[bool]:
    """Locks the job of an attempt."""
    state: StateAdapter = store.state
    return state.hold_attempt(job_id=taken.id, attempt=taken.attempt, holder=holder)


def kinds(changes: Sequence[Change]) -> set[tuple[JobId, str]]:
    """What happened to which job."""
    return {(change.job_id, change.kind) for change in changes}

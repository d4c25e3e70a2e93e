"""Completing a job without a worker: approvals, webhooks, repairs."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from onward.define.job_type import Step
from onward.define.outcome import Next
from onward.define.registry import Registry
from onward.define.request import BlockerSource
from onward.errors import ChainNotFound, JobAlreadyCompleted, PhaseError
from onward.lifecycle.after_commit import Effects
from onward.lifecycle.settle import encode_output
from onward.lifecycle.start import Predecessor, plan_continuation
from onward.lifecycle.store import Store
from onward.model import ChainId, CompletedJob, FailedJob, Job, JobStatus, RunningJob
from onward.notify.contract import Hint, HintKind
from onward.state.contract import Settlement
from onward.state.driver import Connection, run_now


async def current_job(store: Store, chain_id: ChainId, tx: object) -> Job:
    """The job a chain has come to, locked. Raises when there is none, or when it has ended."""

    async def look(connection: Connection) -> Job | None:
        return await store.state.lock_current(connection, chain_id)

    job = await store.read(look, tx=tx)
    if job is None:
        raise ChainNotFound([chain_id])
    if isinstance(job, CompletedJob | FailedJob):
        raise JobAlreadyCompleted(job.id, job.attempt)
    return job


class Completion:
    """A locked job, to be completed by `done` or `continue_with`. Leaving the block without either changes nothing."""

    def __init__(self, registry: Registry, store: Store, job: Job, tx: object) -> None:
        self._registry, self._store, self._tx = registry, store, tx
        self.job: Job | None = job
        """The job to complete; after `continue_with` the next one, after `done` None."""

    @property
    def status(self) -> JobStatus | None:
        return None if self.job is None else self.job.status

    @property
    def input(self) -> Any:
        """The job's input, decoded."""
        job = self._open_job()
        return self._registry.find(job.type_name).read_plain_input(job.input, job.payload_version)

    async def done(self, output: Any) -> None:
        """Complete the chain with an output."""
        job = self._open_job()
        encoded = encode_output(self._registry.find(job.type_name), output)
        await self._settle(job, Settlement(**_fence(job), kind="complete", output=encoded))
        self.job = None

    async def continue_with(
        self,
        step: Step[Any, Any],
        input: Any,
        *,
        delay: timedelta | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        blockers: Sequence[BlockerSource] = (),
    ) -> None:
        """Complete this job by continuing; the block goes on with the next one."""
        job = self._open_job()
        after = Predecessor(job.id, job.chain_id, job.chain_index, job.root_id, job.type_name, job.priority)
        outcome = Next(step, input, delay=delay, at=at, priority=priority, blockers=blockers)
        following = plan_continuation(self._registry, outcome, after)
        await self._settle(job, Settlement(**_fence(job), kind="continue", next=following))
        self.job = await current_job(self._store, job.chain_id, self._tx)

    def _open_job(self) -> Job:
        if self.job is None:
            raise PhaseError("the chain is already complete: there is no job left to complete")
        return self.job

    async def _settle(self, job: Job, settlement: Settlement) -> None:
        async def operation(connection: Connection) -> tuple[None, Effects]:
            changes = await self._store.state.settle(connection, [settlement])
            effects = self._store.consequences.of_settlements([settlement], changes, everybody=True)
            if isinstance(job, RunningJob):
                effects.hints.append(Hint(HintKind.LOST, str(job.id)))
            return None, effects

        await self._store.write(operation, tx=self._tx, doing="complete")


class SyncCompletion:
    """`Completion` for code without an event loop."""

    def __init__(self, inner: Completion) -> None:
        self._inner = inner

    @property
    def job(self) -> Job | None:
        return self._inner.job

    @property
    def status(self) -> JobStatus | None:
        return self._inner.status

    @property
    def input(self) -> Any:
        return self._inner.input

    def done(self, output: Any) -> None:
        """Complete the chain with an output."""
        run_now(self._inner.done(output))

    def continue_with(self, step: Step[Any, Any], input: Any, **options: Any) -> None:
        """Complete this job by continuing; the options are those of `Completion.continue_with`."""
        run_now(self._inner.continue_with(step, input, **options))


def _fence(job: Job) -> dict[str, Any]:
    holder = job.leased_by if isinstance(job, RunningJob) else None
    return {"job_id": job.id, "attempt": job.attempt, "holder": holder}

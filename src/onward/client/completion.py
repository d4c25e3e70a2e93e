"""Completing a job without a worker: approvals, webhooks, repairs."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic

import msgspec
from typing_extensions import TypeVar

from onward.client.arguments import Asked
from onward.define.job_type import Step
from onward.define.meta import merged
from onward.define.outcome import Next
from onward.define.registry import Registry
from onward.define.request import BlockerSource, InputOf
from onward.define.sealing import shown_job
from onward.errors import ChainNotFound, JobAlreadyCompleted, PhaseError
from onward.lifecycle.effects import Effects
from onward.lifecycle.settle import encode_output
from onward.lifecycle.start import Predecessor, plan_continuation
from onward.lifecycle.store import Store
from onward.model import CompletedJob, FailedJob, Job, JobStatus, RunningJob
from onward.notify.contract import Hint, HintKind
from onward.state.contract import Change, Settlement
from onward.state.driver import run_now

I_co = TypeVar("I_co", covariant=True)
O_contra = TypeVar("O_contra", contravariant=True)
P = TypeVar("P")


async def current_job(store: Store, asked: Asked, tx: object) -> Job:
    """The job a chain has come to, locked. Raises when there is none, when it has ended, or when it is another's."""
    chain_id = asked.ids[0]

    job = await store.read(asked.checked(store.state, store.state.lock_current(chain_id)), tx=tx)
    if job is None:
        raise ChainNotFound([chain_id])
    if isinstance(job, CompletedJob | FailedJob):
        raise JobAlreadyCompleted(job.id, job.attempt)
    return job


class Completion(Generic[I_co, O_contra]):
    """A locked job, to be completed by `done` or `continue_with`. Leaving the block without either changes nothing.

    Opened through a handle, it knows the types of the chain's first input and of its output.
    """

    def __init__(self, registry: Registry, store: Store, job: Job, tx: object, *, began_with: str | None) -> None:
        self._registry, self._store, self._tx, self._began_with = registry, store, tx, began_with
        self._job: Job | None = job

    @property
    def job(self) -> Job | None:
        """The job to complete; after `continue_with` the next one, after `done` None."""
        return None if self._job is None else shown_job(self._job, self._registry.guard_of(self._job.type_name))

    @property
    def status(self) -> JobStatus | None:
        return None if self._job is None else self._job.status

    @property
    def input(self) -> I_co:
        """The job's input, decoded. For a chain that has gone on to another step, ask `input_of(step)`."""
        job = self._open_job()
        if self._began_with not in (None, job.type_name):
            raise PhaseError(
                f"the chain began with {self._began_with!r} and has come to {job.type_name!r}: use input_of(step)"
            )
        decoded: I_co = self._input(job)
        return decoded

    def input_of(self, step: Step[P, Any]) -> P:
        """The job's input, decoded, where the chain has come to this step."""
        job = self._open_job()
        if self._registry.step(step).name != job.type_name:
            raise PhaseError(f"the chain has come to {job.type_name!r}, not to {step.name!r}")
        decoded: P = self._input(job)
        return decoded

    def _input(self, job: Job) -> Any:
        stored = msgspec.json.encode(job.input)
        return self._registry.find(job.type_name).read_input(stored, job.payload_version, job.id)

    async def done(self, output: O_contra) -> None:
        """Complete the chain with an output."""
        job = self._open_job()
        job_type = self._registry.find(job.type_name)
        version = job_type.definition.version
        settlement = Settlement(
            **_fence(job),
            kind="complete",
            output=encode_output(job_type, output, job.chain_id),
            payload_version=None if version == job.payload_version else version,
        )
        await self._settle(job, settlement)
        self._job = None

    async def continue_with(
        self,
        step: Step[P, O_contra],
        input: InputOf[P],
        *,
        delay: timedelta | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        blockers: Sequence[BlockerSource] = (),
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """Complete this job by continuing; the block goes on with the next one."""
        job = self._open_job()
        place = job.id, job.chain_id, job.chain_index, job.root_id
        after = Predecessor(*place, job.type_name, job.priority, merged(None, job.meta))
        outcome = Next(step, input, delay=delay, at=at, priority=priority, blockers=blockers, meta=meta)
        following = plan_continuation(self._registry, outcome, after)
        await self._settle(job, Settlement(**_fence(job), kind="continue", next=following))
        self._job = await current_job(self._store, Asked([job.chain_id], {}), self._tx)

    def _open_job(self) -> Job:
        if self._job is None:
            raise PhaseError("the chain is already complete: there is no job left to complete")
        return self._job

    async def _settle(self, job: Job, settlement: Settlement) -> None:
        def effects_of(changes: Sequence[Change]) -> Effects:
            effects = self._store.effects_of.settlements([settlement], changes, everybody=True)
            if isinstance(job, RunningJob):
                effects.hints.append(Hint(HintKind.LOST, str(job.id)))
            return effects

        await self._store.write(self._store.state.settle([settlement]), effects_of, tx=self._tx, doing="complete")


class SyncCompletion(Generic[I_co, O_contra]):
    """`Completion` for code without an event loop."""

    def __init__(self, inner: Completion[I_co, O_contra]) -> None:
        self._inner = inner

    @property
    def job(self) -> Job | None:
        return self._inner.job

    @property
    def status(self) -> JobStatus | None:
        return self._inner.status

    @property
    def input(self) -> I_co:
        return self._inner.input

    def input_of(self, step: Step[P, Any]) -> P:
        """The job's input, decoded, where the chain has come to this step."""
        return self._inner.input_of(step)

    def done(self, output: O_contra) -> None:
        """Complete the chain with an output."""
        run_now(self._inner.done(output))

    def continue_with(self, step: Step[P, O_contra], input: InputOf[P], **options: Any) -> None:
        """Complete this job by continuing; the options are those of `Completion.continue_with`."""
        run_now(self._inner.continue_with(step, input, **options))


def _fence(job: Job) -> dict[str, Any]:
    holder = job.leased_by if isinstance(job, RunningJob) else None
    return {"job_id": job.id, "attempt": job.attempt, "holder": holder}

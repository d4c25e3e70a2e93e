"""One attempt: what the handler holds."""

import asyncio
import inspect
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeVar

from typing_extensions import Unpack

from onward.define.job_type import JobType, Step
from onward.define.outcome import Next, Outcome, Rescheduled
from onward.define.registry import RegisteredType
from onward.define.request import NewChain, StartedChain, StartOptions
from onward.define.secrets import redacted
from onward.errors import (
    PayloadError,
    PhaseError,
)
from onward.lifecycle.settle import settlement_of
from onward.lifecycle.start import plan_chains, start_jobs
from onward.lifecycle.store import Store
from onward.model import Blocker, ChainId, JobError, JobId, JobStatus, LossReason, WorkerId
from onward.state.contract import NewJob, Settlement, TakenJob
from onward.state.driver import run_now
from onward.state.rows import read_errors, read_meta
from onward.worker.middleware import find, onion
from onward.worker.phases import PhaseBlock, Phases, Workplace

logger = logging.getLogger("onward.worker")
T = TypeVar("T")
Made = TypeVar("Made", bound=Outcome[Any])


class RunningAttempt:
    """The attempt that a handler is given. Keeps the promises of `onward.Attempt`."""

    input: Any = None
    cancelled: LossReason | None = None
    was_held_up = False
    """Whether it waited for the database when it was told to stop."""
    handler: Literal["waiting", "running", "ended"] = "waiting"
    """Ended, one way or the other: what is left is to settle the job."""
    is_told = False
    """Whether everybody knows how it ended."""
    deadline = math.inf
    """When it is told to stop (monotonic)."""
    has_reported = False
    """Whether its handler has said how far it has come."""
    waited = ran = 0.0
    """Seconds from when the job was due until it was taken, and those in the handler."""
    _outcome: Outcome[Any] | None = None
    """What the handler made to return."""
    _task: asyncio.Task[Any] | None = None
    """In which an `async def` handler runs."""

    def __init__(
        self, job: TakenJob, kind: RegisteredType, store: Store, workplace: Workplace, blockers: Sequence[Blocker] = ()
    ) -> None:
        self.job, self.kind, self.blockers = job, kind, blockers
        self.phases = Phases(job, store, workplace)
        self.provided = workplace.provided
        """What `get` finds, the innermost last."""
        self._workplace = workplace

    # -- what the handler reads

    @property
    def job_id(self) -> JobId:
        return self.job.id

    @property
    def worker(self) -> WorkerId:
        return self._workplace.worker

    @property
    def chain_id(self) -> ChainId:
        return self.job.chain_id

    @property
    def root_id(self) -> JobId:
        return self.job.root_id

    @property
    def job_type(self) -> str:
        return self.job.type_name

    @property
    def number(self) -> int:
        return self.job.attempt

    @property
    def failures(self) -> int:
        return self.job.failures

    @property
    def meta(self) -> Mapping[str, Any]:
        return read_meta(self.job.meta)

    @property
    def last_error(self) -> JobError | None:
        errors, guard = read_errors(self.job.errors), self.kind.guard
        if not errors or guard is None:
            return errors[-1] if errors else None
        return guard.error(errors[-1], self.job.id)

    def outputs_of(self, job_type: JobType[Any, Any]) -> list[Any]:
        registry = self._workplace.registry
        self.kind.may_be_blocked_by(registry.step(job_type).name)
        return [
            registry.find(blocker.current_type_name).read_output(
                blocker.output or "null", blocker.payload_version, blocker.chain_id
            )
            for blocker in self.blockers
            if blocker.type_name == job_type.name and blocker.status is JobStatus.COMPLETED
        ]

    def get(self, kind: type[T]) -> T:
        return find(self, kind)

    def progress(self, fraction: float, note: str | None = None) -> None:
        guard = self.kind.guard
        self.has_reported = True
        keep = None if guard is None else partial(guard.note, job_id=self.job.id, input=self.input)
        self._workplace.progress.report(self.job.id, self.job.attempt, fraction, note, keep)

    def masked(self, text: str) -> str:
        return text if self.kind.guard is None else redacted(text, self.secrets())

    def secrets(self) -> set[str]:
        """Those of the input, as it is stored and as the handler has it; none but of a type with a guard."""
        if self.kind.guard is None:
            return set()
        inputs = [] if self.input is None else [self.input]
        with suppress(PayloadError):  # then it is also why the attempt failed
            inputs.append(self.kind.input.plain(self.job.input, self.job.id))
        return self.kind.guard.secrets_in(*inputs)

    # -- how it may end

    def continue_with(self, step: Step[Any, Any], input: Any, **options: Any) -> Next[Any]:
        return self._made(Next(step, input, **options))

    def reschedule(self, **when: Any) -> Outcome[Any]:
        return self._made(Rescheduled(**when))

    def _made(self, outcome: Made) -> Made:
        if self._outcome is not None:
            raise PhaseError(
                f"{_spelled(outcome)} after {_spelled(self._outcome)}: an attempt ends once; return the first, or "
                "start the second as a chain of its own with attempt.start(…)"
            )
        self._outcome = outcome
        return outcome

    # -- other chains

    def start(self, job_type: JobType[Any, Any], input: Any, **options: Unpack[StartOptions]) -> Any:
        """In the phase that is open, or else at once; `async def` handlers await it."""
        chain = NewChain(job_type=job_type, input=input, **options)
        jobs = plan_chains(self._workplace.registry, [chain], origin=self)
        starting = self._start(job_type, jobs)
        return run_now(starting) if self.kind.runs_in_thread else starting

    async def _start(self, job_type: JobType[Any, Any], jobs: Sequence[NewJob]) -> StartedChain[Any]:
        started = (await start_jobs(self.phases.store, jobs, tx=self.phases.tx))[0]
        return StartedChain(job_type=job_type, id=started.id, duplicate=started.duplicate)

    # -- phases

    def prepare(self, *, atomic: bool = False) -> PhaseBlock:
        return PhaseBlock(self, self.phases, "atomic" if atomic else "prepare")

    def complete(self) -> PhaseBlock:
        return PhaseBlock(self, self.phases, "complete")

    # -- the end, called by the worker

    @property
    def facts(self) -> dict[str, Any]:
        """What every event about this attempt says."""
        job = self.job
        return {"job_id": job.id, "chain_id": job.chain_id, "type_name": job.type_name, "attempt": job.attempt}

    async def perform(self, run: Callable[["RunningAttempt"], Any] | None = None) -> Settlement | None:
        """Run the handler, or `run` in its place: awaited here, or to its end in this thread.

        Then settle in the open phase, in one commit with its writes; or say what is to be settled with others.
        """
        kind, run = self.kind, run or self.kind.step.run
        assert run is not None
        self.handler, began = "running", time.monotonic()
        try:
            try:
                if kind.middleware:
                    returned = self._run_surrounded(run)
                else:
                    returned = self._begin(run) if kind.runs_in_thread else run(self)
                if not kind.runs_in_thread:
                    self._task = asyncio.current_task()
                    if self.cancelled is not None:
                        assert self._task is not None
                        self._task.cancel()
                    returned = await returned
            finally:
                self._task, self.handler, self.ran = None, "ended", time.monotonic() - began
            if self._outcome is not None or self.phases.failure is not None:
                self._check_end(returned)
            settlement = settlement_of(self._workplace.registry, kind, self.job, self._workplace.worker, returned)
            if self.has_reported:
                settlement = self._workplace.progress.last_word(settlement)
            return await self.phases.settle(settlement)
        except BaseException:
            self.phases.stage = "ended"  # also for what the handler has left behind
            with suppress(Exception):  # of a connection that is lost; what led here says more
                await self.phases.discard()
            raise

    def _begin(self, run: Callable[..., Any]) -> Any:
        returned = run(self)
        if self.kind.runs_in_thread and inspect.iscoroutine(returned):
            returned.close()
            raise PhaseError(f"{self.kind.name!r} is a def handler and returned a coroutine: write it as async def")
        return returned

    def _run_surrounded(self, run: Callable[..., Any]) -> Any:
        async def surrounded() -> Any:
            async with onion(self, "around_handler"):
                returned = self._begin(run)
                return await returned if inspect.isawaitable(returned) else returned

        return run_now(surrounded()) if self.kind.runs_in_thread else surrounded()

    def runs_in(self, task: asyncio.Task[Any]) -> bool:
        """Whether this task runs the handler."""
        return self._task is task

    def cancel(self, reason: LossReason) -> None:
        """Tell the handler to stop. Nothing is delivered once it has returned."""
        if self.cancelled is None:
            self.cancelled, self.was_held_up, self.phases.has_time = reason, self.phases.is_held_up, False
            self._workplace.was_told(self)
            if self._task is not None:
                self._task.cancel(str(reason))

    def _check_end(self, returned: Any) -> None:
        """Raise if what the handler returned is not the end of what it did."""
        failure = self.phases.failure
        if failure is not None and self.phases.stage == "ended":
            raise failure.error
        if self._outcome is not None and returned is not self._outcome:
            raise PhaseError(
                f"{self.kind.name!r} called {_spelled(self._outcome)} and returned something else: write "
                f"`return {_spelled(self._outcome)}`"
            )


def _spelled(outcome: Outcome[Any]) -> str:
    if isinstance(outcome, Next):
        return f"attempt.continue_with({outcome.step.name}, …)"
    return "attempt.reschedule(…)"

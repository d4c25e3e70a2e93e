"""The attempt as a handler in a process sees it: no transactions, and nothing that lives in the worker."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from onward.define.codec import Codec
from onward.define.job_type import JobType, Step
from onward.define.outcome import Next, Outcome, Rescheduled
from onward.define.secrets import redacted, secrets_of
from onward.errors import PhaseError, UndeclaredStep
from onward.model import Blocker, JobStatus, LossReason
from onward.options import LONGEST_NOTE, cut, storable
from onward.worker.processes.messages import Said, Task
from onward.worker.progress import check_progress


class ProcessAttempt:
    """Keeps the promises of `onward.Attempt` as far as a process can."""

    def __init__(self, task: Task, input: Any, say: Callable[[Said], None]) -> None:
        self._task, self._say = task, say
        self.input = input
        self.job_id, self.chain_id, self.root_id = task.job_id, task.chain_id, task.root_id
        self.job_type, self.number, self.worker = task.job_type, task.number, task.worker
        self.failures, self.last_error = task.failures, task.last_error
        self.meta: Mapping[str, Any] = task.meta
        self.blockers: Sequence[Blocker] = task.blockers
        self.cancelled: LossReason | None = None
        """Always None: a process is not told to stop but killed."""

    def masked(self, text: str) -> str:
        return redacted(text, set(self._task.secrets)) if self._task.secrets else text

    def outputs_of(self, job_type: JobType[Any, Any]) -> list[Any]:
        if job_type.name not in self._task.blocked_by:
            raise UndeclaredStep(job_type=self.job_type, step=job_type.name, option="blocked_by")
        # By what the chain promises: which type it ended with is not known in this process.
        promised, secrets = job_type.signature.output, secrets_of(*job_type.signature.marked_output)
        codec = Codec(promised, job_type=job_type.name, part="output", limits=self._task.limits, secrets=secrets)
        return [
            codec.decode(blocker.output or "null")
            for blocker in self.blockers
            if blocker.type_name == job_type.name and blocker.status is JobStatus.COMPLETED
        ]

    def progress(self, fraction: float, note: str | None = None) -> None:
        check_progress(fraction, note)
        self._say(Said(float(fraction), note and storable(cut(note, LONGEST_NOTE))))

    def continue_with(self, step: Step[Any, Any], input: Any, **options: Any) -> Next[Any]:
        return Next(step, input, **options)

    def reschedule(self, **when: Any) -> Outcome[Any]:
        return Rescheduled(**when)

    def prepare(self, *, atomic: bool = False) -> NoReturn:
        self._refuse("prepare()", "transactions")

    def complete(self) -> NoReturn:
        self._refuse("complete()", "transactions")

    def start(self, job_type: JobType[Any, Any], input: Any, **options: Any) -> NoReturn:
        self._refuse(f"start({job_type.name})", "transactions")

    def get(self, kind: type[Any]) -> NoReturn:
        self._refuse(f"get({kind.__name__})", "middleware and resources")

    def _refuse(self, call: str, what: str) -> NoReturn:
        raise PhaseError(
            f'{call} of job type {self.job_type!r}: {what} stay in the worker, and executor="process" runs the handler '
            "in a process of its own; return an outcome and let the next step use them, or leave executor= out"
        )

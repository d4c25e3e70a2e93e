"""A job that was let go of by the guardian of a stuck worker: its last error says what the worker could not."""

import msgspec

from onward.model import JobError
from onward.state.contract import TakenJob
from onward.state.rows import read_errors, write_errors


def timeout_of(job: TakenJob) -> tuple[TakenJob, JobError] | None:
    """The job as it was before its guardian let go of it, and why that was; None for one that was not let go of.

    Nothing else is kept about an attempt before it has ended.
    """
    errors = read_errors(job.errors)
    if not errors or errors[-1].attempt != job.attempt:
        return None
    kept: str | None = None
    for error in errors[:-1]:
        kept = write_errors(kept, error)
    return msgspec.structs.replace(job, errors=kept), errors[-1]

"""Failed jobs by what made them fail."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from onward.model import ChainId, FailedJob, FailureReason, Job, JobError

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)
_NOT_THEIRS = re.compile(r"[/\\](?:site-packages|dist-packages|lib[/\\]python[\d.]+)[/\\]|[/\\]onward[/\\]|^<frozen")


class Cause(NamedTuple):
    """What failed jobs have in common."""

    type_name: str
    reason: FailureReason
    error: str
    """The type of the last error; empty where there is none."""
    place: str
    """File, line and function of the last frame that is not a library's; empty where it is not known."""

    @property
    def id(self) -> str:
        """Short, and the same as long as the cause is."""
        return hashlib.sha256("\0".join(self).encode()).hexdigest()[:8]


@dataclass(slots=True, kw_only=True)
class Group:
    """The jobs that failed for one cause."""

    cause: Cause
    first: datetime
    last: datetime
    message: str
    """Of the one that failed last."""
    chain_ids: list[ChainId] = field(default_factory=list)


def grouped(jobs: Iterable[Job]) -> list[Group]:
    """Failed jobs by their cause, the most frequent first."""
    groups: dict[Cause, Group] = {}
    for job in jobs:
        if not isinstance(job, FailedJob):
            continue
        cause = cause_of(job)
        message = job.last_error.message if job.last_error else ""
        group = groups.setdefault(cause, Group(cause=cause, first=job.failed_at, last=job.failed_at, message=message))
        group.chain_ids.append(job.chain_id)
        group.first = min(group.first, job.failed_at)
        if job.failed_at > group.last:
            group.last, group.message = job.failed_at, message
    return sorted(groups.values(), key=lambda group: (-len(group.chain_ids), group.cause))


def cause_of(job: FailedJob) -> Cause:
    """Why a job failed, without what differs from one job to the next."""
    error = job.last_error
    return Cause(job.type_name, job.reason, error.type if error else "", place_of(error) if error else "")


def place_of(error: JobError) -> str:
    """Where in the application's code an error was raised, or passed through last."""
    frames = list(_FRAME.finditer(error.traceback))
    if not frames:
        return ""
    own = next((frame for frame in reversed(frames) if not _NOT_THEIRS.search(frame["file"])), frames[-1])
    return f"{own['file']}:{own['line']} in {own['function']}"

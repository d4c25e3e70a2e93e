"""What operators are told, as frozen values: who works, how much is done, what waits and why."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal
from uuid import UUID

import msgspec

from onward.model import ChainId, JobId, WorkerId


class RunningJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a worker holds."""

    job_id: JobId
    chain_id: ChainId
    type_name: str
    attempt: int
    leased_until: datetime


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker, as its row and its leases tell."""

    id: WorkerId
    """What stands beside the jobs it holds."""
    host: str
    pid: int
    version: str | None
    """Of the application's code, if it was said."""
    onward_version: str
    types: Mapping[str, Sequence[int]]
    """What it takes: by the name of a type, the versions of a payload that it can read."""
    concurrency: int
    started_at: datetime
    seen_at: datetime
    """Its last sign of life."""
    state: Literal["alive", "stopping", "dead"]
    """Dead: it has given no sign of life for longer than it promised, and was not seen to stop."""
    running: Sequence[RunningJob] = ()
    blocked_since: datetime | None = None
    """At its last sign of life its event loop had not turned since then: it lives, but what runs there stands still."""
    is_known: bool = True
    """False: it has no row, and only the jobs that it holds tell of it. It is of an older version, or its row was just
    deleted. Its host is "", its process 0, and `types` are those of what it holds."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How long something takes, each to within a few hundredths of itself."""

    p50: timedelta
    p95: timedelta
    p99: timedelta


class Minute(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a minute."""

    at: datetime
    """Its beginning."""
    started: int = 0
    completed: int = 0
    failed: int = 0
    """For good."""
    retried: int = 0
    """Attempts that failed and will be made again."""


class TypeStats(msgspec.Struct, frozen=True, kw_only=True):
    """How a type is doing. Counts are exact up to `more_than`, and that where there are more."""

    blocked: int = 0
    pending: int = 0
    """Due: they wait for a worker, or for a place under a limit."""
    scheduled: int = 0
    """Not due yet."""
    running: int = 0
    failed: int = 0
    oldest: timedelta | None = None
    """For how long the oldest pending job has been due."""
    paused: bool = False
    minutes: Sequence[Minute] = ()
    """The last hour, oldest first; minutes without any are there too."""
    wait: Spread | None = None
    """From due to taken, over the last hour; what is older than fifty minutes may be left out."""
    run: Spread | None = None


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """How everything is doing, at one moment."""

    at: datetime
    """By the database's clock."""
    more_than: int
    """Where counting ended."""
    total: TypeStats
    """Of all types. A count is the sum of theirs: at least so many, where one of them is `more_than`."""
    types: Mapping[str, TypeStats]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was looked at, and what to do about it."""

    name: str
    """Short and lasting, for scripts: "workers"."""
    level: Literal["ok", "warning", "error"]
    message: str
    advice: str | None = None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether jobs get done."""

    at: datetime
    findings: Sequence[Finding]

    @property
    def healthy(self) -> bool:
        """Whether nothing is in error."""
        return all(finding.level != "error" for finding in self.findings)


class Why(StrEnum):
    """Why a job is where it is."""

    BLOCKED = "blocked"
    SCHEDULED = "scheduled"
    RETRYING = "retrying"
    PAUSED = "paused"
    LIMIT = "limit"
    NO_WORKER = "no_worker"
    NO_WORKER_OF_VERSION = "no_worker_of_version"
    NEXT_IN_LINE = "next_in_line"
    RUNNING = "running"
    LEASE_EXPIRED = "lease_expired"
    AWAITS_COMPLETION = "awaits_completion"
    """Its type has no handler: a person or another system completes it."""
    COMPLETED = "completed"
    FAILED = "failed"


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is where it is, in a sentence and in facts."""

    job_id: JobId
    why: Why
    """The first thing that stands in its way."""
    sentence: str
    facts: Mapping[str, str | int | float | bool | UUID | datetime | Sequence[str] | None]
    """By name, as --json shows them."""
    also: Sequence[str] = ()
    """What else would stand in its way, each a sentence."""

"""What may be said about a worker: to `app.worker(…)`, and on the command line."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypedDict, get_args

from onward.define.job_type import SHORTEST_LEASE, wrong_backoff
from onward.define.middleware import Middleware, Resource
from onward.errors import require
from onward.model import Backoff
from onward.options import (
    LONGEST_NAME,
    wrong_choice,
    wrong_duration,
    wrong_flag,
    wrong_number,
    wrong_several,
    wrong_text,
)
from onward.worker.guardian.contract import GuardianKind
from onward.worker.middleware import wrong_resources

_SHORTEST = timedelta(milliseconds=1)
_LEAST_GRACE = 1.0
_MOST_CONCURRENCY = 1_000_000


def wrong_ageing(value: object) -> str | None:
    """What is wrong with it, if anything; also as an app's option."""
    return None if value is None else wrong_duration("ageing", value, least=_SHORTEST)


class WorkerKeywords(TypedDict, total=False):
    """How a worker is to work; what is not said is as in `WorkerOptions`."""

    concurrency: int
    name: str | None
    poll: timedelta | None
    grace: timedelta
    lease: timedelta
    backoff: Backoff | None
    guardian: GuardianKind
    stall: timedelta | None
    resources: Sequence[Resource]
    required_middleware: Sequence[Middleware]
    ageing: timedelta | None
    burst: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The same, complete and checked."""

    concurrency: int = 1
    """How many jobs run at a time."""
    name: str | None = None
    """The first part of its identity; None: host and process."""
    poll: timedelta | None = None
    """How often to look for jobs when no hint comes; None: 60 s, or 1 s where hints stay in one process."""
    grace: timedelta = timedelta(seconds=30)
    """How long running jobs may finish when it stops."""
    lease: timedelta = timedelta(seconds=60)
    """Of the types that do not say otherwise."""
    backoff: Backoff | None = None
    """Of the types that do not say otherwise."""
    guardian: GuardianKind = "thread"
    stall: timedelta | None = timedelta(seconds=1)
    """How long the event loop may be blocked before that is logged."""
    resources: Sequence[Resource] = ()
    required_middleware: Sequence[Middleware] = ()
    ageing: timedelta | None = None
    """How long a wait makes up for one step of priority; None: none does."""
    burst: bool = False
    """Whether it stops by itself when nothing is left to do."""

    def __post_init__(self) -> None:
        require(
            wrong_number("concurrency", self.concurrency, least=1, most=_MOST_CONCURRENCY),
            None if self.name is None else wrong_text("name", self.name, most=LONGEST_NAME),
            None if self.poll is None else wrong_duration("poll", self.poll, least=_SHORTEST),
            wrong_duration("grace", self.grace),
            wrong_duration("lease", self.lease, least=SHORTEST_LEASE),
            wrong_backoff(self.backoff),
            wrong_choice("guardian", self.guardian, get_args(GuardianKind)),
            None if self.stall is None else wrong_duration("stall", self.stall, least=_SHORTEST),
            wrong_resources(self.resources),
            wrong_several("required_middleware", self.required_middleware, of="middleware"),
            wrong_ageing(self.ageing),
            wrong_flag("burst", self.burst),
        )

    @property
    def stuck_after(self) -> float:
        """Seconds that handlers have to stop when they are told to."""
        return max(self.grace.total_seconds(), _LEAST_GRACE)

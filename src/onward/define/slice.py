"""Slices: the job types of one feature, with what they have in common."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal, overload

from onward.crypto import Encryption
from onward.define.job_type import (
    SHORTEST_LEASE,
    UNSET_TIMEOUT,
    BlockedBy,
    Executor,
    MakeJobType,
    MakeStep,
    OnBlockerFailure,
    Step,
    defined,
    make_decorator,
    wrong_backoff,
)
from onward.define.middleware import Middleware
from onward.errors import require
from onward.model import Backoff
from onward.options import LONGEST_NAME, wrong_duration, wrong_text


class Slice:
    """The job types of one feature of the application; their names begin with its prefix.

    >>> from onward import Attempt
    >>> orders = Slice("orders")
    >>> @orders.job("ship")
    ... async def ship(attempt: Attempt[int]) -> str:
    ...     return "shipped"
    >>> ship.name
    'orders.ship'
    """

    def __init__(
        self,
        prefix: str,
        *,
        middleware: Sequence[Middleware] = (),
        backoff: Backoff | None = None,
        lease: timedelta | None = None,
    ) -> None:
        """`middleware` surrounds the handlers of the slice; the first is the outermost."""
        require(
            wrong_text("Slice: prefix", prefix, most=LONGEST_NAME - 2),
            None if lease is None else wrong_duration("Slice: lease", lease, least=SHORTEST_LEASE),
            wrong_backoff(backoff),
        )
        self.prefix = prefix
        self.middleware = tuple(middleware)
        self.backoff = backoff
        self.lease = lease
        self.steps: list[Step[Any, Any]] = []

    @overload
    def job(
        self,
        name: str,
        *,
        internal: Literal[True],
        continues_to: Sequence[Step[Any, Any] | str] = (),
        blocked_by: Sequence[BlockedBy] = (),
        version: int = 1,
        lease: timedelta | None = None,
        timeout: timedelta | None = UNSET_TIMEOUT,
        backoff: Backoff | None = None,
        max_attempts: int | None = None,
        executor: Executor = "auto",
        on_blocker_failure: OnBlockerFailure = "fail",
        encryption: Encryption | Literal[False] | None = None,
    ) -> MakeStep: ...
    @overload
    def job(
        self,
        name: str,
        *,
        internal: Literal[False] = False,
        continues_to: Sequence[Step[Any, Any] | str] = (),
        blocked_by: Sequence[BlockedBy] = (),
        version: int = 1,
        lease: timedelta | None = None,
        timeout: timedelta | None = UNSET_TIMEOUT,
        backoff: Backoff | None = None,
        max_attempts: int | None = None,
        executor: Executor = "auto",
        on_blocker_failure: OnBlockerFailure = "fail",
        encryption: Encryption | Literal[False] | None = None,
    ) -> MakeJobType: ...
    def job(self, name: str, **options: Any) -> Any:
        """`@job` for this slice."""
        return make_decorator(defined(name if callable(name) else f"{self.prefix}.{name}", options, slice=self))

"""Slices: the job types of one feature, with what they have in common."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal, overload

from typing_extensions import Unpack

from onward.define.job_type import (
    SHORTEST_LEASE,
    MakeJobType,
    MakeStep,
    Step,
    TypeOptions,
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
    def job(self, name: str, *, internal: Literal[True], **options: Unpack[TypeOptions]) -> MakeStep: ...
    @overload
    def job(self, name: str, *, internal: Literal[False] = False, **options: Unpack[TypeOptions]) -> MakeJobType: ...
    def job(self, name: str, **options: Any) -> Any:
        """`@job` for this slice, with the same options."""
        return make_decorator(defined(name if callable(name) else f"{self.prefix}.{name}", options, slice=self))

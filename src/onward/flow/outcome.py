"""What a handler may return besides its result."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic

from typing_extensions import TypeVar

from onward.flow.options import Checks

R = TypeVar("R", default=Any)
C = TypeVar("C")
S = TypeVar("S", default=None)


@dataclass(frozen=True, slots=True)
class Goto(Generic[R]):
    """Save a result and go on at another stage than the declared next one.

    The stage must be among those that the handler's own stage declares: `@flow.stage("check", goto=["reject"])`.

    >>> Goto("reject", {"reason": "too young"}).stage
    'reject'
    """

    stage: str
    result: R | None = None
    delay: timedelta | None = field(default=None, kw_only=True)
    """How long the job waits before it may enter; otherwise as long as the stage asks for."""

    def __post_init__(self) -> None:
        if self.delay is not None:
            Checks("Goto").duration("delay", self.delay)


@dataclass(frozen=True, slots=True)
class FanOut(Generic[C, S]):
    """Start children at the stage declared with `children=`; the job goes on when the last one has ended.

    What the last stage of each child returned goes into the attribute declared with `collect=`, in their order.

    >>> len(FanOut([{"page": 1}, {"page": 2}]).children)
    2
    """

    children: Sequence[C]
    result: S | None = None

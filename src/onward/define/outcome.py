"""What a handler may return: an outcome is a value."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Never, final

from typing_extensions import TypeVar

from onward.errors import require
from onward.options import wrong_time

if TYPE_CHECKING:
    from onward.define.job_type import Step
    from onward.define.request import BlockerSource

O_co = TypeVar("O_co", covariant=True)


class Outcome(Generic[O_co]):
    """How an attempt ended: `Done(output)`, or what `attempt.continue_with(…)` and `attempt.reschedule(…)` return.

    Annotate a handler with it when it may either complete the chain or continue.
    """

    __slots__ = ()


@final
class Done(Outcome[O_co]):
    """The chain is complete, with this output.

    >>> Done(7).output
    7
    """

    __slots__ = ("output",)

    def __init__(self, output: O_co) -> None:
        self.output: O_co = output


@final
class Next(Outcome[O_co]):
    """The chain goes on; `O` is the output of the rest of it. Made by `attempt.continue_with(…)`."""

    __slots__ = ("at", "blockers", "delay", "input", "meta", "priority", "step")

    def __init__(
        self,
        step: "Step[Any, O_co]",
        input: Any,
        *,
        delay: timedelta | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        blockers: "Sequence[BlockerSource]" = (),
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        self.step = step
        self.input = input
        self.delay, self.at, self.priority, self.blockers = delay, at, priority, blockers
        self.meta = meta


@final
class Rescheduled(Outcome[Never]):
    """Run the job again later; what the phase wrote is kept. Made by `attempt.reschedule(…)`."""

    __slots__ = ("at", "delay")

    def __init__(self, *, delay: timedelta | None = None, at: datetime | None = None) -> None:
        require(wrong_time(delay, at))
        self.delay, self.at = delay, at

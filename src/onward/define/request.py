"""What is asked for when a chain is started: values, checked when they are used."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Never, Protocol, TypeAlias, TypedDict, runtime_checkable

import msgspec
from typing_extensions import TypeVar

from onward.model import ChainId, Deduplication

if TYPE_CHECKING:
    from onward.define.job_type import JobType

I = TypeVar("I")  # noqa: E741 - input
O_co = TypeVar("O_co", covariant=True)


class NothingElse(Generic[O_co]):
    """There is none."""

    def __init__(self, none: Never) -> None: ...


InputOf: TypeAlias = I | NothingElse[Callable[[], I]]
"""An input as the job type given beside it takes it, and nothing else.

mypy decides on the type variables of a callable after those of all other arguments. Without one it would try to find a
type for both at once, and of a wrong input say no more than that there is none.
"""


@runtime_checkable
class ChainReference(Protocol):
    """An existing chain, such as the handle `app.start` returns."""

    @property
    def id(self) -> ChainId: ...
    @property
    def job_type(self) -> "JobType[Any, Any]": ...


class NewChain(msgspec.Struct, Generic[O_co], frozen=True, kw_only=True):
    """A chain to start: what `job_type.with_input(…)` makes, for `start_many` and for blockers."""

    job_type: "JobType[Any, O_co]"
    input: Any
    id: ChainId | None = None
    delay: timedelta | None = None
    at: datetime | None = None
    priority: int = 0
    blockers: "Sequence[BlockerSource]" = ()
    deduplication: Deduplication | None = None
    meta: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        """Without the input, which may have secrets."""
        shown = [name for name in self.__struct_fields__ if name != "input"]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


class StartOptions(TypedDict, total=False):
    """How a chain is to start; what is not said is as in `NewChain`."""

    id: ChainId | None
    delay: timedelta | None
    at: datetime | None
    priority: int
    blockers: "Sequence[BlockerSource]"
    deduplication: Deduplication | None
    meta: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedChain(Generic[O_co]):
    """A chain that a handler has started; others may wait for it as their blocker."""

    job_type: "JobType[Any, O_co]"
    id: ChainId
    duplicate: bool
    """Whether a chain with the same deduplication key was found instead of starting one."""


BlockerSource: TypeAlias = "NewChain[Any] | ChainReference"

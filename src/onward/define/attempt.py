"""What a handler is given: the attempt, its phases and their transactions. The worker keeps these promises."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Protocol, overload

from typing_extensions import TypeVar, Unpack

from onward.define.outcome import Next, Outcome
from onward.model import Blocker, ChainId, JobError, JobId, LossReason

if TYPE_CHECKING:
    from onward.define.job_type import JobType, Step
    from onward.define.request import BlockerSource, InputOf, StartedChain, StartOptions

T = TypeVar("T")
P = TypeVar("P")
N = TypeVar("N")
Input_co = TypeVar("Input_co", covariant=True)


class Row(Protocol):
    """A row, by position or by column name."""

    def __getitem__(self, key: int | str, /) -> Any: ...
    def __len__(self) -> int: ...
    def keys(self) -> Sequence[str]:
        """The column names, in order; `dict(row)` works."""
        ...


class Transaction(Protocol):
    """An open transaction, the same on every database: `:name` parameters, rows by name.

    What the driver itself offers is at `.connection`.
    """

    @property
    def connection(self) -> Any:
        """The driver's own connection."""
        ...

    async def execute(self, sql: str, /, **parameters: Any) -> int:
        """Run a statement; returns the number of rows it changed."""
        ...

    async def fetch(self, sql: str, /, **parameters: Any) -> list[Row]:
        """All rows."""
        ...

    async def fetchrow(self, sql: str, /, **parameters: Any) -> Row | None:
        """The first row, or None."""
        ...

    async def fetchval(self, sql: str, /, **parameters: Any) -> Any:
        """The first column of the first row, or None."""
        ...

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """A block that can be undone alone: an exception leaving it rolls back to its start."""
        ...

    def after_commit(self, action: Callable[[], None]) -> None:
        """Call `action` once the transaction, and every savepoint around this call, has committed."""
        ...


class SyncTransaction(Protocol):
    """`Transaction` for code without an event loop."""

    @property
    def connection(self) -> Any:
        """The driver's own connection."""
        ...

    def execute(self, sql: str, /, **parameters: Any) -> int:
        """Run a statement; returns the number of rows it changed."""
        ...

    def fetch(self, sql: str, /, **parameters: Any) -> list[Row]:
        """All rows."""
        ...

    def fetchrow(self, sql: str, /, **parameters: Any) -> Row | None:
        """The first row, or None."""
        ...

    def fetchval(self, sql: str, /, **parameters: Any) -> Any:
        """The first column of the first row, or None."""
        ...

    def savepoint(self) -> AbstractContextManager[None]:
        """A block that can be undone alone: an exception leaving it rolls back to its start."""
        ...

    def after_commit(self, action: Callable[[], None]) -> None:
        """Call `action` once the transaction, and every savepoint around this call, has committed."""
        ...


Tx_co = TypeVar("Tx_co", covariant=True, default=Transaction)
PhaseTx_co = TypeVar("PhaseTx_co", covariant=True)


class Phase(Protocol[PhaseTx_co]):
    """A block of a handler that runs in a transaction: `async with` in `async def` handlers, `with` in `def` ones."""

    async def __aenter__(self) -> PhaseTx_co: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def __enter__(self) -> PhaseTx_co: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Attempt(Protocol[Input_co, Tx_co]):
    """One go at a job: its input, its transactions, and the ways it can end.

    `def` handlers write `Attempt[Order, SyncTransaction]`.
    """

    @property
    def input(self) -> Input_co:
        """The decoded input."""
        ...

    @property
    def job_id(self) -> JobId: ...
    @property
    def chain_id(self) -> ChainId: ...
    @property
    def root_id(self) -> JobId: ...
    @property
    def job_type(self) -> str: ...
    @property
    def number(self) -> int:
        """Rises each time the job is taken. Pass it on with `job_id`, so that other systems can refuse an older one."""
        ...

    @property
    def failures(self) -> int:
        """How many attempts have failed before this one."""
        ...

    @property
    def meta(self) -> Mapping[str, Any]:
        """What travels with the job beside its input: what `meta=` said where it was started."""
        ...

    @property
    def last_error(self) -> JobError | None:
        """What went wrong last time."""
        ...

    @property
    def cancelled(self) -> LossReason | None:
        """Set once the handler should stop; `def` handlers look at it in long loops."""
        ...

    @property
    def blockers(self) -> Sequence[Blocker]:
        """The chains this job waited for, in the order given."""
        ...

    def get(self, kind: type[T]) -> T:
        """The value of this type, or of a subclass, that middleware or a resource provides; the innermost wins.

        >>> @job("orders.ship")
        ... async def ship(attempt: Attempt[Order]) -> Shipped:
        ...     tenant = attempt.get(Tenant)  # yielded by a middleware of the slice; MissingContext if by none
        ...     return await attempt.get(HttpClient).post(f"/{tenant.name}/parcels")  # a resource of the worker
        """
        ...

    def progress(self, fraction: float, note: str | None = None) -> None:
        """Say how far the handler has come, from 0 to 1; readers see it soon, and it stays after the attempt."""
        ...

    def prepare(self, *, atomic: bool = False) -> Phase[Tx_co]:
        """A transaction for reading: ended with the block, or, when atomic, kept open until the job is settled."""
        ...

    def complete(self) -> Phase[Tx_co]:
        """The transaction that also settles the job: return the outcome inside the block."""
        ...

    def continue_with(
        self,
        step: "Step[P, N]",
        input: "InputOf[P]",
        *,
        delay: timedelta | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        blockers: "Sequence[BlockerSource]" = (),
        meta: Mapping[str, Any] | None = None,
    ) -> Next[N]:
        """The outcome that continues the chain; return it. Without `priority` or `meta` the next job inherits this
        one's.
        """
        ...

    def reschedule(self, *, delay: timedelta | None = None, at: datetime | None = None) -> Outcome[Never]:
        """The outcome that runs this job again later without counting a failure; return it."""
        ...

    @overload
    def start(  # type: ignore[overload-overlap]
        self: "Attempt[Any, SyncTransaction]",
        job_type: "JobType[P, N]",
        input: "InputOf[P]",
        /,
        **options: Unpack["StartOptions"],
    ) -> "StartedChain[N]": ...
    @overload
    def start(
        self, job_type: "JobType[P, N]", input: "InputOf[P]", /, **options: Unpack["StartOptions"]
    ) -> "Awaitable[StartedChain[N]]":
        """Start another chain: in the transaction of the phase that is open, or else at once. The options are those of
        `app.start`; it comes from this job. `def` handlers get the chain itself, without `await`.

        >>> @job("orders.import")
        ... async def load(attempt: Attempt[File]) -> int:
        ...     async with attempt.complete() as tx:
        ...         for order in attempt.input.orders:
        ...             await attempt.start(charge, order)  # committed with this job, or not at all
        ...         return len(attempt.input.orders)
        """
        ...

    def outputs_of(self, job_type: "JobType[Any, T]") -> list[T]:
        """The outputs of the completed blockers that began with this type, in the order given."""
        ...

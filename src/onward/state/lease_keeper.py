"""What the child process of a guardian does to the database; statements come spelled for its client.

Nothing but the standard library: the child imports this file, and the keeper for its database, without the rest of
Onward.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol, TypedDict
from uuid import UUID


class SpelledStatement(TypedDict):
    """SQL as the client wants it, and its parameters in order."""

    sql: str
    names: list[str]


class KeeperStatements(TypedDict):
    """What a keeper runs."""

    renew: list[SpelledStatement]
    expire: SpelledStatement
    time_out: SpelledStatement
    give_back: SpelledStatement
    hint: SpelledStatement | None
    """Sends `hint_parameters` when its transaction commits."""
    hint_parameters: dict[str, Any]
    sign: list[SpelledStatement]
    sign_parameters: dict[str, Any]
    """Those of them that are always the same."""
    bury: SpelledStatement


class HeldLease(NamedTuple):
    """A lease to renew."""

    job_id: UUID
    attempt: int
    seconds: float


class RenewedLease(NamedTuple):
    """What became of a lease; None: it is renewed, or about to be settled."""

    job_id: UUID
    attempt: int
    lost: str | None


class OverdueLease(NamedTuple):
    """A lease to let go of, and why, as it is kept among the job's errors."""

    job_id: UUID
    attempt: int
    error: str


class LeaseKeeper(Protocol):
    """Keeps leases through a connection that is made when needed."""

    waits_for_writers: bool
    """Whether it may have to wait for others, however long they write: that is no trouble."""

    async def connect(self) -> None:
        """Harmless when there is a connection."""
        ...

    def writing(self, waits: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        """A transaction, if there is one lock for all; `waits` is called again and again while others have it."""
        ...

    async def renew(self, worker: str, held: Sequence[HeldLease]) -> list[RenewedLease]: ...

    async def expire(self, worker: str) -> tuple[int, int]:
        """Let all leases of the worker run out and say so to other workers; how many did, and how many are locked."""
        ...

    async def time_out(self, worker: str, overdue: Sequence[OverdueLease]) -> set[UUID]:
        """Let go of attempts and keep why; those that were not locked."""
        ...

    async def give_back(self, worker: str) -> tuple[int, int]:
        """Let the worker's jobs be taken again and say so; how many were, and how many are locked."""
        ...

    async def sign(self, said: dict[str, Any], waits: Callable[[], None]) -> None:
        """A sign of life of the worker; `waits` is called again and again while others have the only lock."""
        ...

    async def bury(self, worker: str) -> None:
        """The worker has died: its row says so."""
        ...

    def cut_off(self) -> None:
        """End the wait for an answer, if there is one, with an error."""
        ...

    def drop(self) -> None:
        """The connection may be broken: make another one next time."""
        ...

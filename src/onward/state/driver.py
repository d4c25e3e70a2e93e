"""The driver contract: the thin shim over one database client.

A sync driver keeps the same contract: its coroutines never suspend, so that `run_now` can finish them without an event
loop. Everything above a driver is therefore written once.
"""

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from onward.errors import OnwardError
from onward.state.command import Command, Operation, Rows

T = TypeVar("T")
Dialect: TypeAlias = Literal["postgres", "sqlite"]


class Fault(StrEnum):
    """What an error says about the database; whose fault it is depends on whose statement it was."""

    LOST = "lost"
    """The connection is gone, so that the outcome of a commit under way is unknown."""
    READ_ONLY = "read_only"
    """A write was refused because the transaction, file or server only allows reading: perhaps it was demoted."""
    TROUBLE = "trouble"
    """It could not do it now: full, out of memory or connections, serialization failure, deadlock, a bug of its own."""
    TIMEOUT = "timeout"
    """Something was in the way for too long: a statement or lock timeout, an object in use."""
    POISONED = "poisoned"
    """A statement had failed before in the same transaction, which takes no more."""
    STALE = "stale"
    """A statement of ours failed because the attempt it was to settle is no longer held."""
    VALUE = "value"
    """A value cannot be stored: asking again is of no use."""

    @property
    def is_transient(self) -> bool:
        """Whether trying again may help."""
        return self in _TRANSIENT


_TRANSIENT = frozenset({Fault.LOST, Fault.READ_ONLY, Fault.TROUBLE, Fault.TIMEOUT})


BLOCK_ENDED = "the block of this transaction has ended: it takes no more statements"
ENDED_BY_HAND = (
    "the transaction was ended by your own code (COMMIT, ROLLBACK, session.commit() or the like) inside its block: "
    "what was to follow is not stored. Leave the block to commit, raise to roll back"
)
CLOSED_BY_HAND = (
    "the transaction was not committed: its connection was closed inside the block. It is lent, and goes back by itself"
)
UNFINISHED = (
    "the transaction was not committed: a statement in it is still under way, perhaps a stream or COPY that was not "
    "read to its end"
)
COMMIT_WITHIN = 8.0
"""Seconds in which the application's own statements end that are under way when their transaction is to."""
POISONED = (
    "the transaction was not committed: an earlier statement in it had failed. To go on after one that may fail, run "
    "it in a savepoint, and roll back to that"
)

NO_SYNC_DRIVER = (
    "install onward[psycopg], or build the app on an address (postgresql://…?sslmode=…), a sync engine or a sync pool; "
    "how a pool connects, or an async engine with an SSL context, a creator or a listener for do_connect, cannot be "
    "handed on to a sync driver, and it does not connect in another way"
)
"""What to do where there is no `sync_sibling`."""
CLIENTS = frozenset({"asyncpg", "psycopg", "psycopg_pool", "sqlite3", "sqlalchemy", "aiosqlite"})
"""The packages whose errors are about the database."""


def is_clients_own(error: BaseException) -> bool:
    """Whether an error comes from a database's client library, or from the network below it."""
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in CLIENTS


def value_fault(error: BaseException) -> Fault | None:
    """What a client library says before it has asked the server."""
    return Fault.VALUE if isinstance(error, ValueError | TypeError | OverflowError) else None


@dataclass(frozen=True, slots=True)
class Result:
    """What a user's own statement gave."""

    columns: tuple[str, ...]
    """May be missing where there are no rows."""
    rows: Rows
    changed: int = 0
    """How many rows a statement that gives none has changed, where the client says so together with the rows."""


@dataclass(frozen=True, slots=True)
class Address:
    """How another process can connect, with the same client library and nothing of Onward."""

    client: Literal["asyncpg", "psycopg", "sqlite3"]
    options: dict[str, Any] = field(repr=False)
    """Plain JSON. There may be a password in it."""


class Connection(Protocol):
    """One connection. What it does joins the transaction it is in, or commits alone."""

    @property
    def raw(self) -> Any:
        """The client library's own connection or session."""
        ...

    @property
    def native(self) -> Any:
        """The object a handler or caller gets: the client library's own, or None for Onward's `Transaction`."""
        ...

    @property
    def in_transaction(self) -> bool: ...

    @property
    def was_awaited(self) -> bool:
        """Whether all were lent when it was asked for; False where the driver does not know."""
        ...

    async def fetch(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        """Run one of Onward's statements (`:name` parameters); its rows."""
        ...

    async def query(self, sql: str, parameters: Mapping[str, Any]) -> Result:
        """Run a statement of the user's for its rows."""
        ...

    async def execute(self, sql: str, parameters: Mapping[str, Any]) -> int:
        """Run a statement of the user's; how many rows it changed."""
        ...

    async def script(self, sql: str) -> None:
        """Run several statements without parameters."""
        ...

    async def run(self, first: Operation[T], *more: Command[Any], begin: bool = False, commit: bool = False) -> T:
        """Run operations of ours, in one round trip where the client can; the answer of the first.

        `begin` a transaction before the first, `commit` it after the last; several outside of one make one. Where that
        fails the transaction is rolled back.
        """
        ...

    async def begin(self) -> None: ...

    async def flush(self) -> None:
        """Have the database try what the client library keeps back until the commit, as a session does."""
        ...

    async def commit(self) -> None:
        """Raises if a failed statement has poisoned the transaction, where a database would quietly roll back."""
        ...

    async def rollback(self) -> None:
        """Undo the transaction; also fine on a broken connection."""
        ...

    def check(self) -> None:
        """Raise TransactionClosed where the application itself has ended the transaction, or closed the connection,
        that was begun here. Asks nobody: what is known without a round trip.
        """
        ...

    def suspend(self) -> None:
        """Until `resume`, statements through `native`, or what `raw` gave, raise TransactionClosed; ours are done."""
        ...

    def resume(self) -> None:
        """What the application has is as it was; also said of a connection that was not suspended."""
        ...

    def after_commit(self, action: Callable[[], Any]) -> bool:
        """Have `action` called when the caller's transaction commits; False where the client cannot tell."""
        ...

    def cut_off(self) -> None:
        """Have whoever waits for the server's answer, or for somebody's lock, wait no longer: the connection is lost.

        A sync one may be cut off from another thread."""
        ...


class PlainConnection:
    """For connections whose client does one thing after another, and who hand out nothing to be suspended.

    Nor do they wait for what may never come: who does can be cut off.
    """

    was_awaited = False

    async def run(
        self: Connection, first: Operation[T], *more: Command[Any], begin: bool = False, commit: bool = False
    ) -> T:
        return await run_in_turn(self, first, *more, begin=begin, commit=commit)

    async def execute(self: Connection, sql: str, parameters: Mapping[str, Any]) -> int:
        return (await self.query(sql, parameters)).changed

    async def flush(self) -> None:
        return

    def check(self) -> None:
        return

    def suspend(self) -> None:
        return

    def resume(self) -> None:
        return

    def cut_off(self) -> None:
        return


class Driver(Protocol):
    """Connections to one database through one client library."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def is_async(self) -> bool: ...

    @property
    def transaction_type(self) -> Any:
        """What handlers and callers are given as `tx`: a class of the client library; None for `onward.Transaction`."""
        ...

    @property
    def address(self) -> Address | None:
        """How a process of its own can connect; None where only an object of the application's can."""
        ...

    async def open(self) -> None:
        """Make the pool. Opening twice is harmless."""
        ...

    async def close(self) -> None: ...

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """One of the application's pool."""
        ...

    def reserved(self) -> AbstractAsyncContextManager[Connection]:
        """One beside the pool, whatever handlers do to the pool."""
        ...

    def wrap(self, native: object) -> Connection | None:
        """An idle connection of the caller's, to begin a transaction on; None if it is not of this client library."""
        ...

    def adopt(self, tx: object) -> Connection | None:
        """The caller's own object as a connection; None if it is not of this client library.

        One that cannot be used raises TransactionUnsuitable.
        """
        ...

    def fault(self, error: BaseException) -> Fault | None:
        """What an error raised by a statement says about the database; None: it is the statement that is wrong."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def sync_sibling(self) -> "Driver | None":
        """The sync driver for the same database, for `def` handlers and `app.sync`; None if there is none."""
        ...


async def run_in_turn(
    connection: Connection, first: Operation[T], *more: Command[Any], begin: bool = False, commit: bool = False
) -> T:
    """`Connection.run`, one after another."""
    if not (more or begin or commit):
        return await _run_one(connection, first)
    alone = not (begin or commit or connection.in_transaction)
    try:
        if begin or alone:
            await connection.begin()
        answer = await _run_one(connection, first)
        for command in more:
            await _run_one(connection, command)
        if commit or alone:
            await connection.commit()
    except BaseException:
        if begin or commit or alone:
            await connection.rollback()
        raise
    return answer


async def _run_one(connection: Connection, operation: Operation[T]) -> T:
    if isinstance(operation, Command):
        return operation.read(await connection.fetch(operation.sql, operation.parameters))
    return await operation.take(connection)


class transaction:  # noqa: N801 - said of a block; not a generator, of each of which an event loop would keep account
    """The transaction the connection is in, or one of its own."""

    __slots__ = ("_connection", "_is_own")

    def __init__(self, connection: Connection) -> None:
        self._connection, self._is_own = connection, not connection.in_transaction

    async def __aenter__(self) -> None:
        if self._is_own:
            await self._connection.begin()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._is_own:
            await (self._connection.commit() if kind is None else self._connection.rollback())


def run_now(operation: Coroutine[Any, Any, T]) -> T:
    """Finish a coroutine that never suspends: the sync runner."""
    try:
        operation.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    operation.close()
    raise OnwardError("an operation on a sync driver tried to wait for an event loop")

"""An open transaction: what `app.transaction()` and the phases of a handler hand out."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias, TypeVar

from msgspec.structs import astuple

from onward.errors import ConfigurationError, TransactionClosed, TransactionError, TransactionOpen, require
from onward.lifecycle.effects import Effects
from onward.options import wrong_function, wrong_kind
from onward.state.command import Operation
from onward.state.driver import BLOCK_ENDED, Connection, run_now
from onward.state.statement import spell

T = TypeVar("T")


class NamedRow:
    """A row, by position or by column name."""

    __slots__ = ("_columns", "_values")

    def __init__(self, columns: tuple[str, ...], values: Sequence[Any]) -> None:
        self._columns, self._values = columns, tuple(values)

    def __getitem__(self, key: int | str) -> Any:
        return self._values[key if isinstance(key, int) else self._columns.index(key)]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __eq__(self, other: object) -> bool:
        return tuple(other) == self._values if isinstance(other, tuple | NamedRow) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._values)

    def keys(self) -> Sequence[str]:
        return self._columns

    def __repr__(self) -> str:
        return f"<Row {dict(zip(self._columns, self._values, strict=True))}>"


class OpenTransaction:
    """A transaction of ours, from its begin to its commit or rollback."""

    is_joined = False
    """Whether operations of ours other than its own took part."""
    is_open = True
    _takes_statements = True
    _savepoints = 0

    def __init__(self, link: Connection, by_native: "dict[int, OpenTransaction]") -> None:
        """`by_native`: those that are open, by the object of the client library's that the user has of each."""
        self.link, self._by_native = link, by_native
        if link.native is not None:
            by_native[id(link.native)] = self
        self.errors: list[Exception] = []
        """What came of statements of the user's that failed, or ended it."""
        self.effects = Effects()
        """What follows its commit."""
        self._may_have_ended = link.native is not None
        """Whether the application may have ended it by hand, through a connection that it has or by a statement."""

    @property
    def connection(self) -> Any:
        self._require_open()
        self._may_have_ended = True
        raw = self.link.raw
        if self.is_open and not self._takes_statements:
            self.link.suspend()
        return raw

    async def execute(self, sql: str, /, **parameters: Any) -> int:
        return await self._run(self.link.execute, sql, parameters)

    async def fetch(self, sql: str, /, **parameters: Any) -> list[NamedRow]:
        result = await self._run(self.link.query, sql, parameters)
        return [NamedRow(result.columns, row) for row in result.rows]

    async def fetchrow(self, sql: str, /, **parameters: Any) -> NamedRow | None:
        result = await self._run(self.link.query, sql, parameters)
        return NamedRow(result.columns, result.rows[0]) if result.rows else None

    async def fetchval(self, sql: str, /, **parameters: Any) -> Any:
        row = await self.fetchrow(sql, **parameters)
        return row[0] if row is not None else None

    async def _run(self, run: Callable[[str, dict[str, Any]], Awaitable[T]], sql: str, parameters: dict[str, Any]) -> T:
        self.check()
        if type(sql) is not str:
            require(wrong_kind("sql", sql, str, such="the text of a statement"))
        for name in spell(sql, "percent").names:
            if name not in parameters:
                raise ConfigurationError(f"the statement has :{name}, which was not given: pass {name}=…")
        try:
            answer = await run(sql, parameters)
            self.link.check()
        except BaseException as error:
            self._may_have_ended = True
            if isinstance(error, Exception):
                self.errors.append(error)
            raise
        return answer

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        self.check()
        self._savepoints += 1
        name = f"onward_{self._savepoints}"
        lists = astuple(self.effects)
        kept = [len(each) for each in lists]
        await self.link.script(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException:
            # A generator that nobody has finished leaves it at any time: the connection may be another's by then.
            if self.is_open and self._takes_statements:
                for each, length in zip(lists, kept, strict=True):
                    del each[length:]
                await self.link.script(f"ROLLBACK TO SAVEPOINT {name};RELEASE SAVEPOINT {name}")
            raise
        self.check()
        await self.link.script(f"RELEASE SAVEPOINT {name}")

    def after_commit(self, action: Callable[[], None]) -> None:
        if not self.is_open:
            raise TransactionClosed("the transaction has ended: nothing can be added to its commit")
        require(wrong_function("action", action, of="without parameters"))
        self.effects.actions.append(action)

    def check(self) -> None:
        """Raise unless the transaction still takes statements."""
        if self._may_have_ended or not self._takes_statements:
            self._require_open()
            self._look()

    def _require_open(self) -> None:
        if not self._takes_statements:
            raise TransactionClosed(BLOCK_ENDED)

    def _look(self) -> None:
        """Raise if the application has ended it by hand."""
        try:
            self.link.check()
        except TransactionError:
            self._may_have_ended = True
            raise

    def suspend(self) -> None:
        """Take no more statements; the commit is still to come."""
        if self._takes_statements:
            self._takes_statements = False
            if self._may_have_ended:  # else nobody has the connection but us
                self.link.suspend()

    def resume(self) -> None:
        """Take statements again."""
        if not self._takes_statements:
            self._takes_statements = True
            if self._may_have_ended:
                self.link.resume()

    async def commit(self, last: Operation[Any] | None = None) -> None:
        """Commit, with a last operation of ours if there is one."""
        self._takes_statements = False
        self._by_native.pop(id(self.link.native), None)
        try:
            if self._may_have_ended:
                self.link.suspend()
                await self._insist()
            if last is None:
                await self.link.commit()
            else:
                await self.link.run(last, commit=True)
        finally:
            self.is_open = False
            if self._may_have_ended:
                self.link.resume()  # the connection may be the caller's own

    async def _insist(self) -> None:
        """What the application has ended itself is not committed, nor does anything of ours follow it."""
        try:
            self.link.check()
        except TransactionError:
            await self.link.rollback()
            raise

    async def rollback(self) -> None:
        self.suspend()
        self._by_native.pop(id(self.link.native), None)
        self.is_open = False
        try:
            await self.link.rollback()
        finally:
            if self._may_have_ended:
                self.link.resume()


class NothingElse:
    """In place of a transaction: for code that may write in its own, and nowhere else."""

    is_open = True

    def __init__(self, refusal: str) -> None:
        self.refusal = refusal


Mark: TypeAlias = OpenTransaction | NothingElse | None
open_here: ContextVar[Mark] = ContextVar("onward_transaction", default=None)
"""The transaction that is open around a call."""


_open_in_process: list[NothingElse] = []


@contextmanager
def refusing_all_else(refusal: str) -> Iterator[None]:
    """Let this process write nowhere but in its open transactions: threads of a handler's own know of no context."""
    mark = NothingElse(refusal)
    _open_in_process.append(mark)
    try:
        yield
    finally:
        _open_in_process.remove(mark)


def refuse_inside_transaction(doing: str, *, joins: bool = True) -> None:
    """Raise TransactionOpen if an Onward transaction is open in this context; `joins`: there is a tx= to join it."""
    mark = open_here.get() or next(iter(_open_in_process), None)
    if isinstance(mark, NothingElse):
        raise TransactionOpen(f"{doing}: {mark.refusal}")
    if mark is not None and mark.is_open:
        how, else_ = (" without tx=", "pass tx=tx to join it, or ") if joins else ("", "")
        raise TransactionOpen(
            f"{doing}{how} while a transaction of Onward's is open here: {else_}call it after the block"
        )


class SyncView:
    """An `OpenTransaction` on a sync driver, for code without an event loop."""

    def __init__(self, inner: OpenTransaction) -> None:
        self.inner = inner

    @property
    def connection(self) -> Any:
        return self.inner.connection

    def execute(self, sql: str, /, **parameters: Any) -> int:
        return run_now(self.inner.execute(sql, **parameters))

    def fetch(self, sql: str, /, **parameters: Any) -> list[NamedRow]:
        return run_now(self.inner.fetch(sql, **parameters))

    def fetchrow(self, sql: str, /, **parameters: Any) -> NamedRow | None:
        return run_now(self.inner.fetchrow(sql, **parameters))

    def fetchval(self, sql: str, /, **parameters: Any) -> Any:
        return run_now(self.inner.fetchval(sql, **parameters))

    def savepoint(self) -> AbstractContextManager[None]:
        return as_sync(self.inner.savepoint())

    def after_commit(self, action: Callable[[], None]) -> None:
        self.inner.after_commit(action)


@contextmanager
def as_sync(block: Any) -> Iterator[Any]:
    """An async context manager over a sync driver as a plain one."""
    value = run_now(block.__aenter__())
    try:
        yield value
    except BaseException as error:
        if not run_now(block.__aexit__(type(error), error, error.__traceback__)):
            raise
    else:
        run_now(block.__aexit__(None, None, None))

"""A statement is a value: what a state adapter does it returns, and a connection runs it, perhaps along with others."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeAlias, TypeVar

import msgspec

if TYPE_CHECKING:
    from onward.state.driver import Connection

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
S = TypeVar("S")
P = ParamSpec("P")
Rows: TypeAlias = Sequence[Sequence[Any]]
Needs: TypeAlias = Literal["rows", "count", "nothing"]
_AS_THEY_ARE: Any = tuple


class Command(msgspec.Struct, Generic[T_co], frozen=True, gc=False):
    """One statement, and what its rows mean.

    >>> Command("SELECT name FROM shop WHERE id = :id", {"id": 7}, lambda rows: rows[0][0]).parameters
    {'id': 7}
    """

    sql: str
    """With `:name` parameters."""
    parameters: Mapping[str, Any]
    read: Callable[[Rows], T_co] = _AS_THEY_ARE
    """Makes the answer of the rows; left out where that says nothing. Where it raises, a transaction that was to be
    committed is rolled back."""
    needs: Needs = "rows"
    """What `read` looks at: a statement that travels in one message with BEGIN or COMMIT is answered by as many empty
    rows, one that becomes part of another by those of that one."""

    def then(self, look: Callable[[T_co], U]) -> "Command[U]":
        """The same, with a look at its answer."""
        read = self.read
        return Command(self.sql, self.parameters, lambda rows: look(read(rows)), self.needs)


class Steps(msgspec.Struct, Generic[T_co], frozen=True, gc=False):
    """Several statements, of which one depends on another: run in one piece where the connection lives."""

    take: "Callable[[Connection], Coroutine[Any, Any, T_co]]"

    def then(self, look: Callable[[T_co], U]) -> "Steps[U]":
        """The same, with a look at its answer."""
        take = self.take

        async def looked(connection: "Connection") -> U:
            return look(await take(connection))

        return Steps(looked)


Operation: TypeAlias = Command[T] | Steps[T]


def steps(
    method: "Callable[Concatenate[S, Connection, P], Coroutine[Any, Any, T]]",
) -> "Callable[Concatenate[S, P], Steps[T]]":
    """Have a method that needs a connection return what is to be done with one."""

    @wraps(method)
    def asked(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Steps[T]:
        return Steps(lambda connection: method(self, connection, *args, **kwargs))

    return asked


def first_value(rows: Rows) -> Any:
    """Of the only row."""
    return rows[0][0]

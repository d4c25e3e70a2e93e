"""Methods of several statements, run as one piece where the connection lives."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar, cast

from onward.state.driver import Connection
from onward.state.sqlite.connection import AiosqliteConnection, SqliteConnection

M = TypeVar("M", bound=Callable[..., Coroutine[Any, Any, Any]])


def at_once(method: M) -> M:
    """Run a method in the connection's thread, if it has one, instead of going there for every statement.

    Not only because it is faster: between two statements the event loop may be busy with something else, and the only
    write lock there is would wait with it.
    """

    @wraps(method)
    async def run(self: Any, connection: Connection, *args: Any, **kwargs: Any) -> Any:
        if isinstance(connection, SqliteConnection | AiosqliteConnection):
            return await connection.run(lambda sync: method(self, sync, *args, **kwargs))
        return await method(self, connection, *args, **kwargs)

    return cast(M, run)

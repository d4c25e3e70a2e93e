"""BEGIN and a statement of ours, or a statement and COMMIT, in one message to Postgres, past SQLAlchemy.

Each of the four through SQLAlchemy is a round trip, and costs twice what the client library needs for it. A client that
looks at the server's word for whether there is a transaction, as psycopg does, notices by itself; asyncpg keeps account
of it, and so does SQLAlchemy's wrapping of asyncpg, in attributes that are nobody else's business. Where those have
other names than here, statements go one by one.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from typing import Any, TypeVar, cast

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from onward.state.command import Command
from onward.state.driver import run_now
from onward.state.postgres.session import inlined
from onward.state.postgres.settings import hide_row

T = TypeVar("T")


def takes_one_message(connection: Connection) -> bool:
    """Whether its client can be asked like this: in UTF-8, and with nothing about transactions that we cannot spell."""
    driver = connection.dialect.driver
    if driver == "asyncpg":
        adapted: Any = connection.connection.dbapi_connection
        raw = adapted.driver_connection
        is_plain = not raw.is_closed() and raw.get_settings().client_encoding == "UTF8"
        return is_plain and _keeps_account(adapted) and not (adapted.readonly or adapted.deferrable)
    if driver == "psycopg":
        from onward.state.postgres import psycopg_connection

        raw = _client(connection)
        return psycopg_connection.takes_one_message(raw) and raw.read_only is None and raw.deferrable is None
    return False


def has_begun(connection: Connection) -> bool:
    """Whether the server knows of its transaction already: who listens to "begin" may have asked something."""
    raw = _client(connection)
    if connection.dialect.driver == "asyncpg":
        return bool(raw.is_in_transaction())
    return connection.dialect.driver != "psycopg" or bool(raw.pgconn.transaction_status != 0)


def begin_with(connection: Connection, command: Command[Any]) -> int:
    """Begin on the server; how many rows a statement of ours gave there. Whatever comes of it can be rolled back."""
    statement = inlined(command.sql, command.parameters)
    if connection.dialect.driver == "asyncpg":
        adapted: Any = connection.connection.dbapi_connection
        _note_begun(adapted)
        answer: str = _ask_asyncpg(connection, f"{_begin(adapted.isolation_level)};{statement}", command.sql)
        last = answer.rpartition(" ")[2]
        return int(last) if last.isdigit() else 0
    level = _client(connection).isolation_level
    return _ask_psycopg(connection, f"{_begin(level and level.name)};{statement}", command.sql)


def commit_with(connection: Connection, command: Command[Any]) -> None:
    """Run a statement of ours and commit on the server; SQLAlchemy finds nothing left to commit.

    If that fails there is something to be rolled back.
    """
    message = f"{inlined(command.sql, command.parameters)};COMMIT"
    if connection.dialect.driver == "asyncpg":
        _ask_asyncpg(connection, message, command.sql)
        _note_ended(connection.connection.dbapi_connection)
    else:
        _ask_psycopg(connection, message, command.sql)


def _begin(level: str | None) -> str:
    return f"BEGIN ISOLATION LEVEL {level.replace('_', ' ')}" if level else "BEGIN"


def ask_past(connection: Connection, sql: str, ask: Callable[[Any], Awaitable[T]]) -> T:
    """What a connection of asyncpg's answers; what the client raises, in SQLAlchemy's words.

    `sql` is what these show: without values, which may be payloads.
    """
    adapted: Any = connection.connection.dbapi_connection
    raw = adapted.driver_connection

    async def in_turn(raw: Any) -> T:
        async with getattr(adapted, "_execute_mutex", None) or nullcontext():  # as SQLAlchemy's own statements
            return await ask(raw)

    try:
        answer: T = adapted.run_async(in_turn)
        return answer
    except Exception as error:
        if raw.is_closed():
            with suppress(DBAPIError):
                connection.exec_driver_sql("SELECT 1")  # so that SQLAlchemy, too, hears of it
        raise _in_words(connection, sql, _translated(adapted, error), is_lost=raw.is_closed()) from error


def _translated(adapted: Any, error: Exception) -> Exception:
    """An error of asyncpg's as one of those that SQLAlchemy knows apart, such as that of a constraint."""
    kinds: Mapping[type, Callable[[str], Exception]] = getattr(adapted.dbapi, "_asyncpg_error_translate", {})
    kind = next((kinds[known] for known in type(error).__mro__ if known in kinds), None)
    if kind is None:
        return error
    translated: Any = kind(f"{type(error)}: {error}")
    translated.pgcode = translated.sqlstate = getattr(error, "sqlstate", None)
    translated.__cause__ = error
    return cast(Exception, translated)


def _ask_asyncpg(connection: Connection, message: str, sql: str) -> str:
    said: str = ask_past(connection, sql, lambda raw: raw.execute(message))
    return said


def _ask_psycopg(connection: Connection, message: str, sql: str) -> int:
    import psycopg

    from onward.state.postgres.psycopg_connection import send

    adapted: Any = connection.connection.dbapi_connection
    try:
        if connection.dialect.is_async:
            count: int = adapted.run_async(lambda raw: send(raw, message))
            return count
        return run_now(send(adapted, message))
    except psycopg.Error as error:
        is_lost = _client(connection).closed
        if is_lost:
            with suppress(DBAPIError):
                connection.exec_driver_sql("SELECT 1")
        raise _in_words(connection, sql, error, is_lost=is_lost) from error


def _in_words(connection: Connection, sql: str, error: Exception, *, is_lost: bool) -> BaseException:
    told = DBAPIError.instance(
        sql, None, error, Exception, hide_parameters=True, connection_invalidated=is_lost, dialect=connection.dialect
    )
    hide_row(told)
    return told


def _client(connection: Connection) -> Any:
    raw: Any = connection.connection.dbapi_connection
    return getattr(raw, "driver_connection", raw)


# -- what asyncpg and SQLAlchemy's wrapping of it remember


def _keeps_account(adapted: Any) -> bool:
    """Under the names that we know; the connections of a pool of asyncpg's, which a creator may give, have none."""
    from asyncpg.transaction import Transaction

    has_names = hasattr(adapted, "_transaction") and hasattr(type(adapted.driver_connection), "_top_xact")
    return has_names and hasattr(Transaction, "_state")


def _note_begun(adapted: Any) -> None:
    from onward.state.postgres.asyncpg_connection import begun

    raw = adapted.driver_connection
    raw._top_xact = adapted._transaction = begun(raw, adapted.isolation_level)
    if hasattr(adapted, "_started"):  # before SQLAlchemy 2.1
        adapted._started = True


def _note_ended(adapted: Any) -> None:
    adapted.driver_connection._top_xact = adapted._transaction = None
    if hasattr(adapted, "_started"):
        adapted._started = False

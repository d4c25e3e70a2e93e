"""What an engine, connection, session or error of SQLAlchemy's means to us."""

from collections.abc import Iterator

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.orm.session import SessionTransactionState

from onward.errors import ConfigurationError, TransactionUnsuitable
from onward.options import storable
from onward.state.driver import Dialect, Fault
from onward.state.postgres.settings import FORGOTTEN, fault_of_code
from onward.state.sqlalchemy.work import STYLES, is_autocommit, reads_only
from onward.state.sqlite.version import require_version

_SPOKEN_BY_ALL = {
    "host",
    "port",
    "user",
    "password",
    "passfile",
    "service",
    "options",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "target_session_attrs",
}
"""Options in a URL that every Postgres client understands; an unknown one is an error to libpq."""


def dialect_of(engine: Engine) -> Dialect:
    """Which adapter the engine needs; raises ConfigurationError if none can work with it."""
    name, driver, database = engine.dialect.name, engine.dialect.driver, engine.url.database
    if driver not in STYLES:
        raise ConfigurationError(f"SQLAlchemy with {name}+{driver} is not supported: use one of {', '.join(STYLES)}")
    if name == "postgresql" and _is_torn(engine.url):
        # A password was taken apart, and errors would name its pieces.
        raise ConfigurationError(
            "the engine's URL cannot be read: quote what the password holds with urllib.parse.quote(password, safe='')"
        )
    if is_autocommit(engine):
        raise ConfigurationError("the engine is in AUTOCOMMIT isolation, without transactions: make one without it")
    if name == "sqlite" and (database in {None, "", ":memory:"} or str(database).startswith("file:")):
        raise ConfigurationError(
            "the engine's SQLite database is in memory or a file: URI, which further connections do not find: "
            'use the path of a file, or Onward("memory://") in tests'
        )
    if name == "sqlite":
        require_version()
        return "sqlite"
    return "postgres"


def _is_torn(url: URL) -> bool:
    """Whether a part of it has what belongs into another."""
    login = "".join(map(str, (url.username, url.password, *url.query.values())))
    return (
        any(sign in f"{url.host}{url.database}" for sign in "@?#") or "password=" in login or storable(login) != login
    )


def check_session(session: Session, engine: Engine) -> None:
    """Raise TransactionUnsuitable unless the caller's session can be used beside this engine."""
    refuse_failed_savepoint(session)
    if not session.is_active:
        raise TransactionUnsuitable(
            "the transaction of the session passed has failed: call session.rollback() before going on"
        )
    _check_bind(session.get_bind(), engine)


def refuse_failed_savepoint(session: Session) -> None:
    """Of itself SQLAlchemy says to call session.rollback(), which undoes the whole transaction."""
    savepoint = session.get_nested_transaction()
    # Not active is also one that another task is just beginning.
    if savepoint is not None and savepoint._state is SessionTransactionState.DEACTIVE:
        raise TransactionUnsuitable(
            "a savepoint of the session has failed: leave its begin_nested() block, or roll back what begin_nested() "
            "gave, before going on; session.rollback() would undo the whole transaction"
        )


def check_connection(connection: Connection | None, engine: Engine) -> None:
    """Raise TransactionUnsuitable unless the caller's connection can be used beside this engine."""
    if connection is None or connection.closed or connection.invalidated:
        raise TransactionUnsuitable(
            "the connection passed is not open: use it inside `async with engine.begin() as connection:`"
        )
    transactions = (connection.get_nested_transaction(), connection.get_transaction())
    if any(transaction is not None and not transaction.is_active for transaction in transactions):
        raise TransactionUnsuitable("the transaction of the connection passed has failed: roll it back before going on")
    _check_bind(connection, engine)


def _check_bind(bind: Engine | Connection, engine: Engine) -> None:
    if bind.dialect.name != engine.dialect.name or bind.dialect.driver not in STYLES:
        raise TransactionUnsuitable(
            f"what was passed leads to {bind.dialect.name}+{bind.dialect.driver}, the app to {engine.dialect.name}"
        )
    if is_autocommit(bind):
        raise TransactionUnsuitable(
            "what was passed is in AUTOCOMMIT isolation, where nothing can be rolled back: use a connection without it"
        )


def causes(error: BaseException) -> Iterator[BaseException]:
    """SQLAlchemy's error, the DBAPI's in it, and the client library's in that."""
    yield error
    if isinstance(error, DBAPIError) and error.orig is not None:
        yield error.orig
        if error.orig.__cause__ is not None:
            yield error.orig.__cause__


def sqlstate(error: BaseException) -> str | None:
    """Postgres' code for the error, if it comes from there."""
    codes = [getattr(each, "sqlstate", None) for each in causes(error)]
    return next(filter(None, codes), None)


def discard_useless(connection: Connection, error: DBAPIError) -> None:
    """Have the pool not lend a connection again that leads to a server which cannot write, or has forgotten what the
    client goes on asking for.
    """
    code = sqlstate(error)
    is_refused = fault_of_code(code) is Fault.READ_ONLY
    if not (is_refused or code == FORGOTTEN) or connection.closed or connection.invalidated:
        return
    if not is_refused or connection.dialect.name == "sqlite" or reads_only(connection) is not False:
        connection.invalidate(error)


def address_of(url: URL) -> str | None:
    """The engine's database for another client; None if the URL alone does not lead there."""
    if not all(isinstance(value, str) for value in url.query.values()) or not (url.host or url.database):
        return None
    query = {name: value for name, value in url.query.items() if name in _SPOKEN_BY_ALL}
    if "ssl" in url.query:  # as asyncpg calls it
        query["sslmode"] = url.query["ssl"]
    return url.set(drivername="postgresql", query=query).render_as_string(hide_password=False)

"""From what the user has, an address or an object of their database library, to the adapters and driver that fit."""

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from onward.addresses import shown, wrong_address
from onward.errors import ConfigurationError, require
from onward.notify.contract import NotifyAdapter
from onward.state.command import Command
from onward.state.contract import StateAdapter
from onward.state.driver import Driver
from onward.transport import Reach

if TYPE_CHECKING:
    from onward.state.sqlite.file import SqliteFile

_KNOWN = (
    "use postgresql://…, sqlite:///file.db, memory://, an asyncpg or psycopg pool, "
    "or an SQLAlchemy engine or sessionmaker"
)


class Connected(NamedTuple):
    """How to reach a database."""

    state: StateAdapter
    driver: Driver
    notify: NotifyAdapter
    """Carries hints where the application has chosen nothing else."""
    place: str = ""
    """Where the server is, to be told to people."""


class PostgresDriver(Driver, Protocol):
    """A driver that may also be able to LISTEN."""

    @property
    def postgres_dsn(self) -> str | None:
        """Where the server is."""
        ...

    @property
    def reach(self) -> Reach | None:
        """How a further connection for LISTEN can be made; None where none can, or not as the application's are."""
        ...


def connect(
    target: Any, *, schema: str, prefix: str, pool_size: int, pgbouncer: bool, lock_timeout: float | None = None
) -> Connected:
    """The adapters and driver for a target; raises ConfigurationError naming what is missing. No I/O."""
    if isinstance(target, str) and target.partition("://")[0] in ("sqlite", "memory"):
        from onward.state.sqlite.sqlite3 import open_driver

        driver = open_driver(target, pool_size=pool_size, lock_timeout=lock_timeout)
        return _on_file(driver, driver.file, prefix=prefix)
    if isinstance(target, str):
        return _on_postgres(_by_address(target, pool_size=pool_size, prepared=not pgbouncer), schema=schema)
    module = type(target).__module__.partition(".")[0]
    if module == "sqlalchemy":
        from onward.state.sqlalchemy import driver_for

        through_engine = driver_for(target, prepared=not pgbouncer, lock_timeout=lock_timeout)
        if through_engine.file is not None:
            return _on_file(through_engine, through_engine.file, prefix=prefix)
        return _on_postgres(through_engine, schema=schema)
    if module == "asyncpg":
        from onward.state.postgres.asyncpg import AsyncpgDriver

        return _on_postgres(AsyncpgDriver(pool=target, prepared=not pgbouncer), schema=schema)
    if module == "psycopg_pool":
        from onward.state.postgres.psycopg import pool_driver

        return _on_postgres(pool_driver(target, prepared=not pgbouncer), schema=schema)
    raise ConfigurationError(f"cannot use a {type(target).__module__}.{type(target).__qualname__}: {_KNOWN}")


def _by_address(address: str, *, pool_size: int, prepared: bool) -> PostgresDriver:
    scheme, has_address, _ = address.partition("://")
    family, _, library = scheme.partition("+")
    if has_address and family in ("postgresql", "postgres") and library in ("", "asyncpg", "psycopg"):
        require(wrong_address("the address", address, [scheme]))
        dsn = "postgresql" + address[len(scheme) :]
        return _by_dsn(dsn, library, pool_size=pool_size, prepared=prepared)
    raise ConfigurationError(f"cannot tell the database from {shown(address)}: {_KNOWN}")


def _by_dsn(dsn: str, library: str, *, pool_size: int, prepared: bool) -> PostgresDriver:
    if library in ("", "asyncpg"):
        try:
            from onward.state.postgres.asyncpg import AsyncpgDriver
        except ImportError as error:
            if library:
                raise ConfigurationError("asyncpg is not installed: pip install 'onward[asyncpg]'") from error
        else:
            return AsyncpgDriver(dsn, pool_size=pool_size, prepared=prepared)
    try:
        from onward.state.postgres.psycopg import PsycopgDriver
    except ImportError as error:
        raise ConfigurationError(
            "no Postgres client is installed: pip install 'onward[asyncpg]' or 'onward[psycopg]'"
        ) from error
    return PsycopgDriver(dsn, pool_size=pool_size, prepared=prepared)


def _on_file(driver: Driver, file: "SqliteFile", *, prefix: str) -> Connected:
    from onward.notify.changes import ChangeNotify
    from onward.state.sqlite.adapter import SqliteState

    return Connected(SqliteState(prefix=prefix), driver, ChangeNotify(file.commits))


def _on_postgres(driver: PostgresDriver, *, schema: str) -> Connected:
    from onward.state.postgres.adapter import PostgresState

    dsn = driver.postgres_dsn
    place = "" if dsn is None else shown(dsn).removeprefix("postgresql://")
    return Connected(PostgresState(schema=schema), driver, _notify_on_postgres(driver, schema), place)


def _notify_on_postgres(driver: PostgresDriver, schema: str) -> NotifyAdapter:
    """LISTEN/NOTIFY where the server can be reached once more, NOTIFY where it can only be sent statements."""
    from onward.notify.postgres import PostgresNotify, SendingNotify

    channel = f"onward_{schema}"
    if driver.reach is not None:
        from onward.notify.postgres_connections import hint_connection_for

        return PostgresNotify(hint_connection_for(driver.reach), channel=channel, table=f'"{schema}".job')

    async def run(command: Command[None]) -> None:
        async with driver.connection() as connection:
            await connection.run(command)

    return SendingNotify(run, channel=channel)

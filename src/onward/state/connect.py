"""From what the user has, an address or an object of their database library, to the adapter and driver that fit."""

from typing import Any, NamedTuple

from onward.addresses import shown, wrong_address
from onward.errors import ConfigurationError, require
from onward.state.contract import StateAdapter
from onward.state.driver import Driver

_KNOWN = (
    "use postgresql://…, sqlite:///file.db, memory://, an asyncpg or psycopg pool, "
    "or an SQLAlchemy engine or sessionmaker"
)


class Connected(NamedTuple):
    """How to reach a database."""

    state: StateAdapter
    driver: Driver


def connect(
    target: Any, *, schema: str, prefix: str, pool_size: int, pgbouncer: bool, lock_timeout: float | None = None
) -> Connected:
    """The adapter and driver for a target; raises ConfigurationError naming what is missing. No I/O."""
    if isinstance(target, str) and target.partition("://")[0] in ("sqlite", "memory"):
        return _sqlite(target, prefix=prefix, pool_size=pool_size, lock_timeout=lock_timeout)
    if isinstance(target, str):
        return _by_address(target, schema=schema, pool_size=pool_size, pgbouncer=pgbouncer)
    return _by_object(target, schema=schema, prefix=prefix, pgbouncer=pgbouncer)


def _sqlite(address: str, *, prefix: str, pool_size: int, lock_timeout: float | None) -> Connected:
    from onward.state.sqlite.adapter import SqliteState
    from onward.state.sqlite.sqlite3 import open_driver

    driver = open_driver(address, pool_size=pool_size, lock_timeout=lock_timeout)
    return Connected(SqliteState(prefix=prefix), driver)


def _by_address(address: str, *, schema: str, pool_size: int, pgbouncer: bool) -> Connected:
    scheme, has_address, _ = address.partition("://")
    family, _, library = scheme.partition("+")
    if has_address and family in ("postgresql", "postgres") and library in ("", "asyncpg", "psycopg"):
        from onward.state.postgres.adapter import PostgresState

        require(wrong_address("the address", address, [scheme]))
        dsn = "postgresql" + address[len(scheme) :]
        driver = _postgres_driver(dsn, library, pool_size=pool_size, prepared=not pgbouncer)
        return Connected(PostgresState(schema=schema), driver)
    raise ConfigurationError(f"cannot tell the database from {shown(address)}: {_KNOWN}")


def _postgres_driver(dsn: str, library: str, *, pool_size: int, prepared: bool) -> Driver:
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


def _by_object(target: Any, *, schema: str, prefix: str, pgbouncer: bool) -> Connected:
    from onward.state.postgres.adapter import PostgresState

    module = type(target).__module__.partition(".")[0]
    if module == "sqlalchemy":
        from onward.state.sqlalchemy import driver_for
        from onward.state.sqlite.adapter import SqliteState

        driver = driver_for(target, prepared=not pgbouncer)
        if driver.dialect == "sqlite":
            return Connected(SqliteState(prefix=prefix), driver)
        return Connected(PostgresState(schema=schema), driver)
    if module == "asyncpg":
        from onward.state.postgres.asyncpg import AsyncpgDriver

        return Connected(PostgresState(schema=schema), AsyncpgDriver(pool=target, prepared=not pgbouncer))
    if module == "psycopg_pool":
        from onward.state.postgres.psycopg import pool_driver

        return Connected(PostgresState(schema=schema), pool_driver(target, prepared=not pgbouncer))
    raise ConfigurationError(f"cannot use a {type(target).__module__}.{type(target).__qualname__}: {_KNOWN}")

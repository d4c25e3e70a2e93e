"""Which lease keeper fits a client library; each is imported only where it is used."""

from typing import Any

from onward.state.lease_keeper import KeeperStatements, LeaseKeeper


def lease_keeper_for(client: str, options: dict[str, Any], statements: KeeperStatements) -> LeaseKeeper:
    """One that connects as the worker does."""
    if client == "sqlite3":
        from onward.state.sqlite.lease_keeper import SqliteLeaseKeeper

        return SqliteLeaseKeeper(options, statements)
    from onward.state.postgres.lease_keeper import AsyncpgClient, PostgresLeaseKeeper, PsycopgClient

    return PostgresLeaseKeeper(AsyncpgClient(options) if client == "asyncpg" else PsycopgClient(options), statements)

"""The tables, looked at when an app is opened."""

from onward.errors import SchemaMissing
from onward.state.contract import StateAdapter
from onward.state.driver import Connection


async def prepare_schema(state: StateAdapter, connection: Connection, *, migrate: bool) -> None:
    """Make the tables, or raise SchemaMissing naming the command that does."""
    found = await state.schema_version(connection)
    if found < state.newest_version and migrate:
        await state.migrate(connection)
    elif found != state.newest_version:
        raise SchemaMissing(found=found, needed=state.newest_version, where="the database")

"""What is looked at when an app is opened: the tables, and the process it is opened in."""

from onward.errors import SchemaMissing
from onward.state.contract import StateAdapter
from onward.state.driver import Connection


async def prepare_schema(state: StateAdapter, connection: Connection, *, migrate: bool) -> None:
    """Make the tables, or raise SchemaMissing naming the command that does."""
    found = await connection.run(state.schema_version())
    if found < state.newest_version and migrate:
        await connection.run(state.migrate())
    elif found != state.newest_version:
        raise SchemaMissing(found=found, needed=state.newest_version, where="the database")


def opened_before_fork(what: str, process: int) -> str:
    """What to say in a child of the process that opened it."""
    return (
        f"{what} was opened in process {process}, before a fork, and its connections are that process's own: open it "
        "in each process, after the fork (docs/how-to/forking.md)"
    )

"""Tables of the benchmark's own: made for it, removed after it, and never anybody else's."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from onward.cli.failures import CommandFailed
from onward.client.app import Onward
from onward.state.driver import Connection, Dialect
from onward.state.sqlite.file import parse_path

SCHEMA: Final = "onward_bench"
PREFIX: Final = "onward_bench_"
_FIND: Final[dict[Dialect, str]] = {
    "postgres": "SELECT nspname FROM pg_namespace WHERE nspname = 'onward_bench'",
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'onward!_bench!_%' ESCAPE '!'",
}
_EXISTS: Final[dict[Dialect, str]] = {
    "postgres": "there is a schema onward_bench already: another `onward bench` runs, or one was killed. If none runs: "
    "DROP SCHEMA onward_bench CASCADE",
    "sqlite": "there are tables named onward_bench_… already: another `onward bench` runs, or one was killed. If none "
    "runs, drop them",
}


@asynccontextmanager
async def own_tables(app: Onward) -> AsyncIterator[None]:
    """Tables for an app that is not open; refuses where there are some already."""
    await app.driver.open()
    try:
        async with app.driver.connection() as connection:
            if await _existing(app, connection):
                raise CommandFailed(_EXISTS[app.state.dialect])
            if app.state.dialect == "postgres":
                # Fails where two begin at the same moment; `migrate` would let both have it.
                await connection.script("CREATE SCHEMA onward_bench")
        try:
            await app.migrate()
            yield
        finally:
            await app.driver.open()  # the app has closed it
            async with app.driver.connection() as connection:
                await _remove(app, connection)
    finally:
        await app.driver.close()


async def _existing(app: Onward, connection: Connection) -> list[str]:
    return [str(row[0]) for row in await connection.fetch(_FIND[app.state.dialect], {})]


async def _remove(app: Onward, connection: Connection) -> None:
    if app.state.dialect == "postgres":
        await connection.script("DROP SCHEMA onward_bench CASCADE")
    else:
        for table in await _existing(app, connection):
            await connection.script(f'DROP TABLE "{table}"')


@contextmanager
def no_new_file(url: str) -> Iterator[None]:
    """Leave no SQLite file behind that was not there before."""
    path = parse_path(url) if url.startswith("sqlite:") else None
    is_new = path is not None and not os.path.exists(path)
    try:
        yield
    finally:
        if path is not None and is_new:
            for suffix in ("", "-wal", "-shm"):
                if os.path.exists(path + suffix):
                    os.unlink(path + suffix)

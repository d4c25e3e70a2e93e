"""`onward migrate`: Onward's tables, made or printed."""

import asyncio
from collections.abc import Sequence

from onward.cli.console import say
from onward.cli.failures import CommandFailed, reaching
from onward.cli.loading import load_app, named
from onward.cli.printing import print_json
from onward.cli.worker import loop_factory
from onward.client.app import Onward


def app_for(target: str, *, schema: str | None, prefix: str | None) -> Onward:
    """The app named, or one without jobs on the database at an address."""
    if "://" not in target:
        if schema is not None or prefix is not None:
            raise CommandFailed(
                f"--schema and --prefix go with an address; {named(target)} says itself where its tables are"
            )
        return load_app(target)
    return Onward(target, jobs=[], schema=schema or "onward", prefix=prefix or "onward_")


def apply(app: Onward, *, json: bool) -> None:
    """Bring the tables to the newest version, and say how."""
    with reaching(app), asyncio.Runner(loop_factory=loop_factory()) as runner:
        applied, version = runner.run(_migrate(app))
    if json:
        print_json({"applied": applied, "version": version})
        return
    for name in applied:
        say(f"applied {name}")
    if not applied:
        known = app.state.newest_version
        newer = f", newer than this code knows ({known})" if version > known else ""
        say(f"nothing to do: the tables are at version {version}{newer}")


async def _migrate(app: Onward) -> tuple[Sequence[str], int]:
    """What was applied, and the version of the tables now."""
    # Not app.open(), which refuses a database without the tables.
    await app.driver.open()
    try:
        return await app.migrate(), await app.store.read(app.state.schema_version())
    finally:
        await app.driver.close()

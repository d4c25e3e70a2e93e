"""From what a command was told to an open app, and to the ids it was given."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from onward.addresses import shown
from onward.cli.console import set_up_logging
from onward.cli.failures import CommandFailed, in_words, reaching
from onward.cli.loading import load_app
from onward.cli.options import Place
from onward.cli.worker import loop_factory
from onward.client.app import Onward
from onward.model import Chain, Job

T = TypeVar("T")


def with_app(place: Place, work: Callable[[Onward], Awaitable[T]]) -> T:
    """What `work` makes of the app, which is open meanwhile."""
    set_up_logging("warning")
    with in_words(debug=place.debug):
        return run(found(place), work)


def run(app: Onward, work: Callable[[Onward], Awaitable[T]]) -> T:
    """The same with an app at hand."""

    async def opened() -> T:
        async with app:
            return await work(app)

    with reaching(app), asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(opened())


def found(place: Place) -> Onward:
    """The app that is named, or one without jobs on the database that is."""
    if place.database is None:
        if place.app is None:
            raise CommandFailed(
                "which jobs? Say --database URL or --app MODULE:APP (or set ONWARD_DATABASE, ONWARD_APP)"
            )
        _refuse_tables(place.schema, place.prefix)
        return load_app(place.app)
    return at(place.database, schema=place.schema, prefix=place.prefix)


def of_app(code: Onward, database: str | None, *, schema: str | None, prefix: str | None) -> Onward:
    """Where the jobs of an app are looked at: the database that is named, or its own."""
    if database is not None:
        return at(database, schema=schema, prefix=prefix)
    _refuse_tables(schema, prefix)
    return code


def _refuse_tables(schema: str | None, prefix: str | None) -> None:
    if schema is not None or prefix is not None:
        raise CommandFailed("--schema and --prefix go with --database; an app says itself where its tables are")


def at(address: str, *, schema: str | None, prefix: str | None) -> Onward:
    """An app without jobs. It makes no tables, nor the file that they would be in."""
    if address.startswith("sqlite:///") and not Path(address.removeprefix("sqlite:///").partition("?")[0]).exists():
        raise CommandFailed(f"there is no file at {shown(address)}")
    return Onward(address, jobs=[], schema=schema or "onward", prefix=prefix or "onward_", migrate=False, observers=[])


def as_id(text: str) -> UUID:
    """The id that somebody wrote."""
    try:
        return UUID(text)
    except ValueError:
        raise CommandFailed(f"{text!r} is no id: expected a UUID, as lists show it") from None


async def job_of(app: Onward, text: str) -> Job:
    """The job of an id."""
    job = await app.find_job(as_id(text))
    if job is None:
        raise CommandFailed(f"there is no job {text}")
    return job


async def chain_of(app: Onward, text: str) -> Chain:
    """The chain of an id, which may be that of any of its jobs."""
    job = await app.find_job(as_id(text))
    chain = None if job is None else await app.find_chain(job.chain_id)
    if chain is None:
        raise CommandFailed(f"there is no chain or job {text}")
    return chain

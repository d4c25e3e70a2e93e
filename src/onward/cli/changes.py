"""Commands that change chains, and the types that workers leave alone."""

from datetime import timedelta
from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from onward.cli.changing import Bulk, Doing, change
from onward.cli.console import say, set_up_logging
from onward.cli.failures import CommandFailed, in_words
from onward.cli.loading import load_app
from onward.cli.options import AppDir, Choice, Debug, Ids, Json, Place, duration, option, spread
from onward.cli.place import run, with_app
from onward.cli.printing import print_json, print_line
from onward.client.app import Onward
from onward.client.handle import ChainHandle
from onward.define.job_type import JobType
from onward.errors import InternalJobType
from onward.model import JobStatus

Cascade = Annotated[bool, option("--cascade", "Also the chains that these wait for.")]
Types = Annotated[list[str], typer.Argument(metavar="TYPE…", help="Names of job types.", show_default=False)]
_OPEN = (JobStatus.BLOCKED, JobStatus.PENDING, JobStatus.RUNNING)


def start(
    type: Annotated[str, typer.Argument(metavar="TYPE", help="The job type a chain begins with.", show_default=False)],
    input: Annotated[
        str, typer.Argument(metavar="JSON", help="Its input; - reads it from standard input.", show_default=False)
    ],
    app: Annotated[str, option("--app", "The app, or a function that makes it.", metavar="MODULE:APP")],
    delay: Annotated[
        timedelta | None, option("--delay", "Not before this has passed: 90s, 5m, 2h.", parser=duration, metavar="TIME")
    ] = None,
    priority: Annotated[int, option("--priority", "Higher ones are taken first.", metavar="N")] = 0,
    json: Json = False,
    app_dir: AppDir = None,
    debug: Debug = False,
) -> None:
    """Start a chain. The input is checked as `app.start` does it."""
    set_up_logging("warning")
    with in_words(debug=debug):
        found = load_app(app)
        kind = found.registry.find(type)
        if not isinstance(kind.step, JobType):
            raise InternalJobType(type)
        text = typer.get_binary_stream("stdin").read() if input == "-" else input.encode("utf-8", "replace")
        try:
            value = kind.input.bare.decode(msgspec.json.encode(msgspec.json.decode(text)))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CommandFailed(f"the input is no JSON: {error}; text is written with quotes, '\"so\"'") from error
        except RecursionError as error:
            raise CommandFailed("the input is nested too deeply") from error
        starting: Any = partial(_start, kind.step, value, delay, priority)
        chain = run(found, starting)
    if json:
        print_json({"chain": chain.id, "type": type})
    else:
        print_line(str(chain.id))


async def _start(
    step: JobType[Any, Any], value: Any, delay: timedelta | None, priority: int, app: Onward
) -> ChainHandle[Any, Any]:
    return await app.start(step, value, delay=delay, priority=priority)


@spread
def trigger(place: Place, choice: Choice, bulk: Bulk, ids: Ids = None) -> None:
    """Run scheduled jobs now, by the id of their chain or by filter."""
    _change(place, choice, bulk, ids, "trigger", "triggered", (JobStatus.PENDING,), lambda app: app.trigger)


@spread
def cancel(place: Place, choice: Choice, bulk: Bulk, ids: Ids = None, cascade: Cascade = False) -> None:
    """Cancel chains, by id or by filter: what waits fails, what runs is asked to stop."""
    doing = lambda app: partial(app.cancel, cascade=cascade)  # noqa: E731
    _change(place, choice, bulk, ids, "cancel", "cancelled", _OPEN, doing)


@spread
def retry(place: Place, choice: Choice, bulk: Bulk, ids: Ids = None) -> None:
    """Run failed chains again, by id or by filter."""
    _change(place, choice, bulk, ids, "retry", "retried", (JobStatus.FAILED,), lambda app: app.retry)


@spread
def delete(place: Place, choice: Choice, bulk: Bulk, ids: Ids = None, cascade: Cascade = False) -> None:
    """Delete whole chains, by id or by filter."""
    doing = lambda app: partial(app.delete, cascade=cascade)  # noqa: E731
    _change(place, choice, bulk, ids, "delete", "deleted", tuple(JobStatus), doing)


def _change(
    place: Place,
    choice: Choice,
    bulk: Bulk,
    ids: list[str] | None,
    word: str,
    done: str,
    statuses: tuple[JobStatus, ...],
    how: Any,
) -> None:
    async def work(app: Onward) -> int:
        doing = Doing(word=word, done=done, statuses=statuses, change=how(app), oldest_first=word == "retry")
        return await change(app, doing, ids or (), choice, bulk)

    code = with_app(place, work)
    if code:
        raise typer.Exit(code)


@spread
def pause(place: Place, types: Types, json: Json = False) -> None:
    """Have workers leave job types alone; what runs goes on."""
    _switch(place, lambda app: app.pause(*types), f"paused {', '.join(types)}", json)


@spread
def resume(place: Place, types: Types, json: Json = False) -> None:
    """Have workers take job types again."""
    _switch(place, lambda app: app.resume(*types), f"resumed {', '.join(types)}", json)


def _switch(place: Place, act: Any, words: str, json: bool) -> None:
    async def work(app: Onward) -> list[str]:
        await act(app)
        return list(await app.paused())

    paused = with_app(place, work)
    if json:
        print_json({"paused": paused})
    else:
        say(words)


@spread
def paused(place: Place, json: Json = False) -> None:
    """List the job types that workers leave alone."""
    found = with_app(place, lambda app: app.paused())
    if json:
        print_json({"paused": list(found)})
        return
    if not found:
        say("no type is paused")
    for name in found:
        print_line(name)


def add_to(cli: typer.Typer) -> None:
    """These commands."""
    for command, example in (
        (start, "onward start orders.charge '{\"id\": 7}' --app shop.jobs:app"),
        (trigger, "onward trigger 0199d2a1-…"),
        (cancel, "onward cancel --type orders.charge --older-than 1d --dry-run"),
        (retry, "onward retry --type orders.charge --error CardDeclined"),
        (delete, "onward delete --status failed --older-than 30d --yes"),
        (pause, "onward pause orders.charge"),
        (resume, "onward resume orders.charge"),
        (paused, "onward paused --database postgresql://localhost/shop"),
    ):
        cli.command(epilog=f"Example: {example}")(command)

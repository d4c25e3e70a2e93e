"""`onward history`: chains that were moved there when they were pruned."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from onward.cli.chains import After, Limit, Payloads, print_list, print_page, say_what_follows, show_story, shown_by
from onward.cli.failures import CommandFailed
from onward.cli.help import WholeHelp
from onward.cli.options import Json, Place, duration, option, spread
from onward.cli.place import as_id, with_app
from onward.cli.printing import Shows
from onward.client.app import Onward
from onward.client.arguments import Filters
from onward.client.history import HistoryFilters
from onward.client.story import Story
from onward.client.words import age, state_of
from onward.model import Chain, JobStatus, Page

history = typer.Typer(
    cls=WholeHelp,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Chains that were moved to the history, on Postgres: list them, show one.",
)


@history.command("list", epilog="Example: onward history list --type orders.charge --older-than 90d")
@spread
def list_history(
    place: Place,
    type: Annotated[list[str] | None, option("--type", "Began with this type. May be repeated.")] = None,
    status: Annotated[
        list[JobStatus] | None, option("--status", "Only completed, or only failed ones (default: both).")
    ] = None,
    older_than: Annotated[
        timedelta | None,
        option("--older-than", "Ended before that long ago: 2h, 1d, 30d.", parser=duration, metavar="TIME"),
    ] = None,
    newer_than: Annotated[
        timedelta | None, option("--newer-than", "Ended since that long ago.", parser=duration, metavar="TIME")
    ] = None,
    after: After = None,
    limit: Limit = 50,
    payloads: Payloads = False,
    json: Json = False,
) -> None:
    """List moved chains, the last to end first."""
    filters = HistoryFilters(
        types=type or None, status=status or None, ended_from=_before(newer_than), ended_before=_before(older_than)
    )

    async def look(app: Onward) -> tuple[Page[Chain], Shows]:
        begin = None if after is None else as_id(after)
        return await app.history(after=begin, limit=limit, **filters), shown_by(app, payloads)

    page, shows = with_app(place, look)
    if json:
        print_page("chains", page, shows)
        return
    rows = [
        (chain.id, chain.type_name, chain.status, age(chain.ended_at or chain.created_at), state_of(chain.current))
        for chain in page
    ]
    print_list("chain", ("type", "status", "ended", ""), rows)
    say_what_follows(page, limit, Filters())


@history.command("show", epilog="Example: onward history show 0199d2a1-…")
@spread
def show_moved(
    place: Place,
    id: Annotated[str, typer.Argument(metavar="ID", help="A moved chain.", show_default=False)],
    payloads: Payloads = False,
    json: Json = False,
) -> None:
    """Show a moved chain: its steps and errors. What it waited for, and what waited for it, is not kept."""

    async def look(app: Onward) -> tuple[Story, Shows]:
        found = [*await app.history(chains=[as_id(id)])]
        if not found:
            raise CommandFailed(f"there is no chain {id} in the history")
        steps = await app.history_of(found[0].id)
        story = Story(job=found[0].current, chain=found[0], steps=steps, blockers=(), waiting=(), kin=())
        return story, shown_by(app, payloads)

    show_story(*with_app(place, look), json=json)


def _before(time: timedelta | None) -> datetime | None:
    return None if time is None else datetime.now(UTC) - time

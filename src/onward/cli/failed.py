"""`onward failed`: what failed, by cause, and another try for all of one cause."""

from typing import Annotated

import typer

from onward.cli.changing import Bulk, Doing, change_all
from onward.cli.console import say
from onward.cli.failures import CommandFailed
from onward.cli.help import WholeHelp
from onward.cli.options import Choice, Json, Place, option, spread
from onward.cli.place import with_app
from onward.cli.printing import print_json, print_line, print_table
from onward.client.app import Onward
from onward.client.arguments import Filters
from onward.client.bulk import causes
from onward.client.causes import Group
from onward.client.words import ago
from onward.model import JobStatus

failed = typer.Typer(cls=WholeHelp, no_args_is_help=True, rich_markup_mode=None, help="What failed, grouped by cause.")
_MOST = 5_000
Most = Annotated[int, option("--among", "Look at so many failed jobs at most, the newest.", min=1, metavar="N")]


@failed.command("list", epilog="Example: onward failed list --newer-than 1d")
@spread
def list_causes(place: Place, choice: Choice, among: Most = _MOST, json: Json = False) -> None:
    """List why jobs failed: type, error and place in the code, with how many there are of each."""

    async def look(app: Onward) -> tuple[list[Group], bool]:
        return await causes(app, _filters(choice), most=among)

    groups, is_all = with_app(place, look)
    if json:
        print_json({"groups": [_as_json(group) for group in groups], "complete": is_all})
        return
    if not groups:
        say("nothing has failed" if choice.is_empty else "nothing has failed of what is asked for")
    for group in groups:
        cause = group.cause
        print_table(
            (cause.id, f"{len(group.chain_ids):,} × {cause.type_name}, the last {ago(group.last)}"),
            [row for row in (("", cause.reason), ("", _error(group)), ("", cause.place)) if row[1]],
        )
        print_line("")
    if not is_all:
        say(_among(among))


@failed.command("retry", epilog="Example: onward failed retry 3f2a9c1e")
@spread
def retry_group(
    place: Place,
    choice: Choice,
    bulk: Bulk,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="As `onward failed list` names it.")],
    among: Most = _MOST,
) -> None:
    """Run the chains again that failed for one cause."""

    async def work(app: Onward) -> int:
        groups, is_all = await causes(app, _filters(choice), most=among)
        chosen = [one for one in groups if one.cause.id == group]
        if not chosen:
            raise CommandFailed(f"no failed jobs of group {group!r}: `onward failed list` shows which there are")
        if not is_all:
            say(_among(among))
        doing = Doing(word="retry", done="retried", statuses=(JobStatus.FAILED,), change=app.retry)
        return await change_all(app, doing, chosen[0].chain_ids[::-1], bulk, ask=True)

    code = with_app(place, work)
    if code:
        raise typer.Exit(code)


def _among(count: int) -> str:
    return f"among the newest {count:,} failed jobs; --among looks at more"


def _filters(choice: Choice) -> Filters:
    if choice.status and JobStatus.FAILED not in choice.status:
        raise CommandFailed(f"only jobs that have failed are grouped, none that are {', '.join(choice.status)}")
    return choice.filters


def _error(group: Group) -> str:
    message = " ".join(group.message.split())[:200]
    return f"{group.cause.error}: {message}" if message else group.cause.error


def _as_json(group: Group) -> dict[str, object]:
    return {
        "group": group.cause.id,
        **group.cause._asdict(),
        "count": len(group.chain_ids),
        "first": group.first,
        "last": group.last,
        "message": group.message,
        "chains": group.chain_ids[:100],
    }

"""`onward prune`: delete what has ended, now, or move it to the history."""

from datetime import timedelta
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from onward.cli.changing import DryRun, Yes, confirm
from onward.cli.console import say
from onward.cli.failures import CommandFailed
from onward.cli.options import Json, Place, duration, option, spread
from onward.cli.place import with_app
from onward.cli.printing import print_json
from onward.client.app import Onward
from onward.client.pruning import PruneOptions
from onward.client.words import several
from onward.model import JobStatus


@spread
def prune(
    place: Place,
    types: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TYPE…", help="Types that chains began with (default: all of the app).", show_default=False
        ),
    ] = None,
    older_than: Annotated[
        timedelta | None,
        option(
            "--older-than",
            "Ended before that long ago, 90s, 2h, 30d (default: as the retention of each type says).",
            parser=duration,
            metavar="TIME",
        ),
    ] = None,
    status: Annotated[
        list[JobStatus] | None, option("--status", "Only completed, or only failed ones (default: both).")
    ] = None,
    limit: Annotated[int | None, option("--limit", "So many at most.", min=1, metavar="N")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete chains that have ended, or move them to the history, as workers do in the background.

    What something unfinished waits for is kept. It is done in small batches, each committed.
    """
    options = PruneOptions(older_than=older_than, status=status or None, limit=limit)

    async def work(app: Onward) -> int:
        if not app.registry and (not types or older_than is None):
            raise CommandFailed("say which types, and --older-than: only an app (--app) knows how long they are kept")
        total: int | None = None
        if dry_run or not yes:
            counting: PruneOptions = {**options, "dry_run": True}
            total = await app.prune(*types or (), **counting)
        if dry_run:
            return total or 0
        if total is not None and total > 0:
            confirm(f"prune {several(total, 'chain')}", json=json)
        return 0 if total == 0 else await _prune(app, types or [], options, total)

    count = with_app(place, work)
    if json:
        print_json({"would" if dry_run else "pruned": count})
    else:
        say(f"{'would prune' if dry_run else 'pruned'} {several(count, 'chain')}")


async def _prune(app: Onward, types: list[str], options: PruneOptions, total: int | None) -> int:
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("prune", total=total)
        options = {**options, "progress": lambda so_far: bar.update(task, completed=so_far)}
        return await app.prune(*types, **options)

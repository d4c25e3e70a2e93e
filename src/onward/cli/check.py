"""`onward check`: whether a deploy of this code would strand jobs."""

from typing import Annotated

import typer

from onward.cli.console import say, set_up_logging
from onward.cli.failures import in_words
from onward.cli.loading import load_app
from onward.cli.options import App, AppDir, Debug, Json, Prefix, Schema, option
from onward.cli.place import of_app, run
from onward.cli.printing import print_json, print_line
from onward.client.app import Onward
from onward.client.checking import Verdict, check_stored
from onward.client.words import several


def check(
    app: App,
    database: Annotated[
        str | None, option("--database", "The database to look into (default: that of the app).", metavar="URL")
    ] = None,
    schema: Schema = None,
    prefix: Prefix = None,
    limit: Annotated[
        int | None,
        option("--limit", "Of each type and version so many jobs (default: all).", min=1, metavar="N"),
    ] = None,
    json: Json = False,
    app_dir: AppDir = None,
    debug: Debug = False,
) -> None:
    """Check that this code can go on with what is stored, before it is deployed.

    Decodes the input of every job that has not ended, the outputs of the chains it waits for, and the input of every
    schedule, upcasts included. Exit code 3 if a deploy would strand jobs or schedules. What has failed is not looked
    at, nor what is paused or over of schedules: nobody takes it.
    """
    set_up_logging("warning")
    with in_words(debug=debug):
        code = load_app(app)
        stored = of_app(code, database, schema=schema, prefix=prefix)

        async def look(opened: Onward) -> Verdict:
            return await check_stored(code.registry, opened.store, declared=code.declared_schedules, limit=limit)

        verdict = run(stored, look)
    if json:
        print_json(verdict)
    else:
        _print(verdict, limit)
    if not verdict.is_good:
        raise typer.Exit(3)


def _print(verdict: Verdict, limit: int | None) -> None:
    for one in verdict.stranded:
        print_line(f"{one.type_name}, version {one.version}: {one.part}: {one.problem}")
        print_line(f"  {one.count:,} job{'s' * (one.count != 1)}, such as {', '.join(map(str, one.examples))}")
    for schedule in verdict.stranded_schedules:
        print_line(f"schedule {schedule.name} ({schedule.type_name}): {schedule.part}: {schedule.problem}")
    skipped = f"; {verdict.skipped:,} more were left out (--limit {limit})" if verdict.skipped else ""
    stranded = sum(one.count for one in verdict.stranded)
    words = f"would strand {stranded:,} of" if stranded else "can go on with"
    say(f"this code {words} {verdict.checked:,} jobs{skipped}")
    if verdict.schedules:
        lost = len({one.name for one in verdict.stranded_schedules})
        words = f"would strand {lost:,} of" if lost else "can go on with"
        say(f"it {words} {several(verdict.schedules, 'schedule')}")

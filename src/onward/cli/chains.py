"""`onward chains` and `onward jobs`: what there is, one of them, and how one goes on."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.text import Text

from onward.cli.console import say
from onward.cli.help import WholeHelp
from onward.cli.options import Choice, Json, Place, duration, option, spread
from onward.cli.place import as_id, chain_of, job_of, with_app
from onward.cli.printing import HIDDEN, Shows, in_json, plain, print_json, print_line, print_table
from onward.cli.watching import watch_chain
from onward.client.app import Onward
from onward.client.arguments import AMONG_CHAINS, Filters
from onward.client.story import Story, as_tree, story_of
from onward.client.words import age, ago, state_of
from onward.model import Chain, CompletedJob, Job, Page

chains = typer.Typer(
    cls=WholeHelp, no_args_is_help=True, rich_markup_mode=None, help="Chains: list them, show one, watch one."
)
jobs = typer.Typer(
    cls=WholeHelp,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Jobs, each a step of a chain: list them, show one.",
)

After = Annotated[str | None, option("--after", "Begin behind this one, as the last page says.", metavar="ID")]
Limit = Annotated[int, option("--limit", "How many at most.", min=1, max=1000, metavar="N")]
Among = Annotated[
    int | None,
    option(
        "--among",
        "Look through so many jobs at most, newest first, where no index helps "
        "(default: 100000; for chains 50000; with --error 5000).",
        min=1,
        metavar="N",
    ),
]
Payloads = Annotated[
    bool, option("--payloads", "Show inputs and outputs also without an app, which knows what is secret.")
]
Id = Annotated[str, typer.Argument(metavar="ID", help="A chain, or a job of it.", show_default=False)]


@chains.command("list", epilog="Example: onward chains list --status failed --newer-than 1h")
@spread
def list_chains(
    place: Place,
    choice: Choice,
    after: After = None,
    limit: Limit = 50,
    among: Among = None,
    payloads: Payloads = False,
    json: Json = False,
) -> None:
    """List chains, newest first, by the type they began with and the status of the job they have come to."""
    filters = choice.looking_at(among, AMONG_CHAINS)

    async def look(app: Onward) -> tuple[Page[Chain], Shows]:
        begin = None if after is None else as_id(after)
        return await app.chains(after=begin, limit=limit, **filters), shown_by(app, payloads)

    page, shows = with_app(place, look)
    if json:
        print_page("chains", page, shows)
        return
    rows = [
        (chain.id, chain.type_name, chain.status, age(chain.created_at), _step(chain), state_of(chain.current))
        for chain in page
    ]
    print_list("chain", ("type", "status", "age", "at step", ""), rows)
    say_what_follows(page, limit, filters)


@jobs.command("list", epilog="Example: onward jobs list --type orders.charge --error CardDeclined")
@spread
def list_jobs(
    place: Place,
    choice: Choice,
    after: After = None,
    limit: Limit = 50,
    among: Among = None,
    payloads: Payloads = False,
    json: Json = False,
) -> None:
    """List jobs, newest first."""
    filters = choice.looking_at(among)

    async def look(app: Onward) -> tuple[Page[Job], Shows]:
        begin = None if after is None else as_id(after)
        return await app.jobs(after=begin, limit=limit, **filters), shown_by(app, payloads)

    page, shows = with_app(place, look)
    if json:
        print_page("jobs", page, shows)
        return
    rows = [(job.id, job.type_name, job.status, age(job.created_at), job.attempt, state_of(job)) for job in page]
    print_list("job", ("type", "status", "age", "attempts", ""), rows)
    say_what_follows(page, limit, filters)


def print_list(thing: str, headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    if rows:
        print_table((thing, *headers), rows)
    else:
        say(f"no {thing}s found")


def print_page(name: str, page: Page[Any], shows: Shows) -> None:
    print_json({name: [plain(one, shows=shows) for one in page], "next": page.next})


def shown_by(app: Onward, payloads: bool) -> Shows:
    """Those that were asked for, or that the app knows; one that stands in for an address knows none."""
    return lambda type_name: payloads or type_name in app.registry


def _step(chain: Chain) -> str:
    return "" if chain.current.chain_index == 0 else f"{chain.current.chain_index + 1} {chain.current.type_name}"


def say_what_follows(page: Page[Any], limit: int, filters: Filters) -> None:
    if page.next is None:
        return
    looked = "" if len(page) == limit else f"looked through {filters.get('among'):,} jobs; "
    say(f"{looked}there may be more: --after {page.next}")


@chains.command("show", epilog="Example: onward chains show 0199d2a1-…")
@spread
def show_chain(place: Place, id: Id, payloads: Payloads = False, json: Json = False) -> None:
    """Show a chain: its steps and errors, its blockers, what waits for it, and where it came from."""

    async def look(app: Onward) -> tuple[Story, Shows]:
        return await story_of(app, (await chain_of(app, id)).current), shown_by(app, payloads)

    show_story(*with_app(place, look), json=json)


@jobs.command("show", epilog="Example: onward jobs show 0199d2a1-…")
@spread
def show_job(place: Place, id: Id, payloads: Payloads = False, json: Json = False) -> None:
    """Show a job: its attempts and errors, its blockers, what waits for it, and where it came from."""

    async def look(app: Onward) -> tuple[Story, Shows]:
        return await story_of(app, await job_of(app, id)), shown_by(app, payloads)

    show_story(*with_app(place, look), json=json)


@chains.command("watch", epilog="Example: onward chains watch 0199d2a1-…")
@spread
def watch(
    place: Place,
    id: Id,
    every: Annotated[timedelta, option("--every", "How often to look.", parser=duration, metavar="TIME")] = "1s",  # type: ignore[assignment] # parsed
    json: Json = False,
) -> None:
    """Watch a chain until it has ended: its steps and their progress. Exit code 3 if it fails."""
    pause = max(every.total_seconds(), 0.05)

    async def look(app: Onward) -> bool:
        chain = await chain_of(app, id)
        return await watch_chain(lambda: app.find_chain(chain.id), asyncio.sleep, pause=pause, json=json)

    if not with_app(place, look):
        raise typer.Exit(3)


jobs.command("watch", epilog="Example: onward jobs watch 0199d2a1-…")(watch)


def show_story(story: Story, shows: Shows, *, json: bool) -> None:
    if json:
        print_json(_as_json(story, shows))
    else:
        _print_story(story, shows)


def _as_json(story: Story, shows: Shows) -> dict[str, Any]:
    return {
        "job": plain(story.job, shows=shows),
        "chain": story.chain and plain(story.chain, shows=shows),
        "steps": [plain(job, shows=shows) for job in story.steps],
        "blockers": [plain(one, shows=shows) for one in story.blockers],
        "waiting": [plain(job, shows=shows) for job in story.waiting],
        "tree": [{"depth": depth, **_named(job)} for depth, job in as_tree(story.kin)],
    }


def _print_story(story: Story, shows: Shows) -> None:
    job = story.job
    print_table(("job", str(job.id)), [(name, value) for name, value in _facts(story, shows) if value != ""])
    for error in job.errors:
        print_line("")
        counted = "" if error.counted else ", not counted"
        print_line(Text(f"attempt {error.attempt or '?'}{counted}: {error.type}: {error.message}", style="red"))
        if error.traceback:
            print_line(error.traceback.rstrip())
    _print_jobs("steps of its chain", story.steps if len(story.steps) > 1 else ())
    if story.blockers:
        print_line("\nblockers")
        print_table(("chain", "type", "status"), [(one.chain_id, one.type_name, one.status) for one in story.blockers])
    _print_jobs("what waits, or waited, for its chain", story.waiting)
    if len(story.kin) > 1:
        print_line("\nwhere it comes from, and what it started")
        for depth, one in as_tree(story.kin):
            here = "  <- this one" if one.id == job.id else ""
            print_line(f"{'   ' * depth}{'└─ ' * bool(depth)}{one.type_name}  {one.id}  {one.status}{here}")


def _named(job: Job) -> dict[str, Any]:
    return {"id": job.id, "type_name": job.type_name, "status": job.status, "origin_id": job.origin_id}


def _facts(story: Story, shows: Shows) -> Sequence[tuple[str, object]]:
    job, chain = story.job, story.chain
    payloads = shows(job.type_name)
    output = job.output if isinstance(job, CompletedJob) else None
    return (
        ("type", f"{job.type_name}, version {job.payload_version}"),
        ("status", job.status),
        ("", state_of(job)),
        ("chain", job.chain_id if job.chain_index or chain is None else ""),
        ("step", f"{job.chain_index + 1} of {len(story.steps)}" if len(story.steps) > 1 else ""),
        ("created", f"{job.created_at:%Y-%m-%d %H:%M:%S} UTC, {ago(job.created_at)}"),
        ("scheduled", f"{job.scheduled_at:%Y-%m-%d %H:%M:%S} UTC"),
        ("attempts", f"{job.attempt}, of which {job.failures} failed"),
        ("priority", job.priority or ""),
        ("deduplication", job.deduplication_key or ""),
        ("input", in_json(job.input) if payloads else HIDDEN),
        ("output", "" if output is None else in_json(output) if payloads else HIDDEN),
        ("problem", job.problem or ""),
    )


def _print_jobs(title: str, found: Sequence[Job]) -> None:
    if found:
        print_line(f"\n{title}")
        rows = [(job.id, job.type_name, job.status, job.attempt, state_of(job)) for job in found]
        print_table(("job", "type", "status", "attempts", ""), rows)

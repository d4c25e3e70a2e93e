"""Changing many chains: what is meant is counted and confirmed, then done in batches, each all or nothing."""

import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Annotated, Any, Never

import typer
from rich.console import Console
from rich.progress import Progress

from onward.cli.console import say
from onward.cli.failures import INTERRUPTED, CommandFailed
from onward.cli.options import Choice, Json, option
from onward.cli.place import chain_of
from onward.cli.printing import print_json
from onward.client.app import Onward
from onward.client.bulk import Changed, change_in_batches, matching
from onward.client.words import several
from onward.model import ChainId, JobStatus

_MOST_TOLD = 20


DryRun = Annotated[bool, option("--dry-run", "Only say how many chains would be changed.")]
Yes = Annotated[bool, option("--yes", "Do not ask.")]


@dataclass(frozen=True, kw_only=True)
class Bulk:
    """How to go about it."""

    all: Annotated[bool, option("--all", "All that can be, where no filter is given.")] = False
    dry_run: DryRun = False
    yes: Yes = False
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class Doing:
    """A change: what it is called, which chains it is for, and how it is made."""

    word: str
    done: str
    statuses: tuple[JobStatus, ...]
    """What a filter is narrowed to."""
    oldest_first: bool = False
    """Of those found by a filter: what others wait for is older than they are."""
    change: Callable[..., Awaitable[int]]


async def change(app: Onward, doing: Doing, ids: Sequence[str], choice: Choice, bulk: Bulk) -> int:
    """Change chains by id, or all that a filter finds; the exit code."""
    if ids and not choice.is_empty:
        raise CommandFailed("give ids or a filter, not both")
    if not ids and choice.is_empty and not bulk.all:
        raise CommandFailed(
            f"which chains? Give ids, a filter such as --type, or --all to {doing.word} all that can be"
        )
    named = [(await chain_of(app, id)).id for id in ids]
    found = named or [id async for id in _matching(app, doing, choice)][:: -1 if doing.oldest_first else 1]
    return await change_all(app, doing, list(dict.fromkeys(found)), bulk, ask=not ids)


async def change_all(app: Onward, doing: Doing, ids: Sequence[ChainId], bulk: Bulk, *, ask: bool) -> int:
    """Change these chains once that is confirmed, if it is to be asked; the exit code."""
    many = several(len(ids), "chain")
    if bulk.dry_run:
        _report(bulk, f"would {doing.word} {many}", {"would": len(ids), "chains": ids[:1000]})
        return 0
    if ask and ids and not bulk.yes:
        confirm(f"{doing.word} {many}", json=bulk.json)
    outcome = await _in_batches(doing, ids, show=ask, interrupted=partial(_tell, bulk, doing))
    _tell(bulk, doing, outcome)
    return 1 if outcome.refused else 0


def _tell(bulk: Bulk, doing: Doing, outcome: Changed) -> None:
    """What has come of it, or how far it came before it was interrupted."""
    words, refused = f"{doing.done} {several(outcome.count, 'chain')}", outcome.refused
    told: dict[str, Any] = {
        doing.done: outcome.count,
        "refused": [{"chain": id, "why": why} for id, why in refused],
    }
    if outcome.in_doubt or outcome.left:
        told |= {"in_doubt": outcome.in_doubt, "left": outcome.left}
        doubt = f"; whether {outcome.in_doubt:,} more were is not known" if outcome.in_doubt else ""
        words = f"interrupted: {words}{doubt}; {outcome.left:,} were not tried. The same command again goes on"
    _report(bulk, words, told)
    for id, why in refused[:_MOST_TOLD] if not bulk.json else ():
        say(f"not {id}: {why}")
    if len(refused) > _MOST_TOLD and not bulk.json:
        say(f"and {len(refused) - _MOST_TOLD:,} more that were refused")


def confirm(what: str, *, json: bool) -> None:
    """Go on only if that is wanted."""
    if json or not sys.stdin.isatty():
        raise CommandFailed(f"this would {what}: say --yes, or --dry-run to look first")
    with _interrupted_at_once():
        is_wanted = typer.confirm(f"{what}?", err=True)
    if not is_wanted:
        raise CommandFailed("nothing was changed")


@contextmanager
def _interrupted_at_once() -> Iterator[None]:
    """Have Ctrl-C end the command: the event loop would keep it for when it turns again, behind the answer."""

    def end(number: int, frame: FrameType | None) -> Never:
        raise typer.Exit(INTERRUPTED)

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


async def _matching(app: Onward, doing: Doing, choice: Choice) -> AsyncIterator[ChainId]:
    wanted = [status for status in choice.status or doing.statuses if status in doing.statuses]
    if not wanted:
        raise CommandFailed(f"{doing.word} is for chains that are {', '.join(doing.statuses)}")
    if choice.reason and JobStatus.FAILED not in wanted:
        raise CommandFailed(f"--reason is for what failed, {doing.word} for chains that are {', '.join(wanted)}")
    async for id in matching(app, {**choice.filters, "status": wanted}):
        yield id


async def _in_batches(
    doing: Doing, ids: Sequence[ChainId], *, show: bool, interrupted: Callable[[Changed], None]
) -> Changed:
    console = Console(stderr=True)
    with Progress(console=console, disable=not (show and console.is_terminal)) as bar:
        task = bar.add_task(doing.word, total=len(ids))
        advance = lambda done: bar.advance(task, done)  # noqa: E731
        return await change_in_batches(doing.change, ids, found=show, progress=advance, interrupted=interrupted)


def _report(bulk: Bulk, words: str, data: dict[str, Any]) -> None:
    if bulk.json:
        print_json(data)
    else:
        say(words)

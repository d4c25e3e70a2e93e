"""A chain, watched until it has ended."""

from collections.abc import Awaitable, Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from onward.cli.console import say
from onward.cli.failures import CommandFailed
from onward.cli.printing import plain, print_json, print_line
from onward.client.words import state_of
from onward.model import Chain, JobStatus
from onward.observe.logs import seen


async def watch_chain(
    look: Callable[[], Awaitable[Chain | None]],
    sleep: Callable[[float], Awaitable[object]],
    *,
    pause: float,
    json: bool,
) -> bool:
    """Tell of each change; whether the chain has completed. A live line on a terminal, a line per change elsewhere."""
    console = Console()
    live = console.is_terminal and not json
    bar = Progress(
        TextColumn("{task.description}", markup=False), BarColumn(),
        TextColumn("{task.fields[words]}", markup=False), TimeElapsedColumn(),
        console=console, disable=not live,
    )  # fmt: skip
    with bar:
        task = bar.add_task("", total=1.0, words="")
        told = None
        while True:
            chain = await look()
            if chain is None:
                raise CommandFailed("the chain was deleted")
            now = _state(chain)
            if now != told:
                told = now
                _tell(chain, live=live, json=json)
            fraction = chain.current.progress.fraction if chain.current.progress else 0.0
            done = chain.status is JobStatus.COMPLETED
            bar.update(
                task,
                completed=1.0 if done else fraction,
                description=seen(f"{chain.current.chain_index + 1} {chain.current.type_name}"),
                words=seen(f"{chain.status} {state_of(chain.current)}"),
            )
            if chain.ended_at is not None:
                return _ended(chain, json=json)
            await sleep(pause)


def _state(chain: Chain) -> tuple[object, ...]:
    job = chain.current
    return job.id, job.status, job.attempt, job.progress, len(job.errors)


def _tell(chain: Chain, *, live: bool, json: bool) -> None:
    job = chain.current
    if json:
        shown = plain(job, shows=lambda type_name: False)
        print_json({name: value for name, value in shown.items() if name not in ("input", "output")})
    elif not live:
        print_line(f"{job.chain_index + 1} {job.type_name}: {job.status} {state_of(job)}".rstrip())


def _ended(chain: Chain, *, json: bool) -> bool:
    is_done = chain.status is JobStatus.COMPLETED
    if not json:
        say(f"chain {chain.id} has {'completed' if is_done else 'failed'}")
    return is_done

"""The benchmark from the first table to the last."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from onward.addresses import shown
from onward.cli.bench.measures import LATENCIES, Bench, Figure, Progress
from onward.cli.bench.tables import no_new_file, own_tables
from onward.cli.failures import CommandFailed, reaching
from onward.cli.printing import print_json, writing
from onward.cli.worker import loop_factory


def run_bench(url: str, *, count: int, concurrency: int, json: bool) -> None:
    """Measure, showing how far it has come, and print a table, or JSON."""
    if url.partition(":")[0] not in ("postgresql", "postgres", "postgresql+asyncpg", "postgresql+psycopg", "sqlite"):
        raise CommandFailed(f"cannot measure {shown(url)}: give postgresql://… or sqlite:///file.db")
    bench = Bench(url, count=count, concurrency=concurrency)
    with no_new_file(url), reaching(bench.app), asyncio.Runner(loop_factory=loop_factory()) as runner:
        figures = runner.run(_measure(bench))
    if json:
        print_json({"figures": figures})
        return
    table = Table(title="Jobs that do nothing, from one process", title_justify="left")
    table.add_column("")
    table.add_column("", justify="right")
    for figure in figures:
        table.add_row(figure.words, figure.value)
    with writing():
        Console(file=sys.stdout).print(table)


async def _measure(bench: Bench) -> list[Figure]:
    with _bars() as bars:
        async with own_tables(bench.app), bench.app:
            one = await bench.start_one_by_one(_bar(bars, "starting one by one", bench.count))
            many = await bench.start_many(_bar(bars, "starting many", bench.count))
            drain = await bench.drain(_bar(bars, "running", bench.expected))
            latency = await bench.latency(_bar(bars, "measuring latency", LATENCIES))
    return [one, many, drain, *latency]


@contextmanager
def _bars() -> Iterator[Bars]:
    columns = (TextColumn("{task.description:20}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    # On standard error, so that the table can be piped.
    with Bars(*columns, console=Console(stderr=True)) as bars:
        yield bars


def _bar(bars: Bars, words: str, total: int) -> Progress:
    task = bars.add_task(words, total=total)

    def progress(count: int) -> None:
        bars.update(task, completed=count)

    return progress

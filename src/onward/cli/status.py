"""`onward status`: how everything is doing, on one screen."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Container, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal, TypeAlias

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from onward.cli.console import say
from onward.cli.options import Json, Place, duration, option, spread
from onward.cli.place import with_app
from onward.cli.printing import print_json, print_line, table
from onward.client.app import Onward
from onward.client.stats import COUNTS, cut_off
from onward.client.words import span
from onward.errands import Errands
from onward.operating import Minute, Stats, TypeStats, WorkerInfo

Watch = Annotated[bool, option("--watch", "Go on until interrupted.")]
Every = Annotated[
    timedelta, option("--every", "With --watch: how often to look.", parser=duration, metavar="TIME", show_default=True)
]
Counted: TypeAlias = Literal["started", "completed", "failed", "retried"]
Found: TypeAlias = tuple[Stats, Sequence[WorkerInfo]]
_PATIENCE = 3.0
"""Seconds that the database has for a look, with --watch, before it is said that it does not answer."""
_BARS = "▁▂▃▄▅▆▇█"
_BAR_MINUTES = 3
_RATE_MINUTES = 5
_HEADERS = (
    "type", "blocked", "pending", "scheduled", "running", "failed", "oldest",
    "started/min", "completed/min", "failed/min", "retried/min", "wait p95", "run p95", "completed, last hour", "",
)  # fmt: skip


@spread
def status(place: Place, watch: Watch = False, every: Every = "2s", json: Json = False) -> None:  # type: ignore[assignment] # parsed
    """How everything is doing: what waits, runs and failed, how fast, how long it takes, and who works.

    A count that ends in + goes on: no more are counted, so that this is quick whatever there is.
    """
    pause = max(every.total_seconds(), 0.1)

    async def look(app: Onward) -> None:
        if not watch:
            _print(*await _read(app), json=json)
            return
        console = Console(highlight=False, markup=False, emoji=False)
        if json or not console.is_terminal:
            async for seen in _looks(app, pause):
                if seen.found is not None and seen.silent_since is None:
                    _print(*seen.found, json=json)
                else:
                    say(f"onward: {seen.words}")
            return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            async for seen in _looks(app, pause):
                said = [Text(seen.words, style="red")] if seen.silent_since else []
                live.update(Group(*said, *(screen(*seen.found) if seen.found else ())), refresh=True)

    with_app(place, look)


async def _read(app: Onward) -> Found:
    return await app.stats(), await app.workers()


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was read last, and since when nothing is answered."""

    found: Found | None
    silent_since: datetime | None

    @property
    def words(self) -> str:
        """That what was read last is not how it is now."""
        since = f"the database has not answered since {self.silent_since:%H:%M:%S} UTC"
        return since if self.found is None else f"{since}; this was read at {self.found[0].at:%H:%M:%S} UTC"


async def _looks(app: Onward, pause: float) -> AsyncIterator[_Seen]:
    errands, found, silent_since = Errands(), None, None
    while True:
        began = datetime.now(UTC)
        try:
            found, silent_since = await errands.within(_PATIENCE, _read(app)), None
        except TimeoutError:
            silent_since = silent_since or began
        yield _Seen(found, silent_since)
        await asyncio.sleep(pause)


def _print(stats: Stats, workers: Sequence[WorkerInfo], *, json: bool) -> None:
    if json:
        print_json({"stats": stats, "workers": workers})
    else:
        for line in screen(stats, workers):
            print_line(line)


def screen(stats: Stats, workers: Sequence[WorkerInfo]) -> list[Text]:
    """The lines of the screen."""
    rows = [_row(stats, name, one, cut_off([one], stats.more_than)) for name, one in stats.types.items()]
    in_all = _row(stats, "in all", stats.total, cut_off(stats.types.values(), stats.more_than))
    return [
        Text(f"{stats.at:%Y-%m-%d %H:%M:%S} UTC", style="bold"),
        Text(_working(workers), style="" if any(one.state == "alive" for one in workers) else "red"),
        Text(""),
        *table(_HEADERS, [in_all, *rows]),
    ]


def _working(workers: Sequence[WorkerInfo]) -> str:
    if not workers:
        return "no workers"
    states = Counter(one.state for one in workers)
    alive = [one for one in workers if one.state != "dead"]
    said = ", ".join(f"{states[state]} {state}" for state in ("alive", "stopping", "dead") if states[state])
    running, slots = sum(len(one.running) for one in alive), sum(one.concurrency for one in alive)
    return f"workers: {said}; they run {running:,} of {slots:,}"


def _row(stats: Stats, name: str, of: TypeStats, goes_on: Container[str]) -> tuple[object, ...]:
    return (
        name,
        *(f"{getattr(of, count):,}{'+' * (count in goes_on)}" for count in COUNTS),
        "" if of.oldest is None else span(of.oldest.total_seconds()),
        *(_rate(stats, of, counted) for counted in ("started", "completed", "failed", "retried")),
        "" if of.wait is None else brief(of.wait.p95),
        "" if of.run is None else brief(of.run.p95),
        sparkline([minute.completed for minute in of.minutes]),
        "paused" if of.paused else "",
    )


def _rate(stats: Stats, of: TypeStats, counted: Counted) -> str:
    """Per minute, over the last few and what there is of this one."""
    last: Sequence[Minute] = of.minutes[-_RATE_MINUTES - 1 :]
    count = sum(getattr(minute, counted) for minute in last)
    rate = count * 60 / max((stats.at - last[0].at).total_seconds(), 1.0) if last else 0.0
    return "" if not count else f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"


def sparkline(counts: Sequence[int]) -> str:
    """A bar for every few minutes, the highest as high as can be; a dot where there was nothing.

    >>> sparkline([0, 0, 0, 1, 0, 0, 2, 3, 3])
    '·▁█'
    """
    sums = [sum(counts[n : n + _BAR_MINUTES]) for n in range(0, len(counts), _BAR_MINUTES)]
    most = max(sums, default=0)
    return "".join("·" if not one else _BARS[max(-(-one * len(_BARS) // most), 1) - 1] for one in sums) if most else ""


def brief(took: timedelta) -> str:
    """A time in three digits or so.

    >>> [brief(timedelta(seconds=n)) for n in (0.0000042, 0.0123, 1.234, 75)]
    ['4µs', '12.3ms', '1.23s', '1m 15s']
    """
    seconds = took.total_seconds()
    if seconds >= 60:
        return span(seconds)
    if seconds >= 1:
        return f"{seconds:.3g}s"
    return f"{seconds * 1e3:.3g}ms" if seconds >= 0.001 else f"{seconds * 1e6:.0f}µs"

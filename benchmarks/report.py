"""What a run found: tables for the eye, JSON for programmes, charts for the documents."""

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.chart import bars, lines
from benchmarks.place import BEFORE
from benchmarks.samples import FIGURES, Samples
from benchmarks.targets import Verdict

QUIET = 0.15
"""Cores that others may keep busy without being mentioned."""
GROWTH = {
    "history": ("Jobs/s beside so many finished rows", "finished rows"),
    "backlog": ("Jobs/s beside so many waiting jobs", "waiting jobs"),
    "types": ("Jobs/s of so many job types", "job types"),
    "processes": ("Jobs/s of so many worker processes on two cores", "worker processes"),
}


def print_tables(console: Console, samples: Samples) -> None:
    for suite in samples.suites():
        peers = samples.peers(suite)
        table = Table(title=f"{suite}: medians", title_justify="left")
        table.add_column("")
        for peer in peers:
            table.add_column(peer, justify="right", no_wrap=True)
        for figure, (words, _) in FIGURES.items():
            medians = [samples.median(suite, peer, figure) for peer in peers]
            if any(value is not None for value in medians):
                table.add_row(words, *("–" if value is None else _number(value) for value in medians))
        console.print(table)


def print_verdicts(console: Console, verdicts: list[Verdict]) -> None:
    table = Table(title="Ratios: the median of those within each round", title_justify="left")
    for column in ("", "found", "promised", ""):
        table.add_column(column, justify="right" if column else "left")
    colours = {"met": "green", "not met": "bold red", "not measured": "dim"}
    for verdict in verdicts:
        least, most = verdict.target.least, verdict.target.most
        promised = f"≥ {least:.3g}" if least is not None else f"≤ {most:.3g}"
        found = "–" if verdict.found is None else f"{verdict.found:.2f}"
        table.add_row(verdict.words, found, promised, f"[{colours[verdict.state]}]{verdict.state}[/]")
    console.print(table)


def print_against(console: Console, samples: Samples) -> None:
    """Each of our peers beside itself as it was: above 1.00 is more of the figure than before."""
    table = Table(title="Now ÷ before: the median of the ratios within each round", title_justify="left")
    for column in ("", "figure", "found", "better"):
        table.add_column(column, justify="right" if column == "found" else "left")
    for suite in samples.suites():
        for peer in [name for name in samples.peers(suite) if not name.startswith(BEFORE)]:
            for figure, (words, better) in FIGURES.items():
                found = samples.ratio(suite, peer, BEFORE + peer, figure) if figure != "noise" else None
                if found is not None:
                    table.add_row(peer, words, f"{found:.2f}", better)
    console.print(table)


def print_noise(console: Console, samples: Samples) -> None:
    """Say so when others were at it: then even ratios are rough."""
    found = [samples.median(suite, peer, "noise") or 0.0 for suite in samples.suites() for peer in samples.peers(suite)]
    if max(found, default=0.0) > QUIET:
        words = f"Other programmes kept up to {max(found):.1f} cores busy (medians): take these ratios as rough."
        console.print(words, style="yellow")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def write(folder: Path, samples: Samples, verdicts: list[Verdict], options: dict[str, Any]) -> None:
    """`results.json` and one `.svg` for each chart."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": f"{os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}",
        "load": os.getloadavg(),
        "options": options,
        "targets": [_as_json(verdict) for verdict in verdicts],
        "samples": samples.as_json(),
    }
    (folder / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    for name, picture in charts(samples).items():
        (folder / f"{name}.svg").write_text(picture)


def _as_json(verdict: Verdict) -> dict[str, Any]:
    bounds = {"least": verdict.target.least, "most": verdict.target.most}
    return {"target": verdict.words, "found": verdict.found, **bounds, "state": verdict.state}


def charts(samples: Samples) -> dict[str, str]:
    """Pictures by name, of what was measured."""
    found = {}
    # Where the harness can ask the store, what is settled counts.
    for suite, place, drain in (
        ("postgres", "Postgres", "settled"),
        ("redis", "Redis", "drain"),
        ("sqlite", "SQLite", "drain"),
    ):
        for name, figure, title in (
            ("drain", drain, "jobs run per second, one worker"),
            ("start-one", "one", "starts per second, one by one"),
            ("start-many", "many", "starts per second, 1,000 at a time"),
            ("latency", "p50", "milliseconds from start to handler, median"),
        ):
            if values := _medians(samples, suite, figure):
                found[f"{suite}-{name}"] = bars(f"{place}: {title}", values)
    if values := _medians(samples, "work", "settled"):
        found["work-drain"] = bars("Postgres: jobs settled per second, by what they do", values)
    for group, (title, axis) in GROWTH.items():
        if values := _medians(samples, group, "drain"):
            found[group] = lines(title, axis, values)
    return found


def _medians(samples: Samples, suite: str, figure: str) -> dict[str, float]:
    medians = {peer: samples.median(suite, peer, figure) for peer in samples.peers(suite)}
    return {peer: value for peer, value in medians.items() if value is not None}

"""What commands print on standard output: lines for people, coloured on a terminal, or JSON for programs.

Lines are never cut: where one is wider than the terminal, that wraps it.
"""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from onward.model import BlockedJob, FailedJob, Job, JobError, PendingJob, RunningJob

COLOURS = {"blocked": "yellow", "pending": "cyan", "running": "blue", "completed": "green", "failed": "red"}
_HIDDEN = ("input", "output")
HIDDEN = "hidden: only the app knows what is secret in it (--app), or --payloads"


def print_json(value: Any) -> None:
    """One document, on one line."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def print_line(*words: str | Text) -> None:
    """One line."""
    Console(highlight=False, markup=False, emoji=False).print(Text.assemble(*words), soft_wrap=True)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as they need to be."""
    texts = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(cells[n].plain) for cells in [*texts, [Text(h) for h in headers]]) for n in range(len(headers))]
    for cells in ([Text(header, style="bold") for header in headers], *texts):
        line = Text("  ").join(
            Text.assemble(cell, " " * (width - len(cell.plain))) for cell, width in zip(cells, widths, strict=True)
        )
        line.rstrip()
        print_line(line)


def _cell(value: object) -> Text:
    text = " ".join(str(value).split())
    return Text(text, style=COLOURS.get(text, ""))


def age(moment: datetime) -> str:
    """How long ago, or in how long, in one or two units."""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    return f"in {span(-seconds)}" if seconds < 0 else span(seconds)


def span(seconds: float) -> str:
    """A time, roughly.

    >>> [span(0.2), span(75), span(7300), span(200_000)]
    ['0s', '1m 15s', '2h 1m', '2d 7h']
    """
    days, rest = divmod(int(seconds), 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (left, "s")]
    first = next((n for n, (count, _) in enumerate(parts) if count), 3)
    return " ".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count) or "0s"


def plain(job: Any, *, payloads: bool = True) -> dict[str, Any]:
    """A job or a chain as JSON has it, without what should not be seen."""
    data: dict[str, Any] = msgspec.to_builtins(job)
    for part in (data, data.get("current")):
        if isinstance(part, dict):
            part |= {} if payloads else {name: HIDDEN for name in _HIDDEN if name in part}
    if "current" in data:
        data["status"] = data["current"]["status"]
    return data


def state_of(job: Job) -> str:
    """Where a job is, in a few words."""
    match job:
        case BlockedJob():
            words = f"waits for {job.open_blockers} chain{'s' * (job.open_blockers != 1)}"
        case PendingJob():
            due = job.scheduled_at > datetime.now(UTC)
            words = f"due {age(job.scheduled_at)}" if due else ""
        case RunningJob():
            words = f"by {job.leased_by}" + (", asked to stop" if job.cancel_requested else "")
        case FailedJob():
            words = f"{job.reason}"
        case _:
            words = ""
    if job.progress is not None and isinstance(job, RunningJob):
        words += f", {job.progress.fraction:.0%}" + (f" {job.progress.note}" if job.progress.note else "")
    error = "" if job.last_error is None or job.status == "completed" else in_short(job.last_error)
    return "; ".join(filter(None, [words, error, job.problem]))


def in_short(error: JobError) -> str:
    """An error on one line."""
    text = " ".join(error.message.split())
    return f"{error.type}: {text[:160]}{'…' * (len(text) > 160)}" if text else error.type

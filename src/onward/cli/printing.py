"""What commands print on standard output: lines for people, coloured on a terminal, or JSON for programs.

Lines are never cut: where one is wider than the terminal, that wraps it.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from onward.cli.console import say
from onward.observe.logs import seen

COLOURS = {"blocked": "yellow", "pending": "cyan", "running": "blue", "completed": "green", "failed": "red"} | {
    "alive": "green",
    "stopping": "yellow",
    "dead": "red",
}
_HIDDEN = ("input", "output")
HIDDEN = "hidden: only an app that has its type knows what is secret in it (--app), or --payloads"
Shows: TypeAlias = Callable[[str], bool]
"""Of which types inputs and outputs may be seen."""


def print_json(value: Any) -> None:
    """One document, on one line; in UTF-8, as JSON is, whatever the terminal has."""
    with writing():
        sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
        sys.stdout.buffer.flush()


def in_json(value: Any) -> str:
    """A payload within a line, as one would write it for `onward start`."""
    return msgspec.json.encode(value).decode()


def print_text(text: str) -> None:
    """Text as it stands, for a file."""
    with writing():
        print(text, flush=True)


def print_line(*words: str | Text) -> None:
    """One line."""
    line = Text.assemble(*words)
    line.plain = seen(line.plain)
    with writing():
        Console(highlight=False, markup=False, emoji=False).print(line, soft_wrap=True)


@contextmanager
def writing() -> Iterator[None]:
    """End the command where nothing can be written: without a word if whoever was reading has enough, as `head` has."""
    try:
        yield
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            say(f"onward: cannot write to standard output: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still in its buffer
        raise typer.Exit(1) from None


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as they need to be."""
    for line in table(headers, rows):
        print_line(line)


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> list[Text]:
    """The lines of a table."""
    texts = [[seen(" ".join(str(value).split())) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *texts, strict=True)]
    return [_line(headers, widths, style="bold"), *(_line(cells, widths) for cells in texts)]


def _line(cells: Sequence[str], widths: Sequence[int], style: str = "") -> Text:
    line = Text("  ".join(map(str.ljust, cells, widths)).rstrip(), style=style)
    place = 0
    for cell, width in zip(cells, widths, strict=True):
        if cell in COLOURS:
            line.stylize(COLOURS[cell], place, place + len(cell))
        place += width + 2
    return line


def plain(job: Any, *, shows: Shows) -> dict[str, Any]:
    """A job, a chain or a blocker as JSON has it, without what should not be seen."""
    data: dict[str, Any] = msgspec.to_builtins(job)
    for part in (data, data.get("current")):
        if isinstance(part, dict) and not shows(part.get("current_type_name") or part["type_name"]):
            part |= {name: HIDDEN for name in _HIDDEN if name in part}
    if "current" in data:
        data["status"] = data["current"]["status"]
    return data

"""What commands print on standard output: lines for people, coloured on a terminal, or JSON for programs.

Lines are never cut: where one is wider than the terminal, that wraps it.
"""

import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

COLOURS = {"blocked": "yellow", "pending": "cyan", "running": "blue", "completed": "green", "failed": "red"} | {
    "alive": "green",
    "stopping": "yellow",
    "dead": "red",
}
_HIDDEN = ("input", "output")
_SEEN = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {
    0x7F: 0x2421,
    **dict.fromkeys((*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD),
}
"""Characters that would steer a terminal, or turn a line around, and what stands for each. One for one, so that what is
coloured stays so."""
HIDDEN = "hidden: only the app knows what is secret in it (--app), or --payloads"


def print_json(value: Any) -> None:
    """One document, on one line."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def print_line(*words: str | Text) -> None:
    """One line."""
    line = Text.assemble(*words)
    line.plain = seen(line.plain)
    Console(highlight=False, markup=False, emoji=False).print(line, soft_wrap=True)


def seen(text: str) -> str:
    """Text that others wrote, such as an error, for a terminal: what steers one is shown instead.

    >>> seen("\\x1b[2Jall is well")
    '␛[2Jall is well'
    """
    return text.translate(_SEEN)


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


def plain(job: Any, *, payloads: bool = True) -> dict[str, Any]:
    """A job or a chain as JSON has it, without what should not be seen."""
    data: dict[str, Any] = msgspec.to_builtins(job)
    for part in (data, data.get("current")):
        if isinstance(part, dict):
            part |= {} if payloads else {name: HIDDEN for name in _HIDDEN if name in part}
    if "current" in data:
        data["status"] = data["current"]["status"]
    return data

"""Where words for people go: standard error, so that standard output can be piped."""

import io
import logging
import os
import sys
from datetime import UTC, datetime
from typing import TextIO

from rich.console import Console
from rich.logging import RichHandler

from onward.observe.events import WorkerStarted, WorkerStopped
from onward.observe.logs import LINE, LogFormat, LogSettings, TextFormatter, as_json, seen


def say(words: str) -> None:
    """One line on standard error, at once."""
    print(seen(words), file=sys.stderr, flush=True)


def say_at_once(words: str) -> None:
    """The same for signal handlers, which may have interrupted somebody who writes to sys.stderr."""
    if isinstance(sys.stderr, InJson):
        words = sys.stderr.line(words)
    os.write(2, f"{getattr(sys.stderr, 'mark', '')}{words}\n".encode())


class Numbered(io.TextIOWrapper):
    """A stream that begins each line with a number, so that the lines of several processes can be told apart."""

    def __init__(self, stream: TextIO, number: int) -> None:
        super().__init__(stream.buffer, encoding=stream.encoding, errors=stream.errors, line_buffering=True)
        self.mark = f"[{number}] "
        self._begins_line = True

    def write(self, text: str) -> int:
        begun, self._begins_line = self._begins_line, text.endswith("\n") if text else self._begins_line
        lines = text.removesuffix("\n").replace("\n", f"\n{self.mark}") + "\n" * text.endswith("\n")
        super().write(f"{self.mark}{lines}" if begun and text else lines)
        return len(text)


class InJson(io.TextIOWrapper):
    """A stream that makes of each line an object like those of the log, for whoever has a program read them."""

    def __init__(self, stream: TextIO, number: int | None) -> None:
        super().__init__(stream.buffer, encoding="utf-8", errors="replace", line_buffering=True)
        self._always = {} if number is None else {"process": number}
        self._begun = ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in filter(None, lines):
            super().write(f"{self.line(line)}\n")
        return len(text)

    def line(self, words: str) -> str:
        """The object that says so."""
        facts = {"time": datetime.now(UTC), "level": "info", "logger": "onward.cli", "message": words}
        return as_json({**facts, **self._always})


def set_up_logging(level: str, *, format: LogFormat = "text", number: int | None = None) -> None:
    """Log to standard error: coloured on a terminal, plain lines or JSON elsewhere."""
    settings = LogSettings(logging.getLevelNamesMapping()[level.upper()], format, number)
    handler: logging.Handler
    if format == "json":
        settings.apply()
        sys.stderr = InJson(sys.stderr, number)
        return
    console = Console(stderr=True)
    if number is not None:
        sys.stderr = numbered = Numbered(sys.stderr, number)
        console.width -= len(numbered.mark)
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False)
        handler.setFormatter(TextFormatter("%(name)s: %(message)s"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(TextFormatter(LINE))
    handler.addFilter(_not_said_in_words)
    settings.apply(handler)


def _not_said_in_words(record: logging.LogRecord) -> bool:
    return not isinstance(getattr(record, "onward", None), WorkerStarted | WorkerStopped)

"""Where words for people go: standard error, so that standard output can be piped."""

import io
import logging
import os
import sys
from typing import TextIO

from rich.console import Console
from rich.logging import RichHandler

from onward.observe.events import WorkerStarted, WorkerStopped


def say(words: str) -> None:
    """One line on standard error, at once."""
    print(words, file=sys.stderr, flush=True)


def say_at_once(words: str) -> None:
    """The same for signal handlers, which may have interrupted somebody who writes to sys.stderr."""
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


def set_up_logging(level: str, *, number: int | None = None) -> None:
    """Log to standard error: coloured on a terminal, plain lines elsewhere."""
    console = Console(stderr=True)
    if number is not None:
        sys.stderr = numbered = Numbered(sys.stderr, number)
        console.width -= len(numbered.mark)
    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False)
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(_not_said_in_words)
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _not_said_in_words(record: logging.LogRecord) -> bool:
    return not isinstance(getattr(record, "onward", None), WorkerStarted | WorkerStopped)

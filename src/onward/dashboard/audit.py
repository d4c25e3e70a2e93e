"""Who did what, when, from where: written down before it is done, and once more with what came of it."""

import asyncio
import inspect
import logging
import os
from asyncio import to_thread
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from onward.dashboard.refusal import Refusal
from onward.errands import to_the_end

audit = logging.getLogger("onward.dashboard.audit")
_LONGEST_LOGGED = 200
_PATIENCE = 10.0
"""Seconds that a hook may take: it is waited for also where whoever asked is gone, or the server stops."""
Outcome: TypeAlias = Literal["asked", "done", "refused", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of the audit log."""

    id: str
    """That of what was asked, so that what came of it can be found."""
    at: datetime
    who: str
    address: str | None
    """Of the other end of the connection; behind a proxy, what the server makes of its headers."""
    action: str
    what: str
    """What it was to be done to."""
    outcome: Outcome
    """`asked` just before it is done. What passes no check is `refused` at once. `failed`: it may be done in part."""
    words: str
    """What was done, or why not."""


Write: TypeAlias = Callable[[Entry], Awaitable[None] | None]


class Audit:
    """Writes entries to the log, and to whoever else wants them."""

    def __init__(self, also: Write | None) -> None:
        self._also = also

    async def asked(self, entry: Entry) -> None:
        """It is about to be done; raises Refusal if that cannot be written down, and then it must not be."""
        try:
            await to_the_end(self._write(entry))
        except asyncio.CancelledError:
            await self.ended(entry, "failed", "CancelledError. Nothing was done.")
            raise
        except Exception as error:
            audit.exception("the audit log cannot be written, so nothing was done")
            raise Refusal(503, f"Nothing was done: the audit log cannot be written ({_reason(error)}).") from error

    async def refused(self, entry: Entry, words: str) -> None:
        """It passes no check. What a form says that is not ours is cut: somebody's page could fill the disk with it."""
        await self.ended(replace(entry, what=_cut(entry.what)), "refused", words)

    async def ended(self, entry: Entry, outcome: Outcome, words: str) -> str:
        """What came of it. What is to be said of it: it can no longer be undone if this cannot be written down."""
        try:
            await to_the_end(self._write(replace(entry, at=datetime.now(UTC), outcome=outcome, words=words)))
        except Exception as error:  # noqa: BLE001 - it is logged, and told
            audit.exception("the audit log cannot be written: what came of %s is not there", entry.id)
            return f"{words} What came of it could not be written to the audit log ({_reason(error)})."
        return words

    async def _write(self, entry: Entry) -> None:
        level = logging.INFO if entry.outcome in ("asked", "done") else logging.WARNING
        # As repr shows them: what somebody sent must not make lines of its own.
        told = (entry.outcome, entry.action, entry.who, entry.address, _cut(entry.what), entry.words)
        audit.log(level, "%s %s by %r from %r: %r: %r", *told, extra={"audit": entry})
        if self._also is not None:
            written = self._also(entry)
            if inspect.isawaitable(written):
                async with asyncio.timeout(_PATIENCE):
                    await written


class AuditFile:
    """Appends each entry to a file as a line of JSON: `Dashboard(app, audit=AuditFile("audit.jsonl"))`.

    The file is made if need be, for its owner only, and opened for each line, so that it may be moved away at any time.

    >>> import tempfile
    >>> AuditFile(f"{tempfile.mkdtemp()}/audit.jsonl").check()
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._is_cut = False
        """Whether the last line was cut short, as by a disk that is full: the next one must not be glued to it."""

    def check(self) -> None:
        """Raise OSError if it cannot be written."""
        self._append(b"")

    async def __call__(self, entry: Entry) -> None:
        # In a thread: a disk may be far away.
        await to_thread(self._append, msgspec.json.encode(entry) + b"\n")

    def _append(self, line: bytes) -> None:
        # A pipe that nobody reads, or that is full, is an error at once: it would hold up whoever waits for it.
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        try:
            line = b"\n" * self._is_cut + line
            written = os.write(file, line)
            self._is_cut = written < len(line)
            if self._is_cut:
                raise OSError(f"only {written} of {len(line)} bytes could be written")
        finally:
            os.close(file)


def _reason(error: Exception) -> str:
    words = (error.strerror or str(error)) if isinstance(error, OSError) else ""
    return words or type(error).__name__


def _cut(text: str) -> str:
    """Its beginning, and how long it is."""
    return text if len(text) <= _LONGEST_LOGGED else f"{text[:_LONGEST_LOGGED]}… ({len(text):,} characters)"

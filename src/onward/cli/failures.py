"""What went wrong, in one readable line."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from onward.cli.console import say
from onward.client.app import Onward
from onward.client.health import advice_on_pooler
from onward.errors import DatabaseError, OnwardError
from onward.observe.logs import without_passwords
from onward.state.driver import CLIENTS, is_clients_own

_SILENT = "it did not answer in time"
INTERRUPTED = 130
"""What a shell calls the end by SIGINT."""


class CommandFailed(Exception):
    """What was asked for cannot be done; the message says why."""


@contextmanager
def in_words(*, debug: bool) -> Iterator[None]:
    """End the command with a line and exit code 1 for what a user can cause; a bug keeps its traceback."""
    try:
        yield
    except Exception as error:
        cause = _only(error)
        if debug or not isinstance(cause, CommandFailed | OnwardError):
            raise
        say(f"onward: {without_passwords(str(cause))}")
        raise typer.Exit(1) from None


@contextmanager
def reaching(app: Onward) -> Iterator[None]:
    """Name the database in what its client says about it."""
    try:
        yield
    except Exception as error:
        cause = _only(error)
        if isinstance(cause, DatabaseError) and cause.__cause__ is not None:
            cause = cause.__cause__
        if not _is_about_the_database(cause):
            raise
        reason = " ".join(str(cause).split()) or (_SILENT if isinstance(cause, TimeoutError) else type(cause).__name__)
        place = f" at {app.place}" if app.place else ""
        advice = advice_on_pooler(reason)
        raise CommandFailed(f"cannot use the database{place}: {reason}{f'; {advice}' if advice else ''}") from error


def _only(error: BaseException) -> BaseException:
    """The one error in a group of one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _is_about_the_database(error: BaseException) -> bool:
    if is_clients_own(error):
        return True
    # An address that cannot be parsed is a plain ValueError, raised inside the client.
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return isinstance(error, ValueError) and _package(frames[-1].f_globals.get("__name__", "")) in CLIENTS


def _package(module: str) -> str:
    return module.partition(".")[0]

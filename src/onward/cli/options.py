"""Options that several commands share, in groups: a command that takes a group gets all of its options.

Each option is also an environment variable, `ONWARD_` and its name.
"""

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from onward.client.arguments import AMONG, AMONG_ERRORS, Filters
from onward.client.words import duration_of
from onward.model import FailureReason, JobStatus


def option(name: str, help: str, **more: Any) -> Any:
    """An option that is also a variable."""
    return typer.Option(name, envvar=f"ONWARD_{name.lstrip('-').replace('-', '_').upper()}", help=help, **more)


def spread(command: Callable[..., Any]) -> Callable[..., Any]:
    """Have a command's parameters that are dataclasses be given as options, one for each field."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        group = groups.get(parameter.name)
        if group is None:
            parameters.append(parameter.replace(annotation=hints[parameter.name], kind=parameter.KEYWORD_ONLY))
            continue
        types = get_type_hints(group, include_extras=True)
        parameters += [
            inspect.Parameter(field.name, parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name])
            for field in fields(group)
        ]

    @wraps(command)
    def run(**given: Any) -> Any:
        own = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)}) for name, kind in groups.items()
        }
        return command(**given, **own)

    del run.__wrapped__  # whose parameters typer would read
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def duration(text: str | timedelta) -> timedelta:
    """A time such as 90s, 5m, 2h, 1d."""
    try:
        return duration_of(str(text))
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None


def some_time(text: str | timedelta) -> timedelta:
    """The same where none at all would leave no time to do anything."""
    time = duration(text)
    if not time:
        raise typer.BadParameter(f"{str(text)!r} leaves no time: give more than nothing")
    return time


def _put_on_path(folder: Path | None) -> Path | None:
    """First of all places, before the current directory."""
    if folder is not None:
        sys.path[:] = [str(folder.resolve()), os.getcwd(), *sys.path]
    return folder


def _unless_an_app_is_named(context: typer.Context, parameter: typer.CallbackParam, value: str | None) -> str | None:
    """An app that was written here goes before an address that only a variable says, perhaps for all commands, and
    what belongs to that."""
    app, database, this = (_source(context, name) for name in ("app", "database", str(parameter.name)))
    is_named = app == "COMMANDLINE" and database != "COMMANDLINE"
    return None if is_named and this == "ENVIRONMENT" else value


def _source(context: typer.Context, name: str) -> str | None:
    found = context.get_parameter_source(name)
    return None if found is None else found.name


AppDir = Annotated[
    Path | None,
    option(
        "--app-dir",
        "Where to look for the module first (default: this directory).",
        metavar="FOLDER",
        exists=True,
        file_okay=False,
        callback=_put_on_path,
    ),
]
Debug = Annotated[bool, option("--debug", "Show tracebacks of errors.")]
Schema = Annotated[str | None, option("--schema", "With --database: the Postgres schema (default: onward).")]
Prefix = Annotated[str | None, option("--prefix", "With --database: how SQLite tables begin (default: onward_).")]
Json = Annotated[bool, option("--json", "Print JSON, for programs.")]
App = Annotated[
    str,
    typer.Argument(
        envvar="ONWARD_APP", metavar="MODULE:APP", help="The app, or a function that makes it; of this directory too."
    ),
]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID…", help="Chains, or jobs of them.", show_default=False)]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the jobs are."""

    app: Annotated[str | None, option("--app", "The app, or a function that makes it.", metavar="MODULE:APP")] = None
    database: Annotated[
        str | None,
        option(
            "--database",
            "The address of the database, where no app is needed.",
            metavar="URL",
            callback=_unless_an_app_is_named,
        ),
    ] = None
    schema: Annotated[
        str | None,
        option("--schema", "With --database: the Postgres schema (default: onward).", callback=_unless_an_app_is_named),
    ] = None
    prefix: Annotated[
        str | None,
        option(
            "--prefix", "With --database: how SQLite tables begin (default: onward_).", callback=_unless_an_app_is_named
        ),
    ] = None
    app_dir: AppDir = None
    debug: Debug = False


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which jobs or chains."""

    type: Annotated[
        list[str] | None, option("--type", "Of this type; of chains, the one they began with. May be repeated.")
    ] = None
    status: Annotated[list[JobStatus] | None, option("--status", "Of this status. May be repeated.")] = None
    reason: Annotated[list[FailureReason] | None, option("--reason", "Failed for this. May be repeated.")] = None
    older_than: Annotated[
        timedelta | None,
        option("--older-than", "Created before that long ago: 90s, 5m, 2h, 1d.", parser=duration, metavar="TIME"),
    ] = None
    newer_than: Annotated[
        timedelta | None, option("--newer-than", "Created since that long ago.", parser=duration, metavar="TIME")
    ] = None
    error: Annotated[
        str | None,
        option("--error", "With this text in a stored error: its type, message or traceback.", metavar="TEXT"),
    ] = None

    @property
    def filters(self) -> Filters:
        """As the app takes them."""
        return Filters(
            types=self.type or None,
            status=self.status or None,
            reason=self.reason or None,
            older_than=self.older_than,
            newer_than=self.newer_than,
            error_text=self.error,
        )

    @property
    def is_empty(self) -> bool:
        return not any(self.filters.values())

    def looking_at(self, among: int | None, most: int = AMONG) -> Filters:
        """The same for a page for which so many jobs are looked through, or as many as is quick."""
        return {**self.filters, "among": among or (most if self.error is None else AMONG_ERRORS)}

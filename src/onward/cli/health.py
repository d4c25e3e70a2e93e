"""`onward health` and `onward doctor`: whether jobs get done, and what is wrong with the database."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, TypeVar

import typer
from rich.text import Text

from onward.cli.console import set_up_logging
from onward.cli.failures import in_words
from onward.cli.options import Json, Place, duration, option, some_time, spread
from onward.cli.place import found
from onward.cli.printing import print_json, print_line
from onward.cli.worker import loop_factory
from onward.client.app import Onward
from onward.client.doctor.case import examine
from onward.client.doctor.judge import judge
from onward.operating import Finding, Health

T = TypeVar("T")
_COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


def _age(text: str) -> tuple[str | None, timedelta]:
    """`5m`, or `TYPE=5m`."""
    name, equals, limit = text.rpartition("=")
    if equals and not name:
        raise typer.BadParameter(f"{text!r}: write TYPE=5m, or 5m for all types")
    return name or None, duration(limit)


@spread
def health(
    place: Place,
    max_age: Annotated[
        list[str] | None,
        option(
            "--max-age",
            "How long jobs may wait once they are due: 5m for all types, TYPE=5m for one. May be repeated.",
            metavar="[TYPE=]TIME",
        ),
    ] = None,
    timeout: Annotated[
        timedelta,
        option("--timeout", "How long the database has to answer.", parser=some_time, metavar="TIME"),
    ] = "5s",  # type: ignore[assignment]
    json: Json = False,
) -> None:
    """Tell whether jobs get done, for a probe: exit code 0 if they do, 1 if not.

    The database answers, its tables are those that this code needs, hints arrive, workers live and take what waits, and
    nothing has waited for too long. Warnings do not count as unhealthy.
    """
    ages = [_age(text) for text in max_age or ()]
    limits = {name: limit for name, limit in ages if name is not None}
    usual = next((limit for name, limit in reversed(ages) if name is None), None)
    answer = _with(place, lambda app: app.health(max_age=usual, max_ages=limits, timeout=timeout))
    _tell(answer, json=json, quiet=False)
    if not answer.healthy:
        raise typer.Exit(1)


@spread
def doctor(
    place: Place,
    deep: Annotated[bool, option("--deep", "Look through all rows, and the whole SQLite file, however long.")] = False,
    timeout: Annotated[
        timedelta | None,
        option("--timeout", "How long it may take (default: 1m; with --deep: 1h).", parser=some_time, metavar="TIME"),
    ] = None,
    all: Annotated[bool, option("--all", "Also tell what is in order.")] = False,
    json: Json = False,
) -> None:
    """Examine the database: tables, indexes, vacuum, settings, rows that are not as they should be; with what to do.

    It reads only, in a few seconds. What this role may not see is said. Exit code 0 if nothing is wrong, 1 if there are
    warnings, 2 if there are errors.
    """
    limit = timeout or (timedelta(hours=1) if deep else timedelta(minutes=1))

    async def look(app: Onward) -> Health:
        return Health(at=datetime.now(UTC), findings=judge(await examine(app, deep=deep, timeout=limit)))

    answer = _with(place, look)
    _tell(answer, json=json, quiet=not all)
    levels = {finding.level for finding in answer.findings}
    code = 2 if "error" in levels else 1 if "warning" in levels else 0
    if code:
        raise typer.Exit(code)


def _with(place: Place, look: Callable[[Onward], Awaitable[T]]) -> T:
    """What comes of a look at an app that is not opened: its database may be away, or without tables."""
    set_up_logging("error")

    async def looked() -> T:
        return await look(app)

    with in_words(debug=place.debug):
        app = found(place)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(looked())


def _tell(health: Health, *, json: bool, quiet: bool) -> None:
    """`quiet`: of what is in order, only how much there is."""
    if json:
        print_json({"at": health.at, "healthy": health.healthy, "findings": health.findings})
        return
    for finding in health.findings:
        if finding.level != "ok" or not quiet:
            _print(finding)
    if quiet:
        print_line(_in_order(health.findings))


def _print(finding: Finding) -> None:
    level = Text(f"{finding.level:<8}", style=_COLOURS[finding.level])
    print_line(level, Text(finding.name, style="bold"), f": {finding.message}")
    if finding.advice and finding.level != "ok":
        print_line(" " * 8, finding.advice)


def _in_order(findings: Sequence[Finding]) -> str:
    fine = [finding.name for finding in findings if finding.level == "ok"]
    return f"in order: {', '.join(fine) or 'nothing'}"

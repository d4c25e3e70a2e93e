"""The commands and their options. Each option is also an environment variable, `ONWARD_` and its name."""

import asyncio
import os
import socket
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import typer

from onward.cli import chains, changes, failed
from onward.cli import migrate as migrating
from onward.cli.check import check
from onward.cli.console import say, set_up_logging
from onward.cli.dashboard import PORT, Port, dashboard
from onward.cli.dry_run import run_dry
from onward.cli.explain import explain
from onward.cli.failures import in_words
from onward.cli.graph import graph
from onward.cli.health import doctor, health
from onward.cli.help import WholeHelp
from onward.cli.history import history
from onward.cli.http import serving
from onward.cli.loading import load_app, this_program
from onward.cli.options import AppDir, Debug, Json, option
from onward.cli.printing import print_text
from onward.cli.probes import FleetHealth, listen, listen_at
from onward.cli.prune import prune
from onward.cli.queue_worker import Options as QueueOptions
from onward.cli.queue_worker import load_queue_worker, run_queue_worker
from onward.cli.reloader import Reloader
from onward.cli.status import status
from onward.cli.steering import Steering
from onward.cli.supervisor import Supervisor, why_not
from onward.cli.worker import run_worker
from onward.cli.workers import workers
from onward.observe.logs import LogFormat
from onward.options import LONGEST
from onward.version import VERSION
from onward.worker.guardian.contract import GuardianKind
from onward.worker.options import WorkerKeywords

cli = typer.Typer(
    cls=WholeHelp,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Background jobs that commit with your data. Every option is also an environment variable, shown beside it.",
)

_LONGEST = LONGEST.total_seconds()
LogLevel = Literal["debug", "info", "warning", "error", "critical"]
Level = Annotated[LogLevel, typer.Option(envvar="ONWARD_LOG_LEVEL", help="What to log.")]
LogFormats = Annotated[
    LogFormat, typer.Option(envvar="ONWARD_LOG_FORMAT", help="Lines for people, or one JSON object a line.")
]
Processes = Annotated[
    int,
    typer.Option(
        envvar="ONWARD_PROCESSES",
        min=1,
        metavar="N",
        help="How many processes, each with that many jobs; one that dies is replaced.",
    ),
]
Grace = Annotated[
    float,
    typer.Option(
        envvar="ONWARD_GRACE",
        min=0.0,
        max=_LONGEST,
        metavar="SECONDS",
        help="How long running jobs may finish when stopping.",
    ),
]
Name = Annotated[
    str | None,
    typer.Option(envvar="ONWARD_NAME", help="The first part of the worker's identity (default: host and process)."),
]
Hidden = Annotated[int | None, typer.Option(hidden=True)]
"""What a supervisor tells its workers."""
HiddenPath = Annotated[Path | None, typer.Option(hidden=True)]


def _print_version(wanted: bool) -> None:
    if wanted:
        print_text(f"onward {VERSION}")
        raise typer.Exit


@cli.callback()
def onward(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@cli.command(epilog="Example: onward worker shop.jobs:app --concurrency 10")
def worker(
    context: typer.Context,
    app: Annotated[
        str,
        typer.Argument(
            envvar="ONWARD_APP",
            metavar="MODULE:APP",
            help="The app, or a function that makes it; modules of this directory too.",
        ),
    ],
    concurrency: Annotated[
        int, typer.Option(envvar="ONWARD_CONCURRENCY", min=1, metavar="N", help="How many jobs run at a time.")
    ] = 1,
    processes: Processes = 1,
    jobs: Annotated[
        str | None,
        typer.Option(
            envvar="ONWARD_JOBS", metavar="NAME,…", help="Take only these job types (default: all with a handler)."
        ),
    ] = None,
    poll: Annotated[
        float | None,
        typer.Option(
            envvar="ONWARD_POLL",
            min=0.01,
            max=_LONGEST,
            metavar="SECONDS",
            help="How often to look for jobs when no hint comes (default: 60; 1 where hints stay in one process).",
        ),
    ] = None,
    grace: Grace = 30.0,
    name: Name = None,
    guardian: Annotated[
        GuardianKind,
        typer.Option(
            envvar="ONWARD_GUARDIAN", help="Who renews leases: a child process, or a thread, which a stuck GIL stops."
        ),
    ] = "process",
    burst: Annotated[
        bool,
        option(
            "--burst",
            "Stop when nothing is left: no job of its types runs, here or elsewhere, and none is due. Jobs that wait "
            "for a place under a limit are waited for; those that are blocked, paused or scheduled for later, retries "
            "too, are not.",
        ),
    ] = False,
    reload: Annotated[
        bool,
        option("--reload", "For development: start anew when a Python file changes; running jobs may finish before."),
    ] = False,
    reload_dir: Annotated[
        list[Path] | None,
        option(
            "--reload-dir",
            "With --reload: the folder to watch (default: that of --app-dir, or this one). May be repeated.",
            metavar="FOLDER",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    health_port: Annotated[
        int | None,
        option(
            "--health-port",
            "Serve /healthz, /readyz and /metrics over HTTP on this port; 0: on any that is free.",
            min=0,
            max=65535,
            metavar="PORT",
        ),
    ] = None,
    health_host: Annotated[
        str,
        option(
            "--health-host",
            "With --health-port: the address to listen on. Whoever reaches it may read the figures; probes of "
            "Kubernetes need 0.0.0.0.",
            metavar="ADDRESS",
        ),
    ] = "127.0.0.1",
    log_level: Level = "info",
    log_format: LogFormats = "text",
    app_dir: AppDir = None,
    debug: Debug = False,
    number: Hidden = None,
    lifeline: Hidden = None,
    health_socket: HiddenPath = None,
) -> None:
    """Run jobs until stopped.

    Ctrl-C (or SIGTERM) drains: no more jobs are taken and those running may finish. A second signal gives them back at
    once for other workers, a third ends the process.
    """
    set_up_logging(log_level, format=log_format, number=number)
    if reload:
        if processes > 1:
            raise typer.BadParameter("--reload is for one process: leave --processes out")
        raise typer.Exit(_reload(context, reload_dir or [app_dir or Path()], grace=grace))
    if processes > 1:
        with in_words(debug=debug):
            listening = None if health_port is None else listen(health_host, health_port)
            code = _supervise(context, processes=processes, name=name, grace=grace, burst=burst, listening=listening)
        raise typer.Exit(code)
    options = WorkerKeywords(
        concurrency=concurrency,
        poll=None if poll is None else timedelta(seconds=poll),
        grace=timedelta(seconds=grace),
        name=name,
        guardian=guardian,
        burst=burst,
    )
    steering = Steering(grace=grace, lifeline=lifeline)
    with in_words(debug=debug), steering.listening():
        loaded = load_app(app)
        probes = None if health_port is None else listen(health_host, health_port)
        if health_socket is not None:
            probes = listen_at(health_socket)
        run_worker(loaded, options, steering, jobs=jobs, probes=probes, warns=number in (None, 1))


@cli.command("queue-worker", epilog="Example: onward queue-worker shop.mail:worker --processes 4")
def queue_worker(
    context: typer.Context,
    worker: Annotated[
        str,
        typer.Argument(
            envvar="ONWARD_QUEUE_WORKER",
            metavar="MODULE:WORKER",
            help="The QueueWorker, or a function that makes it; modules of this directory too.",
        ),
    ],
    concurrency: Annotated[
        int | None,
        typer.Option(
            envvar="ONWARD_CONCURRENCY",
            min=1,
            metavar="N",
            help="How many jobs run at a time (default: as the worker says).",
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option(envvar="ONWARD_WAIT", help="Keep trying while the provider's server is not there yet.")
    ] = False,
    processes: Processes = 1,
    grace: Grace = 30.0,
    name: Name = None,
    log_level: Level = "info",
    log_format: LogFormats = "text",
    app_dir: AppDir = None,
    debug: Debug = False,
    number: Hidden = None,
    lifeline: Hidden = None,
) -> None:
    """Run the jobs of a queue until stopped, whatever its provider.

    Ctrl-C (or SIGTERM) drains: no more jobs are taken and those running may finish. A second signal gives them back at
    once, a third ends the process.
    """
    set_up_logging(log_level, format=log_format, number=number)
    if processes > 1:
        raise typer.Exit(_supervise(context, processes=processes, name=name, grace=grace))
    steering = Steering(grace=grace, lifeline=lifeline)
    with in_words(debug=debug), steering.listening():
        options = QueueOptions(concurrency=concurrency, grace=grace, name=name, wait=wait)
        run_queue_worker(load_queue_worker(worker), options, steering)


def _supervise(
    context: typer.Context,
    *,
    processes: int,
    name: str | None,
    grace: float,
    burst: bool = False,
    listening: socket.socket | None = None,
) -> int:
    if problem := why_not("--processes"):
        say(f"onward: {problem}")
        return 1
    name = name or f"{socket.gethostname()}-{os.getpid()}"
    command = _same_command(context, processes=1, health_port=None)
    _forget(context, "processes", "health_port")

    async def supervise() -> int:
        if listening is None:
            return await Supervisor(command, processes=processes, name=name, grace=grace, burst=burst).run()
        with TemporaryDirectory(prefix="onward-") as folder:
            health = FleetHealth(Path(folder), processes)
            async with serving(listening, health.routes):
                return await Supervisor(
                    command, processes=processes, name=name, grace=grace, burst=burst, health=health
                ).run()

    return asyncio.run(supervise())


def _reload(context: typer.Context, folders: list[Path], *, grace: float) -> int:
    if problem := why_not("--reload"):
        say(f"onward: {problem}")
        return 1
    command = _same_command(context, reload=False, reload_dir=())
    _forget(context, "reload", "reload_dir")
    return asyncio.run(Reloader(command, folders, grace=grace).run())


def _forget(context: typer.Context, *names: str) -> None:
    """Have child processes not find in variables what is not for them."""
    for parameter in context.command.params:
        if parameter.name in names:
            os.environ.pop(str(parameter.envvar), None)


def _same_command(context: typer.Context, **changes: object) -> list[str]:
    """The words that give this command these parameters, wherever they came from."""
    words = [*this_program(), str(context.info_name)]
    for parameter in context.command.params:
        value = {**context.params, **changes}[str(parameter.name)]
        if parameter.param_type_name == "argument":
            words.append(str(value))
        elif value is True:
            words.append(parameter.opts[0])
        elif value is not None and value is not False:
            for each in value if isinstance(value, list | tuple) else [value]:
                words += [parameter.opts[0], str(each)]
    return words


@cli.command(epilog="Example: onward migrate postgresql://localhost/shop --sql > onward.sql")
def migrate(
    target: Annotated[
        str,
        typer.Argument(envvar="ONWARD_APP", metavar="MODULE:APP|URL", help="The app, or the address of its database."),
    ],
    sql: Annotated[
        bool, typer.Option("--sql", envvar="ONWARD_SQL", help="Print the SQL instead; nothing is connected.")
    ] = False,
    schema: Annotated[
        str | None,
        typer.Option(envvar="ONWARD_SCHEMA", help="With a URL: the Postgres schema for the tables (default: onward)."),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(envvar="ONWARD_PREFIX", help="With a URL: how SQLite tables begin (default: onward_)."),
    ] = None,
    json: Json = False,
    app_dir: AppDir = None,
    debug: Debug = False,
) -> None:
    """Make Onward's tables, or bring them to the newest version. Safe to repeat, and beside others doing the same."""
    set_up_logging("warning")
    with in_words(debug=debug):
        app = migrating.app_for(target, schema=schema, prefix=prefix)
        if sql:
            print_text(app.state.migration_sql())
        else:
            migrating.apply(app, json=json)


@cli.command()
def demo(
    dashboard: Annotated[
        bool,
        typer.Option(
            "--dashboard", envvar="ONWARD_DASHBOARD", help="Then keep the shop open, with a dashboard beside it."
        ),
    ] = False,
    port: Port = PORT,
    debug: Debug = False,
) -> None:
    """See it work: orders that are charged and shipped, retries, a fan-in, and a worker killed in the middle.

    Runs in under a minute on a SQLite file in a temporary directory; no server is needed.
    """
    from onward.cli.demo.program import run_demo

    with in_words(debug=debug):
        raise typer.Exit(run_demo(dashboard_at=port if dashboard else None))


@cli.command(epilog="Example: onward bench postgresql://localhost/shop")
def bench(
    url: Annotated[str, typer.Argument(envvar="ONWARD_URL", metavar="URL", help="postgresql://… or sqlite:///file.db")],
    count: Annotated[
        int, typer.Option(envvar="ONWARD_COUNT", min=1, metavar="N", help="How many jobs to start and run.")
    ] = 20_000,
    concurrency: Annotated[
        int, typer.Option(envvar="ONWARD_CONCURRENCY", min=1, metavar="N", help="How many jobs run at a time.")
    ] = 100,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure Onward on your own database: starting, running, and the time in between.

    It makes tables of its own, in the schema onward_bench or named onward_bench_…, and removes them in the end.
    """
    from onward.cli.bench.program import run_bench

    set_up_logging("warning")
    with in_words(debug=debug):
        run_bench(url, count=count, concurrency=concurrency, json=json)


cli.command(epilog="Example: onward status --watch --database postgresql://localhost/shop")(status)
cli.add_typer(chains.chains, name="chains")
cli.add_typer(chains.jobs, name="jobs")
cli.add_typer(failed.failed, name="failed")
changes.add_to(cli)
cli.command(epilog="Example: onward workers --dead --database postgresql://localhost/shop")(workers)
cli.command(epilog="Example: onward check shop.jobs:app --database postgresql://localhost/shop")(check)
cli.command(epilog="Example: onward explain 0199d2a1-…")(explain)
cli.command(epilog="Example: onward prune orders.charge --older-than 30d --dry-run")(prune)
cli.add_typer(history, name="history")
cli.command(epilog="Example: onward health --max-age 10m --max-age orders.charge=1m")(health)
cli.command(epilog="Example: onward doctor --database postgresql://localhost/shop")(doctor)
cli.command("run", epilog="Example: onward run 0199d2a1-… --dry --app shop.jobs:app")(run_dry)
cli.command(epilog="Example: onward graph shop.jobs:app --format dot | dot -Tsvg > shop.svg")(graph)
cli.command(epilog="Example: onward dashboard shop.jobs:app --write")(dashboard)

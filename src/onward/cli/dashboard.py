"""`onward dashboard`: pages that show what an app's jobs do, and let it be put right."""

import logging
import os
import signal
import socket
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onward.cli.console import say, set_up_logging
from onward.cli.failures import CommandFailed, in_words
from onward.cli.loading import load, load_app
from onward.cli.options import AppDir, Debug, option
from onward.cli.place import at, run
from onward.cli.steering import SIGNALS
from onward.client.app import Onward

if TYPE_CHECKING:
    from onward.dashboard import AuditFile, Dashboard
    from onward.flow import Flow
    from onward.queue import Queue

PASSWORD = "ONWARD_DASHBOARD_PASSWORD"


def _own(name: str, help: str, **more: Any) -> Any:
    """An option that is also a variable of the dashboard: a service called onward makes Kubernetes set ONWARD_PORT."""
    variable = f"ONWARD_DASHBOARD_{name.lstrip('-').replace('-', '_').upper()}"
    return typer.Option(name, envvar=variable, help=help, **more)


Port = Annotated[int, _own("--port", "The port; 0 takes any that is free.", min=0, max=65535, metavar="N")]
PORT = 8321


def dashboard(
    target: Annotated[
        str,
        typer.Argument(envvar="ONWARD_APP", metavar="MODULE:APP|URL", help="The app, or the address of its database."),
    ],
    host: Annotated[str, _own("--host", "The address to listen at; another than this machine's needs --user.")] = (
        "127.0.0.1"
    ),
    port: Port = PORT,
    queue: Annotated[
        list[str] | None, _own("--queue", "Show this queue too; may be repeated.", metavar="MODULE:QUEUE")
    ] = None,
    flow: Annotated[
        list[str] | None, _own("--flow", "Show this flow too; may be repeated.", metavar="MODULE:FLOW")
    ] = None,
    write: Annotated[bool, _own("--write", "Let visitors change things; else they can only look.")] = False,
    user: Annotated[
        str | None,
        _own("--user", f"Ask for this name, and for the password in {PASSWORD} or --password-file.", metavar="NAME"),
    ] = None,
    password_file: Annotated[
        Path | None,
        _own("--password-file", "A file whose first line it is.", exists=True, dir_okay=False, metavar="FILE"),
    ] = None,
    audit_log: Annotated[
        Path | None,
        _own(
            "--audit-log",
            "Append who did what to this file, as lines of JSON; what cannot be written down is not done.",
            dir_okay=False,
            metavar="FILE",
        ),
    ] = None,
    hide_payloads: Annotated[bool, _own("--hide-payloads", "Show no inputs and outputs.")] = False,
    payloads: Annotated[
        bool, option("--payloads", "Show inputs and outputs also without an app, which knows what is secret.")
    ] = False,
    open: Annotated[bool, _own("--open", "Open it in the browser.")] = False,
    schema: Annotated[str | None, option("--schema", "With a URL: the Postgres schema (default: onward).")] = None,
    prefix: Annotated[str | None, option("--prefix", "With a URL: how SQLite tables begin (default: onward_).")] = None,
    app_dir: AppDir = None,
    debug: Debug = False,
) -> None:
    """Serve the dashboard until stopped: on this machine only, and read-only, unless told otherwise."""
    set_up_logging("info")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    with in_words(debug=debug):
        require_dashboard()
        from onward.dashboard import Dashboard

        users = _users(host, user, password_file)
        if hide_payloads and payloads:
            raise CommandFailed("--payloads and --hide-payloads: say one of them")
        queues, flows = _queues(queue or ()), _flows(flow or ())
        app = _app(target, schema=schema, prefix=prefix)
        shown = Dashboard(
            app,
            queues=queues,
            flows=flows,
            write=write,
            users=users,
            audit=_audit(audit_log),
            hide_payloads=True if hide_payloads else False if payloads else None,
        )
        _serve(shown, host, port, open=open, write=write)


def _app(target: str, *, schema: str | None, prefix: str | None) -> Onward:
    if "://" in target:
        return at(target, schema=schema, prefix=prefix)
    if schema is not None or prefix is not None:
        raise CommandFailed("--schema and --prefix go with a URL; an app says itself where its tables are")
    return load_app(target)


def _queues(names: Sequence[str]) -> "list[Queue[Any]]":
    from onward.queue import Queue

    return [load(name, Queue, "queue", "a queue") for name in names]


def _flows(names: Sequence[str]) -> "list[Flow[Any]]":
    if not names:
        return []
    from onward.flow import Flow  # which needs Redis

    return [load(name, Flow, "flow", "a flow") for name in names]


def _audit(file: Path | None) -> "AuditFile | None":
    if file is None:
        return None
    from onward.dashboard import AuditFile

    try:
        (found := AuditFile(file)).check()
    except OSError as problem:
        raise CommandFailed(f"--audit-log {file}: cannot be written: {problem.strerror or problem}") from None
    return found


def _users(host: str, user: str | None, file: Path | None) -> dict[str, str] | None:
    """Who may come in; None: whoever is on this machine."""
    from onward.dashboard.access import is_loopback

    if user is None:
        if not is_loopback(host):
            raise CommandFailed(
                f"--host {host} can be reached from elsewhere: say --user, and put the password into {PASSWORD} or "
                "--password-file"
            )
        return None
    try:
        password = os.environ.get(PASSWORD, "") if file is None else file.read_text("utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise CommandFailed(f"--password-file {file}: cannot be read: {problem}") from None
    if not password:
        raise CommandFailed(f"--user {user} needs a password: in the variable {PASSWORD}, or in --password-file")
    return {user: password}


def _serve(dashboard: "Dashboard", host: str, port: int, *, open: bool, write: bool) -> None:
    with listening(host, port) as (listener, address):

        async def serve(app: Onward) -> None:
            say(f"dashboard at {address}, {'with' if write else 'without'} actions. Ctrl-C stops it.")
            if open:
                webbrowser.open(address)
            async with dashboard.beside:
                await serve_until_stopped(dashboard, listener)

        run(dashboard.app, serve)


@contextmanager
def listening(host: str, port: int) -> Iterator[tuple[socket.socket, str]]:
    """What listens there, and the address for browsers."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen()  # so that whoever is told of it, and comes before it answers, waits
        except OSError as problem:
            raise CommandFailed(f"cannot listen at {host}:{port}: {problem.strerror or problem}") from problem
        name = f"[{host}]" if family is socket.AF_INET6 else host
        yield listener, f"http://{name}:{listener.getsockname()[1]}/"


def require_dashboard() -> None:
    """Raise unless its libraries are installed."""
    missing = [name for name in ("starlette", "jinja2", "uvicorn") if find_spec(name) is None]
    if missing:
        raise CommandFailed(f"the dashboard needs {', '.join(missing)}: pip install 'onward[dashboard]'")


async def serve_until_stopped(dashboard: "Dashboard", listener: socket.socket) -> None:
    """Serve until a signal comes; a second one does not wait for answers that are on their way."""
    import uvicorn

    config = uvicorn.Config(
        dashboard,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        # Pages that are live never end by themselves.
        timeout_graceful_shutdown=1,
    )
    config.load()

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Without raising them once more in the end, by which the process would seem to have been killed."""
            before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            dashboard.end_streams()  # else each open tab would be cut off, with a traceback
            await super().shutdown(sockets)

    await Server(config).serve(sockets=[listener])
    say("the dashboard has stopped")

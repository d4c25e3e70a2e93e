"""`onward run ID --dry`: the handler of a stored job, run here, with nothing kept."""

import os
import pdb
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Annotated, Any

import msgspec
import typer

from onward.cli.console import set_up_logging
from onward.cli.failures import INTERRUPTED, CommandFailed, in_words
from onward.cli.loading import load_app
from onward.cli.options import AppDir, Debug, Json, option
from onward.cli.place import as_id, job_of, run
from onward.cli.printing import print_json, print_line
from onward.client.app import Onward
from onward.client.words import moment, span
from onward.define.registry import RegisteredType, Registry
from onward.lifecycle.effects import describe, frames_of
from onward.lifecycle.transaction import refusing_all_else
from onward.model import Job
from onward.state.contract import NewJob
from onward.worker.rehearsal import ONLY_INSIDE, Rehearsal

_ENDED = "the handler ended its transaction itself: what it has committed is kept"
HIDDEN = "hidden: this job type has secrets; --payloads shows it"


def run_dry(
    id: Annotated[str, typer.Argument(metavar="ID", help="A job.", show_default=False)],
    app: Annotated[str, option("--app", "The app, or a function that makes it.", metavar="MODULE:APP")],
    dry: Annotated[bool, option("--dry", "Keep nothing. There is no other way to run a job but a worker.")] = False,
    post_mortem: Annotated[bool, option("--pdb", "Open the debugger where the handler raised.")] = False,
    payloads: Annotated[bool, option("--payloads", "Show also what may hold secrets.")] = False,
    json: Json = False,
    app_dir: AppDir = None,
    debug: Debug = False,
) -> None:
    """Run the handler of a stored job here, with its stored input, in a transaction that is rolled back.

    Shows the statements sent through tx, the chains started, and what it returned or raised (exit code 3). The job
    is neither taken nor settled. What a handler does elsewhere is done for real: mails, payments, other connections.
    On SQLite nobody else can write meanwhile.
    """
    set_up_logging("warning")
    with in_words(debug=debug):
        if not dry:
            raise CommandFailed("say --dry: jobs are run for real by `onward worker` alone")
        asked, found = as_id(id), load_app(app)

        async def work(opened: Onward) -> Rehearsal:
            kind = opened.registry.get((await job_of(opened, id)).type_name)
            in_thread = kind is not None and not kind.step.signature.is_async
            with refusing_all_else(ONLY_INSIDE), _ended_by_ctrl_c() if in_thread else nullcontext():
                return await opened.rehearse(asked)

        rehearsal = run(found, work)
    shown = _Shown(found.registry, payloads=payloads).data(rehearsal)
    if json:
        print_json(shown)
    else:
        _print(shown)
    if rehearsal.error is not None:
        if post_mortem:
            pdb.post_mortem(rehearsal.error.__traceback__)
        raise typer.Exit(3)


@contextmanager
def _ended_by_ctrl_c() -> Iterator[None]:
    """Have Ctrl-C end the process: nobody else ends a handler in a thread. What it wrote goes with the connection."""
    before = signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Shown:
    """What may be seen of a rehearsal: of each type that has secrets nothing, unless that is asked for."""

    def __init__(self, registry: Registry, *, payloads: bool) -> None:
        self._registry, self._payloads = registry, payloads

    def data(self, rehearsal: Rehearsal) -> dict[str, Any]:
        settlement, error = rehearsal.settlement, rehearsal.error
        shown: dict[str, Any] = {
            "job": rehearsal.job.id,
            "type": rehearsal.job.type_name,
            "statements": self._statements(rehearsal) if rehearsal.is_recorded else None,
            "started": [
                {"job": one.id, "type": one.type_name, "input": self._input(one, msgspec.json.encode(one.input))}
                for one in rehearsal.started
            ],
        }
        if error is not None:
            told = describe(error)
            shown["raised"] = {
                "type": told.type,
                "message": told.message if self._shows(rehearsal.kind) else HIDDEN,
                "traceback": "".join(traceback.format_tb(frames_of(error))),
            }
        elif settlement is not None and settlement.kind == "continue":
            step = settlement.next[0]
            given = self._input(step, step.input)
            shown["continues"] = {"type": step.type_name, "input": given, "delay": step.delay, "at": step.at}
        elif settlement is not None and settlement.kind == "requeue":
            shown["rescheduled"] = {"delay": settlement.delay, "at": settlement.at}
        elif settlement is not None:
            shown["returned"] = self._output(rehearsal, settlement.output)
        shown["ended_by_hand"] = rehearsal.ended_by_hand
        return shown

    def _statements(self, rehearsal: Rehearsal) -> list[dict[str, Any]]:
        is_open = self._shows(rehearsal.kind)
        return [
            {"sql": sql, "parameters": {name: _plain(value) for name, value in given.items()} if is_open else HIDDEN}
            for sql, given in rehearsal.statements
        ]

    def _input(self, job: Job | NewJob, text: str | bytes) -> Any:
        kind = self._registry.get(job.type_name)
        if not self._shows(kind):
            return HIDDEN
        return msgspec.json.decode(text) if kind is None else kind.input.plain(text, job.id)

    def _output(self, rehearsal: Rehearsal, text: str | None) -> Any:
        if not self._shows(rehearsal.kind):
            return HIDDEN
        codec = rehearsal.kind.output
        return None if text is None or codec is None else codec.plain(text, rehearsal.job.chain_id)

    def _shows(self, kind: RegisteredType | None) -> bool:
        return self._payloads or (kind is not None and kind.guard is None)


def _plain(value: Any) -> Any:
    try:
        return msgspec.to_builtins(value, enc_hook=repr)
    except TypeError:
        return repr(value)


def _when(again: dict[str, Any]) -> str:
    return f"to {moment(again['at'])}" if again["at"] else f"in {span(again['delay'])}"


def _print(shown: dict[str, Any]) -> None:
    def text(value: Any) -> str:
        return value if value == HIDDEN else msgspec.json.encode(value).decode()

    if shown["statements"] is None:
        print_line("statements are not recorded: this app hands out a transaction of its database library's own")
    for one in shown["statements"] or ():
        print_line(f"sent       {' '.join(one['sql'].split())}")
        if one["parameters"]:
            print_line(f"           {text(one['parameters'])}")
    for one in shown["started"]:
        print_line(f"started    {one['type']} {text(one['input'])}")
    if raised := shown.get("raised"):
        print_line(raised["traceback"].rstrip())
        print_line(f"raised     {raised['type']}: {raised['message']}")
    elif step := shown.get("continues"):
        print_line(f"continues  with {step['type']} {text(step['input'])}")
    elif again := shown.get("rescheduled"):
        print_line(f"rescheduled {_when(again)}")
    else:
        print_line(f"returned   {text(shown['returned'])}")
    print_line(_ENDED if shown["ended_by_hand"] else "nothing of this was kept")

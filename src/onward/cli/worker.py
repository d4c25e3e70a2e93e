"""`onward worker`: one worker in this process."""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from onward.cli.console import say
from onward.cli.failures import CommandFailed, reaching
from onward.cli.probes import shown_by
from onward.cli.steering import Steering, Stop
from onward.client.app import Onward
from onward.client.untaken import in_words, untaken
from onward.define.job_type import Step
from onward.worker.options import WorkerKeywords
from onward.worker.worker import Worker

logger = logging.getLogger("onward.worker")


def run_worker(
    app: Onward,
    options: WorkerKeywords,
    steering: Steering,
    *,
    jobs: str | None,
    probes: socket.socket | None = None,
    warns: bool = True,
) -> None:
    """Work until told otherwise; `jobs`: the names of the only types to take; `probes`: where they come; `warns` of
    jobs that nobody takes.
    """
    with reaching(app), asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_work(app, options, steering, jobs, probes, warns))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is installed. On Windows that of selectors, since psycopg cannot use the usual one there."""
    if sys.platform == "win32":
        return asyncio.SelectorEventLoop
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _work(
    app: Onward,
    options: WorkerKeywords,
    steering: Steering,
    jobs: str | None,
    probes: socket.socket | None,
    warns: bool,
) -> None:
    worker = app.worker(jobs=None if jobs is None else _steps(app, jobs), **options)
    worker.when_blocked = steering.blocked
    ready = asyncio.Event()
    with steering.steer(worker), shown_by(probes, app, worker, ready):
        async with app, asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(_say_when_ready(app, worker, ready, warns))
            recycling = tasks.create_task(_recycle(worker, steering))
            await worker.run(ready=ready)
            recycling.cancel()
            telling.cancel()
    say(f"worker {worker.id} has stopped")


async def _recycle(worker: Worker, steering: Steering) -> None:
    """A handler that does not stop costs its slot; only a new process gets it back."""
    await worker.stuck.wait()
    steering.reach(Stop.DRAIN, "a handler does not stop, so this process makes room for another")
    await worker.wait_for_others()
    steering.leave()


def _steps(app: Onward, names: str) -> list[Step[Any, Any]]:
    chosen = [name for name in map(str.strip, names.split(",")) if name]
    unknown = [name for name in chosen if name not in app.registry]
    if unknown or not chosen:
        known = ", ".join(kind.name for kind in app.registry.handled())
        raise CommandFailed(f"--jobs: no job type named {', '.join(unknown) or 'so'}; this app has {known}")
    return [app.registry[name].step for name in chosen]


async def _say_when_ready(app: Onward, worker: Worker, ready: asyncio.Event, warns: bool) -> None:
    await ready.wait()
    concurrency = worker.options.concurrency
    slots = "one at a time" if concurrency == 1 else f"{concurrency} at a time"
    until = "Stops when nothing is left." if worker.options.burst else "Ctrl-C stops it."
    say(f"worker {worker.id} takes jobs, {slots}: {', '.join(worker.type_names)}. {until}")
    if warns:
        with suppress(Exception):  # of a database in trouble others tell
            await _warn_of_untaken(app, worker)


async def _warn_of_untaken(app: Onward, worker: Worker) -> None:
    """Of jobs that wait and that neither this worker nor another takes."""
    without_handler = [name for name in app.registry if app.registry[name].step.run is None]
    waiting = await app.store.read(app.state.due_types())
    found = untaken(waiting, await app.workers(), here=worker.readable, without_handler=without_handler)
    if found:
        logger.warning("jobs wait that no worker takes: %s", in_words(found))

"""`onward worker`: one worker in this process."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from onward.cli.console import say
from onward.cli.failures import CommandFailed, reaching
from onward.cli.steering import Steering, Stop
from onward.client.app import Onward
from onward.define.job_type import Step
from onward.worker.options import WorkerKeywords
from onward.worker.worker import Worker


def run_worker(app: Onward, options: WorkerKeywords, steering: Steering, *, jobs: str | None) -> None:
    """Work until told otherwise; `jobs`: the names of the only types to take."""
    with reaching(app), asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_work(app, options, steering, jobs))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is installed. On Windows that of selectors, since psycopg cannot use the usual one there."""
    if sys.platform == "win32":
        return asyncio.SelectorEventLoop
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _work(app: Onward, options: WorkerKeywords, steering: Steering, jobs: str | None) -> None:
    worker = app.worker(jobs=None if jobs is None else _steps(app, jobs), **options)
    worker.when_blocked = steering.blocked
    ready = asyncio.Event()
    with steering.steer(worker):
        async with app, asyncio.TaskGroup() as tasks:
            tasks.create_task(_say_when_ready(worker, ready))
            recycling = tasks.create_task(_recycle(worker, steering))
            await worker.run(ready=ready)
            recycling.cancel()
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


async def _say_when_ready(worker: Worker, ready: asyncio.Event) -> None:
    await ready.wait()
    concurrency = worker.options.concurrency
    slots = "one at a time" if concurrency == 1 else f"{concurrency} at a time"
    say(f"worker {worker.id} takes jobs, {slots}: {', '.join(worker.type_names)}. Ctrl-C stops it.")

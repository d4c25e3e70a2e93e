"""`onward worker`: one worker in this process."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from onward.cli.console import say
from onward.cli.failures import CommandFailed, reaching
from onward.cli.steering import Steering, Stop
from onward.client.app import Onward
from onward.define.job_type import Step
from onward.worker.guardian.contract import GuardianKind
from onward.worker.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What may be said about a worker on the command line."""

    concurrency: int
    jobs: str | None
    poll: float | None
    grace: float
    name: str | None
    guardian: GuardianKind


def run_worker(app: Onward, options: Options, steering: Steering) -> None:
    """Work until told otherwise."""
    with reaching(app), asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_work(app, options, steering))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is installed. On Windows that of selectors, since psycopg cannot use the usual one there."""
    if sys.platform == "win32":
        return asyncio.SelectorEventLoop
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _work(app: Onward, options: Options, steering: Steering) -> None:
    worker = app.worker(
        concurrency=options.concurrency,
        jobs=None if options.jobs is None else _steps(app, options.jobs),
        poll=None if options.poll is None else timedelta(seconds=options.poll),
        grace=timedelta(seconds=options.grace),
        name=options.name,
        guardian=options.guardian,
    )
    worker.when_blocked = steering.blocked
    ready = asyncio.Event()
    with steering.steer(worker):
        async with app, asyncio.TaskGroup() as tasks:
            tasks.create_task(_say_when_ready(app, worker, ready, options))
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


async def _say_when_ready(app: Onward, worker: Worker, ready: asyncio.Event, options: Options) -> None:
    await ready.wait()
    kinds = (
        [step.name for step in _steps(app, options.jobs)] if options.jobs else [k.name for k in app.registry.handled()]
    )
    slots = "one at a time" if options.concurrency == 1 else f"{options.concurrency} at a time"
    say(f"worker {worker.id} takes jobs, {slots}: {', '.join(kinds)}. Ctrl-C stops it.")

"""`onward queue-worker`: one queue worker in this process."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from onward.cli.console import say
from onward.cli.loading import load
from onward.cli.steering import Steering
from onward.cli.worker import loop_factory
from onward.queue.providers.memory import MemoryProvider
from onward.queue.worker import QueueWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What may be said about a queue worker on the command line."""

    concurrency: int | None
    grace: float
    name: str | None


def load_queue_worker(target: str) -> QueueWorker[Any]:
    """The worker named by `module:worker`; it may be a function that makes it, and is the default name."""
    found: QueueWorker[Any] = load(target, QueueWorker, "worker", "a QueueWorker")
    return found


def run_queue_worker(worker: QueueWorker[Any], options: Options, steering: Steering) -> None:
    """Work until told otherwise."""
    if options.concurrency is not None:
        worker.set_concurrency(options.concurrency)
    if options.name is not None:
        worker.id = f"{options.name}-{secrets.token_hex(4)}"
    if isinstance(worker.provider, MemoryProvider):
        say(f"the queue {worker.queue_name!r} is in memory: no other process can add to it. Give it a provider.")
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_work(worker, options, steering))


async def _work(worker: QueueWorker[Any], options: Options, steering: Steering) -> None:
    ready = asyncio.Event()
    with steering.steer(_Graceful(worker, timedelta(seconds=options.grace))):
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(_say_when_ready(worker, ready))
            await worker.run(ready=ready)
            telling.cancel()
    say(f"worker {worker.id} has stopped")


async def _say_when_ready(worker: QueueWorker[Any], ready: asyncio.Event) -> None:
    await ready.wait()
    slots = "one at a time" if worker.concurrency == 1 else f"{worker.concurrency} at a time"
    say(f"worker {worker.id} takes jobs, {slots}: {worker.queue_name} ({worker.provider.name}). Ctrl-C stops it.")


class _Graceful:
    """A queue worker that has a grace period, as steering expects of a worker."""

    def __init__(self, worker: QueueWorker[Any], grace: timedelta) -> None:
        self._worker, self._grace = worker, grace
        self.give_back: Callable[[], None] = worker.give_back
        self.leave_stuck = worker.leave_stuck

    def stop(self) -> None:
        self._worker.stop(grace=self._grace)

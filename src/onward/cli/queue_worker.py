"""`onward queue-worker`: one queue worker in this process."""

import asyncio
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from onward.cli.console import say
from onward.cli.loading import load
from onward.cli.steering import Steering
from onward.cli.worker import loop_factory
from onward.errors import QueueRuntimeError
from onward.pacing import happens
from onward.queue.contract import root_of
from onward.queue.providers.memory import MemoryProvider
from onward.queue.worker import QueueWorker

_PAUSE = 1.0
"""Seconds between two tries to connect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What may be said about a queue worker on the command line."""

    concurrency: int | None
    grace: float
    name: str | None
    wait: bool = False
    """Whether to try again and again while the server is not there."""


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
    graceful = _Graceful(worker, timedelta(seconds=options.grace))
    with steering.steer(graceful):
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(_say_when_ready(worker, ready))
            await _run(worker, ready, graceful, wait=options.wait)
            telling.cancel()
    say(f"worker {worker.id} has stopped")


async def _run(worker: QueueWorker[Any], ready: asyncio.Event, graceful: "_Graceful", *, wait: bool) -> None:
    while not graceful.is_stopping.is_set():
        try:
            return await worker.run(ready=ready)
        except QueueRuntimeError as error:
            if not wait or ready.is_set() or not _may_come(error):
                raise
            say(f"{error} Trying again every {_PAUSE:g} s.")
        await happens(graceful.is_stopping, within=_PAUSE)
    return None


def _may_come(error: QueueRuntimeError) -> bool:
    """Whether the server may only not be there yet; in a cluster of containers, neither may its name."""
    return error.retryable or isinstance(error.__cause__ and root_of(error.__cause__), socket.gaierror)


async def _say_when_ready(worker: QueueWorker[Any], ready: asyncio.Event) -> None:
    await ready.wait()
    slots = "one at a time" if worker.concurrency == 1 else f"{worker.concurrency} at a time"
    say(f"worker {worker.id} takes jobs, {slots}: {worker.queue_name} ({worker.provider.name}). Ctrl-C stops it.")


class _Graceful:
    """A queue worker that has a grace period, as steering expects of a worker."""

    def __init__(self, worker: QueueWorker[Any], grace: timedelta) -> None:
        self._worker, self._grace = worker, grace
        self.is_stopping = asyncio.Event()
        self.give_back: Callable[[], None] = worker.give_back
        self.leave_stuck = worker.leave_stuck

    def stop(self) -> None:
        self.is_stopping.set()
        self._worker.stop(grace=self._grace)

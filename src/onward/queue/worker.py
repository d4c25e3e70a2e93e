"""The side that runs jobs: asks the provider for them, or has them delivered, and tells it how they ended."""

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack, ExitStack
from datetime import timedelta
from types import TracebackType
from typing import Any, Generic, TypeAlias, TypeVar

from onward.errands import Errands
from onward.queue.checks import A_NAME, Arguments, is_named
from onward.queue.contract import Pulls
from onward.queue.events import Emitter, Listener, Listening, ShutdownTimeout, ShuttingDown
from onward.queue.handler import Handler
from onward.queue.hands import Hands, run_beside
from onward.queue.provider import Provider
from onward.queue.pulling import Fetching, Pulling
from onward.queue.pushing import Pushing
from onward.queue.resolve import AnyProvider, bound
from onward.run.threads import Threads

T = TypeVar("T")
Queues: TypeAlias = str | Iterable[str] | Mapping[str, int]
_AFTER_CANCEL = 5.0
"""Seconds that handlers have to end once they were cancelled; a `def` handler in its thread may never do so."""
_DEFAULT_POLL, _DEFAULT_BACKOFF = timedelta(milliseconds=100), timedelta(seconds=1)


class QueueWorker(Listening, Generic[T]):
    """Runs `handler(data, job)` for the jobs of a queue: `await worker.start()` … `close()`, or `async with`.

    A handler that returns completes its job, one that raises or takes longer than `timeout` fails it;
    `onward.Permanent`, or any error with `retryable = False`, fails it for good. With `batch=True` the handler gets
    lists, at most `batch_size` long, and returns an outcome for each job.

    Of several queues, `["urgent", "other"]`, all are worked on; `{"urgent": 3, "other": 1}` gives them their shares.

    >>> import asyncio
    >>> from onward.queue import Queue
    >>> async def greet(data: str, job: object) -> str:
    ...     return f"hello {data}"
    >>> async def example() -> str:
    ...     async with Queue("greetings") as queue, QueueWorker("greetings", greet):
    ...         job = await queue.add("greet", "Ada")
    ...         return await queue.wait(job.id)
    >>> asyncio.run(example())
    'hello Ada'
    """

    def __init__(
        self,
        queue_name: Queues,
        handler: Callable[..., Any],
        *,
        provider: AnyProvider | None = None,
        concurrency: int = 1,
        batch: bool = False,
        batch_size: int | None = None,
        timeout: timedelta | None = None,
        poll_interval: timedelta | None = None,
        error_backoff: timedelta | None = None,
        name: str | None = None,
    ) -> None:
        weights = _weights(queue_name)
        self.queue_name = ", ".join(map(str, weights))
        arguments = self._arguments = Arguments("QueueWorker", self.queue_name if weights else queue_name)
        for one, weight in weights.items():
            Arguments("QueueWorker", one)
            arguments.whole(f"the weight of {one!r}", weight, least=1)
        arguments.whole("concurrency", concurrency, least=1)
        arguments.flag("batch", batch)
        if name is not None:
            arguments.one_of("name", name, is_named, A_NAME)
        if batch_size is not None:
            arguments.whole("batch_size", batch_size, least=1)
        if timeout is not None:
            arguments.duration("timeout", timeout, least=timedelta(milliseconds=1))
        fetching = {"batch_size": batch_size, "poll_interval": poll_interval, "error_backoff": error_backoff}
        for option in ("poll_interval", "error_backoff"):
            if fetching[option] is not None:
                arguments.duration(option, fetching[option])
        self._handler = Handler[T](handler, self.queue_name, arguments, batch=batch)
        self._providers = {one: bound(provider, one, arguments) for one in weights}
        self._weights = weights
        self.provider: Provider = next(iter(self._providers.values()))
        self._pushes = self.provider.capabilities.push and not batch and len(weights) == 1
        for option in [option for option, value in fetching.items() if self._pushes and value is not None]:
            arguments.refuse_because(
                f"{option} is for jobs that are fetched: {self.provider.name} delivers them by itself, never more "
                f"than `concurrency` at a time; leave {option} out"
            )
        self.id = f"{name or f'{socket.gethostname()}-{os.getpid()}'}-{secrets.token_hex(4)}"
        self._concurrency = concurrency
        self._fetching = Fetching(
            batch=batch,
            batch_size=batch_size,
            poll=(_DEFAULT_POLL if poll_interval is None else poll_interval).total_seconds(),
            error_backoff=(_DEFAULT_BACKOFF if error_backoff is None else error_backoff).total_seconds(),
        )
        self._timeout = None if timeout is None else timeout.total_seconds()
        self._events = Emitter(self.queue_name, troubles=self.provider.events)
        self._errands = Errands()
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        """Whether that task has come so far that it takes jobs."""
        self._source: Pulling | Pushing | None = None
        self._hands = self._new_hands()

    def _listen(self, event: str, listener: Listener) -> Callable[[], None]:
        self._events.check(event, lambda name: True)
        if not event.startswith("queue."):
            return self._events.on(event, listener)
        ends = ExitStack()
        for provider in self._providers.values():
            ends.callback(provider.events.on(event, listener))
        return ends.close

    # -- life

    async def start(self) -> None:
        """Connect, and work in the background until `close`. When it fails or is cancelled, nothing is left running,
        and it may be called again."""
        if self._task is not None and not self._task.done():
            return
        ready = self._ready = asyncio.Event()
        task = self._task = self._errands.begin(self.run(ready=ready), name=f"onward queue worker {self.id}")
        task.add_done_callback(lambda _: ready.set())
        try:
            await ready.wait()
        except asyncio.CancelledError:
            # Whoever cancels this has no worker to close: `async with` does not come to its end then.
            task.cancel()
            await asyncio.wait([task], timeout=_AFTER_CANCEL)
            raise
        if task.done():
            self._task = None
            if not task.cancelled():  # else it was closed meanwhile
                await task

    async def __aenter__(self) -> "QueueWorker[T]":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def run(self, *, ready: asyncio.Event | None = None) -> None:
        """Work until stopped."""
        async with AsyncExitStack() as stack:
            for provider in self._providers.values():
                await provider.connect()
                stack.push_async_callback(provider.disconnect)
            hands = self._hands = self._new_hands()
            for provider in self._providers.values():
                provider.on_ended = hands.tell_ended
            # As many as ever run at a time: threads are made when they are needed, and concurrency may be raised.
            threads = Threads(1024, name="onward-queue-handler")
            stack.callback(threads.close, wait=False)
            hands.open()
            self._source = self._new_source(hands, threads)
            beside = [hands.reporting.run(), hands.watch_for_drained()]
            await run_beside(self._source.run(ready or asyncio.Event()), beside)

    def _new_hands(self) -> Hands:
        return Hands(self.id, self._providers, events=self._events, timeout=self._timeout)

    def _new_source(self, hands: Hands, threads: Threads) -> Pulling | Pushing:
        if self._pushes:
            return Pushing(hands, self.provider, self._handler, threads, concurrency=self._concurrency)
        feature = "fetching jobs: it delivers them by itself, with process()"
        pulls = {name: provider.role(Pulls, feature) for name, provider in self._providers.items()}
        how = self._fetching
        return Pulling(hands, pulls, self._weights, self._handler, threads, how, concurrency=self._concurrency)

    async def close(
        self,
        *,
        timeout: timedelta = timedelta(seconds=30),
        finish_active_jobs: bool = True,
        disconnect_provider: bool = False,
    ) -> None:
        """Take no more jobs and let those running finish, for so long; then cancel them and give their jobs back.

        The provider is let go; with `disconnect_provider` it is closed for every queue and worker of the same name on
        the same factory, too.
        """
        self._arguments.duration("timeout", timeout)
        self._arguments.flag("finish_active_jobs", finish_active_jobs)
        self._arguments.flag("disconnect_provider", disconnect_provider)
        task = self._task
        if task is not None and not task.done():
            if not self._ready.is_set():
                task.cancel()  # it is still connecting: there is nothing to finish
            self.stop()
            if finish_active_jobs:
                await asyncio.wait([task], timeout=timeout.total_seconds())
                if not task.done() and self._hands.running:
                    self._tell_timeout(timeout)
            self.give_back()
            await asyncio.wait([task], timeout=_AFTER_CANCEL)
        self._task = None
        for events in (self._events, *(provider.events for provider in self._providers.values())):
            await events.settle(_AFTER_CANCEL)
        if disconnect_provider:
            for provider in self._providers.values():
                await provider.disconnect(everyone=True)
        if task is not None and task.done() and not task.cancelled():
            await task

    def stop(self, *, grace: timedelta | None = None) -> None:
        """Take no more jobs and let those running finish; what then still runs after `grace` is given back."""
        if self._source is not None and not self._source.is_stopping:
            self._hands.emit(ShuttingDown(queue_name=self.queue_name, worker_id=self.id))
            self._source.stop()
            if grace is not None:
                asyncio.get_running_loop().call_later(grace.total_seconds(), self._end_grace, grace)

    def _end_grace(self, grace: timedelta) -> None:
        if self._hands.running:
            self._tell_timeout(grace)
            self.give_back()

    def _tell_timeout(self, timeout: timedelta) -> None:
        active = sum(len(running.jobs) for running in self._hands.running)
        message = f"Shutdown timeout exceeded after {timeout.total_seconds():g} s. {active} jobs still active."
        self._hands.emit(
            ShutdownTimeout(
                queue_name=self.queue_name, worker_id=self.id, timeout=timeout, active_jobs=active, message=message
            )
        )

    def give_back(self) -> None:
        """Cancel the handlers, so that other workers get their jobs; outcomes that do not get through are left."""
        self._hands.give_back()

    async def leave_stuck(self) -> list[str]:
        """The names of jobs whose handlers do not stop: the process must end next, and the provider keeps the jobs."""
        return [job.name for running in self._hands.running for job in running.jobs]

    @property
    def concurrency(self) -> int:
        """How many handlers may run at a time."""
        return self._concurrency

    def set_concurrency(self, concurrency: int) -> None:
        """How many handlers may run at a time from now on; those running finish."""
        self._arguments.whole("concurrency", concurrency, least=1)
        self._concurrency = concurrency
        if self._source is not None:
            self._source.set_concurrency(concurrency)


def _weights(queues: object) -> Mapping[str, int]:
    """How much of the slots each queue gets, where all have jobs; nothing when these are no names."""
    if isinstance(queues, str):
        return {queues: 1}
    if isinstance(queues, Mapping):
        return dict(queues)
    return dict.fromkeys(queues, 1) if isinstance(queues, Iterable) else {}

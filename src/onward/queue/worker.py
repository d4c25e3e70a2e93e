"""The side that runs jobs: asks the provider for them, or has them delivered, and tells it how they ended."""

import asyncio
import itertools
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Generic, TypeAlias, TypeVar

from msgspec import Raw

from onward.errors import QueueError
from onward.queue.checks import Arguments
from onward.queue.contract import Consumer, GivenBack, Provider, StoredJob, TakenJob
from onward.queue.events import (
    Drained,
    Emitter,
    Failed,
    Listener,
    Listening,
    QueueEvent,
    ShutdownTimeout,
    ShuttingDown,
    Trouble,
)
from onward.queue.handler import Handler
from onward.queue.reporting import Reporting
from onward.queue.resolve import AnyProvider, bound
from onward.queue.running import Outcome, Running, Told
from onward.queue.settling import Settling, persist
from onward.queue.several import Several
from onward.slots.loop import SlotLoop

T = TypeVar("T")
Queues: TypeAlias = str | Iterable[str] | Mapping[str, int]
Piece: TypeAlias = Sequence[TakenJob]
Hold: TypeAlias = tuple[str, str | None]
_AFTER_CANCEL = 5.0
"""Seconds that handlers have to end once they were cancelled; a `def` handler in its thread may never do so."""
_LAST_TRY = 1.0
"""Seconds to give jobs back in when the worker is cancelled."""
_WITHOUT_LEASE = 30.0
"""Seconds that an outcome is told again where jobs are held as long as a connection lives."""
_DEFAULT_BATCH = 100
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
        if batch_size is not None:
            arguments.whole("batch_size", batch_size, least=1)
        given: dict[str, Any] = {"timeout": timeout, "poll_interval": poll_interval, "error_backoff": error_backoff}
        for option, duration in given.items():
            if duration is not None:
                least = timedelta(milliseconds=1) if option == "timeout" else timedelta()
                arguments.duration(option, duration, least=least)
        self._handler = Handler[T](handler, self.queue_name, arguments, batch=batch)
        self._providers = {one: bound(provider, one, arguments) for one in weights}
        self.provider: Provider = next(iter(self._providers.values()))
        self.id = f"{name or f'{socket.gethostname()}-{os.getpid()}'}-{secrets.token_hex(4)}"
        self._pushes = self.provider.capabilities.push and not batch and len(weights) == 1
        if self._pushes:
            self._refuse_what_pushing_does_not_have({**given, "batch_size": batch_size, "timeout": None})
        self._batch, self._concurrency, self._batch_size = batch, concurrency, batch_size
        self._poll = (_DEFAULT_POLL if poll_interval is None else poll_interval).total_seconds()
        self._error_backoff = (_DEFAULT_BACKOFF if error_backoff is None else error_backoff).total_seconds()
        self._timeout = None if timeout is None else timeout.total_seconds()
        self._several = Several(self._providers, weights) if len(weights) > 1 else None
        self._events = Emitter(self.queue_name, troubles=self.provider.events)
        self._running: dict[int, Running] = {}
        self._held_until: dict[Hold, float] = {}
        """When the lease of a job that was fetched ends, if nothing renews it."""
        self._unsettled: dict[str, tuple[Running, Outcome]] = {}
        """Delivered jobs whose handler has ended and whose outcome the provider is about to settle."""
        self._task: asyncio.Task[None] | None = None
        self._begin_anew()

    def _refuse_what_pushing_does_not_have(self, given: Mapping[str, object]) -> None:
        for option, value in given.items():
            if value is not None:
                self._arguments.refuse_because(
                    f"{option} is for jobs that are fetched: {self.provider.name} delivers them by itself, never more "
                    f"than `concurrency` at a time; leave {option} out"
                )

    def _begin_anew(self) -> None:
        self._loop: SlotLoop[Piece] = SlotLoop(self, concurrency=self._concurrency)
        self._consumer: Consumer | None = None
        self._woken, self._idle = asyncio.Event(), asyncio.Event()
        self._look_again = False

    # -- listeners

    def _listen(self, event: str, listener: Listener) -> Callable[[], None]:
        self._events.check(event, lambda name: True)
        if not event.startswith("queue."):
            return self._events.on(event, listener)
        ends = [provider.events.on(event, listener) for provider in self._providers.values()]

        def end_all() -> None:
            for end in ends:
                end()

        return end_all

    def _emit(self, event: QueueEvent) -> None:
        if event.event.startswith("queue."):
            provider = self._providers.get(event.queue_name, self.provider)
            provider.events.emit(event)
        else:
            self._events.emit(event)

    # -- life

    async def start(self) -> None:
        """Connect, and work in the background until `close`. When it fails, it may be called again."""
        if self._task is not None and not self._task.done():
            return
        ready = asyncio.Event()
        # Owned by this worker: `close` waits for it.
        task = self._task = asyncio.get_running_loop().create_task(
            self.run(ready=ready), name=f"onward queue worker {self.id}"
        )
        waiting = asyncio.get_running_loop().create_task(ready.wait())
        try:
            await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if task.done():
            self._task = None
            await task

    async def __aenter__(self) -> "QueueWorker[T]":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

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
        task = self._task
        if task is not None and not task.done():
            self.stop()
            if finish_active_jobs:
                await asyncio.wait([task], timeout=timeout.total_seconds())
                if not task.done() and self._running:
                    self._tell_timeout(timeout)
            self.give_back()
            await asyncio.wait([task], timeout=_AFTER_CANCEL)
        self._task = None
        for events in (self._events, *(provider.events for provider in self._providers.values())):
            await events.settle(_AFTER_CANCEL)
        if disconnect_provider:
            for provider in self._providers.values():
                await provider.disconnect(everyone=True)
        if task is not None and task.done():
            await task

    def _tell_timeout(self, timeout: timedelta) -> None:
        active = sum(len(running.jobs) for running in self._running.values())
        message = f"Shutdown timeout exceeded after {timeout.total_seconds():g} s. {active} jobs still active."
        self._emit(
            ShutdownTimeout(
                queue_name=self.queue_name, worker_id=self.id, timeout=timeout, active_jobs=active, message=message
            )
        )

    def stop(self, *, grace: timedelta | None = None) -> None:
        """Take no more jobs and let those running finish; what then still runs after `grace` is given back."""
        if not self._loop.is_stopping:
            self._emit(ShuttingDown(queue_name=self.queue_name, worker_id=self.id))
            self._loop.stop()
            if grace is not None:
                asyncio.get_running_loop().call_later(grace.total_seconds(), self._end_grace, grace)

    def _end_grace(self, grace: timedelta) -> None:
        if self._running:
            self._tell_timeout(grace)
            self.give_back()

    def give_back(self) -> None:
        """Cancel the handlers, so that other workers get their jobs; outcomes that do not get through are left."""
        for running in list(self._running.values()):
            running.cancel(Told.STOPPING)

    @property
    def concurrency(self) -> int:
        """How many handlers may run at a time."""
        return self._concurrency

    def set_concurrency(self, concurrency: int) -> None:
        """How many handlers may run at a time from now on; those running finish."""
        self._arguments.whole("concurrency", concurrency, least=1)
        self._concurrency = concurrency
        self._loop.set_concurrency(concurrency)
        if self._consumer is not None:
            self._consumer.set_concurrency(concurrency)

    async def run(self, *, ready: asyncio.Event | None = None) -> None:
        """Work until stopped."""
        self._begin_anew()
        async with AsyncExitStack() as stack:
            for provider in self._providers.values():
                await provider.connect()
                stack.push_async_callback(provider.disconnect)
                provider.on_ended = self._tell_ended
            # As many as ever run at a time: threads are made when they are needed, and concurrency may be raised.
            self._threads = ThreadPoolExecutor(max_workers=1024, thread_name_prefix="onward-queue-handler")
            stack.callback(self._threads.shutdown, wait=False)
            self._reporting = Reporting(self._provider_of)
            await self._run_beside(ready)

    async def _run_beside(self, ready: asyncio.Event | None) -> None:
        """Work, and beside it do what goes on all the time."""
        failure: Exception | None = None
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(self._reporting.run()), tasks.create_task(self._watch_for_drained())]
            if not self._pushes:
                beside += [tasks.create_task(self._renew(provider)) for provider in self._providers.values()]
            try:
                await (self._run_pushed(ready) if self._pushes else self._run_pulled(ready))
            except Exception as error:  # noqa: BLE001 - raised below, and not as one of a group
                failure = error
            finally:
                for task in beside:
                    task.cancel()
        if failure is not None:
            raise failure

    async def leave_stuck(self) -> list[str]:
        """The names of jobs whose handlers do not stop: the process must end next, and the provider keeps the jobs."""
        return [job.name for running in self._running.values() for job in running.jobs]

    def _provider_of(self, job: StoredJob) -> Provider:
        return self._providers[job.queue_name]

    # -- pull: the source of the slot loop

    async def _run_pulled(self, ready: asyncio.Event | None) -> None:
        if ready is not None:
            ready.set()
        await self._loop.run()

    async def fill(self, free: int) -> Sequence[Piece]:
        size = self._batch_size or _DEFAULT_BATCH
        wanted = free * size if self._batch else min(free, self._batch_size or free)
        most = [p.capabilities.max_batch_size for p in self._providers.values() if p.capabilities.max_batch_size]
        count, began = min([wanted, *most]), time.monotonic()
        source = self._several or self.provider
        jobs = await source.fetch(count, self.provider.long_poll)
        self._look_again = len(jobs) == count or self._long_polls
        self._note_leases(jobs, began)
        if not self._batch:
            return [[job] for job in jobs]
        return [jobs[first : first + size] for first in range(0, len(jobs), size)]

    @property
    def _long_polls(self) -> bool:
        return self._several.long_polling if self._several is not None else self.provider.capabilities.long_polling

    def _note_leases(self, jobs: Iterable[TakenJob], began: float) -> None:
        """A lease is counted from when it was asked for: never longer than the provider counts it."""
        for job in jobs:
            lease = self._provider_of(job).lease
            seconds = _WITHOUT_LEASE if lease is None else lease.total_seconds()
            self._held_until[_hold(job)] = began + seconds

    async def hand_back(self, work: Sequence[Piece]) -> None:
        await self._release(itertools.chain.from_iterable(work))

    async def _release(self, jobs: Iterable[TakenJob]) -> None:
        for name, group in itertools.groupby(sorted(jobs, key=_queue_of), key=_queue_of):
            await self._providers[name].release(list(group))

    async def wait(self) -> None:
        has_room = self._loop.free > 0
        if not (has_room and self._look_again):
            try:
                async with asyncio.timeout(self._poll if has_room else None):
                    await self._woken.wait()
            except TimeoutError:
                pass  # time to look
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()
        if self._loop.is_stopping:
            (self._several or self.provider).interrupt()

    async def recover(self, error: Exception) -> None:
        self._report(error)
        try:
            async with asyncio.timeout(self._error_backoff):
                while not self._loop.is_stopping:
                    self._woken.clear()
                    await self._woken.wait()
        except TimeoutError:
            pass  # try again

    async def run_piece(self, piece: Piece) -> None:
        running = self._begin(piece, is_cancelled=lambda: self._loop.is_cancelled)
        try:
            outcomes = await running.run(self._handler, self._threads, batch=self._batch)
            if running.told is Told.STOPPING:
                await self._release(piece)
            elif len(outcomes) == 1:
                await self._settle(running, outcomes[0])
            else:
                async with asyncio.TaskGroup() as tasks:
                    for outcome in outcomes:
                        tasks.create_task(self._settle(running, outcome))
        except Exception as error:  # noqa: BLE001 - told as queue.error; the job stays with the provider
            self._report(error)
        except asyncio.CancelledError:
            # The worker is cancelled. What was begun is given back, if that is soon done.
            with suppress(Exception):
                async with asyncio.timeout(_LAST_TRY):
                    await self._release(piece)
            raise
        finally:
            self._end(running)

    async def _settle(self, running: Running, outcome: Outcome) -> None:
        job = outcome.job
        await self._reporting.send(job.id)
        settling = Settling(self._provider_of(job), outcome)
        try:
            delay = await persist(
                settling.tell,
                until=lambda: self._held_until.get(_hold(job), 0.0),
                is_over=running.is_over,
                report=self._report,
            )
        except Exception as error:  # noqa: BLE001 - told as queue.error; the job stays with the provider
            self._report(error)
        else:
            running.settled(outcome, delay)

    async def _renew(self, provider: Provider) -> None:
        lease = provider.lease
        while lease is not None:
            await asyncio.sleep(lease.total_seconds() / 3)
            held = {_hold(job): job for job in self._jobs() if job.queue_name == provider.queue_name}
            began = time.monotonic()
            try:
                lost = await provider.renew(list(held.values())) if held else []
            except Exception as error:  # noqa: BLE001 - told as queue.error; tried again before the locks run out
                self._report(error)
                continue
            for job in lost:
                held.pop(_hold(job), None)
                self._lose(job)
            # Those that were settled meanwhile are not among the jobs any more.
            self._note_leases([job for job in self._jobs() if _hold(job) in held], began)

    def _jobs(self) -> list[TakenJob]:
        return [job for running in self._running.values() for job in running.jobs if job.id not in running.lost]

    def _lose(self, lost: TakenJob) -> None:
        """One whose handler has returned is being settled, or was while we asked: that tells, if it must."""
        for running in list(self._running.values()):
            if any(_hold(job) == _hold(lost) for job in running.jobs):
                if running.lose(lost.id):
                    self._report(self._provider_of(lost).not_active(lost.id))
                return

    # -- push

    async def _run_pushed(self, ready: asyncio.Event | None) -> None:
        consumer = await self.provider.process(
            self._deliver, concurrency=self._concurrency, on_error=self._report, on_settled=self._settled
        )
        self._consumer = consumer
        if ready is not None:
            ready.set()
        try:
            while not self._loop.is_stopping:
                await self._woken.wait()
                self._woken.clear()
        except asyncio.CancelledError:
            self.give_back()
            raise
        finally:
            await consumer.stop()
            await consumer.wait()
            self._consumer = None

    async def _deliver(self, job: TakenJob) -> Raw | None:
        running = self._begin([job], is_cancelled=None)
        outcomes: list[Outcome] = []
        try:
            outcomes = await running.run(self._handler, self._threads, batch=False)
            if not outcomes:
                raise GivenBack
            await self._reporting.send(job.id)
        finally:
            del self._running[id(running)]
            if not outcomes:
                self._finish(job)
        self._unsettled[job.id] = running, outcomes[0]
        error = outcomes[0].error
        if error is not None:
            raise error if isinstance(error, Exception) else _Odd(error) from error
        return outcomes[0].result

    def _settled(self, job: TakenJob, retry_delay: timedelta | None) -> None:
        unsettled = self._unsettled.pop(job.id, None)
        if unsettled is not None:
            running, outcome = unsettled
            running.settled(outcome, retry_delay)
            self._finish(job)

    # -- telling

    def _begin(self, jobs: Piece, *, is_cancelled: Callable[[], bool] | None) -> Running:
        running = Running(
            jobs,
            worker_id=self.id,
            events=self._events,
            report=self._reporting.take,
            timeout=self._timeout,
            is_cancelled=is_cancelled,
        )
        self._running[id(running)] = running
        for job in jobs:
            self._provider_of(job).events.crew.begin()
        return running

    def _end(self, running: Running) -> None:
        del self._running[id(running)]
        for job in running.jobs:
            self._held_until.pop(_hold(job), None)
            self._finish(job)

    def _finish(self, job: TakenJob) -> None:
        if self._provider_of(job).events.crew.end():
            self._idle.set()

    def _report(self, error: Exception) -> None:
        queue_name = self.provider.queue_name
        if isinstance(error, QueueError):
            queue_name = error.queue_name or queue_name
            unsettled = None if error.job_id is None else self._unsettled.pop(error.job_id, None)
            if unsettled is not None:
                self._finish(unsettled[1].job)
        self._emit(Trouble(queue_name=queue_name, error=error, message=str(error)))

    def _tell_ended(self, job: StoredJob) -> None:
        """It failed without anybody running it, and this worker's provider found it."""
        self._events.emit(Failed.of(job, worker_id=self.id))

    async def _watch_for_drained(self) -> None:
        """Whoever ends the last job of the crew looks whether there is more, if anybody wants to know."""
        while True:
            await self._idle.wait()
            self._idle.clear()
            for provider in self._providers.values():
                if provider.events.wants(Drained):
                    await self._look_whether_drained(provider)

    async def _look_whether_drained(self, provider: Provider) -> None:
        crew, pause = provider.events.crew, 0.01
        while crew.is_idle():
            try:
                stats = await provider.stats()
            except QueueError as error:
                self._report(error)
            else:
                if crew.is_idle() and not stats.waiting and not stats.active:
                    crew.had_work = False
                    self._emit(Drained(queue_name=provider.queue_name))
                    return
            # What waits or runs is with others, or on its way to us.
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)


class _Odd(Exception):
    """What a handler raised that is no Exception, for those who may only expect those."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")


def _weights(queues: object) -> Mapping[str, int]:
    """How much of the slots each queue gets, where all have jobs; nothing when these are no names."""
    if isinstance(queues, str):
        return {queues: 1}
    if isinstance(queues, Mapping):
        return dict(queues)
    return dict.fromkeys(queues, 1) if isinstance(queues, Iterable) else {}


def _hold(job: TakenJob) -> Hold:
    """A job in the hands of one holder."""
    return job.id, job.lock_token


def _queue_of(job: TakenJob) -> str:
    return job.queue_name

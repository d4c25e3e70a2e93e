"""The side that runs jobs: asks the provider for them, or has them delivered, and tells it how they ended."""

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from datetime import timedelta
from types import TracebackType
from typing import Any, Generic, TypeVar

from msgspec import Raw

from onward.errors import QueueError
from onward.queue.checks import Arguments
from onward.queue.contract import Consumer, GivenBack, TakenJob
from onward.queue.events import (
    Drained,
    Emitter,
    Listener,
    Listening,
    QueueEvent,
    ShutdownTimeout,
    ShuttingDown,
    Trouble,
)
from onward.queue.handler import Handler
from onward.queue.resolve import AnyProvider, bound
from onward.queue.running import Running, Told
from onward.slots.loop import SlotLoop

T = TypeVar("T")
_AFTER_CANCEL = 5.0
"""Seconds that handlers have to end once they were cancelled; a `def` handler in its thread may never do so."""


class QueueWorker(Listening, Generic[T]):
    """Runs `handler(data, job)` for the jobs of one queue: `await worker.start()` … `close()`, or `async with`.

    A handler that returns completes its job, one that raises fails it; `onward.Permanent`, or any error with
    `retryable = False`, fails it for good.

    >>> import asyncio
    >>> from onward.queue import Queue
    >>> async def greet(data: str, job: object) -> str:
    ...     return f"hello {data}"
    >>> async def example() -> str:
    ...     done = asyncio.Event()
    ...     async with Queue("greetings") as queue, QueueWorker("greetings", greet) as worker:
    ...         worker.on("completed", lambda event: done.set())
    ...         job = await queue.add("greet", "Ada")
    ...         await done.wait()
    ...         stored = await queue.get_job(job.id)
    ...         return stored.status
    >>> asyncio.run(example())
    <QueueJobStatus.COMPLETED: 'completed'>
    """

    def __init__(
        self,
        queue_name: str,
        handler: Callable[..., Any],
        *,
        provider: AnyProvider | None = None,
        concurrency: int = 1,
        batch_size: int = 1,
        poll_interval: timedelta = timedelta(milliseconds=100),
        error_backoff: timedelta = timedelta(seconds=1),
        name: str | None = None,
    ) -> None:
        arguments = Arguments("QueueWorker", queue_name)
        arguments.whole("concurrency", concurrency, least=1)
        arguments.whole("batch_size", batch_size, least=1)
        arguments.duration("poll_interval", poll_interval)
        arguments.duration("error_backoff", error_backoff)
        self._arguments = arguments
        self._handler = Handler[T](handler, queue_name, arguments)
        self.provider = bound(provider, queue_name, arguments)
        self.queue_name = queue_name
        self.id = f"{name or f'{socket.gethostname()}-{os.getpid()}'}-{secrets.token_hex(4)}"
        most = self.provider.capabilities.max_batch_size
        self._concurrency, self._batch_size = concurrency, min(batch_size, most) if most else batch_size
        self._poll, self._error_backoff = poll_interval.total_seconds(), error_backoff.total_seconds()
        self._events = Emitter(queue_name, troubles=self.provider.events)
        self._running: dict[int, Running] = {}
        self._unsettled: dict[str, Running] = {}
        """Delivered jobs whose handler has ended and whose outcome the provider is about to settle."""
        self._task: asyncio.Task[None] | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._loop: SlotLoop[TakenJob] = SlotLoop(self, concurrency=self._concurrency)
        self._consumer: Consumer | None = None
        self._woken = asyncio.Event()
        self._look_again = self._had_work = False

    def _listen(self, event: str, listener: Listener) -> Callable[[], None]:
        self._events.check(event, lambda name: True)
        emitter = self.provider.events if event.startswith("queue.") else self._events
        return emitter.on(event, listener)

    def _emit(self, event: QueueEvent) -> None:
        emitter = self.provider.events if event.event.startswith("queue.") else self._events
        emitter.emit(event)

    # -- life

    async def start(self) -> None:
        """Connect, and work in the background until `close`. When it fails, it may be called again."""
        if self._task is not None and not self._task.done():
            return
        ready = asyncio.Event()
        # Owned by this worker: `close` waits for it.
        self._task = asyncio.get_running_loop().create_task(
            self.run(ready=ready), name=f"onward queue worker {self.id}"
        )
        waiting = asyncio.get_running_loop().create_task(ready.wait())
        await asyncio.wait([self._task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._task.done():
            await self._task

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

        The provider is let go; with `disconnect_provider` it is closed for everyone else who holds it, too.
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
        if disconnect_provider:
            await self.provider.disconnect(everyone=True)
        if task is not None and task.done():
            await task

    def _tell_timeout(self, timeout: timedelta) -> None:
        active = len(self._running)
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
        """Cancel the handlers, so that other workers get their jobs."""
        for running in list(self._running.values()):
            running.cancel(Told.STOPPING)

    @property
    def concurrency(self) -> int:
        """How many jobs may run at a time."""
        return self._concurrency

    def set_concurrency(self, concurrency: int) -> None:
        """How many jobs may run at a time from now on; those running finish."""
        self._arguments.whole("concurrency", concurrency, least=1)
        self._concurrency = concurrency
        self._loop.set_concurrency(concurrency)
        if self._consumer is not None:
            self._consumer.set_concurrency(concurrency)

    async def run(self, *, ready: asyncio.Event | None = None) -> None:
        """Work until stopped."""
        self._begin_anew()
        async with AsyncExitStack() as stack:
            await self.provider.connect()
            stack.push_async_callback(self.provider.disconnect)
            # As many as ever run at a time: threads are made when they are needed, and concurrency may be raised.
            self._threads = ThreadPoolExecutor(max_workers=1024, thread_name_prefix="onward-queue-handler")
            stack.callback(self._threads.shutdown, wait=False)
            if self.provider.capabilities.push:
                await self._run_pushed(ready)
            else:
                await self._run_pulled(ready)

    async def leave_stuck(self) -> list[str]:
        """The names of jobs whose handlers do not stop: the process must end next, and the provider keeps the jobs."""
        return [running.job.name for running in self._running.values()]

    # -- pull: the source of the slot loop

    async def _run_pulled(self, ready: asyncio.Event | None) -> None:
        async with asyncio.TaskGroup() as tasks:
            renewing = tasks.create_task(self._renew())
            if ready is not None:
                ready.set()
            await self._loop.run()
            renewing.cancel()

    async def fill(self, free: int) -> Sequence[TakenJob]:
        count = min(free, self._batch_size)
        # Whoever has just finished everything asks without waiting first, to be able to say that the queue is drained.
        just_finished = self._had_work and not self._running
        jobs = await self.provider.fetch(count, timedelta() if just_finished else self.provider.long_poll)
        self._look_again = len(jobs) == count or self.provider.capabilities.long_polling
        if jobs:
            self._had_work = True
        elif not self._running:
            self._tell_drained()
        return jobs

    async def hand_back(self, work: Sequence[TakenJob]) -> None:
        if work:
            await self.provider.release(work)

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
            self.provider.interrupt()

    async def recover(self, error: Exception) -> None:
        self._report(error)
        try:
            async with asyncio.timeout(self._error_backoff):
                while not self._loop.is_stopping:
                    self._woken.clear()
                    await self._woken.wait()
        except TimeoutError:
            pass  # try again

    async def run_piece(self, piece: TakenJob) -> None:
        running = self._begin(piece)
        try:
            result = await running.run(self._handler, self._threads)
            if running.told is Told.STOPPING:
                await self.provider.release([piece])
            elif running.error is not None:
                running.settled(await self.provider.nack(piece, running.error))
            elif running.told is None:
                await self.provider.ack(piece, result)
                running.settled(None)
        except Exception as error:  # noqa: BLE001 - told as queue.error; the job stays with the provider
            self._report(error)
        finally:
            self._end(running)

    async def _renew(self) -> None:
        lease = self.provider.lease
        while lease is not None:
            await asyncio.sleep(lease.total_seconds() / 3)
            held = {running.job.id: running for running in self._running.values()}
            try:
                lost = await self.provider.renew([running.job for running in held.values()]) if held else []
            except Exception as error:  # noqa: BLE001 - told as queue.error; tried again before the locks run out
                self._report(error)
                continue
            for job in lost:
                # One whose handler has returned is being settled, or was while we asked: that tells, if it must.
                if held[job.id].cancel(Told.LOST):
                    self._report(self.provider.not_active(job.id))

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
                await self._look_whether_drained()
        except asyncio.CancelledError:
            self.give_back()
            raise
        finally:
            await consumer.stop()
            await consumer.wait()
            self._consumer = None

    async def _deliver(self, job: TakenJob) -> Raw | None:
        running = self._begin(job)
        try:
            result = await running.run(self._handler, self._threads)
            if running.told is not None:
                raise GivenBack
            self._unsettled[job.id] = running
            if running.error is not None:
                raise running.error
            return result
        finally:
            self._end(running)

    def _settled(self, job: TakenJob, retry_delay: timedelta | None) -> None:
        running = self._unsettled.pop(job.id, None)
        if running is not None:
            running.settled(retry_delay)
        self._had_work = True
        self._woken.set()

    async def _look_whether_drained(self) -> None:
        if self._had_work and not self._running and not self._unsettled:
            try:
                stats = await self.provider.stats()
            except QueueError as error:
                self._report(error)
            else:
                if stats.waiting == 0 and not self._running:
                    self._tell_drained()

    # -- telling

    def _begin(self, job: TakenJob) -> Running:
        running = Running(job, worker_id=self.id, events=self._events)
        self._running[id(running)] = running
        return running

    def _end(self, running: Running) -> None:
        del self._running[id(running)]
        if not self._running and self._had_work:
            self.provider.interrupt()

    def _report(self, error: Exception) -> None:
        if isinstance(error, QueueError) and error.job_id is not None:
            self._unsettled.pop(error.job_id, None)
        self._emit(Trouble(queue_name=self.queue_name, error=error, message=str(error)))

    def _tell_drained(self) -> None:
        if self._had_work:
            self._had_work = False
            self._emit(Drained(queue_name=self.queue_name))

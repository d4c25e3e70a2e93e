"""What a worker has in its hands, and what it tells of it."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from onward.errors import QueueError
from onward.pacing import Pacing
from onward.queue.contract import StoredJob, TakenJob
from onward.queue.events import Drained, Emitter, Failed, QueueErrorEvent, QueueEvent
from onward.queue.provider import Provider
from onward.queue.reporting import Reporting
from onward.queue.running import Running, Told

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0
"""Seconds between looks whether the queue is drained, while others have jobs of it."""

Hold: TypeAlias = tuple[str, str | None]


def hold_of(job: TakenJob) -> Hold:
    """A job in the hands of one holder: the same job may be here again before that one is done with it."""
    return job.id, job.lock_token


async def run_beside(work: Coroutine[Any, Any, None], others: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do that to its end, and beside it what goes on all the time. What it raises is not one of a group."""
    failure: Exception | None = None
    async with asyncio.TaskGroup() as tasks:
        beside = [tasks.create_task(other) for other in others]
        try:
            await work
        except Exception as error:  # noqa: BLE001 - raised below
            failure = error
        finally:
            for task in beside:
                task.cancel()
    if failure is not None:
        raise failure


class Hands:
    """The jobs that run here. One more or one less is counted for the crew, and told to those who listen."""

    reporting: Reporting

    def __init__(self, worker_id: str, providers: Mapping[str, Provider], *, events: Emitter, timeout: float | None):
        self.worker_id, self.providers, self.events = worker_id, providers, events
        self._timeout = timeout
        self._running: dict[int, Running] = {}
        self._idle = asyncio.Event()

    def open(self) -> None:
        """In this event loop, from now on."""
        self._idle = asyncio.Event()
        self.reporting = Reporting(self.provider_of)

    def provider_of(self, job: StoredJob) -> Provider:
        return self.providers[job.queue_name]

    # -- jobs

    @property
    def running(self) -> list[Running]:
        """The calls of handlers under way, with those whose outcomes are being told."""
        return list(self._running.values())

    @property
    def jobs(self) -> list[TakenJob]:
        """All of them but those that are another's by now."""
        return [job for running in self._running.values() for job in running.jobs if job.id not in running.lost]

    def begin(self, jobs: Sequence[TakenJob], *, is_cancelled: Callable[[], bool]) -> Running:
        running = Running(
            jobs,
            worker_id=self.worker_id,
            events=self.events,
            report=self.reporting.take,
            timeout=self._timeout,
            is_cancelled=is_cancelled,
        )
        self._running[id(running)] = running
        for job in jobs:
            self.provider_of(job).events.crew.begin()
        return running

    def end(self, running: Running, *, is_settled: bool = True) -> None:
        """It is over; unless they are settled elsewhere, so are its jobs."""
        del self._running[id(running)]
        if is_settled:
            for job in running.jobs:
                self.let_go(job)

    def let_go(self, job: TakenJob) -> None:
        if self.provider_of(job).events.crew.end():
            self._idle.set()

    def give_back(self) -> None:
        for running in self.running:
            running.cancel(Told.STOPPING)

    # -- telling

    def emit(self, event: QueueEvent) -> None:
        if event.event.startswith("queue."):
            first = next(iter(self.providers.values()))
            self.providers.get(event.queue_name, first).events.emit(event)
        else:
            self.events.emit(event)

    def report(self, error: Exception) -> None:
        """Something failed that no caller was told."""
        queue_name = error.queue_name if isinstance(error, QueueError) else None
        queue_name = queue_name or next(iter(self.providers))
        self.emit(QueueErrorEvent(queue_name=queue_name, error=error, message=str(error)))

    def tell_ended(self, job: StoredJob) -> None:
        """It failed without anybody running it, and this worker's provider found it."""
        self.events.emit(Failed.of(job, worker_id=self.worker_id))

    async def watch_for_drained(self) -> None:
        """Whoever ends the last job of the crew looks whether there is more, if anybody wants to know."""
        while True:
            await self._idle.wait()
            self._idle.clear()
            for provider in self.providers.values():
                if provider.events.wants(Drained):
                    await self._look_whether_drained(provider)

    async def _look_whether_drained(self, provider: Provider) -> None:
        crew, pacing = provider.events.crew, Pacing(_SHORTEST_PAUSE, _LONGEST_PAUSE)
        while crew.is_idle():
            try:
                stats = await provider.stats()
            except QueueError as error:
                self.report(error)
            else:
                if crew.is_idle() and not stats.waiting and not stats.active:
                    crew.had_work = False
                    self.emit(Drained(queue_name=provider.queue_name))
                    return
            # What waits or runs is with others, or on its way to us.
            await asyncio.sleep(next(pacing))

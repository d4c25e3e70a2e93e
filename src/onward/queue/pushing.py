"""A worker's jobs where the provider delivers them by itself, and settles what their handlers come to."""

import asyncio
from datetime import timedelta
from typing import Any

from msgspec import Raw

from onward.errands import Errands
from onward.errors import QueueError
from onward.queue.contract import Consumer, GivenBack, Pushes, TakenJob
from onward.queue.handler import Handler
from onward.queue.hands import Hands, Hold, hold_of
from onward.queue.provider import Provider
from onward.queue.running import JobOutcome, Running
from onward.run.threads import Threads


class Pushing:
    """Gives the provider a handler, and waits until it is stopped."""

    def __init__(
        self, hands: Hands, provider: Provider, handler: Handler[Any], threads: Threads, *, concurrency: int
    ) -> None:
        self._hands, self._provider, self._handler, self._threads = hands, provider, handler, threads
        self._concurrency = concurrency
        self._consumer: Consumer | None = None
        self._stopped = asyncio.Event()
        self._handling = Errands()
        self._unsettled: dict[Hold, tuple[Running, JobOutcome]] = {}
        """Jobs whose handler has ended and whose outcome the provider is about to settle."""

    @property
    def is_stopping(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        self._stopped.set()

    def set_concurrency(self, concurrency: int) -> None:
        self._concurrency = concurrency
        if self._consumer is not None:
            self._consumer.set_concurrency(concurrency)

    async def run(self, ready: asyncio.Event) -> None:
        """Until stopped, and the provider has the last outcome."""
        pushes = self._provider.role(Pushes, "delivering jobs: ask for them with fetch()")
        consumer = self._consumer = await pushes.process(
            self._deliver, concurrency=self._concurrency, on_error=self._report, on_settled=self._settled
        )
        ready.set()
        try:
            await self._stopped.wait()
        except asyncio.CancelledError:
            self._hands.give_back()
            raise
        finally:
            await consumer.stop()
            await consumer.wait()
            await self._handling.end()
            self._consumer = None

    async def _deliver(self, job: TakenJob) -> Raw | None:
        delivery = asyncio.current_task()
        running = self._hands.begin([job], is_cancelled=lambda: delivery is not None and delivery.cancelling() > 0)
        outcomes: list[JobOutcome] = []
        try:
            # In a task of its own, which is cancelled with this one: a handler may cancel the task it runs in, and
            # that must not look as if the provider did.
            run = running.run(self._handler, self._threads, batch=False)
            outcomes = await self._handling.begin(run, name=f"onward queue job {job.id}")
            if not outcomes:
                raise GivenBack
            await self._hands.reporting.send(job.id)
            self._unsettled[hold_of(job)] = running, outcomes[0]
        finally:
            self._hands.end(running, is_settled=hold_of(job) not in self._unsettled)
        error = outcomes[0].error
        if error is not None:
            raise error if isinstance(error, Exception) else _Odd(error) from error
        return outcomes[0].result

    def _settled(self, job: TakenJob, retry_delay: timedelta | None) -> None:
        unsettled = self._unsettled.pop(hold_of(job), None)
        if unsettled is not None:
            running, outcome = unsettled
            running.settled(outcome, retry_delay)
            self._hands.let_go(job)

    def _report(self, error: QueueError) -> None:
        if error.job_id is not None and not error.retryable:
            first = next((key for key in self._unsettled if key[0] == error.job_id), None)
            if first is not None:
                self._hands.let_go(self._unsettled.pop(first)[1].job)
        self._hands.report(error)


class _Odd(Exception):
    """What a handler raised that is no Exception, for those who may only expect those."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")

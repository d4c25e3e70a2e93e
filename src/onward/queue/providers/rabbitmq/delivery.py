"""Jobs that the broker delivers: never more at a time than there are free slots."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TypeVar

from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue

from onward.errands import Errands
from onward.errors import QueueError, QueueErrorCode
from onward.pacing import Pacing
from onward.queue.contract import GivenBack, PushHandler, TakenJob
from onward.queue.providers.rabbitmq.link import Link, answered
from onward.queue.providers.rabbitmq.publisher import Lost, Publisher

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
"""Seconds between tries to consume again."""
_LARGEST_PREFETCH = 65_535
_IDLE = 60.0
"""Seconds without a job after which the consumer of a quorum queue is made anew. RabbitMQ 3.10 does not tell one whose
queue was deleted and made again at once: it counts the consumer and gives it jobs, which never reach the client. Only
closing the channel frees them."""

R = TypeVar("R")
Report = Callable[[Exception, QueueErrorCode, TakenJob | None], QueueError]


@dataclass(eq=False, slots=True)
class _Subscription:
    """A consumer, with the number of unacknowledged messages that the broker lets it have.

    That number cannot be changed: more slots are one more subscription, fewer are one that is ended, whose jobs finish.
    """

    tag: str
    size: int


@dataclass(eq=False, slots=True)
class _Work:
    """A message that came and is not settled yet."""

    subscription: _Subscription
    task: asyncio.Task[None] | None = None
    in_handler: bool = False
    is_lost: bool = False


class Delivery:
    """Consumes on a channel of its own, and on another one after that was lost, until it is stopped."""

    def __init__(
        self,
        link: Link,
        publisher: Publisher,
        handler: PushHandler,
        *,
        concurrency: int,
        in_words: Report,
        on_error: Callable[[QueueError], None],
        on_settled: Callable[[TakenJob, timedelta | None], None] | None,
    ) -> None:
        self._link, self._publisher, self._handler = link, publisher, handler
        self._concurrency = concurrency
        self._in_words, self._on_error, self._on_settled = in_words, on_error, on_settled
        self._errands = Errands()
        self._live: list[_Subscription] = []
        self._works: set[_Work] = set()
        self._lost: Exception | None = None
        self._stopping = self._abandoned = False
        self._woken, self._stopped = asyncio.Event(), asyncio.Event()

    # -- steering

    async def start(self) -> None:
        """Return when consuming; raise when that does not work at the first try."""
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = self._errands.begin(self._run(first), name="onward RabbitMQ delivery")
        try:
            await first
        except asyncio.CancelledError:
            await self.abandon()  # nobody has it, to stop it
            raise

    def set_concurrency(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._woken.set()

    async def stop(self) -> None:
        self._stopping = True
        self._woken.set()
        await self._stopped.wait()

    async def wait(self) -> None:
        await self._task

    async def abandon(self) -> None:
        """End it with everything that still runs: the connection is about to be closed."""
        self._abandoned = True
        self._task.cancel()
        await asyncio.wait([self._task])

    @property
    def is_over(self) -> bool:
        return self._task.done()

    # -- consuming

    async def _run(self, first: "asyncio.Future[None]") -> None:
        pacing = Pacing(_SHORTEST_PAUSE, _LONGEST_PAUSE)
        try:
            async with asyncio.TaskGroup() as self._tasks:
                while not self._stopping:
                    try:
                        await self._consume(first)
                        pacing.reset()
                    except Exception as error:  # noqa: BLE001 - one turn of a loop
                        if not first.done():
                            first.set_exception(error)
                            return
                        if self._lost is not None:  # it did work for a while
                            pacing.reset()
                        self._on_error(self._in_words(error, QueueErrorCode.CONNECTION, None))
                        await self._rest(next(pacing))
                self._stopped.set()
        finally:
            self._stopped.set()

    async def _rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._stopping:
                    self._woken.clear()
                    await self._woken.wait()

    async def _consume(self, first: "asyncio.Future[None]") -> None:
        self._lost = None
        await self._publisher.declare_all()
        channel = await self._link.channel()
        try:
            async with answered():
                channel.close_callbacks.add(lambda _, error: self._lose(error))
                underlay = await channel.get_underlay_channel()
                underlay.on_consumer_cancel_callbacks.add(lambda frame: self._lose(None))
                queue = await channel.get_queue(self._publisher.topology.queue, ensure=False)
            await self._serve(channel, queue, first)
        finally:
            self._let_go()
            await self._link.leave(channel)

    async def _serve(self, channel: AbstractChannel, queue: AbstractQueue, first: "asyncio.Future[None]") -> None:
        while not self._stopping:
            await self._adjust(channel, queue)
            if not first.done():
                first.set_result(None)
            if not await self._has_news():
                await self._cancel(queue)
                if not self._works:  # else jobs were on their way: they run, and more come, on this channel
                    return
        await self._cancel(queue)
        self._stopped.set()
        while self._works:
            await self._news()

    async def _has_news(self) -> bool:
        """Whether there are before a quorum queue was idle for too long."""
        may_be_forgotten = self._publisher.topology.queue_type == "quorum" and not self._works
        try:
            async with asyncio.timeout(_IDLE if may_be_forgotten else None):
                await self._news()
        except TimeoutError:
            return False
        return True

    async def _cancel(self, queue: AbstractQueue) -> None:
        """Have nothing more delivered. What was before the broker's answer is among the works when this returns."""
        async with answered():
            while self._live:
                await queue.cancel(self._live[-1].tag)
                self._live.pop()

    async def _news(self) -> None:
        await self._woken.wait()
        self._woken.clear()
        if self._lost is not None:
            raise self._lost

    async def _adjust(self, channel: AbstractChannel, queue: AbstractQueue) -> None:
        """Let the broker deliver as many as are wanted and not yet spoken for."""
        async with answered():
            while self._live and self._spoken_for() > self._concurrency:
                await queue.cancel(self._live[-1].tag)
                self._live.pop()
            missing = min(self._concurrency - self._spoken_for(), _LARGEST_PREFETCH)
            if missing > 0:
                subscription = _Subscription(f"onward-{secrets.token_hex(8)}", missing)
                self._live.append(subscription)
                await channel.set_qos(prefetch_count=missing)
                await queue.consume(partial(self._receive, subscription), consumer_tag=subscription.tag)

    def _spoken_for(self) -> int:
        running = sum(work.subscription not in self._live for work in self._works)
        return sum(subscription.size for subscription in self._live) + running

    def _lose(self, error: BaseException | None) -> None:
        if self._lost is None:
            words = str(error) if error is not None and str(error) else "the broker ended it: was the queue deleted?"
            self._lost = ConnectionError(f"consuming was interrupted: {words}")
            self._woken.set()

    def _let_go(self) -> None:
        """The broker gives what was unacknowledged to others: handlers that still run, run in vain."""
        self._live.clear()
        for work in self._works:
            work.is_lost = True
            if work.in_handler and work.task is not None:
                work.task.cancel()

    # -- one job

    async def _receive(self, subscription: _Subscription, message: AbstractIncomingMessage) -> None:
        if self._abandoned:
            return  # the broker takes it back when the channel closes
        # This runs in a task of the channel, and would end with it.
        work = _Work(subscription)
        self._works.add(work)
        work.task = self._tasks.create_task(self._work(work, message))

    async def _work(self, work: _Work, message: AbstractIncomingMessage) -> None:
        job: TakenJob | None = None
        try:
            lock_token = f"{work.subscription.tag}:{message.delivery_tag}"
            job = await self._insist(None, lambda: self._publisher.arrived(message, lock_token))
            if job is not None:
                await self._settle(work, job, message)
        except asyncio.CancelledError:
            if not work.is_lost or work.task is None:
                raise
            work.task.uncancel()
            self._tell(Lost(), job)
        except Exception as error:  # noqa: BLE001 - told; the broker has the job, or takes it back with the channel
            self._tell(error, job)
        finally:
            self._works.discard(work)
            self._woken.set()

    async def _settle(self, work: _Work, job: TakenJob, message: AbstractIncomingMessage) -> None:
        if self._stopping:
            await self._publisher.give_back(message, job)
            return
        delay: timedelta | None = None
        error = await self._handle(work, job)
        if isinstance(error, GivenBack):
            await self._insist(job, lambda: self._publisher.give_back(message, job))
            return
        if error is not None:
            delay = await self._insist(job, lambda: self._publisher.fail(message, job, error))
        else:
            await self._publisher.complete(message)
        if self._on_settled is not None:
            self._on_settled(job, delay)

    async def _insist(self, job: TakenJob | None, call: Callable[[], Awaitable[R]]) -> R:
        """Try again as long as the job is held here: until its channel is lost, or nobody waits for it any more."""
        pacing = Pacing(_SHORTEST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                return await call()
            except Lost:
                raise
            except Exception as error:
                if self._stopping:
                    raise
                self._tell(error, job, is_over=False)
                await asyncio.sleep(next(pacing))

    async def _handle(self, work: _Work, job: TakenJob) -> BaseException | None:
        """What the handler raised, whatever it is: it goes to the queue, and never ends the delivery."""
        work.in_handler = True
        try:
            await self._handler(job)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and work.task is not None and work.task.cancelling():
                raise  # we are told to stop
            return error
        finally:
            work.in_handler = False
        return None

    def _tell(self, error: Exception, job: TakenJob | None, *, is_over: bool = True) -> None:
        """While it is tried again, the error does not name the job: whoever hears it would take it for lost."""
        self._on_error(self._in_words(error, QueueErrorCode.PROCESSING, job if is_over else None))

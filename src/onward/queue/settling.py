"""Telling a provider how jobs ended, again and again, until it has heard or the job is not ours any more."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

from onward.errors import QueueError, QueueErrorCode
from onward.pacing import Pacing
from onward.queue.contract import LooksUp, Pulls
from onward.queue.model import QueueJobStatus
from onward.queue.running import JobOutcome

R = TypeVar("R")


async def persist(
    call: Callable[[], Awaitable[R]],
    *,
    until: Callable[[], float],
    is_over: asyncio.Event,
    report: Callable[[QueueError], None],
) -> R:
    """What the call answers, tried again after each error that may pass: until that time, or nobody waits any more.

    The first of such errors is reported, the last one raised.
    """
    pacing, is_first = Pacing(), True
    while True:
        try:
            return await call()
        except QueueError as error:
            pause = next(pacing)
            if not error.retryable or is_over.is_set() or time.monotonic() + pause > until():
                raise
            if is_first:
                report(error)
        is_first = False
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await is_over.wait()


class Settling:
    """One outcome on its way to the provider."""

    def __init__(self, provider: Pulls, outcome: JobOutcome) -> None:
        self._provider, self._outcome = provider, outcome
        self._may_have_arrived = False

    async def tell(self) -> timedelta | None:
        """How long until the next attempt, where there is one."""
        job, error = self._outcome.job, self._outcome.error
        try:
            if error is not None:
                return await self._provider.nack(job, error)
            await self._provider.ack(job, self._outcome.result)
        except QueueError as refusal:
            if not self._may_have_arrived or not _is_refusal(refusal) or not await self._has_arrived():
                self._may_have_arrived = self._may_have_arrived or refusal.retryable
                raise
        return None

    async def _has_arrived(self) -> bool:
        """Whether an earlier try, whose answer did not come, is why the job is no longer ours."""
        if not isinstance(self._provider, LooksUp):
            return False
        stored = await self._provider.get_job(self._outcome.job.id)
        if stored is None:
            return self._provider.capabilities.removal  # it was not to be kept
        if self._outcome.error is None:
            return stored.status is QueueJobStatus.COMPLETED
        return stored.attempts == self._outcome.job.attempts + 1


def _is_refusal(error: QueueError) -> bool:
    return not error.retryable and error.code in (QueueErrorCode.PROCESSING, QueueErrorCode.JOB_NOT_FOUND)

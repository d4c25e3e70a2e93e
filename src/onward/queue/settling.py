"""Telling a provider how jobs ended, again and again, until it has heard or the job is not ours any more."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta

from onward.errors import QueueError, QueueErrorCode
from onward.pacing import Pacing, happens
from onward.queue.contract import LooksUp, Pulls
from onward.queue.model import QueueJobStatus
from onward.queue.running import JobOutcome


async def settle(
    provider: Pulls,
    outcome: JobOutcome,
    *,
    until: Callable[[], float],
    is_over: asyncio.Event,
    report: Callable[[QueueError], None],
) -> timedelta | None:
    """How long until the next attempt, where there is one. It is told until that time, or nobody waits any more.

    The first of the errors that may pass is reported, the last one raised.
    """
    pacing, may_have_arrived = Pacing(), False
    while True:
        try:
            return await _tell(provider, outcome, may_have_arrived=may_have_arrived)
        except QueueError as error:
            pause = next(pacing)
            if not error.retryable or is_over.is_set() or time.monotonic() + pause > until():
                raise
            if not may_have_arrived:
                report(error)
        may_have_arrived = True
        await happens(is_over, within=pause)


async def _tell(provider: Pulls, outcome: JobOutcome, *, may_have_arrived: bool) -> timedelta | None:
    try:
        if outcome.error is not None:
            return await provider.nack(outcome.job, outcome.error)
        await provider.ack(outcome.job, outcome.result)
    except QueueError as refusal:
        if not may_have_arrived or not _is_refusal(refusal) or not await _has_arrived(provider, outcome):
            raise
    return None


async def _has_arrived(provider: Pulls, outcome: JobOutcome) -> bool:
    """Whether an earlier try, whose answer did not come, is why the job is no longer ours."""
    if not isinstance(provider, LooksUp):
        return False
    stored = await provider.get_job(outcome.job.id)
    if stored is None:
        return provider.capabilities.removal  # it was not to be kept
    if outcome.error is None:
        return stored.status is QueueJobStatus.COMPLETED
    return stored.attempts == outcome.job.attempts + 1


def _is_refusal(error: QueueError) -> bool:
    return not error.retryable and error.code in (QueueErrorCode.PROCESSING, QueueErrorCode.JOB_NOT_FOUND)

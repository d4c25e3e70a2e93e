"""How far handlers have come, on its way to the provider: of what comes quickly, the last."""

import asyncio
import logging
from collections.abc import Callable

from onward.errors import QueueError
from onward.model import Progress
from onward.queue.contract import KeepsProgress, TakenJob
from onward.queue.provider import Provider

logger = logging.getLogger("onward.queue")
_BETWEEN = 0.2
"""Seconds between two rounds."""


class Reporting:
    """Takes what handlers say, from whichever thread, and sends it."""

    def __init__(self, provider_of: Callable[[TakenJob], Provider]) -> None:
        self._provider_of = provider_of
        self._loop = asyncio.get_running_loop()
        self._latest: dict[str, tuple[TakenJob, Progress]] = {}
        self._news = asyncio.Event()
        self._has_warned = False

    def take(self, job: TakenJob, progress: Progress) -> None:
        """Remember it; from any thread."""
        self._latest[job.id] = job, progress
        self._loop.call_soon_threadsafe(self._news.set)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            for job_id in list(self._latest):
                await self.send(job_id)
            await asyncio.sleep(_BETWEEN)

    async def send(self, job_id: str) -> None:
        """Send what was said last of this job, if it was not sent yet; it is not worth more than one try."""
        latest = self._latest.pop(job_id, None)
        if latest is None:
            return
        job, progress = latest
        provider = self._provider_of(job)
        if not isinstance(provider, KeepsProgress):
            self._warn(provider)
            return
        try:
            await provider.report_progress(job, progress)
        except QueueError as error:
            logger.debug("the progress of job %r was not kept: %s", job_id, error)

    def _warn(self, provider: Provider) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "[Queue:%s] %s does not support the progress of jobs: what handlers report is not kept.",
                provider.queue_name,
                provider.name,
            )

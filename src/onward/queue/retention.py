"""What is kept of finished jobs: the newest so many, and none that is older."""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from contextvars import Context
from datetime import UTC, datetime
from math import inf

from onward.client.app import Onward
from onward.errands import Errands
from onward.errors import ChainReferenced
from onward.model import CompletedJob, FailedJob, Job, JobId, JobStatus
from onward.pacing import happens
from onward.queue.model import Keep

logger = logging.getLogger("onward.queue")
_EVERY = 600.0
"""Seconds between looks at all that is kept; what others leave is found by these."""
_SOON = 1.0
"""Seconds until the jobs that are one too many go, together."""
_TOGETHER = 500
_PAGE = 200


class Retention:
    """Deletes the finished jobs of one type beyond what is kept, beside the work of whoever fetches.

    Each process knows what it has finished itself and drops the oldest of those; now and then it looks at everything.
    """

    def __init__(self, app: Onward, type_name: str, keep: Mapping[JobStatus, Keep]) -> None:
        self._app, self._type_name, self._keep = app, type_name, keep
        self._finished: dict[JobStatus, deque[JobId]] = {status: deque() for status in keep}
        self._surplus: list[JobId] = []
        self._news = asyncio.Event()
        self._errands = Errands()
        self._has_begun = False

    def begin(self) -> None:
        """From now on, if not yet; for those who fetch."""
        if not self._has_begun and self._keep:
            self._has_begun = True
            self._errands.begin(self._run(), context=Context())  # in no transaction of whoever asks

    def finished(self, status: JobStatus, job_id: JobId) -> None:
        """One more."""
        if status in self._keep:
            known = self._finished[status]
            known.append(job_id)
            if len(known) > self._keep[status].count:
                self._surplus.append(known.popleft())
                self._news.set()

    async def close(self) -> None:
        await self._errands.end()

    async def _run(self) -> None:
        clock = asyncio.get_running_loop()
        looked = -inf
        while True:
            try:
                if clock.time() - looked >= _EVERY:
                    looked = clock.time()
                    for status, keep in self._keep.items():
                        await self._look(status, keep)
                while self._surplus:
                    going, self._surplus = self._surplus[:_TOGETHER], self._surplus[_TOGETHER:]
                    await self._delete(going)
            except Exception as error:  # noqa: BLE001 - one turn of a loop: they are found by a later one
                logger.debug("finished jobs of %s were not removed: %s", self._type_name, error)
            await self._rest(looked + _EVERY - clock.time())

    async def _rest(self, seconds: float) -> None:
        if await happens(self._news, within=max(seconds, _SOON)):
            self._news.clear()
            await asyncio.sleep(_SOON)

    async def _look(self, status: JobStatus, keep: Keep) -> None:
        """Page through all of them, the newest first."""
        oldest, seen, after = datetime.now(UTC) - keep.age, 0, None
        while True:
            page = await self._app.jobs(types=[self._type_name], status=[status], after=after, limit=_PAGE)
            kept = [job.id for job in page.items[: max(keep.count - seen, 0)] if _ended(job) > oldest]
            await self._delete([job.id for job in page.items if job.id not in kept])
            seen, after = seen + len(page.items), page.next
            if after is None:
                return

    async def _delete(self, ids: Sequence[JobId]) -> None:
        if not ids:
            return
        try:
            await self._app.delete(*ids)
        except ChainReferenced as error:
            needed = {chain_id for chain_id, _ in error.references}
            await self._delete([job_id for job_id in ids if job_id not in needed])


def _ended(job: Job) -> datetime:
    if isinstance(job, CompletedJob):
        return job.completed_at
    return job.failed_at if isinstance(job, FailedJob) else job.created_at

"""Waiting for a chain: looks that keep to the deadline, and what to say when it has passed."""

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

from onward.define.limit import shown_name
from onward.errors import ConfigurationError, OnwardError, WaitTimeout
from onward.lifecycle.store import Store
from onward.model import BlockedJob, Blocker, Chain, ChainId, Job, JobStatus, PendingJob, RunningJob

T = TypeVar("T")
CLOSED_MEANWHILE = "the app was closed while this waited for a chain"
_LONGEST = timedelta.max.total_seconds()
"""A float, and as such rounded up."""
_LAST_LOOK = 1.0
"""A look that is under way at the deadline may take that long: also `timeout=timedelta(0)` asks the database once."""


class Deadline:
    """The time until which a caller waits."""

    def __init__(self, chain_id: ChainId, timeout: timedelta | None, tasks: asyncio.TaskGroup | None) -> None:
        self._chain_id, self._timeout, self._tasks = chain_id, timeout, tasks
        self._at = None if timeout is None else time.monotonic() + timeout.total_seconds()

    @property
    def remaining(self) -> timedelta | None:
        """How long to wait; None: for ever."""
        if self._at is None:
            return None
        left = max(self._at - time.monotonic(), 0.0)
        return timedelta(seconds=left) if left < _LONGEST else timedelta.max

    async def bound(self, look: Coroutine[Any, Any, T]) -> T:
        """A look that ends with the deadline, whatever the database does; without an event loop only its driver can.

        It is a task of the app's: a connection on which nothing comes may take longer to be given up than we wait.
        """
        if self._at is None or self._tasks is None:
            return await look
        kept = _kept(look)
        try:
            task = self._tasks.create_task(kept)
        except RuntimeError:  # of a group that has ended
            kept.close()
            look.close()
            raise ConfigurationError(CLOSED_MEANWHILE) from None
        try:
            await asyncio.wait({task}, timeout=max(self._at - time.monotonic(), _LAST_LOOK))
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=_LAST_LOOK)
        if not task.done() or task.cancelled():
            raise self.passed(None, "the database did not answer: the chain may have ended or not")
        found, error = task.result()
        if error is not None:
            raise error
        return cast(T, found)

    def passed(self, job: Job | None, detail: str) -> WaitTimeout:
        assert self._timeout is not None
        return WaitTimeout(self._chain_id, self._timeout, job=job, detail=detail)


async def _kept(look: Coroutine[Any, Any, T]) -> tuple[T | None, BaseException | None]:
    """What came of it, as a value: it is no reason for the app's other tasks to end, nor for its event loop."""
    try:
        return await look, None
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - raised again where the look is awaited
        return None, error


async def why_not_ended(store: Store, chain: Chain, deadline: Deadline) -> str:
    """What keeps a chain from ending, as far as the database can tell."""
    with suppress(OnwardError):
        return await deadline.bound(_looked_up(store, chain.current))
    return _state_of(chain.current)


async def _looked_up(store: Store, job: Job) -> str:
    if isinstance(job, BlockedJob):
        return _waits_for(await _blockers_of(store, job))
    if isinstance(job, PendingJob) and job.type_name in await store.read(store.state.paused()):
        return f"its type {job.type_name!r} is paused: resume it"
    if isinstance(job, PendingJob) and job.limit_key is not None and job.scheduled_at <= datetime.now(UTC):
        placed = await store.read(store.state.placed_jobs(job.limit_key, limit=1000))
        if placed and job.id not in [one.id for one in placed]:
            name, _, key = job.limit_key.partition("/")
            return f"its job waits for a place of limit {shown_name(name)!r}, key {key!r}: see app.limits.holding(…)"
    return _state_of(job)


async def _blockers_of(store: Store, job: Job) -> list[Blocker]:
    return (await store.read(store.state.blockers_of([job.id]))).get(job.id, [])


def _waits_for(blockers: list[Blocker]) -> str:
    left = [one for one in blockers if one.status not in (JobStatus.COMPLETED, JobStatus.FAILED)]
    names = ", ".join(f"{one.chain_id} ({one.type_name!r}, {one.status})" for one in left[:5])
    return f"its job is blocked by {len(left)} chains that have not ended: {names}{' …' if len(left) > 5 else ''}"


def _state_of(job: Job) -> str:
    if isinstance(job, RunningJob):
        return f"attempt {job.attempt} of {job.type_name!r} is running on {job.leased_by}"
    if not isinstance(job, PendingJob):
        return f"its job of type {job.type_name!r} is {job.status}"
    error = f" ({job.last_error.type}: {job.last_error.message})" if job.last_error else ""
    if job.scheduled_at > datetime.now(UTC):
        after = f" after {job.failures} failures{error}" if job.failures else ""
        return f"its job of type {job.type_name!r} is scheduled for {job.scheduled_at.isoformat()}{after}"
    return (
        f"its job of type {job.type_name!r}, version {job.payload_version}, is still pending{error}: no worker seems "
        "to take it; is one running, with a free slot, for this type?"
    )

"""Waiting for a chain: looks that keep to the deadline, and what to say when it has passed."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from onward.errors import OnwardError, WaitTimeout
from onward.lifecycle.store import Store
from onward.model import BlockedJob, Blocker, Chain, ChainId, Job, JobStatus, PendingJob, RunningJob
from onward.state.driver import Connection

T = TypeVar("T")
_LAST_LOOK = 1.0
"""A look that is under way at the deadline may take that long: also `timeout=timedelta(0)` asks the database once."""


class Deadline:
    """The time until which a caller waits."""

    def __init__(
        self, chain_id: ChainId, timeout: timedelta | None, now: Callable[[], float], *, is_async: bool
    ) -> None:
        self._chain_id, self._timeout, self._now, self._is_async = chain_id, timeout, now, is_async
        self._at = None if timeout is None else now() + timeout.total_seconds()

    def left(self, at_most: float) -> float:
        """How long to wait for news; 0 or less when it is too late."""
        return at_most if self._at is None else min(at_most, self._at - self._now())

    async def bound(self, look: Coroutine[Any, Any, T]) -> T:
        """A look that ends with the deadline, whatever the database does; without an event loop only its driver can."""
        if self._at is None or not self._is_async:
            return await look
        limit = asyncio.timeout(max(self._at - self._now(), _LAST_LOOK))
        try:
            async with limit:
                return await look
        except TimeoutError:
            if not limit.expired():
                raise
            raise self.passed(None, "the database did not answer: the chain may have ended or not") from None

    def passed(self, job: Job | None, detail: str) -> WaitTimeout:
        assert self._timeout is not None
        return WaitTimeout(self._chain_id, self._timeout, job=job, detail=detail)


async def why_not_ended(store: Store, chain: Chain) -> str:
    """What keeps a chain from ending, as far as the database can tell."""
    job = chain.current
    with suppress(OnwardError, TimeoutError):
        async with _briefly(store):
            if isinstance(job, BlockedJob):
                return _waits_for(await _blockers_of(store, job))
            if isinstance(job, PendingJob) and job.type_name in await store.read(store.state.paused):
                return f"its type {job.type_name!r} is paused: resume it"
    return _state_of(job)


def _briefly(store: Store) -> "asyncio.Timeout | _Unbounded":
    return asyncio.timeout(_LAST_LOOK) if store.driver.is_async else _Unbounded()


class _Unbounded:
    async def __aenter__(self) -> None: ...
    async def __aexit__(self, *error: object) -> None: ...


async def _blockers_of(store: Store, job: Job) -> list[Blocker]:
    async def look(connection: Connection) -> dict[ChainId, list[Blocker]]:
        return await store.state.blockers_of(connection, [job.id])

    return (await store.read(look)).get(job.id, [])


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

"""What a provider of queues may do: each role is a small protocol, and a provider has those that its backend allows."""

import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeAlias, runtime_checkable

from msgspec import Raw

from onward.errors import Permanent, QueueDataError, QueueError, QueueErrorCode
from onward.model import Progress
from onward.options import LONGEST_ERROR, cut
from onward.queue.model import ActiveJob, Capabilities, QueueFailureReason, QueueJob, QueueJobStatus, QueuePage
from onward.queue.options import Options

StoredJob: TypeAlias = QueueJob[Raw]
TakenJob: TypeAlias = ActiveJob[Raw]
PushHandler: TypeAlias = Callable[[TakenJob], Awaitable[object]]
"""Runs one delivered job: returns its result, raises its error, or raises GivenBack."""


class GivenBack(Exception):
    """The handler was stopped before it ended: the job goes back to the queue, and no attempt is counted."""


class Consumer(Protocol):
    """A delivery under way, as `process` returns it."""

    def set_concurrency(self, concurrency: int) -> None:
        """Deliver that many at a time from now on."""
        ...

    async def stop(self) -> None:
        """Deliver nothing more; what came and was not yet handed to the handler goes back."""
        ...

    async def wait(self) -> None:
        """After `stop`: until the handlers have returned and the backend has the outcome of each."""
        ...


# -- roles


@runtime_checkable
class Pulls(Protocol):
    """Jobs are asked for, and settled by who asked."""

    capabilities: Capabilities
    long_poll: timedelta

    async def fetch(self, count: int, wait: timedelta = timedelta()) -> Sequence[TakenJob]:
        """At most `count` waiting jobs, which nobody else gets from now on; nothing for a count below 1.

        Whoever calls has a free slot for each, so all of them are begun at once. A fetch whose answer was lost, or that
        was cancelled, gives its jobs back uncounted: with the next fetch of this provider, or when it disconnects.

        Here, or in the background, jobs whose lease ran out are found: `stalls` + 1, and back in line; beyond
        `max_stalls` failed as STALLED. Jobs whose `expires_at` has passed fail as EXPIRED. Each that failed is told:
        `self.on_ended(job)`. A record that cannot be read fails alone.
        """
        ...

    def interrupt(self) -> None:
        """End the wait of a `fetch` under way, where that loses nothing: a worker wants to stop."""
        return

    async def ack(self, job: TakenJob, result: Raw | None = None) -> None:
        """It is done. PROCESSING, not retryable, when this holder no longer has it.

        `ack` and `nack` are fenced by the lock token: when the outcome of a call is unknown, the worker calls again
        until the lease has ended.
        """
        ...

    async def nack(self, job: TakenJob, error: BaseException) -> timedelta | None:
        """It failed: `attempts` + 1, then tried again, or failed for good as ATTEMPTS, or at once as PERMANENT.

        Answers how long until the next attempt, where known.
        """
        ...

    async def release(self, jobs: Sequence[TakenJob]) -> None:
        """Give them back as they were, to the front of the line; neither an attempt nor a stall is counted where the
        backend allows that."""
        ...

    async def renew(self, jobs: Sequence[TakenJob]) -> Sequence[TakenJob]:
        """Hold them longer. Answers with those that are no longer ours."""
        return []


@runtime_checkable
class Pushes(Protocol):
    """Jobs are delivered."""

    async def process(
        self,
        handler: PushHandler,
        *,
        concurrency: int,
        on_error: Callable[[QueueError], None],
        on_settled: Callable[[TakenJob, timedelta | None], None] | None = None,
    ) -> Consumer:
        """Deliver jobs to `handler` until stopped. `on_settled(job, retry_delay)` after the backend has its outcome;
        `on_error` when that, or delivering, failed: with the id of a job when its outcome is given up. Outcomes that
        could not be told are told again as long as the job is held; `on_ended` as for `fetch`."""
        ...


@runtime_checkable
class JoinsTransactions(Protocol):
    """Jobs are added in the caller's database transaction."""

    async def add_within(self, tx: Any, job: StoredJob, options: Options) -> StoredJob:
        """Store it as part of the caller's transaction."""
        ...


@runtime_checkable
class KeepsProgress(Protocol):
    """How far a handler has come can be read while it runs."""

    async def report_progress(self, job: TakenJob, progress: Progress) -> None:
        """Keep how far its handler has come; nothing happens when this holder no longer has it."""
        ...


@runtime_checkable
class LooksUp(Protocol):
    """Jobs are found by their ids."""

    async def get_job(self, job_id: str) -> StoredJob | None:
        """What is stored under this id."""
        ...


@runtime_checkable
class Pauses(Protocol):
    """The queue can be held, for every worker."""

    async def pause(self) -> None:
        """No worker gets jobs until `resume`."""
        ...

    async def resume(self) -> None:
        """Workers get jobs again."""
        ...


@runtime_checkable
class KeepsDeadLetters(Protocol):
    """Jobs that failed for good can be read, and put back."""

    async def dead_letters(self, limit: int = 100) -> Sequence[StoredJob]:
        """Jobs that failed for good, the newest first."""
        ...

    async def retry(self, job_id: str) -> None:
        """Put a failed job back, with no attempts and no stalls counted, and without an end to its life."""
        ...


@runtime_checkable
class Lists(Protocol):
    """Jobs are listed by their state."""

    async def jobs(self, status: QueueJobStatus, *, after: str | None, limit: int) -> QueuePage[Raw]:
        """Those of one state: finished ones the newest first, the others as they will be taken, where the backend can.

        `after` is what an earlier page answered as `next`, and passed `is_page`; jobs that come or go meanwhile may be
        missed or seen twice.
        """
        ...

    def is_page(self, status: QueueJobStatus, after: str) -> bool:
        """Whether a page of jobs of this state may have answered that as `next`: a number, unless a provider says
        otherwise."""
        return re.fullmatch("[0-9]{1,16}", after) is not None


@runtime_checkable
class Removes(Lists, Protocol):
    """Jobs that nobody runs can be taken out."""

    async def remove(self, job_id: str) -> None:
        """Keep nothing of it. NOT_FOUND when there is none; `held` when a worker has it."""
        ...

    async def purge(self, status: QueueJobStatus, older_than: timedelta) -> int:
        """Remove all jobs of one state but ACTIVE that finished, or were added, longer ago than that; how many."""
        before, removed, after = datetime.now(UTC) - older_than, 0, None
        while True:
            page = await self.jobs(status, after=after, limit=1_000)
            old = [job.id for job in page.items if (job.completed_at or job.failed_at or job.created_at) <= before]
            gone = sum([await _is_removed(self, job_id) for job_id in old])
            removed += gone
            if gone == 0:
                after = page.next
                if after is None:
                    return removed


@runtime_checkable
class Stores(Pulls, LooksUp, Pauses, KeepsDeadLetters, Removes, KeepsProgress, Protocol):
    """The backend is a store and no broker: all of these."""


async def _is_removed(provider: Removes, job_id: str) -> bool:
    try:
        await provider.remove(job_id)
    except QueueError as error:
        if error.retryable:
            raise
        return False  # it has moved on
    return True


# -- errors, as every provider sees them


def is_permanent(error: BaseException) -> bool:
    """Whether trying again is pointless: `onward.Permanent`, or any error with `retryable = False`."""
    try:
        return isinstance(error, Permanent) or getattr(error, "retryable", None) is False
    except Exception:  # noqa: BLE001 - whatever a property of its own raises
        return False


def why_for_good(job: StoredJob, error: BaseException) -> QueueFailureReason | None:
    """Why a job does not survive this failure of an attempt; `None`: it is tried again."""
    if is_permanent(error):
        return QueueFailureReason.PERMANENT
    return QueueFailureReason.ATTEMPTS if job.attempts + 1 >= job.max_attempts else None


def in_words(error: BaseException) -> str:
    """The message of an error as it can be stored anywhere, even if it has none or is not proper text."""
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - whatever its own `__str__` raises
        words = f"{type(error).__name__} (its message cannot be read)"
    return cut(words, LONGEST_ERROR).encode(errors="backslashreplace").decode()


def root_of(error: BaseException) -> BaseException:
    """What an error goes back to; some client libraries raise errors that go back to themselves."""
    seen = {id(error)}  # some have no hash
    while (cause := error.__cause__ or error.__context__) is not None and id(cause) not in seen:
        seen.add(id(cause))
        error = cause
    return error


def unfit(job: StoredJob, problem: str, cause: Exception | None = None) -> QueueDataError:
    """It is not as this backend can have it: VALIDATION."""
    code = QueueErrorCode.VALIDATION
    return QueueDataError(problem, code=code, queue_name=job.queue_name, job_id=job.id, cause=cause)

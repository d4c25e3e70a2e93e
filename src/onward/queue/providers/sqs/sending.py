"""Adding jobs: checked before anything is sent, and several in few calls."""

from collections.abc import Iterator, Sequence

import msgspec

from onward.errors import QueuePartlyAdded
from onward.queue.contract import StoredJob, unfit
from onward.queue.options import Options
from onward.queue.providers.sqs.calls import MOST, Calls
from onward.queue.providers.sqs.facts import Facts
from onward.queue.providers.sqs.messages import Message, message_of, problem_with, size_of

_LARGEST_CALL = 1 << 18
"""Bytes: what SQS took of old, and every imitation takes."""


class Sending:
    """Sends jobs to one queue."""

    def __init__(self, calls: Calls, facts: Facts) -> None:
        self._calls, self._facts = calls, facts

    async def one(self, job: StoredJob, options: Options) -> StoredJob:
        await self._calls("send_message", QueueUrl=self._facts.url, **self._message(job, options))
        return self._stored(job)

    async def many(self, jobs: Sequence[tuple[StoredJob, Options]]) -> list[StoredJob]:
        """All of them, or an error that says which."""
        messages = [self._message(job, options) for job, options in jobs]  # before anything is sent
        added: list[StoredJob] = []
        for start, end in _calls([size_of(message) for message in messages]):
            batch = [job for job, _ in jobs[start:end]]
            try:
                outcomes = await self._calls.batch("send_message_batch", self._facts.url, messages[start:end])
            except Exception as error:
                if not added:
                    raise
                raise self._partly(added, len(jobs), str(error), cause=error) from error
            refused = [f"{job.id}: {failed.message}" for job, failed in zip(batch, outcomes, strict=True) if failed]
            added += [self._stored(job) for job, failed in zip(batch, outcomes, strict=True) if failed is None]
            if refused:
                raise self._partly(added, len(jobs), "; ".join(refused))
        return added

    def _message(self, job: StoredJob, options: Options) -> Message:
        try:
            message = message_of(job, options)
            problem = problem_with(message, self._facts.max_bytes)
        except (TypeError, ValueError) as error:
            raise unfit(job, f"its metadata is not JSON: {error}") from error
        if problem is not None:
            raise unfit(job, problem)
        return message

    def _stored(self, job: StoredJob) -> StoredJob:
        return msgspec.structs.replace(job, max_attempts=self._facts.max_attempts)

    def _partly(
        self, added: Sequence[StoredJob], count: int, words: str, cause: Exception | None = None
    ) -> QueuePartlyAdded:
        return QueuePartlyAdded(
            f"sqs took {len(added)} of {count} jobs: {words}",
            added=[job.id for job in added],
            queue_name=self._facts.name,
            cause=cause,
        )


def _calls(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """From which message to which one call goes: ten at most, and not too many bytes."""
    start = total = 0
    for end, size in enumerate(sizes):
        if end > start and (end - start == MOST or total + size > _LARGEST_CALL):
            yield start, end
            start, total = end, 0
        total += size
    if sizes:
        yield start, len(sizes)

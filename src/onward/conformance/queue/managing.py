"""The queue: looking up, counting, pausing, dead letters, deleting."""

import pytest

from onward.conformance.queue.session import A_WHILE, Session, arrived, names, until
from onward.errors import Permanent, QueueConfigurationError, QueueErrorCode, QueueNotFound
from onward.queue.contract import Pulls
from onward.queue.model import QueueJobStatus

__all__ = ["TestDeadLetters", "TestDeleting", "TestLookingUp", "TestNumbers", "TestPausing"]


class TestLookingUp:
    """`get_job`, where the backend can."""

    async def test_a_job_is_followed_through_its_life(self, session: Session) -> None:
        [added] = await session.add("one", attempts=2, metadata={"tenant": "7"})
        if not session.capabilities.lookup:
            with pytest.raises(QueueConfigurationError) as caught:
                await session.queue.get_job(added.id)
            assert caught.value.code == QueueErrorCode.UNSUPPORTED_FEATURE
            return
        provider = await session.provider()

        seen = await session.queue.get_job(added.id)
        assert seen is not None
        assert (seen.status, seen.attempts, seen.data) == (QueueJobStatus.WAITING, 0, "one")
        assert seen.metadata == {"tenant": "7"}

        [job] = await arrived(provider, 1)
        seen = await session.queue.get_job(added.id)
        assert seen is not None
        assert seen.status is QueueJobStatus.ACTIVE

        await provider.nack(job, ValueError("no such mailbox"))
        seen = await session.queue.get_job(added.id)
        assert seen is not None
        assert (seen.status, seen.attempts, seen.error) == (QueueJobStatus.WAITING, 1, "no such mailbox")

        [job] = await arrived(provider, 1)
        await provider.nack(job, ValueError("still none"))
        seen = await session.queue.get_job(added.id)
        assert seen is not None
        assert (seen.status, seen.attempts, seen.error) == (QueueJobStatus.FAILED, 2, "still none")
        assert seen.failed_at is not None

    async def test_an_unknown_id_is_nothing(self, session: Session) -> None:
        if session.capabilities.lookup:
            assert await session.queue.get_job("no-such-job") is None


class TestNumbers:
    """`stats` and `health` tell what the backend knows, and `None` for what it does not."""

    async def test_every_job_is_counted_where_it_is(self, session: Session) -> None:
        await session.add("done", "failed", "active", attempts=1)
        provider = await session.provider()
        for job in await arrived(provider, 3):
            if job.name == "done":
                await provider.ack(job)
            elif job.name == "failed":
                await provider.nack(job, Permanent("no"))
        await session.add("waiting", "waiting too", priority=3)
        if session.capabilities.delayed_jobs:
            await session.add("delayed", delay=300 * A_WHILE)
        delayed = 1 if session.capabilities.delayed_jobs else 0

        async def all_counted() -> bool:
            return (await session.queue.stats()).failed == 1

        await until(all_counted)
        stats, health = await session.queue.stats(), await session.queue.health()

        assert stats.waiting == 2
        assert stats.delayed in (delayed, None)
        assert stats.active in (1, None)
        assert stats.completed in (1, None)
        assert stats.failed == 1
        assert stats.paused in (False, None)
        assert health.queue_depth == 2 + (stats.delayed or 0)
        assert health.failed_count == stats.failed
        assert health.completed_count == stats.completed
        assert health.error_rate == (None if stats.completed is None else 50.0)

    async def test_an_empty_queue(self, session: Session) -> None:
        stats, health = await session.queue.stats(), await session.queue.health()

        assert (stats.waiting, stats.failed) == (0, 0)
        assert health.error_rate in (0.0, None)


class TestPausing:
    """A paused queue gives nobody anything, and loses nothing."""

    async def test_pausing_and_resuming(self, session: Session) -> None:
        await session.add("one")
        provider = await session.provider()
        if not session.capabilities.pausing:
            for call in (session.queue.pause, session.queue.resume):
                with pytest.raises(QueueConfigurationError) as caught:
                    await call()
                assert caught.value.code == QueueErrorCode.UNSUPPORTED_FEATURE
            return
        told: list[str] = []
        session.queue.on("queue.paused", lambda event: told.append(event.event))
        session.queue.on("queue.resumed", lambda event: told.append(event.event))

        await session.queue.pause()
        await session.queue.pause()
        await session.add("two")

        assert list(await provider.fetch(2)) == []
        stats = await session.queue.stats()
        assert (stats.paused, stats.waiting) == (True, 2)

        await session.queue.resume()

        assert sorted(names(await arrived(provider, 2))) == ["one", "two"]
        assert (await session.queue.health()).is_paused is False
        assert told == ["queue.paused", "queue.paused", "queue.resumed"]


class TestDeadLetters:
    """What failed for good can be read, and put back."""

    async def test_failed_jobs_are_listed_and_retried(self, session: Session) -> None:
        if not session.capabilities.dead_letters:
            with pytest.raises(QueueConfigurationError) as caught:
                await session.queue.dead_letters()
            assert caught.value.code == QueueErrorCode.UNSUPPORTED_FEATURE
            return
        await session.add("one", "two", "three", attempts=1)
        provider = await session.provider()
        await self._fail(provider, 3)

        letters = await session.queue.dead_letters()
        assert sorted(names(letters)) == ["one", "three", "two"]
        assert {job.status for job in letters} == {QueueJobStatus.FAILED}
        assert {job.error for job in letters} == {"no such mailbox"}
        assert sorted(job.data for job in letters) == ["one", "three", "two"]
        assert len(await session.queue.dead_letters(limit=2)) == 2

        [wanted] = [job for job in letters if job.name == "two"]
        await session.queue.retry(wanted.id)

        [job] = await arrived(provider, 1)
        assert (job.id, job.attempts) == (wanted.id, 0)
        await provider.ack(job)
        assert sorted(names(await session.queue.dead_letters())) == ["one", "three"]

    async def test_retrying_what_is_not_there(self, session: Session) -> None:
        if not session.capabilities.dead_letters:
            return
        with pytest.raises(QueueNotFound) as caught:
            await session.queue.retry("no-such-job")
        assert (caught.value.resource_id, caught.value.resource_type) == ("no-such-job", "job")
        assert caught.value.code == QueueErrorCode.JOB_NOT_FOUND

    async def _fail(self, provider: Pulls, count: int) -> None:
        for job in await arrived(provider, count):
            await provider.nack(job, _gone())


class TestDeleting:
    """A deleted queue is empty, and can be used again."""

    async def test_nothing_is_left(self, session: Session) -> None:
        await session.add("one", "two", priority=2)
        if session.capabilities.delayed_jobs:
            await session.add("later", delay=300 * A_WHILE)

        await session.queue.delete()

        queue = session.new_queue()
        stats = await queue.stats()
        assert (stats.waiting, stats.delayed or 0, stats.active or 0, stats.failed or 0) == (0, 0, 0, 0)
        await queue.add("three", 3)
        assert names(await arrived(await session.provider(), 1)) == ["three"]
        await queue.disconnect()


def _gone() -> Exception:
    error = ValueError("no such mailbox")
    error.retryable = False  # type: ignore[attr-defined]
    return error

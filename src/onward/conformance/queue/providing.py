"""The provider itself: adding, fetching, settling."""

import asyncio
import math
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import Raw

from onward.conformance.queue.session import A_WHILE, LONG, Session, arrived, names, until
from onward.errors import (
    Permanent,
    QueueConfigurationError,
    QueueDataError,
    QueueError,
    QueueErrorCode,
    QueueNotFound,
    QueueRuntimeError,
)
from onward.model import Backoff
from onward.queue.model import QueueJobStatus

__all__ = ["TestAdding", "TestFetching", "TestOptions", "TestSettling"]


class TestAdding:
    """What is added is there, whole; what cannot be is refused before anything is sent."""

    async def test_what_was_added_arrives_as_it_was(self, session: Session) -> None:
        before = datetime.now(UTC) - timedelta(seconds=1)
        data = {"to": "a@example.org", "n": [1, 2.5, None, True], "text": "naïve – 数"}

        added = await session.queue.add("welcome", data, metadata={"tenant": "7"})
        [job] = await arrived(await session.provider(), 1)

        assert (job.id, job.name, job.queue_name) == (added.id, "welcome", session.name)
        assert job.status is QueueJobStatus.ACTIVE
        assert job.attempts == 0
        assert job.metadata == {"tenant": "7"}
        assert before <= job.created_at <= datetime.now(UTC) + timedelta(seconds=1)
        assert job.data == Raw(session.queue._payload.encode(data))
        assert added.data == data

    async def test_several_are_added_at_once(self, session: Session) -> None:
        added = await session.queue.add_many("letter", [{"n": n} for n in range(25)])

        jobs = await arrived(await session.provider(), 25)

        assert sorted(job.id for job in jobs) == sorted(job.id for job in added)

    async def test_an_id_of_the_callers_own(self, session: Session) -> None:
        added = await session.queue.add("welcome", 1, id="user-7-welcome")
        [job] = await arrived(await session.provider(), 1)

        assert added.id == job.id == "user-7-welcome"

    async def test_an_id_that_is_there_is_refused(self, session: Session) -> None:
        await session.queue.add("welcome", 1, id="user-7-welcome")

        if not session.capabilities.duplicates:
            await session.queue.add("welcome", 2, id="user-7-welcome")
            assert len(await arrived(await session.provider(), 2)) == 2
            return
        with pytest.raises(QueueDataError, match="already there") as caught:
            await session.queue.add("welcome", 2, id="user-7-welcome")

        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.DUPLICATE, False)
        assert caught.value.job_id == "user-7-welcome"
        [job] = await arrived(await session.provider(), 1)
        assert job.data == Raw(b"1")

    @pytest.mark.parametrize("name", ["", "  "])
    async def test_a_blank_name_is_refused(self, session: Session, name: str) -> None:
        with pytest.raises(QueueDataError, match="name of a job") as caught:
            await session.queue.add(name, 1)

        assert caught.value.code == QueueErrorCode.VALIDATION
        await self._nothing_was_added(session)

    @pytest.mark.parametrize("data", [math.nan, math.inf, object(), {"at": {"x": "\ud800"}}, {1, 2, object()}])
    async def test_data_that_is_not_json_is_refused(self, session: Session, data: object) -> None:
        with pytest.raises(QueueDataError) as caught:
            await session.queue.add("welcome", data)

        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.VALIDATION, False)
        await self._nothing_was_added(session)

    async def test_data_beyond_the_limit_is_refused(self, session: Session) -> None:
        limit = session.capabilities.max_job_size
        if not limit:
            await session.queue.add("large", "x" * 3_000_000)
            [job] = await arrived(await session.provider(), 1)
            assert len(bytes(job.data)) == 3_000_002
            return
        with pytest.raises(QueueDataError) as caught:
            await session.queue.add("large", "x" * limit)

        assert caught.value.code == QueueErrorCode.VALIDATION
        await self._nothing_was_added(session)

    @pytest.mark.parametrize(
        "options",
        [
            pytest.param({"delay": timedelta(seconds=-1)}, id="negative delay"),
            pytest.param({"attempts": 0}, id="no attempts"),
            pytest.param({"attempts": None}, id="None"),
            pytest.param({"priority": -1}, id="negative priority"),
            pytest.param({"attempt": 3}, id="unknown option"),
            pytest.param({"metadata": {"at": object()}}, id="metadata that is not JSON"),
            pytest.param({"metadata": {"ratio": math.nan}}, id="metadata with NaN"),
        ],
    )
    async def test_wrong_options_are_refused(self, session: Session, options: dict[str, object]) -> None:
        with pytest.raises(QueueDataError, match=next(iter(options))) as caught:
            await session.queue.add("welcome", 1, **options)  # type: ignore[arg-type]

        assert caught.value.code == QueueErrorCode.VALIDATION
        await self._nothing_was_added(session)

    async def test_after_disconnecting_nothing_is_possible(self, session: Session) -> None:
        queue = session.new_queue()
        await queue.add("welcome", 1)
        await queue.disconnect()

        for call in (lambda: queue.add("welcome", 2), queue.stats, queue.health, queue.delete):
            with pytest.raises(QueueRuntimeError) as caught:
                await call()
            assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.SHUTDOWN, False)
        provider = await session.provider()
        [job] = await arrived(provider, 1)
        await provider.disconnect()
        with pytest.raises(QueueRuntimeError) as caught:
            await provider.ack(job)
        assert caught.value.code == QueueErrorCode.SHUTDOWN

    async def test_another_event_loop_is_served_or_refused_in_words(self, session: Session) -> None:
        refusal = await asyncio.to_thread(lambda: asyncio.run(_look(session)))
        if refusal is not None:
            assert "event loop" in str(refusal)
            assert not refusal.retryable

        await session.add("one")
        assert names(await arrived(await session.provider(), 1)) == ["one"]

    async def test_a_transaction_needs_a_provider_that_has_them(self, session: Session) -> None:
        if session.capabilities.transactions:
            return  # proved where there is a database to look into
        with pytest.raises(QueueConfigurationError, match="outbox") as caught:
            await session.queue.add("welcome", 1, tx=object())
        assert caught.value.code == QueueErrorCode.UNSUPPORTED_FEATURE

    async def _nothing_was_added(self, session: Session) -> None:
        assert (await session.queue.stats()).waiting == 0


async def _look(session: Session) -> QueueConfigurationError | None:
    try:
        async with asyncio.timeout(LONG):
            await session.queue.stats()
    except QueueConfigurationError as error:
        return error
    return None


class TestFetching:
    """Who fetches a job has it alone."""

    @pytest.mark.parametrize("count", [0, -1])
    async def test_fetching_none_gives_none(self, session: Session, count: int) -> None:
        await session.add("one")

        assert list(await (await session.provider()).fetch(count)) == []

    async def test_no_more_than_asked_for_and_nobody_gets_one_twice(self, session: Session) -> None:
        await session.queue.add_many("letter", range(20))
        providers = [await session.provider() for _ in range(3)]
        fetched: list[str] = []

        async with asyncio.timeout(30):
            while len(fetched) < 20:
                for provider in providers:
                    jobs = await provider.fetch(3)
                    assert len(jobs) <= 3
                    fetched += [job.id for job in jobs]

        assert len(set(fetched)) == 20
        assert not [job for provider in providers for job in await provider.fetch(3)]

    async def test_one_call_fetches_several(self, session: Session) -> None:
        await session.queue.add_many("letter", range(5))
        provider = await session.provider()
        await until_waiting(session, 5)

        fetched = len(await provider.fetch(5))

        assert fetched == 5 if session.capabilities.batching else 1 <= fetched <= 5

    async def test_first_in_first_out(self, session: Session) -> None:
        expected = [f"n{n}" for n in range(8)]
        for name in expected:
            await session.add(name)

        jobs = await arrived(await session.provider(), 8)

        if session.capabilities.ordered:
            assert names(jobs) == expected
        else:
            assert sorted(names(jobs)) == expected

    async def test_waiting_for_a_job_ends_when_one_comes(self, session: Session) -> None:
        provider = await session.provider()
        if not session.capabilities.long_polling:
            assert list(await provider.fetch(1, timedelta(seconds=60))) == []
            return
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            fetching = tasks.create_task(provider.fetch(1, provider.long_poll or timedelta(seconds=5)))
            await asyncio.sleep(0.1)
            await session.add("late")
        jobs = list(fetching.result())
        assert names(jobs or await arrived(provider, 1)) == ["late"]

    async def test_what_is_given_back_can_be_fetched_again(self, session: Session) -> None:
        await session.add("one")
        provider = await session.provider()
        [job] = await arrived(provider, 1)

        await provider.release([job])
        [again] = await arrived(await session.provider(), 1)

        assert again.id == job.id
        # A backend with a policy for the whole queue counts what it hands out.
        assert again.attempts == (0 if session.capabilities.retries else 1)

    async def test_renewing_keeps_a_job(self, session: Session) -> None:
        await session.add("one")
        provider = await session.provider()
        [job] = await arrived(provider, 1)

        assert list(await provider.renew([job])) == []
        await provider.ack(job)


class TestSettling:
    """Completed, tried again, or failed; and only by who has it."""

    async def test_an_acknowledged_job_is_completed(self, session: Session) -> None:
        [added] = await session.add("one")
        provider = await session.provider()
        [job] = await arrived(provider, 1)

        await provider.ack(job, Raw(b'{"sent":true}'))

        assert list(await provider.fetch(1)) == []
        stats = await session.queue.stats()
        assert stats.waiting == 0
        assert stats.active in (0, None)
        assert stats.completed in (1, None)
        if session.capabilities.lookup:
            stored = await session.queue.get_job(added.id)
            assert stored is not None
            assert (stored.status, stored.data) == (QueueJobStatus.COMPLETED, "one")
            assert stored.completed_at is not None
            assert stored.processed_at is not None

    async def test_acknowledging_twice_is_refused(self, session: Session) -> None:
        await session.add("one")
        provider = await session.provider()
        [job] = await arrived(provider, 1)
        await provider.ack(job)

        with pytest.raises(QueueRuntimeError, match="not active") as caught:
            await provider.ack(job)

        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.PROCESSING, False)

    async def test_a_holder_whose_job_was_given_back_and_fetched_again_changes_nothing(self, session: Session) -> None:
        await session.add("one")
        first, second = await session.provider(), await session.provider()
        [stale] = await arrived(first, 1)
        await first.release([stale])
        [held] = await arrived(second, 1)

        with pytest.raises(QueueError) as caught:
            await first.ack(stale)

        assert caught.value.code == QueueErrorCode.PROCESSING
        await second.ack(held)

    async def test_a_failed_attempt_is_counted_and_tried_again(self, session: Session) -> None:
        await session.add("one", attempts=3)
        provider = await session.provider()
        for failures in range(2):
            [job] = await arrived(provider, 1)
            assert (job.attempts, job.max_attempts) == (failures, 3)
            await provider.nack(job, ValueError("no such mailbox"))

        [job] = await arrived(provider, 1)
        await provider.nack(job, ValueError("no such mailbox"))

        await until(self._has_failed(session, 1))
        assert list(await provider.fetch(1)) == []

    async def test_a_permanent_error_is_not_tried_again(self, session: Session) -> None:
        await session.add("one", "two", attempts=3)
        provider = await session.provider()
        error = ValueError("never")
        error.retryable = False  # type: ignore[attr-defined]

        for reason in (Permanent("never"), error):
            [job] = await arrived(provider, 1)
            await provider.nack(job, reason)

        await until(self._has_failed(session, 2))
        assert list(await provider.fetch(1)) == []

    async def test_refusing_a_job_that_is_not_there(self, session: Session) -> None:
        await session.add("one")
        provider = await session.provider()
        [job] = await arrived(provider, 1)
        await provider.ack(job)

        with pytest.raises((QueueRuntimeError, QueueNotFound)) as caught:
            await provider.nack(job, ValueError("late"))

        assert caught.value.code in (QueueErrorCode.PROCESSING, QueueErrorCode.JOB_NOT_FOUND)
        assert not caught.value.retryable

    def _has_failed(self, session: Session, count: int):  # type: ignore[no-untyped-def]
        async def has_failed() -> bool:
            return (await session.queue.stats()).failed == count

        return has_failed


class TestOptions:
    """Each option is honoured, or dropped with one warning and the job added all the same."""

    async def test_delay(self, session: Session) -> None:
        provider = await session.provider()
        [added] = await session.add("later", delay=A_WHILE)

        if not session.capabilities.delayed_jobs:
            self._dropped(session, "delay")
            assert names(await arrived(provider, 1)) == ["later"]
            return
        assert added.status is QueueJobStatus.DELAYED
        assert added.scheduled_for is not None
        assert list(await provider.fetch(1)) == []
        stats = await session.queue.stats()
        assert (stats.waiting, stats.delayed) in ((0, 1), (0, None))
        [job] = await arrived(provider, 1)
        assert (job.id, session.warnings) == (added.id, [])

    async def test_shorter_delays_do_not_wait_for_longer_ones(self, session: Session) -> None:
        if not session.capabilities.delayed_jobs:
            return
        provider = await session.provider()
        await session.add("last", delay=10 * A_WHILE)
        await session.add("first", delay=A_WHILE)

        assert names(await arrived(provider, 1)) == ["first"]

    async def test_a_delay_beyond_the_limit_is_refused(self, session: Session) -> None:
        longest = session.capabilities.max_delay
        if not longest:
            [added] = await session.add("much later", delay=timedelta(days=400))
            assert added.status is QueueJobStatus.DELAYED
            return
        with pytest.raises(QueueDataError, match="delay") as caught:
            await session.add("later", delay=longest + timedelta(seconds=1))
        assert caught.value.code == QueueErrorCode.VALIDATION

    async def test_priority(self, session: Session) -> None:
        for name, priority in (("some", 1), ("none", 0), ("most", 5), ("also most", 5)):
            await session.add(name, priority=priority)

        jobs = await arrived(await session.provider(), 4)

        if not session.capabilities.priority:
            self._dropped(session, "priority")
            assert len(jobs) == 4
            return
        assert names(jobs) == ["most", "also most", "some", "none"]
        assert [job.priority for job in jobs] == [5, 5, 1, 0]
        assert (await session.queue.stats()).waiting == 0
        assert session.warnings == []

    async def test_backoff(self, session: Session) -> None:
        await session.add("one", attempts=3, backoff=Backoff(initial=A_WHILE))
        provider = await session.provider()
        [job] = await arrived(provider, 1)

        await provider.nack(job, ValueError("no"))

        if not session.capabilities.backoff:
            self._dropped(session, "backoff")
            await arrived(provider, 1)
            return
        assert list(await provider.fetch(1)) == []
        [again] = await arrived(provider, 1)
        assert again.attempts == 1

    async def test_removal(self, session: Session) -> None:
        done, failed = [
            *await session.add("done", remove_on_complete=True),
            *await session.add("failed", attempts=1, remove_on_fail=True),
        ]
        provider = await session.provider()
        for job in await arrived(provider, 2):
            if job.name == "done":
                await provider.ack(job)
            else:
                await provider.nack(job, Permanent("no"))

        if not session.capabilities.removal:
            self._dropped(session, "remove_on_complete", "remove_on_fail")
            return
        assert (await session.queue.stats()).failed == 0
        if session.capabilities.lookup:
            assert await session.queue.get_job(done.id) is None
            assert await session.queue.get_job(failed.id) is None

    async def test_defaults_and_what_overrides_them(self, session: Session) -> None:
        queue = session.new_queue(defaults={"metadata": {"from": "defaults"}})
        given = {"metadata": {"from": "here"}}

        await queue.add("one", 1)
        await queue.add("two", 2, **given)  # type: ignore[arg-type]
        await queue.disconnect()

        jobs = await arrived(await session.provider(), 2)
        assert {job.name: job.metadata for job in jobs} == {"one": {"from": "defaults"}, "two": {"from": "here"}}
        assert given == {"metadata": {"from": "here"}}

    def _dropped(self, session: Session, *options: str) -> None:
        dropped = [warning.option for warning in session.warnings]
        assert [option for option in options if dropped.count(option) != 1] == []
        assert all(f"{warning.provider} does not support" in warning.message for warning in session.warnings)


async def until_waiting(session: Session, count: int) -> None:
    async def all_there() -> bool:
        return (await session.queue.stats()).waiting == count

    await until(all_there)

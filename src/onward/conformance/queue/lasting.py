"""What lasts beyond one fetch: deaths of holders, results, progress, time to live, lists, and what is kept."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from onward.conformance.queue.session import A_WHILE, KEPT, Session, arrived, names, until
from onward.errors import (
    Permanent,
    QueueConfigurationError,
    QueueDataError,
    QueueErrorCode,
    QueueJobFailed,
    QueueNotFound,
    QueueRuntimeError,
    QueueWaitTimeout,
)
from onward.model import Progress
from onward.queue.model import ActiveJob, QueueFailureReason, QueueJob, QueueJobStatus
from onward.queue.provider import Provider

__all__ = ["TestKeeping", "TestListing", "TestProgress", "TestReasons", "TestRemoving", "TestResults", "TestStalls"]
__all__ += ["TestTimeToLive"]
_DEATHS = 4
"""One more than `max_stalls` allows by default."""


async def dies(provider: Provider) -> None:
    """Nothing is heard any more of a holder: its lease runs out, or its connection is gone."""
    if provider.lease is None:
        await provider.disconnect()


class TestStalls:
    """A holder's death is not an attempt, and a job that never ran never fails."""

    async def test_a_job_whose_holder_died_is_fetched_again(self, session: Session) -> None:
        [added] = await session.add("one")
        dead = await session.provider(brief=True)
        [lost] = await arrived(dead, 1)
        await dies(dead)

        alive = await session.provider(brief=True)
        [again] = await arrived(alive, 1)

        assert (lost.id, again.id) == (added.id, added.id)
        if session.capabilities.stalls:
            assert (again.attempts, again.max_attempts, again.max_stalls) == (0, 1, 3)
            assert again.stalls in ((0, 1) if alive.lease is None else (1,))  # or it goes back at once, uncounted
        await alive.ack(again)

    async def test_a_job_whose_holders_die_too_often_fails_and_that_is_told(self, session: Session) -> None:
        if not session.capabilities.stalls:
            with_one = await session.queue.add("one", 1, max_stalls=1)
            assert [warning.option for warning in session.warnings] == ["max_stalls"]
            assert with_one.name == "one"
            return
        told: list[Any] = []
        ran: list[str] = []

        async def send(data: str, job: ActiveJob[str]) -> None:
            ran.append(data)

        # As few as can be, where it can be said: each costs a lease.
        may_say = session.queue.provider.lacks("max_stalls", 1) is None
        most, options = (1, {"max_stalls": 1}) if may_say else (_DEATHS - 1, {})
        await session.add("deadly", **options)
        for deaths in range(most + 1):
            holder = await session.provider(brief=True)
            [job] = await arrived(holder, 1)
            assert (job.attempts, job.stalls) in ((0, deaths), (0, 0))
            await dies(holder)
        worker = session.idle_worker(send, brief=True)
        worker.on("failed", told.append)
        await worker.start()
        await until(lambda: len(told) == 1 or ran == ["deadly"])

        if worker.provider.lease is None and ran:
            return  # what such a holder had goes back at once; whether that is counted is the backend's affair
        assert ran == []
        assert (told[0].reason, told[0].will_retry, told[0].status) == ("stalled", False, QueueJobStatus.FAILED)
        assert (told[0].name, told[0].attempts, told[0].stalls) == ("deadly", 0, most + 1)
        assert told[0].error
        [letter] = await session.queue.dead_letters()
        assert (letter.name, letter.reason) == ("deadly", QueueFailureReason.STALLED)
        await session.queue.retry(letter.id)
        await until(lambda: ran == ["deadly"])

    async def test_a_fetch_that_was_not_answered_gives_its_jobs_back_uncounted(self, session: Session) -> None:
        await session.add("one")
        provider = await session.provider(brief=not session.capabilities.stalls)

        # Where stalls are not told apart, a fetch that was lost counts as an attempt, of which there are not many.
        for n in range(12) if session.capabilities.stalls else (0, 4):
            async with asyncio.TaskGroup() as tasks:
                fetching = tasks.create_task(provider.fetch(1))
                await asyncio.sleep(n * 0.0003)
                fetching.cancel()
            if not fetching.cancelled():
                await provider.release(list(fetching.result()))
        [job] = await arrived(provider, 1)

        assert job.name == "one"
        if session.capabilities.stalls:
            assert (job.attempts, job.stalls) == (0, 0)
        await provider.ack(job)


class TestReasons:
    """A failed job says why."""

    async def test_attempts_and_permanent_errors(self, session: Session) -> None:
        told: list[Any] = []

        async def send(data: str, job: ActiveJob[str]) -> None:
            raise Permanent("never") if data == "permanent" else ValueError("no")

        worker = session.idle_worker(send)
        worker.on("failed", told.append)
        await worker.start()
        await session.add("permanent", "used up", attempts=3 if not session.capabilities.retries else 2)
        await until(lambda: sum(not event.will_retry for event in told) == 2)

        reasons = {event.name: event.reason for event in told if not event.will_retry}
        assert reasons == {"permanent": QueueFailureReason.PERMANENT, "used up": QueueFailureReason.ATTEMPTS}
        assert {event.reason for event in told if event.will_retry} == {None}
        if session.capabilities.dead_letters:
            letters: list[QueueJob[Any]] = []

            async def are_there() -> bool:
                letters[:] = await session.queue.dead_letters()
                return len(letters) == 2

            await until(are_there)
            assert {letter.name: letter.reason for letter in letters} == reasons


class TestResults:
    """What a handler returned can be had, and waited for."""

    async def test_waiting_for_a_result(self, session: Session) -> None:
        async def send(data: str, job: ActiveJob[str]) -> dict[str, str]:
            if data == "no":
                raise Permanent("no such mailbox")
            return {"sent": data}

        [unrun] = await session.add("unrun")
        if not session.capabilities.results:
            with pytest.raises(QueueConfigurationError) as refused:
                await session.queue.wait(unrun.id)
            assert refused.value.code == QueueErrorCode.UNSUPPORTED_FEATURE
            return
        with pytest.raises(QueueWaitTimeout) as late:
            await session.queue.wait(unrun.id, timeout=timedelta(milliseconds=50))
        assert (late.value.job_id, late.value.code) == (unrun.id, QueueErrorCode.TIMEOUT)
        await session.worker(send, concurrency=3)
        yes, no = await session.add("yes", "no", attempts=2)

        assert await session.queue.wait(yes.id) == {"sent": "yes"}
        with pytest.raises(QueueJobFailed, match="no such mailbox") as failed:
            await session.queue.wait(no.id, timeout=timedelta(seconds=30))
        assert (failed.value.reason, failed.value.code) == ("permanent", QueueErrorCode.JOB_FAILED)
        stored = await session.queue.get_job(yes.id)
        assert stored is not None
        assert stored.result == {"sent": "yes"}
        with pytest.raises(QueueNotFound):
            await session.queue.wait("no-such-job")


class TestProgress:
    """How far a handler has come can be read where it is kept, and said everywhere."""

    async def test_what_a_handler_says_is_kept(self, session: Session) -> None:
        may_end = asyncio.Event()

        async def send(data: str, job: ActiveJob[str]) -> None:
            job.report_progress(0.25)
            job.report_progress(0.5, "half")
            await may_end.wait()
            job.report_progress(1, "all")

        [added] = await session.add("one")
        done: list[Any] = []
        worker = session.idle_worker(send)
        worker.on("completed", done.append)
        await worker.start()

        async def reads(expected: Progress) -> bool:
            stored = await session.queue.get_job(added.id)
            return stored is not None and stored.progress == expected

        if session.capabilities.progress:
            await until(lambda: reads(Progress(0.5, "half")))
        may_end.set()
        await until(lambda: len(done) == 1)
        if session.capabilities.progress:
            assert await reads(Progress(1.0, "all"))


class TestTimeToLive:
    """A job that nobody began in time fails, unrun."""

    async def test_ttl(self, session: Session) -> None:
        ran: list[str] = []
        told: list[Any] = []

        async def send(data: str, job: ActiveJob[str]) -> None:
            ran.append(data)

        [late] = await session.add("late", ttl=A_WHILE)
        await session.add("in time", ttl=600 * A_WHILE)
        if not session.capabilities.ttl:
            assert [warning.option for warning in session.warnings] == ["ttl"]
            return
        assert late.expires_at is not None
        await asyncio.sleep(A_WHILE.total_seconds() * 1.2)
        worker = session.idle_worker(send)
        worker.on("failed", told.append)
        await worker.start()
        await until(lambda: len(told) == 1 and ran == ["in time"])

        assert (told[0].name, told[0].reason, told[0].attempts) == ("late", QueueFailureReason.EXPIRED, 0)
        [letter] = await session.queue.dead_letters()
        assert (letter.id, letter.reason) == (late.id, QueueFailureReason.EXPIRED)
        await session.queue.retry(late.id)
        await until(lambda: ran == ["in time", "late"])


class TestListing:
    """The jobs of each state, in pages."""

    async def test_every_state_is_listed_in_pages(self, session: Session) -> None:
        if not session.capabilities.listing:
            with pytest.raises(QueueConfigurationError) as caught:
                await session.queue.jobs("waiting")
            assert caught.value.code == QueueErrorCode.UNSUPPORTED_FEATURE
            return
        await session.add(*[f"job {n}" for n in range(8)], attempts=2)
        provider = await session.provider()
        for n, job in enumerate(await arrived(provider, 5)):
            if n < 2:
                await provider.ack(job)
            elif n < 4:
                await provider.nack(job, Permanent("no"))
        await session.add("later", delay=300 * A_WHILE)
        await session.add("urgent", priority=3)

        expected = {"completed": 2, "failed": 2, "active": 1, "waiting": 4, "delayed": 1}
        for status, count in expected.items():
            found = await self._all(session, status)
            assert len(found) == len({job.id for job in found}) == count
            assert {job.status for job in found} == {status}
        assert {job.reason for job in await self._all(session, "failed")} == {QueueFailureReason.PERMANENT}

    async def test_a_page_that_is_none_is_refused(self, session: Session) -> None:
        if not session.capabilities.listing:
            return
        nonsense: list[Any] = ["garbage", "", "-1", "1/", "/", "9" * 40, "\ud800", "1.5", 7]
        for status in ("completed", "failed", "active", "waiting", "delayed"):
            for after in nonsense:
                with pytest.raises(QueueDataError, match="after") as caught:
                    await session.queue.jobs(status, after=after)
                assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.VALIDATION, False)

    async def _all(self, session: Session, status: str) -> list[QueueJob[Any]]:
        found: list[QueueJob[Any]] = []
        after: str | None = None
        while True:
            page = await session.queue.jobs(status, after=after, limit=2)
            assert len(page.items) <= 2
            found += page.items
            after = page.next
            if after is None:
                return found


class TestRemoving:
    """Nothing is left of what is removed, and it never runs."""

    async def test_one_job(self, session: Session) -> None:
        first, second = await session.add("first", "second")
        if not session.capabilities.remove:
            with pytest.raises(QueueConfigurationError) as caught:
                await session.queue.remove(first.id)
            assert caught.value.code == QueueErrorCode.UNSUPPORTED_FEATURE
            return
        await session.queue.remove(first.id)

        with pytest.raises(QueueNotFound):
            await session.queue.remove(first.id)
        provider = await session.provider()
        [job] = await arrived(provider, 1)
        assert job.id == second.id
        assert list(await provider.fetch(1)) == []
        with pytest.raises(QueueRuntimeError, match="being run") as held:
            await session.queue.remove(second.id)
        assert not held.value.retryable
        await provider.ack(job)
        await session.queue.remove(second.id)
        assert await session.queue.get_job(second.id) is None

    async def test_all_of_a_state(self, session: Session) -> None:
        if not session.capabilities.remove:
            with pytest.raises(QueueConfigurationError):
                await session.queue.purge()
            return
        await session.add(*[f"job {n}" for n in range(6)])
        provider = await session.provider()
        one, two, three = await arrived(provider, 3)
        await provider.ack(one)
        await provider.nack(two, Permanent("no"))

        assert await session.queue.purge(older_than=timedelta(days=1)) == 0
        assert await session.queue.purge() == 2
        assert await session.queue.purge(["waiting"]) == 3
        assert list(await provider.fetch(1)) == []
        await provider.ack(three)
        stats = await session.queue.stats()
        assert (stats.waiting, stats.failed, stats.active) == (0, 0, 0)


class TestKeeping:
    """Nothing grows for ever: of what has finished, the newest so many are kept."""

    async def test_the_newest_are_kept(self, session: Session) -> None:
        if not (session.capabilities.keeps and session.capabilities.listing):
            return  # what is not kept needs no limit; a backend that cannot list keeps by its own count

        provider = await session.provider(brief=True)
        for n in range(3 * KEPT):
            await session.add(f"good {n}", f"bad {n}")
            for job in await arrived(provider, 2):
                if job.name.startswith("good"):
                    await provider.ack(job)
                else:
                    await provider.nack(job, Permanent("no"))

        for status, name in ((QueueJobStatus.COMPLETED, "good"), (QueueJobStatus.FAILED, "bad")):
            newest = sorted(f"{name} {n}" for n in range(2 * KEPT, 3 * KEPT))

            async def only_the_newest(status: QueueJobStatus = status, newest: list[str] = newest) -> bool:
                return sorted(names((await session.queue.jobs(status)).items)) == newest

            await until(only_the_newest)

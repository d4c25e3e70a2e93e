"""The worker over a provider, whichever of push and pull that prefers."""

import asyncio
import concurrent.futures
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from onward.conformance.queue.session import LONG, Session, names, until
from onward.errors import Permanent, QueueErrorCode, QueueRuntimeError
from onward.queue.model import ActiveJob, QueueJobStatus

__all__ = ["TestClosing", "TestHandlers", "TestOutcomes", "TestTelling"]


class Broken(Exception):
    """Has no message."""

    def __str__(self) -> str:
        raise ValueError("no message")


class Odd(BaseException):
    """Not even an Exception."""


ODD = [
    asyncio.CancelledError(),
    concurrent.futures.CancelledError(),
    SystemExit(1),
    KeyboardInterrupt(),
    GeneratorExit(),
    StopIteration(),
    Odd("odd"),
    Broken(),
    ValueError("\ud800"),
]


@dataclass
class Letter:
    to: str


class TestHandlers:
    """Returning completes a job, raising fails it."""

    async def test_the_same_program_everywhere(self, session: Session) -> None:
        """Add, delay, priority, a failing job, dead letter, retry, stats, close."""
        done: list[str] = []
        mended = False

        async def send(data: str, job: ActiveJob[str]) -> dict[str, str]:
            if data == "broken" and not mended:
                raise Permanent("no such mailbox")
            done.append(data)
            return {"sent": data}

        await session.add("a", "b", priority=1)
        await session.add("later", delay=timedelta(seconds=1))
        await session.add("broken", attempts=2)
        worker = await session.worker(send, concurrency=2)
        await until(lambda: sorted(done) == ["a", "b", "later"])
        if session.capabilities.dead_letters:
            await until(lambda: self._is_dead(session))
            [letter] = await session.queue.dead_letters()
            assert letter.name == "broken"
            mended = True
            await session.queue.retry(letter.id)
            await until(lambda: "broken" in done)
        await worker.close()
        assert (await session.queue.stats()).waiting == 0

    async def test_data_is_decoded_to_what_the_handler_asks_for(self, session: Session) -> None:
        got: list[Any] = []

        async def send(letter: Letter, job: ActiveJob[Letter]) -> None:
            got.append((letter, job.data, job.name, job.status))

        await session.worker(send)
        await session.queue.add("letter", Letter("a@example.org"))
        await until(lambda: len(got) == 1)

        assert got == [(Letter("a@example.org"), Letter("a@example.org"), "letter", QueueJobStatus.ACTIVE)]

    async def test_data_of_the_wrong_shape_fails_at_once(self, session: Session) -> None:
        failed: list[Any] = []

        async def send(letter: Letter, job: ActiveJob[Letter]) -> None:
            raise AssertionError("not reached")

        worker = await session.worker(send)
        worker.on("failed", failed.append)
        await session.queue.add("letter", {"from": "a@example.org"}, attempts=3)
        await until(lambda: len(failed) == 1)

        assert (failed[0].permanent, failed[0].will_retry) == (True, False)
        assert "to" in failed[0].error

    async def test_plain_functions_run_in_threads(self, session: Session) -> None:
        threads: list[bool] = []

        def send(data: str, job: ActiveJob[str]) -> None:
            threads.append(threading.current_thread() is threading.main_thread())

        await session.worker(send)
        await session.add("one")
        await until(lambda: threads == [False])

    async def test_never_more_than_its_concurrency(self, session: Session) -> None:
        active = most = done = 0
        may_end = asyncio.Event()

        async def send(data: int, job: ActiveJob[int]) -> None:
            nonlocal active, most, done
            active += 1
            most = max(most, active)
            await may_end.wait()
            active -= 1
            done += 1

        await session.queue.add_many("letter", range(12))
        worker = await session.worker(send, concurrency=3)
        await until(lambda: active == 3)
        await asyncio.sleep(0.2)
        assert (active, most) == (3, 3)

        worker.set_concurrency(5)
        await until(lambda: active == 5)
        may_end.set()
        await until(lambda: done == 12)
        assert most <= 5

    async def test_a_handler_that_takes_too_long_has_failed_an_attempt(self, session: Session) -> None:
        runs: list[int] = []
        told: list[Any] = []

        async def hang(data: str, job: ActiveJob[str]) -> None:
            runs.append(job.attempts)
            if len(runs) == 1:
                await asyncio.Event().wait()

        worker = session.idle_worker(hang, timeout=timedelta(milliseconds=200))
        for event in ("failed", "completed"):
            worker.on(event, told.append)
        await worker.start()
        await session.add("one", attempts=3)
        await until(lambda: len(told) == 2)

        assert runs == [0, 1]
        assert [event.event for event in told] == ["failed", "completed"]
        assert (told[0].error_type, told[0].will_retry) == ("TimeoutError", True)
        assert "0.2 s" in told[0].error

    @pytest.mark.parametrize("is_async", [True, False], ids=["async def", "def"])
    @pytest.mark.parametrize("error", ODD, ids=lambda error: f"{type(error).__module__}.{type(error).__name__}")
    async def test_whatever_leaves_a_handler_fails_its_job_and_nothing_else(
        self, session: Session, error: BaseException, is_async: bool
    ) -> None:
        told: list[Any] = []

        def run(data: str, job: ActiveJob[str]) -> None:
            if data == "odd":
                raise error

        async def run_async(data: str, job: ActiveJob[str]) -> None:
            run(data, job)

        worker = session.idle_worker(run_async if is_async else run, concurrency=2)
        for event in ("failed", "completed"):
            worker.on(event, told.append)
        await worker.start()
        await session.add("odd", attempts=3)
        await until(lambda: len(told) == 3)
        await session.add("fine")
        await until(lambda: len(told) == 4)
        await worker.close()

        assert [event.event for event in told] == ["failed"] * 3 + ["completed"]
        assert [event.attempts for event in told[:3]] == [1, 2, 3]

    async def test_a_batch_has_an_outcome_for_each_job(self, session: Session) -> None:
        batches: list[list[str]] = []
        told: dict[str, str] = {}

        async def send(letters: list[Letter], jobs: list[ActiveJob[Letter]]) -> list[object]:
            batches.append([letter.to for letter in letters])
            assert [job.data for job in jobs] == letters
            return [Permanent("no such mailbox") if letter.to == "nobody" else letter.to for letter in letters]

        worker = session.idle_worker(send, batch=True, batch_size=4)
        worker.on("completed", lambda event: told.update({event.job_id: event.event}))
        worker.on("failed", lambda event: told.update({event.job_id: event.error}))
        people = ["ada", "bob", "nobody", "cleo", "dora", "emil"]
        added = [await session.queue.add("letter", Letter(to)) for to in people]
        odd = await session.queue.add("letter", {"from": "ada"})
        await worker.start()
        await until(lambda: len(told) == 7)

        assert sorted(name for batch in batches for name in batch) == sorted(people)
        assert max(map(len, batches)) <= 4
        assert [told[job.id] for job in added] == ["completed"] * 2 + ["no such mailbox"] + ["completed"] * 3
        assert "to" in told[odd.id]

    async def test_several_queues_at_one_worker(self, session: Session) -> None:
        ran: list[tuple[str, str]] = []

        async def send(data: str, job: ActiveJob[str]) -> None:
            ran.append((job.queue_name, data))

        other = session.new_queue(name=f"{session.name}-other")
        try:
            await session.add("one", "two")
            await other.add("three", "three")
            await session.worker(send, queues={session.name: 3, other.name: 1}, concurrency=2)
            await until(lambda: len(ran) == 3)
            await other.add("four", "four")
            await session.add("five")
            await until(lambda: len(ran) == 5)

            expected = [(session.name, data) for data in ("one", "two", "five")]
            assert sorted(ran) == sorted(expected + [(other.name, data) for data in ("three", "four")])
        finally:
            await session.close()
            await other.delete()
            await other.disconnect()

    async def _is_dead(self, session: Session) -> bool:
        return len(await session.queue.dead_letters()) == 1


class TestOutcomes:
    """An outcome is repeated until the lease ends, and the work is not done again."""

    @pytest.mark.parametrize("is_carried_out", [False, True], ids=["question lost", "answer lost"])
    @pytest.mark.parametrize("ends_well", [True, False], ids=["completed", "failed"])
    async def test_it_is_told_until_it_is_heard(self, session: Session, ends_well: bool, is_carried_out: bool) -> None:
        ran, told, left = list[str](), list[Any](), [1, 2]

        async def send(data: str, job: ActiveJob[str]) -> str:
            ran.append(data)
            if not ends_well:
                raise Permanent("no such mailbox")
            return "sent"

        worker = session.idle_worker(send)
        if worker._pushes or (is_carried_out and not session.capabilities.lookup):
            return  # outcomes are its own affair, or nobody can know
        call = "ack" if ends_well else "nack"
        settle = getattr(worker.provider, call)

        async def unheard(*outcome: Any) -> Any:
            lost = left.pop() if left else 0
            answer = await settle(*outcome) if not lost or (is_carried_out and lost == 2) else None
            if lost:
                raise QueueRuntimeError("the connection was cut", code=QueueErrorCode.PROCESSING, retryable=True)
            return answer

        setattr(worker.provider, call, unheard)
        worker.on("completed", told.append)
        worker.on("failed", told.append)
        await worker.start()
        [added] = await session.add("one")
        await until(lambda: len(told) == 1)

        assert ran == ["one"]
        status = QueueJobStatus.COMPLETED if ends_well else QueueJobStatus.FAILED
        assert told[0].status is status
        if session.capabilities.lookup:
            seen = await session.queue.get_job(added.id)
            assert seen is None or (seen.status, seen.attempts) == (status, 0 if ends_well else 1)


class TestTelling:
    """Events, after the provider knows."""

    async def test_completed(self, session: Session) -> None:
        told: list[Any] = []

        async def send(data: str, job: ActiveJob[str]) -> None: ...

        worker = await session.worker(send)
        for event in ("active", "completed", "failed", "job.retrying"):
            worker.on(event, told.append)
        [job] = await session.add("one", metadata={"tenant": "7"})
        await until(lambda: len(told) == 2)

        assert [event.event for event in told] == ["active", "completed"]
        assert {event.job_id for event in told} == {job.id}
        assert {event.queue_name for event in told} == {session.name}
        assert {event.worker_id for event in told} == {worker.id}
        assert [event.status for event in told] == [QueueJobStatus.ACTIVE, QueueJobStatus.COMPLETED]
        assert told[0].attempts == 0
        assert told[1].metadata == {"tenant": "7"}
        assert told[1].duration >= timedelta()

    async def test_failed_and_retried(self, session: Session) -> None:
        told: list[Any] = []

        async def send(data: str, job: ActiveJob[str]) -> None:
            raise ValueError("no such mailbox")

        worker = session.idle_worker(send)
        for event in ("failed", "job.retrying"):
            worker.on(event, told.append)
        await worker.start()
        await session.add("one", attempts=3)
        await until(lambda: len(told) == 5)

        assert [event.event for event in told] == ["failed", "job.retrying"] * 2 + ["failed"]
        assert [event.attempts for event in told] == [1, 1, 2, 2, 3]
        assert [event.will_retry for event in told[::2]] == [True, True, False]
        assert [event.permanent for event in told[::2]] == [False] * 3
        assert {event.max_attempts for event in told[1::2]} == {3}
        assert told[0].error == "no such mailbox"
        assert told[0].error_type == "ValueError"
        assert told[-1].status is QueueJobStatus.FAILED

    async def test_a_listener_that_raises_changes_nothing(self, session: Session) -> None:
        runs: list[str] = []
        troubles: list[Any] = []

        async def send(data: str, job: ActiveJob[str]) -> None:
            runs.append(data)

        def broken(event: object) -> None:
            raise ZeroDivisionError

        worker = session.idle_worker(send)
        worker.on("active", broken)
        worker.on("completed", broken)
        worker.on("queue.error", troubles.append)
        await worker.start()
        await session.add("one", "two", attempts=3)
        await until(lambda: len(troubles) == 4)
        await worker.close()

        assert sorted(runs) == ["one", "two"]
        assert {type(trouble.error) for trouble in troubles} == {ZeroDivisionError}

    async def test_drained_once_per_emptying(self, session: Session) -> None:
        drained: list[Any] = []
        done: list[str] = []

        async def send(data: str, job: ActiveJob[str]) -> None:
            done.append(data)

        await session.add("one", "two")
        worker = session.idle_worker(send)
        worker.on("queue.drained", drained.append)
        await worker.start()
        await until(lambda: len(done) == 2 and len(drained) >= 1)
        before = len(drained)
        await asyncio.sleep(0.3)
        assert len(drained) == before
        await session.add("three")
        await until(lambda: len(drained) == before + 1)


class TestClosing:
    """What runs may finish; what cannot is given back."""

    async def test_running_jobs_finish(self, session: Session) -> None:
        begun, done = asyncio.Event(), list[str]()

        async def send(data: str, job: ActiveJob[str]) -> None:
            begun.set()
            await asyncio.sleep(0.3)
            done.append(data)

        worker = await session.worker(send)
        await session.add("one")
        async with asyncio.timeout(LONG):
            await begun.wait()
            await worker.close()

        assert done == ["one"]
        assert (await session.queue.stats()).waiting == 0

    async def test_what_does_not_finish_in_time_is_given_back(self, session: Session) -> None:
        told: list[Any] = []
        begun = asyncio.Event()

        async def hang(data: str, job: ActiveJob[str]) -> None:
            begun.set()
            await asyncio.Event().wait()

        worker = await session.worker(hang)
        worker.on("processor.shutting_down", told.append)
        worker.on("processor.shutdown_timeout", told.append)
        await session.add("one", attempts=3)
        async with asyncio.timeout(LONG):
            await begun.wait()
            await worker.close(timeout=timedelta(seconds=0.1))

        assert [event.event for event in told] == ["processor.shutting_down", "processor.shutdown_timeout"]
        assert told[1].active_jobs == 1
        assert told[1].message == "Shutdown timeout exceeded after 0.1 s. 1 jobs still active."
        await self._runs_elsewhere(session, "one")

    async def test_without_finishing_it_is_given_back_at_once(self, session: Session) -> None:
        begun = asyncio.Event()

        async def hang(data: str, job: ActiveJob[str]) -> None:
            begun.set()
            await asyncio.Event().wait()

        worker = await session.worker(hang, concurrency=2)
        await session.add("one", attempts=3)
        async with asyncio.timeout(LONG):
            await begun.wait()
            await worker.close(finish_active_jobs=False)

        await self._runs_elsewhere(session, "one")

    async def test_a_closed_worker_takes_nothing_and_can_start_again(self, session: Session) -> None:
        done: list[str] = []

        async def send(data: str, job: ActiveJob[str]) -> None:
            done.append(data)

        worker = await session.worker(send)
        await worker.close()
        await session.add("one")
        await asyncio.sleep(0.2)
        assert done == []

        await worker.start()
        await until(lambda: done == ["one"])

    async def _runs_elsewhere(self, session: Session, *expected: str) -> None:
        done: list[ActiveJob[str]] = []

        async def send(data: str, job: ActiveJob[str]) -> None:
            done.append(job)

        await session.worker(send)
        await until(lambda: sorted(names(done)) == sorted(expected))

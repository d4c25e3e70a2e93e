"""Queue and worker, whatever the provider: what they refuse, what they tell, how they begin and end."""

import asyncio
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from msgspec import Raw

from onward import Onward, Permanent
from onward.conformance.queue.session import until
from onward.errors import ConfigurationError
from onward.queue import (
    Capabilities,
    JobOptions,
    Memory,
    Queue,
    QueueConfigurationError,
    QueueErrorCode,
    QueueHealth,
    QueueJobStatus,
    QueueRuntimeError,
    QueueStats,
    QueueWorker,
)
from onward.queue.contract import StoredJob, TakenJob
from onward.queue.options import Options, UnsupportedFeature
from onward.queue.providers.memory import MemoryProvider
from onward.queue.providers.memory.contents import Contents


async def ignore(data: Any, job: Any) -> None: ...


class TestMistakes:
    """Constructor mistakes fail at once and say where."""

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda: Queue(""), '[Queue:] name must be a non-empty string of whole characters, got: ""'),
            (lambda: Queue("  "), '[Queue:  ] name must be a non-empty string of whole characters, got: "  "'),
            (lambda: Queue(7), "[Queue:7] name must be a non-empty string of whole characters, got: 7"),  # type: ignore[arg-type]
            (lambda: Queue("emails", job_id=None), "[Queue:emails] job_id must be a function, got: None"),  # type: ignore[arg-type]
            (
                lambda: Queue("emails", on_unsupported_feature=None),  # type: ignore[arg-type]
                "[Queue:emails] on_unsupported_feature must be a function, got: None",
            ),
            (
                lambda: Queue("emails", defaults={"attempts": None}),  # type: ignore[typeddict-item]
                "[Queue:emails] defaults.attempts must be a whole number from 1 to 2147483647, got: None",
            ),
            (
                lambda: Queue("emails", provider="redis://localhost"),  # type: ignore[arg-type]
                '[Queue:emails] provider must be a provider or a factory of providers, got: "redis://localhost"',
            ),
            (
                lambda: Queue("emails", provider=Memory().for_queue("letters")),
                "[Queue:emails] provider must be one for 'emails', got: \"one for 'letters'\"",
            ),
            (lambda: Queue("emails", outbox=object()), "[Queue:emails] outbox must be an Onward app"),  # type: ignore[arg-type]
            (
                lambda: QueueWorker("", ignore),
                '[QueueWorker:] name must be a non-empty string of whole characters, got: ""',
            ),
            (lambda: QueueWorker("emails", None), "[QueueWorker:emails] handler must be a function, got: None"),  # type: ignore[arg-type]
            (
                lambda: QueueWorker("emails", lambda data: None),
                "[QueueWorker:emails] handler must be a function of two parameters, (data, job)",
            ),
            (
                lambda: QueueWorker("emails", ignore, concurrency=0),
                "[QueueWorker:emails] concurrency must be a whole number from 1 to 2147483647, got: 0",
            ),
            (
                lambda: QueueWorker("emails", ignore, batch_size=True),
                "[QueueWorker:emails] batch_size must be a whole number from 1 to 2147483647, got: True",
            ),
            (
                lambda: QueueWorker("emails", ignore, poll_interval=100),  # type: ignore[arg-type]
                "[QueueWorker:emails] poll_interval must be a timedelta that is not negative, got: 100",
            ),
        ],
    )
    def test_say_where(self, make: Any, words: str) -> None:
        with pytest.raises(QueueConfigurationError) as caught:
            make()

        assert str(caught.value).startswith(words)
        assert isinstance(caught.value, ConfigurationError)
        assert (caught.value.type, caught.value.code) == ("ConfigurationError", QueueErrorCode.INVALID_OPTION)

    def test_an_event_that_never_comes(self) -> None:
        with pytest.raises(QueueConfigurationError, match=r"queue\.error, queue\.drained"):
            Queue("emails").on("failed", print)
        with pytest.raises(QueueConfigurationError, match="active, completed, failed"):
            QueueWorker("emails", ignore).on("fialed", print)  # type: ignore[call-overload]

    def test_what_cannot_be_called_cannot_listen(self) -> None:
        with pytest.raises(QueueConfigurationError, match="must be a function"):
            Queue("emails").on("queue.drained", 7)  # type: ignore[call-overload]


class TestZeroConfiguration:
    """Without a provider, a queue and a worker of one name meet in this process."""

    async def test_queue_and_worker_meet(self) -> None:
        done: list[Any] = []

        async def send(data: Any, job: Any) -> None:
            done.append(data)

        async with QueueWorker("zero-configuration", send), Queue("zero-configuration") as queue:
            await queue.add("welcome", {"to": "a@example.org"})
            await until(lambda: done == [{"to": "a@example.org"}])

    async def test_queues_of_other_names_are_others(self) -> None:
        async with Queue("zero-a") as a, Queue("zero-b") as b:
            await a.add("one", 1)
            assert (await b.stats()).waiting == 0
            await a.delete()

    async def test_a_given_provider_is_shared(self) -> None:
        memory = Memory()
        async with Queue("letters", provider=memory) as queue, Queue("letters", provider=memory) as same:
            await queue.add("one", 1)
            assert (await same.stats()).waiting == 1
        async with Queue("letters", provider=Memory()) as other:
            assert (await other.stats()).waiting == 0

    async def test_ids_of_the_users_own_making(self) -> None:
        async with Queue("own-ids", provider=Memory(), job_id=lambda name, data: f"{name}-{data}") as queue:
            assert (await queue.add("user", 7)).id == "user-7"

    async def test_defaults(self) -> None:
        options = JobOptions(attempts=3, priority=2)
        async with Queue("defaults", provider=Memory(), defaults=options) as queue:
            job = await queue.add("one", 1)
            other = await queue.add("two", 2, priority=0)

        assert (job.max_attempts, job.priority, other.max_attempts, other.priority) == (3, 2, 3, 0)
        assert options == {"attempts": 3, "priority": 2}


async def test_a_job_whose_data_does_not_fit_can_be_looked_at() -> None:
    memory = Memory()
    async with Queue("letters", provider=memory) as anything, Queue("letters", provider=memory, data=int) as numbers:
        job = await anything.add("one", {"to": "nobody"})
        provider = memory.for_queue("letters")
        await provider.connect()
        [taken] = await provider.fetch(1)
        await provider.nack(taken, Permanent("not a number"))

        assert [letter.data for letter in await numbers.dead_letters()] == [{"to": "nobody"}]
        seen = await numbers.get_job(job.id)
        assert seen is not None
        assert seen.data == {"to": "nobody"}


class Plain(MemoryProvider):
    """A provider that supports nothing optional, and counts what it is asked."""

    name = "plain"
    capabilities = Capabilities(pull=True)
    long_poll = timedelta()

    def __init__(self) -> None:
        inner = Memory().for_queue("plain")
        super().__init__("plain", inner._contents, inner.events)
        self.fetches: list[int] = []
        self.released: list[str] = []
        self.failing: dict[str, Exception] = {}

    def _fail(self, call: str) -> None:
        if call in self.failing:
            raise QueueRuntimeError(str(self.failing[call]), code=QueueErrorCode.CONNECTION, retryable=True)

    async def _open(self) -> None:
        if "open" in self.failing:
            raise self.failing["open"]

    async def fetch(self, count: int, wait: timedelta = timedelta()) -> Sequence[TakenJob]:
        self.fetches.append(count)
        self._fail("fetch")
        return await super().fetch(count, wait)

    async def ack(self, job: TakenJob, result: Raw | None = None) -> None:
        self._fail("ack")
        await super().ack(job, result)

    async def nack(self, job: TakenJob, error: BaseException) -> timedelta | None:
        self._fail("nack")
        return await super().nack(job, error)

    async def release(self, jobs: Sequence[TakenJob]) -> None:
        self.released += [job.name for job in jobs]
        await super().release(jobs)


class TestUnsupported:
    """What a provider lacks is dropped with one warning that names provider and option."""

    async def test_each_option_warns_once(self, caplog: pytest.LogCaptureFixture) -> None:
        options = JobOptions(priority=3, delay=timedelta(seconds=9), attempts=4, remove_on_fail=True)
        async with Queue("plain", provider=Plain()) as queue:
            jobs = [await queue.add("one", n, **options) for n in range(3)]

        messages = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert len(messages) == 4
        assert any("plain does not support job priorities" in message for message in messages)
        assert any("plain does not support delayed jobs" in message for message in messages)
        assert {(job.priority, job.max_attempts, job.status) for job in jobs} == {(0, 1, QueueJobStatus.WAITING)}
        assert options == {"priority": 3, "delay": timedelta(seconds=9), "attempts": 4, "remove_on_fail": True}

    async def test_who_asked_to_be_told_is_told(self) -> None:
        told: list[Any] = []
        async with Queue("plain", provider=Plain(), on_unsupported_feature=told.append) as queue:
            await queue.add("one", 1, priority=3)

        assert [(feature.provider, feature.option, feature.queue_name) for feature in told] == [
            ("plain", "priority", "plain")
        ]

    async def test_an_option_that_says_nothing_does_not_warn(self, caplog: pytest.LogCaptureFixture) -> None:
        async with Queue("plain", provider=Plain()) as queue:
            await queue.add("one", 1, priority=0, delay=timedelta())

        assert caplog.records == []


class TestWorker:
    """Backpressure, trouble, and the two ends of a worker's life."""

    async def test_it_fetches_no_more_than_its_batch_and_its_free_slots(self) -> None:
        provider = Plain()
        hold = asyncio.Event()
        begun: list[Any] = []

        async def send(data: Any, job: Any) -> None:
            begun.append(data)
            await hold.wait()

        async with Queue("plain", provider=provider) as queue:
            await queue.add_many("one", range(20))
            async with QueueWorker("plain", send, provider=provider, concurrency=5, batch_size=3):
                await until(lambda: len(begun) == 5)
                assert provider.fetches == [3, 2]
                hold.set()
                await until(lambda: len(begun) == 20)
        assert max(provider.fetches) == 3

    async def test_a_failing_fetch_is_told_and_tried_again(self) -> None:
        provider = Plain()
        provider.failing["fetch"] = ConnectionResetError("the server went away")
        troubles: list[Any] = []
        done: list[Any] = []

        async def send(data: Any, job: Any) -> None:
            done.append(data)

        worker = QueueWorker("plain", send, provider=provider, error_backoff=timedelta(milliseconds=20))
        worker.on("queue.error", troubles.append)
        async with worker, Queue("plain", provider=provider) as queue:
            await queue.add("one", 1)
            await until(lambda: len(troubles) >= 3)
            provider.failing.clear()
            await until(lambda: done == [1])

        assert {(trouble.queue_name, trouble.error.code) for trouble in troubles} == {
            ("plain", QueueErrorCode.CONNECTION)
        }

    @pytest.mark.parametrize("call", ["ack", "nack"])
    async def test_an_outcome_that_could_not_be_told_is_no_outcome(self, call: str) -> None:
        provider = Plain()
        provider.failing[call] = ConnectionResetError("the server went away")
        troubles: list[Any] = []
        told: list[Any] = []

        async def send(data: Any, job: Any) -> None:
            if call == "nack":
                raise ValueError("no such mailbox")

        worker = QueueWorker("plain", send, provider=provider)
        worker.on("queue.error", troubles.append)
        worker.on("completed", told.append)
        worker.on("failed", told.append)
        async with worker, Queue("plain", provider=provider) as queue:
            await queue.add("one", 1)
            await until(lambda: len(troubles) == 1)
            await worker.close(timeout=timedelta(milliseconds=10))

        assert told == []

    async def test_a_failed_start_leaves_it_startable(self) -> None:
        provider = Plain()
        provider.failing["open"] = ConnectionRefusedError("nobody there")
        worker = QueueWorker("plain", ignore, provider=provider)

        for _ in range(2):
            with pytest.raises(QueueRuntimeError, match="cannot connect to plain") as caught:
                await worker.start()
            assert caught.value.retryable
        provider.failing.clear()
        await worker.start()
        await worker.close()

    async def test_connecting_that_is_cancelled_leaves_it_unconnected(self) -> None:
        opened: list[str] = []

        class Slow(Plain):
            async def _open(self) -> None:
                opened.append("tried")
                if len(opened) == 1:
                    await asyncio.Event().wait()

        provider = Slow()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await provider.connect()
        assert not provider.is_connected

        await provider.connect()
        assert opened == ["tried", "tried"]
        await provider.disconnect()

    async def test_jobs_fetched_while_closing_are_given_back(self) -> None:
        provider = Plain()
        fetching, let_go = asyncio.Event(), asyncio.Event()
        fetch = provider.fetch

        async def slow_fetch(count: int, wait: timedelta = timedelta()) -> Sequence[TakenJob]:
            fetching.set()
            await let_go.wait()
            return await fetch(count, wait)

        provider.fetch = slow_fetch  # type: ignore[method-assign]
        async with Queue("plain", provider=provider) as queue:
            await queue.add("one", 1)
            worker = QueueWorker("plain", ignore, provider=provider)
            await worker.start()
            await fetching.wait()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(worker.close())
                await asyncio.sleep(0)
                let_go.set()

            assert provider.released == ["one"]
            assert (await queue.stats()).waiting == 1

    async def test_closing_disconnects_others_only_when_told_to(self) -> None:
        provider = Plain()
        async with Queue("plain", provider=provider) as queue:
            async with QueueWorker("plain", ignore, provider=provider):
                pass
            await queue.stats()
            worker = QueueWorker("plain", ignore, provider=provider)
            await worker.start()
            await worker.close(disconnect_provider=True)
            with pytest.raises(QueueRuntimeError) as caught:
                await queue.stats()
            assert caught.value.code == QueueErrorCode.SHUTDOWN

    async def test_closing_twice_and_closing_what_never_ran(self) -> None:
        worker = QueueWorker("never-ran", ignore)
        await worker.close()
        await worker.start()
        await worker.start()
        await worker.close()
        await worker.close()

    async def test_a_thread_that_was_told_to_stop_still_has_its_job(self) -> None:
        begun, may_end = threading.Event(), threading.Event()
        completed: list[Any] = []

        def send(data: Any, job: Any) -> None:
            begun.set()
            may_end.wait(30)

        memory = Memory()
        worker = QueueWorker("threads", send, provider=memory)
        worker.on("completed", completed.append)
        async with Queue("threads", provider=memory) as queue, worker:
            await queue.add("one", 1)
            await until(begun.is_set)
            worker.stop()
            worker.give_back()
            await asyncio.sleep(0.05)
            stats = await queue.stats()
            may_end.set()
            await until(lambda: len(completed) == 1)

        assert (stats.active, stats.waiting) == (1, 0)

    async def test_stopping_with_a_grace_period_gives_back_what_still_runs(self) -> None:
        told: list[Any] = []
        begun = asyncio.Event()

        async def hang(data: Any, job: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

        memory = Memory()
        worker = QueueWorker("grace", hang, provider=memory)
        worker.on("processor.shutdown_timeout", told.append)
        async with Queue("grace", provider=memory) as queue, asyncio.timeout(30):
            await queue.add("one", 1)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(worker.run())
                await begun.wait()
                worker.stop(grace=timedelta(milliseconds=50))
            stats = await queue.stats()

        assert [event.active_jobs for event in told] == [1]
        assert (stats.active, stats.waiting) == (0, 1)

    async def test_fewer_slots_let_what_runs_finish(self) -> None:
        active = 0
        hold = asyncio.Semaphore(0)

        async def send(data: Any, job: Any) -> None:
            nonlocal active
            active += 1
            await hold.acquire()
            active -= 1

        memory = Memory()
        async with Queue("fewer", provider=memory) as queue:
            await queue.add_many("one", range(8))
            async with QueueWorker("fewer", send, provider=memory, concurrency=4, batch_size=4) as worker:
                await until(lambda: active == 4)
                worker.set_concurrency(1)
                for _ in range(3):
                    hold.release()
                await until(lambda: active == 1)
                await asyncio.sleep(0.05)
                assert active == 1
                worker.set_concurrency(2)
                await until(lambda: active == 2)
                for _ in range(8):
                    hold.release()

    async def test_a_handler_that_lets_itself_be_cancelled_has_failed(self) -> None:
        failed: list[Any] = []

        async def send(data: Any, job: Any) -> None:
            raise asyncio.CancelledError

        memory = Memory()
        worker = QueueWorker("cancelled", send, provider=memory)
        worker.on("failed", failed.append)
        async with worker, Queue("cancelled", provider=memory) as queue:
            await queue.add("one", 1)
            await until(lambda: len(failed) == 1)

    async def test_a_result_that_cannot_be_kept_does_not_run_the_job_again(self) -> None:
        runs, troubles = list[Any](), list[Any]()

        async def send(data: Any, job: Any) -> object:
            runs.append(data)
            return object()

        memory = Memory()
        worker = QueueWorker("unkept", send, provider=memory)
        worker.on("queue.error", troubles.append)
        async with worker, Queue("unkept", provider=memory) as queue:
            job = await queue.add("one", 1, attempts=3)
            await until(lambda: len(troubles) == 1)
            await until(lambda: _is(queue, job.id, QueueJobStatus.COMPLETED))

        assert runs == [1]
        assert "cannot be kept" in troubles[0].message

    async def test_one_attempt_means_no_retrying(self) -> None:
        told: list[str] = []

        async def send(data: Any, job: Any) -> None:
            raise ValueError("no")

        memory = Memory()
        worker = QueueWorker("one-attempt", send, provider=memory)
        for event in ("failed", "job.retrying", "queue.drained"):
            worker.on(event, lambda event: told.append(event.event))
        async with worker, Queue("one-attempt", provider=memory) as queue:
            await queue.add("one", 1)
            await until(lambda: "queue.drained" in told)

        assert told == ["failed", "queue.drained"]

    async def test_permanent_errors(self) -> None:
        failed: list[Any] = []

        async def send(data: Any, job: Any) -> None:
            raise Permanent("no such mailbox")

        memory = Memory()
        worker = QueueWorker("permanent", send, provider=memory)
        worker.on("failed", failed.append)
        async with worker, Queue("permanent", provider=memory) as queue:
            await queue.add("one", 1, attempts=9)
            await until(lambda: len(failed) == 1)

        assert (failed[0].permanent, failed[0].will_retry, failed[0].attempts) == (True, False, 1)


class TestHealth:
    """What follows from the numbers, and nothing that does not."""

    def test_unknown_stays_unknown(self) -> None:
        assert QueueHealth.of(QueueStats(waiting=3, failed=1)) == QueueHealth(queue_depth=3, failed_count=1)

    def test_the_rate_of_errors_is_a_percentage(self) -> None:
        health = QueueHealth.of(QueueStats(waiting=0, delayed=2, completed=3, failed=1, paused=False))

        assert (health.error_rate, health.queue_depth, health.is_paused) == (25.0, 2, False)


async def _is(queue: Queue[Any], job_id: str, status: QueueJobStatus) -> bool:
    job = await queue.get_job(job_id)
    return job is not None and job.status is status


def test_an_outbox_is_an_app() -> None:
    assert Queue("with-outbox", outbox=Onward("memory://", jobs=[]))


class SlowToOpen(MemoryProvider):
    """Learns what it supports while it opens."""

    opened = 0
    capabilities = Capabilities(pull=True)

    async def _open(self) -> None:
        await asyncio.sleep(0.01)
        self.opened += 1
        self.capabilities = Capabilities(pull=True, priority=True)

    async def add(self, job: StoredJob, options: Options) -> StoredJob:
        assert self.opened == 1
        return await super().add(job, options)


async def test_the_first_calls_wait_for_one_connection_and_see_what_it_supports() -> None:
    memory, warnings = Memory(), list[UnsupportedFeature]()
    provider = SlowToOpen("letters", memory._contents.setdefault("letters", Contents()), memory.events_of("letters"))
    queue = Queue[int]("letters", provider=provider, on_unsupported_feature=warnings.append)

    async with asyncio.TaskGroup() as tasks:
        for n in range(3):
            tasks.create_task(queue.add("letter", n, priority=1))

    assert (provider.opened, provider._holders, warnings) == (1, 1, [])
    await queue.disconnect()
    assert not provider.is_connected

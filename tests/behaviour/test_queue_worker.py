"""What a queue worker promises beside running handlers: outcomes get through, ends are told, options hold."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec import Raw

from onward.conformance.queue.session import until
from onward.errors import QueueErrorCode, QueueRuntimeError
from onward.queue import (
    Capabilities,
    Keep,
    Memory,
    Queue,
    QueueConfigurationError,
    QueueDataError,
    QueueJobStatus,
    QueueWorker,
)
from onward.queue.contract import Consumer, TakenJob
from onward.queue.providers.memory import MemoryProvider

SHORT = timedelta(milliseconds=300)


async def ignore(data: Any, job: Any) -> None: ...


class Unsteady(MemoryProvider):
    """Loses answers: to `ack` and `nack`, before or after they were carried out."""

    lease = timedelta(seconds=30)

    def __init__(self, memory: Memory, *, lose: list[str]) -> None:
        ready = memory.for_queue("letters")
        super().__init__("letters", ready._contents, ready.events)
        self.lose = lose
        self.calls: list[str] = []

    async def ack(self, job: TakenJob, result: Raw | None = None) -> None:
        await self._unsteadily(lambda: super(Unsteady, self).ack(job, result))

    async def nack(self, job: TakenJob, error: BaseException) -> timedelta | None:
        return await self._unsteadily(lambda: super(Unsteady, self).nack(job, error))

    async def _unsteadily(self, call: Callable[[], Awaitable[Any]]) -> Any:
        how = self.lose.pop(0) if self.lose else "well"
        self.calls.append(how)
        if how != "before":
            answer = await call()
            if how == "well":
                return answer
        raise QueueRuntimeError("the connection was cut", code=QueueErrorCode.PROCESSING, retryable=True)


class TestOutcomes:
    """An outcome is told until the provider has it, or the job is another's."""

    @pytest.mark.parametrize("lost", [["before"] * 3, ["after"], ["before", "after", "before"]], ids="-".join)
    @pytest.mark.parametrize("ends_well", [True, False], ids=["completed", "failed"])
    async def test_it_is_told_again_after_an_answer_was_lost(self, lost: list[str], ends_well: bool) -> None:
        memory, told, runs, troubles = Memory(), list[Any](), list[int](), list[Any]()

        async def handler(data: int, job: Any) -> str:
            runs.append(data)
            if not ends_well:
                raise ValueError("no such mailbox")
            return "sent"

        provider = Unsteady(memory, lose=list(lost))
        worker = QueueWorker("letters", handler, provider=provider)
        worker.on("completed", told.append)
        worker.on("failed", told.append)
        worker.on("queue.error", troubles.append)
        async with Queue("letters", provider=memory) as queue, worker:
            job = await queue.add("letter", 1)
            await until(lambda: len(told) == 1)
            stored = await queue.get_job(job.id)

        assert runs == [1]
        assert [event.event for event in told] == ["completed" if ends_well else "failed"]
        assert stored is not None
        assert stored.status is (QueueJobStatus.COMPLETED if ends_well else QueueJobStatus.FAILED)
        assert len(troubles) == 1

    async def test_it_is_not_told_when_the_lease_is_over(self) -> None:
        memory, told, troubles = Memory(), list[Any](), list[Any]()
        provider = Unsteady(memory, lose=["before"] * 1000)
        provider.lease = SHORT
        provider.renew = _away  # type: ignore[method-assign]
        worker = QueueWorker("letters", ignore, provider=provider)
        worker.on("completed", told.append)
        worker.on("queue.error", troubles.append)
        async with Queue("letters", provider=memory) as queue, worker:
            await queue.add("letter", 1)
            await until(lambda: not worker._hands.running and len(provider.calls) > 1)

        assert told == []
        assert "cut" in troubles[-1].message

    async def test_a_worker_that_is_cancelled_gives_back(self) -> None:
        memory, begun = Memory(), asyncio.Event()

        async def hang(data: int, job: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

        provider = memory.for_queue("letters")
        async with Queue("letters", provider=memory) as queue:
            await queue.add("letter", 1)
            await provider.connect()
            running = asyncio.get_running_loop().create_task(QueueWorker("letters", hang, provider=provider).run())
            await begun.wait()
            running.cancel()
            await asyncio.wait([running])
            stats = await queue.stats()
            await provider.disconnect()

        assert (stats.waiting, stats.active) == (1, 0)


async def _away(jobs: object) -> Any:
    raise QueueRuntimeError("the connection was cut", code=QueueErrorCode.PROCESSING, retryable=True)


class TestTimeLimits:
    async def test_a_thread_that_hangs_does_not_keep_its_slot(self) -> None:
        memory, told, may_end = Memory(), list[Any](), threading.Event()

        def handler(data: str, job: Any) -> None:
            if data == "hang":
                may_end.wait(30)

        worker = QueueWorker("threads", handler, provider=memory, timeout=timedelta(milliseconds=50))
        for event in ("failed", "completed"):
            worker.on(event, told.append)
        async with Queue("threads", provider=memory) as queue, worker:
            await queue.add("one", "hang")
            await queue.add("two", "fine")
            await until(lambda: len(told) == 2)
            may_end.set()

        assert [(event.name, event.event) for event in told] == [("one", "failed"), ("two", "completed")]
        assert told[0].error_type == "TimeoutError"

    async def test_a_handler_that_cancels_its_own_task_has_failed(self) -> None:
        memory, told = Memory(), list[Any]()

        async def handler(data: str, job: Any) -> None:
            task = asyncio.current_task()
            if data == "odd" and task is not None:
                task.cancel()
            await asyncio.sleep(0)

        worker = QueueWorker("own", handler, provider=memory)
        for event in ("failed", "completed"):
            worker.on(event, told.append)
        async with Queue("own", provider=memory) as queue, worker:
            await queue.add("one", "odd")
            await queue.add("two", "fine")
            await until(lambda: len(told) == 2)

        assert [(event.name, event.event) for event in told] == [("one", "failed"), ("two", "completed")]


class TestTelling:
    @pytest.mark.parametrize("kind", ["coroutine function", "lambda", "object"])
    async def test_listeners_that_are_async_are_awaited(self, kind: str) -> None:
        memory, heard = Memory(), list[str]()

        async def listen(event: Any) -> None:
            await asyncio.sleep(0.01)
            heard.append(event.event)

        class Listener:
            async def __call__(self, event: Any) -> None:
                await listen(event)

        listeners: dict[str, Any] = {"coroutine function": listen, "lambda": lambda event: listen(event)}
        worker = QueueWorker("heard", ignore, provider=memory)
        worker.on("completed", listeners.get(kind, Listener()))
        async with Queue("heard", provider=memory) as queue, worker:
            job = await queue.add("one", 1)
            await queue.wait(job.id)

        assert heard == ["completed"]

    async def test_an_async_listener_that_raises_is_told_and_changes_nothing(self) -> None:
        memory, troubles = Memory(), list[Any]()

        async def broken(event: Any) -> None:
            raise ZeroDivisionError

        worker = QueueWorker("broken", ignore, provider=memory)
        worker.on("completed", broken)
        worker.on("queue.error", troubles.append)
        async with Queue("broken", provider=memory) as queue, worker:
            await queue.wait((await queue.add("one", 1)).id)
            await until(lambda: len(troubles) == 1)

        assert isinstance(troubles[0].error, ZeroDivisionError)

    @pytest.mark.parametrize(("crew", "concurrency"), [(3, 2), (1, 1)])  # one slot is empty after each job
    async def test_a_crew_tells_once_that_the_queue_is_drained_and_not_early(self, crew: int, concurrency: int) -> None:
        memory, drained, done = Memory(), list[int](), list[int]()

        async def handler(data: int, job: Any) -> None:
            await asyncio.sleep(0.01 if data % 2 else 0.05)
            done.append(data)

        workers = [QueueWorker("crew", handler, provider=memory, concurrency=concurrency) for _ in range(crew)]
        async with Queue("crew", provider=memory) as queue:
            queue.on("queue.drained", lambda event: drained.append(len(done)))
            await queue.add_many("one", range(12))
            for worker in workers:
                await worker.start()
            await until(lambda: len(drained) == 1)
            await queue.add("more", 13)
            await until(lambda: len(drained) == 2)
            for worker in workers:
                await worker.close()

        assert drained == [12, 13]


class Pushing(MemoryProvider):
    """Says that it delivers."""

    name = "pushing"
    capabilities = Capabilities(push=True, pull=True)

    def __init__(self) -> None:
        ready = Memory().for_queue("letters")
        super().__init__("letters", ready._contents, ready.events)

    async def process(self, *_: Any, **__: Any) -> Consumer:
        raise ConnectionError("not now")


class TestOptions:
    @pytest.mark.parametrize(
        "options",
        [{"batch_size": 3}, {"poll_interval": SHORT}, {"error_backoff": SHORT}],
        ids=lambda given: next(iter(given)),
    )
    def test_what_a_provider_that_delivers_cannot_honour_is_refused(self, options: Any) -> None:
        [option] = options
        with pytest.raises(QueueConfigurationError, match=f"{option} is for jobs that are fetched"):
            QueueWorker("letters", ignore, provider=Pushing(), **options)

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda: QueueWorker([], ignore), "name must be"),
            (lambda: QueueWorker(["a", ""], ignore), "name must be"),
            (lambda: QueueWorker({"a": 0}, ignore), "the weight of 'a'"),
            (lambda: QueueWorker("a", ignore, timeout=5), "timeout must be a timedelta"),  # type: ignore[arg-type]
            (lambda: QueueWorker("a", ignore, timeout=timedelta()), "timeout must be a timedelta"),
            (lambda: QueueWorker("a", ignore, batch=1), "batch must be True or False"),  # type: ignore[arg-type]
            (lambda: Memory(keep_completed=5), "keep_completed must be Keep"),  # type: ignore[arg-type]
            (lambda: Queue("a", defaults=[1]), "defaults must be JobOptions"),  # type: ignore[arg-type]
            (lambda: Queue("a", keep_published=1), "keep_published must be Keep"),  # type: ignore[arg-type]
        ],
    )
    def test_mistakes_are_refused_at_once(self, make: Callable[[], object], words: str) -> None:
        with pytest.raises(QueueConfigurationError, match=words):
            make()

    @pytest.mark.parametrize("options", [{"redis": {"delay": 1}}, {"memory": {"x": 1}}, {"memory": None}], ids=repr)
    async def test_native_options_of_another_provider_are_refused(self, options: Any) -> None:
        async with Queue("letters", provider=Memory()) as queue:
            with pytest.raises(QueueDataError, match="provider_options"):
                await queue.add("one", 1, provider_options=options)
            assert (await queue.stats()).waiting == 0

    async def test_without_a_size_a_fetch_asks_for_all_that_is_free(self) -> None:
        memory, asked = Memory(), list[int]()
        provider = memory.for_queue("letters")
        fetch = provider.fetch

        async def counted(count: int, wait: timedelta = timedelta()) -> Any:
            asked.append(count)
            return await fetch(count, wait)

        provider.fetch = counted  # type: ignore[method-assign]
        async with Queue("letters", provider=memory) as queue:
            await queue.add_many("one", range(50))
            async with QueueWorker("letters", ignore, provider=provider, concurrency=40):
                await until(lambda: len(asked) >= 1)

        assert asked[0] == 40


class Slow(MemoryProvider):
    """Takes its time to connect."""

    def __init__(self, memory: Memory) -> None:
        ready = memory.for_queue("letters")
        super().__init__("letters", ready._contents, ready.events)
        self.is_opening, self.may_open = asyncio.Event(), asyncio.Event()

    async def _open(self) -> None:
        self.is_opening.set()
        await self.may_open.wait()
        await super()._open()


def _tasks_of(worker: QueueWorker[Any]) -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if worker.id in task.get_name()]


class TestEnds:
    async def test_closing_after_a_start_that_failed(self) -> None:
        worker = QueueWorker("letters", ignore, provider=Pushing())
        for _ in range(2):
            with pytest.raises(QueueRuntimeError, match="not now"):
                await worker.start()
            await worker.close()

    @pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "not closed"])
    async def test_a_start_that_is_cancelled_leaves_nothing_running(self, is_closed: bool) -> None:
        ran: list[int] = []

        async def note(data: int, job: Any) -> None:
            ran.append(data)

        memory = Memory()
        provider = Slow(memory)
        worker = QueueWorker("letters", note, provider=provider)
        starting = asyncio.get_running_loop().create_task(worker.start())
        await provider.is_opening.wait()
        starting.cancel()
        await asyncio.wait([starting])
        if is_closed:
            await worker.close(timeout=SHORT)

        assert starting.cancelled()
        assert _tasks_of(worker) == []
        provider.may_open.set()
        async with Queue("letters", provider=memory) as queue:
            await queue.add("one", 1)
            assert (await queue.stats()).waiting == 1
            async with worker:  # it may be started again
                await until(lambda: ran == [1])

    async def test_closing_while_it_starts_ends_it(self) -> None:
        provider = Slow(Memory())
        worker = QueueWorker("letters", ignore, provider=provider)
        starting = asyncio.get_running_loop().create_task(worker.start())
        await provider.is_opening.wait()
        await worker.close(timeout=SHORT)

        assert _tasks_of(worker) == []
        await starting  # it was closed, not cancelled

    async def test_disconnecting_the_provider_is_for_all_who_share_the_factory(self) -> None:
        memory = Memory()
        async with Queue("letters", provider=memory) as queue, Queue("others", provider=memory) as other:
            worker = QueueWorker("letters", ignore, provider=memory)
            await worker.start()
            await worker.close(disconnect_provider=True)

            with pytest.raises(QueueRuntimeError) as caught:
                await queue.add("one", 1)
            await other.add("one", 1)

        assert caught.value.code == QueueErrorCode.SHUTDOWN


class TestMemory:
    @pytest.mark.parametrize("shared", [True, False], ids=["one Memory()", "no provider"])
    def test_queues_outlive_an_event_loop(self, shared: bool) -> None:
        memory, got = Memory(), list[int]()
        provider: dict[str, Any] = {"provider": memory} if shared else {}

        async def handler(data: int, job: Any) -> None:
            got.append(data)

        async def once(n: int) -> None:
            async with Queue("loops", **provider) as queue, QueueWorker("loops", handler, **provider):
                await asyncio.sleep(0.01)  # the worker waits by now
                await queue.wait((await queue.add("one", n)).id, timeout=timedelta(seconds=10))

        for n in range(3):
            asyncio.run(once(n))

        assert got == [0, 1, 2]

    async def test_what_completes_does_not_push_out_what_failed(self) -> None:
        few = Keep(count=3, age=timedelta(days=1))
        memory = Memory(keep_completed=few, keep_failed=few)

        async def handler(data: int, job: Any) -> None:
            if data == 0:
                raise ValueError("no")

        async with Queue("letters", provider=memory) as queue:
            jobs = await queue.add_many("one", range(20))
            async with QueueWorker("letters", handler, provider=memory, concurrency=20):
                await queue.wait(jobs[-1].id)

            assert [job.id for job in await queue.dead_letters()] == [jobs[0].id]
            assert len((await queue.jobs("completed")).items) == 3
            assert len(memory._contents["letters"].jobs) == 4

    async def test_old_ones_go_when_the_next_one_ends(self) -> None:
        memory = Memory(keep_completed=Keep(count=100, age=timedelta(milliseconds=50)))
        async with (
            Queue("letters", provider=memory) as queue,
            QueueWorker("letters", ignore, provider=memory),
        ):
            old = await queue.add("one", 1)
            await queue.wait(old.id)
            await asyncio.sleep(0.06)
            new = await queue.add("one", 2)
            await queue.wait(new.id)

            assert await queue.get_job(old.id) is None

    async def test_the_workers_are_known(self) -> None:
        memory = Memory()
        async with Queue("letters", provider=memory) as queue:
            assert (await queue.health()).active_workers == 0
            async with QueueWorker("letters", ignore, provider=memory), QueueWorker("letters", ignore, provider=memory):
                await until(lambda: len(memory._contents["letters"].workers) == 2)
                assert (await queue.health()).active_workers == 2
            assert (await queue.health()).active_workers == 0

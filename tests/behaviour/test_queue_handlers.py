"""Whatever can be called can be a handler: none is completed without having been run."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from onward.conformance.queue.session import until
from onward.queue import Memory, Queue, QueueConfigurationError, QueueJobStatus, QueueWorker

Handler = Callable[..., Any]


async def record(ran: list[Any], data: int, job: Any) -> str:
    await asyncio.sleep(0)
    ran.append(data)
    return "done"


def as_partial(ran: list[Any]) -> Handler:
    return functools.partial(record, ran)


def as_lambda(ran: list[Any]) -> Handler:
    return lambda data, job: record(ran, data, job)


def as_decorated(ran: list[Any]) -> Handler:
    def traced(function: Handler) -> Handler:
        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            return function(*arguments)

        return call

    @traced
    async def handler(data: int, job: Any) -> str:
        return await record(ran, data, job)

    return handler


def as_object(ran: list[Any]) -> Handler:
    class Recorder:
        async def __call__(self, data: int, job: Any) -> str:
            return await record(ran, data, job)

    return Recorder()


def as_object_that_returns_a_coroutine(ran: list[Any]) -> Handler:
    class Recorder:
        def __call__(self, data: int, job: Any) -> Any:
            return record(ran, data, job)

    return Recorder()


def as_partial_of_an_object(ran: list[Any]) -> Handler:
    class Recorder:
        async def __call__(self, seen: list[Any], data: int, job: Any) -> str:
            return await record(seen, data, job)

    return functools.partial(Recorder(), ran)


def as_method(ran: list[Any]) -> Handler:
    class Recorder:
        async def handle(self, data: int, job: Any) -> str:
            return await record(ran, data, job)

    return functools.partial(Recorder().handle)


KINDS = [
    as_partial,
    as_lambda,
    as_decorated,
    as_object,
    as_object_that_returns_a_coroutine,
    as_partial_of_an_object,
    as_method,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_a_coroutine_function_is_awaited_whatever_is_around_it(kind: Callable[[list[Any]], Handler]) -> None:
    memory, ran = Memory(), list[Any]()
    async with (
        Queue[int]("letters", provider=memory) as queue,
        QueueWorker("letters", kind(ran), provider=memory),
    ):
        job = await queue.add("letter", 7)

        assert await queue.wait(job.id) == "done"

    assert ran == [7]


async def test_a_batch_handler_is_awaited_whatever_is_around_it() -> None:
    memory, ran = Memory(), list[Any]()

    async def many(seen: list[Any], data: list[int], jobs: list[Any]) -> list[str]:
        await asyncio.sleep(0)
        seen.extend(data)
        return ["done"] * len(data)

    handler = functools.partial(many, ran)
    async with (
        Queue[int]("letters", provider=memory) as queue,
        QueueWorker("letters", handler, provider=memory, batch=True),
    ):
        jobs = await queue.add_many("letter", [1, 2, 3])

        assert [await queue.wait(job.id) for job in jobs] == ["done"] * 3

    assert sorted(ran) == [1, 2, 3]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_a_listener_is_awaited_whatever_is_around_it(kind: Callable[[list[Any]], Handler]) -> None:
    memory, heard = Memory(), list[Any]()
    two = kind(heard)

    async def handler(data: int, job: Any) -> None: ...

    worker = QueueWorker("letters", handler, provider=memory)
    worker.on("completed", lambda event: two(event, None))
    async with Queue[int]("letters", provider=memory) as queue, worker:
        await queue.add("letter", 7)
        await until(lambda: len(heard) == 1)

    assert [event.event for event in heard] == ["completed"]


async def test_the_annotation_is_found_behind_what_is_around_it() -> None:
    memory, got = Memory(), list[Any]()

    async def strict(seen: list[Any], data: int, job: Any) -> None:
        seen.append(data)

    handler = functools.partial(strict, got)
    async with Queue("letters", provider=memory) as queue, QueueWorker("letters", handler, provider=memory):
        job = await queue.add("letter", "not a number")
        await until(lambda: memory._contents["letters"].jobs[job.id].job.status is QueueJobStatus.FAILED)

    assert got == []


async def test_a_coroutine_that_came_from_a_thread_is_cancelled_with_its_worker() -> None:
    memory, begun, ended = Memory(), asyncio.Event(), list[str]()

    async def hang(data: int, job: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    worker = QueueWorker("letters", lambda data, job: hang(data, job), provider=memory)
    async with Queue[int]("letters", provider=memory) as queue:
        await worker.start()
        job = await queue.add("letter", 7)
        await begun.wait()
        await worker.close(finish_active_jobs=False)
        stored = await queue.get_job(job.id)

    assert ended == ["cancelled"]
    assert stored is not None
    assert (stored.status, stored.attempts) == (QueueJobStatus.WAITING, 0)


async def generator(data: int, job: Any) -> AsyncIterator[int]:
    yield data


def plain_generator(data: int, job: Any) -> Iterator[int]:
    yield data


@pytest.mark.parametrize("function", [generator, plain_generator])
@pytest.mark.parametrize("around", [lambda function: function, functools.partial], ids=["itself", "partial"])
def test_a_generator_is_no_handler(function: Handler, around: Callable[[Handler], Handler]) -> None:
    with pytest.raises(QueueConfigurationError, match="yield"):
        QueueWorker("letters", around(function))


@pytest.mark.parametrize("function", [generator, plain_generator])
async def test_a_generator_that_shows_late_fails_its_job(function: Handler) -> None:
    memory = Memory()
    handler: Handler = lambda data, job: function(data, job)  # noqa: E731 - one that hides what it returns
    async with Queue[int]("letters", provider=memory) as queue, QueueWorker("letters", handler, provider=memory):
        job = await queue.add("letter", 7)
        await until(lambda: memory._contents["letters"].jobs[job.id].job.status is QueueJobStatus.FAILED)
        stored = await queue.get_job(job.id)

    assert stored is not None
    assert "yield" in (stored.error or "")

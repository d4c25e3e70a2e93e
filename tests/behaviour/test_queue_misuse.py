"""Calls with what they cannot take, errors with what nobody expects: refused or told in words, and nothing hangs."""

import asyncio
import secrets
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from onward.errors import QueueConfigurationError, QueueError, QueueWaitTimeout
from onward.queue import Memory, Queue, QueueWorker
from onward.queue.contract import is_permanent, root_of
from onward.queue.providers.database import Database
from onward.queue.providers.rabbitmq import RabbitMQ


def test_an_error_that_goes_back_to_itself_has_a_root() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first

    assert root_of(first) in (first, second)


@dataclass
class Comparable(Exception):
    """As nats-py's are: equal to others, and therefore without a hash."""

    code: int


def test_an_error_without_a_hash_has_a_root() -> None:
    error = Comparable(503)
    error.__cause__ = ConnectionError("gone")

    assert root_of(error) is error.__cause__


class Odd(Exception):
    @property
    def retryable(self) -> bool:
        raise KeyError("x")


def test_an_error_that_cannot_say_whether_it_is_permanent_is_not() -> None:
    assert not is_permanent(Odd())


async def test_a_handler_whose_error_cannot_say_whether_it_is_permanent_fails_alone() -> None:
    async def handler(data: int, job: object) -> int:
        if data == 0:
            raise Odd
        return data

    provider = Memory()
    async with (
        Queue[int]("odd", provider=provider) as queue,
        QueueWorker("odd", handler, provider=provider, concurrency=1),
    ):
        odd, other = await queue.add("a", 0), await queue.add("a", 1)

        assert await queue.wait(other.id, timeout=timedelta(seconds=20)) == 1
        assert [job.id for job in await queue.dead_letters()] == [odd.id]


@pytest.mark.parametrize("timeout", [5, 0.5, "x", timedelta(seconds=-1)])
async def test_waiting_for_so_long_must_be_possible(timeout: Any) -> None:
    async with Queue[int]("waits", provider=Memory()) as queue:
        job = await queue.add("a", 1)

        with pytest.raises(QueueConfigurationError, match="timeout must be a timedelta"):
            await queue.wait(job.id, timeout=timeout)


@pytest.mark.parametrize("several", [None, 5])
async def test_several_are_several(several: Any) -> None:
    async with Queue[int]("several", provider=Memory()) as queue:
        with pytest.raises(QueueError, match="the data of several jobs"):
            await queue.add_many("a", several)
        for states in (several, "failed"):
            with pytest.raises(QueueError, match="purge takes several states"):
                await queue.purge(states)


def test_half_a_character_is_no_name_and_can_still_be_told() -> None:
    with pytest.raises(QueueConfigurationError, match="name must be a non-empty string of whole") as caught:
        Queue("\ud800", provider=Memory())

    assert str(caught.value).encode()


def test_what_does_not_say_how_it_is_called_is_no_handler() -> None:
    with pytest.raises(QueueConfigurationError, match="handler must be a function of two parameters"):
        QueueWorker("emails", int, provider=Memory())


@pytest.mark.parametrize("fraction", ["x", None, 2, float("nan")])
async def test_progress_is_a_fraction(fraction: Any) -> None:
    said: list[BaseException] = []

    async def handler(data: int, job: Any) -> None:
        try:
            job.report_progress(fraction)
        except ValueError as error:
            said.append(error)

    provider = Memory()
    async with Queue[int]("far", provider=provider) as queue, QueueWorker("far", handler, provider=provider):
        async with asyncio.timeout(20):
            await queue.wait((await queue.add("a", 1)).id)

    assert "from 0 to 1" in str(said[0])


@pytest.mark.parametrize("kind", ["memory", "rabbitmq"])
async def test_a_handler_that_cancels_its_task_and_returns_at_once_has_returned(
    kind: str, request: pytest.FixtureRequest
) -> None:
    seen: dict[str, list[Any]] = {"completed": [], "failed": []}

    async def handler(data: int, job: object) -> int:
        task = asyncio.current_task()
        if data == 0 and task is not None:
            task.cancel()
        return data

    provider = Memory() if kind == "memory" else RabbitMQ(request.getfixturevalue("rabbitmq_url"))
    name = f"test-hasty-{secrets.token_hex(4)}"
    async with (
        Queue[int](name, provider=provider) as queue,
        QueueWorker(name, handler, provider=provider, concurrency=1) as worker,
    ):
        for event, told in seen.items():
            worker.on(event, told.append)
        await queue.add_many("a", range(3))
        async with asyncio.timeout(20):
            while sum(map(len, seen.values())) < 3:
                await asyncio.sleep(0.01)
        await worker.close()
        await queue.delete()

    assert {event: len(told) for event, told in seen.items()} == {"completed": 3, "failed": 0}


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_waiting_for_no_time_looks_once(kind: str, tmp_path: Path) -> None:
    async def handler(data: int, job: object) -> int:
        return data

    async with AsyncExitStack() as stack:
        provider: Any = Memory()
        if kind == "sqlite":
            app = await stack.enter_async_context(Onward(f"sqlite:///{tmp_path / 'jobs.db'}", jobs=[]))
            provider = Database(app)
        queue = await stack.enter_async_context(Queue[int]("once", provider=provider))
        done, later = await queue.add("a", 1), await queue.add("a", 2, delay=timedelta(hours=1))
        await stack.enter_async_context(QueueWorker("once", handler, provider=provider))
        await queue.wait(done.id, timeout=timedelta(seconds=20))

        assert await queue.wait(done.id, timeout=timedelta()) == 1
        with pytest.raises(QueueWaitTimeout):
            await queue.wait(later.id, timeout=timedelta())


@pytest.mark.parametrize("name", [5, "", "\ud800"])
def test_the_name_of_a_worker_is_a_name(name: Any) -> None:
    async def handler(data: int, job: object) -> None: ...

    with pytest.raises(QueueConfigurationError, match="name must be a non-empty string"):
        QueueWorker("emails", handler, provider=Memory(), name=name)


async def test_closing_is_told_by_flags() -> None:
    async def handler(data: int, job: object) -> None: ...

    worker = QueueWorker("emails", handler, provider=Memory())
    odd: dict[str, Any]
    for odd in ({"finish_active_jobs": 5}, {"disconnect_provider": "x"}):
        with pytest.raises(QueueConfigurationError, match="must be True or False"):
            await worker.close(**odd)

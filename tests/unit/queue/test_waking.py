"""Waiting for jobs at Redis: who gets what comes, and what comes for nobody."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import Raw

from onward.conformance.queue.session import until
from onward.queue.contract import TakenJob
from onward.queue.model import ActiveJob
from onward.queue.providers.redis.waking import Taken, Waking

LONG = 20.0


def job(name: str) -> TakenJob:
    return ActiveJob(id=name, name=name, queue_name="q", data=Raw(b"1"), created_at=datetime.now(UTC))


class Server:
    """Answers a call when it is let."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.given_back: list[str] = []
        self.answers: list[asyncio.Future[Taken]] = []

    async def take(self, count: int, seconds: float) -> Taken:
        self.asked.append(count)
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]

    async def give_back(self, jobs: Sequence[TakenJob]) -> None:
        await asyncio.sleep(0)
        self.given_back += [one.name for one in jobs]


@pytest.fixture
def server() -> Server:
    return Server()


def left(server: Server) -> Waking:
    return Waking(server.take, server.give_back, longest=LONG)


async def begun(waking: Waking, server: Server, count: int, tasks: asyncio.TaskGroup) -> Any:
    calls = len(server.answers)
    waiting = tasks.create_task(waking.take(count, LONG))
    await until(lambda: len(server.answers) > calls)
    return waiting


async def test_whoever_waits_gets_what_comes(server: Server) -> None:
    waking = left(server)
    async with asyncio.TaskGroup() as tasks:
        waiting = await begun(waking, server, 2, tasks)
        server.answers[0].set_result(([job("one")], -1))

    assert [one.name for one in waiting.result()[0]] == ["one"]
    assert waking.waits == []


async def test_what_comes_for_nobody_goes_back_and_is_waited_for_by_nobody(server: Server) -> None:
    waking = left(server)
    async with asyncio.TaskGroup() as tasks:
        waiting = await begun(waking, server, 1, tasks)
        waking.interrupt()
        assert await waiting is None
        server.answers[0].set_result(([job("one")], -1))
        await until(lambda: waking.waits == [])
        again = await begun(waking, server, 1, tasks)
        server.answers[1].set_result(([job("two")], -1))

    assert server.given_back == ["one"]
    assert [one.name for one in again.result()[0]] == ["two"]


async def test_the_next_has_the_call_that_was_left_if_it_does_not_bring_too_much(server: Server) -> None:
    waking = left(server)
    async with asyncio.TaskGroup() as tasks:
        waiting = await begun(waking, server, 3, tasks)
        waking.interrupt()
        assert await waiting is None
        fewer = await begun(waking, server, 1, tasks)
        as_many = tasks.create_task(waking.take(3, LONG))
        await asyncio.sleep(0)
        server.answers[0].set_result(([job("one"), job("two")], -1))
        server.answers[1].set_result(([job("three")], -1))

    assert server.asked == [3, 1]
    assert [one.name for one in as_many.result()[0]] == ["one", "two"]  # type: ignore[index]
    assert [one.name for one in fewer.result()[0]] == ["three"]


async def test_a_call_that_was_left_is_waited_for_no_longer_than_the_next_wants(server: Server) -> None:
    waking = left(server)
    async with asyncio.TaskGroup() as tasks:
        waiting = await begun(waking, server, 1, tasks)
        waking.interrupt()
        assert await waiting is None

        assert await waking.take(1, 0.01) is None

        await waking.close()
    assert server.answers[0].cancelled()


async def test_a_failure_is_told_to_who_waits_and_to_nobody_else(server: Server) -> None:
    waking = left(server)
    async with asyncio.TaskGroup() as tasks:
        waiting = await begun(waking, server, 1, tasks)
        waking.interrupt()
        assert await waiting is None
        server.answers[0].set_exception(ConnectionError("cut"))
        await until(lambda: waking.waits == [])

    waiting = asyncio.get_running_loop().create_task(waking.take(1, LONG))
    await until(lambda: len(server.answers) == 2)
    server.answers[1].set_exception(ConnectionError("cut again"))
    with pytest.raises(ConnectionError, match="cut again"):
        await waiting

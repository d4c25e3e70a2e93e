"""Many wait at a time: one look serves them all, and none disturbs another."""

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from onward import Attempt, JobType, Onward, WaitTimeout, job
from onward.client.waiting import Deadline
from onward.errors import ChainNotFound, ConfigurationError
from onward.model import new_id
from proxy import proxied
from support import SOON, Run, intercept

never = JobType("never", input=int, output=int)
MANY = 100


@job("double")
async def double(attempt: Attempt[int]) -> int:
    return attempt.input * 2


def count_looks(app: Onward, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every look, by how many chains were asked for."""
    looks: list[int] = []

    async def counted(run: Run, ids: Any) -> Any:
        looks.append(len(ids))
        return await run()

    intercept(monkeypatch, app.state, "ended_chains", counted)
    return looks


async def until(condition: Any) -> None:
    async with asyncio.timeout(SOON.total_seconds()):
        while not condition():
            await asyncio.sleep(0.01)


async def test_one_look_serves_all_who_wait(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app: Onward = await running(double, never)
    idle = await app.start_many([never.with_input(n) for n in range(MANY)])
    looks = count_looks(app, monkeypatch)
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(chain.wait()) for chain in idle]
        await until(lambda: sum(looks) >= MANY)

        began = time.monotonic()
        for n in range(20):
            assert await (await app.start(double, n)).wait(timeout=SOON) == 2 * n
        took = time.monotonic() - began

        assert max(looks) > MANY // 2  # together; some may have come a little later
        assert len(looks) < MANY + 400 * took  # not each of them for every commit
        for task in waiting:
            task.cancel()


async def test_several_wait_for_one_chain_and_one_of_them_gives_up(running: Any, opened: Any) -> None:
    app: Onward = await opened(never)
    chain = await app.start(never, 1)
    async with asyncio.TaskGroup() as tasks:
        first, second = (tasks.create_task(chain.wait(timeout=SOON)) for _ in range(2))
        with pytest.raises(WaitTimeout):
            await chain.wait(timeout=timedelta(milliseconds=50))
        first.cancel()
        async with app.complete(chain) as todo:
            await todo.done(7)

        assert await second == 7


async def test_what_has_ended_is_seen_without_any_time_to_wait(opened: Any) -> None:
    app: Onward = await opened(never)
    chain, other = await app.start(never, 1), await app.start(never, 2)
    async with app.complete(chain) as todo:
        await todo.done(7)

    assert await chain.wait(timeout=timedelta(0)) == 7
    with pytest.raises(WaitTimeout):
        await other.wait(timeout=timedelta(0))
    with pytest.raises(ChainNotFound):
        await app.chain(never, new_id()).wait(timeout=timedelta(0))


async def test_who_waits_is_told_that_the_app_is_closed(make_app: Any) -> None:
    async with make_app(never) as app, asyncio.TaskGroup() as tasks:
        chain = await app.start(never, 1)
        waiting = tasks.create_task(_error_of(chain.wait()))
        await asyncio.sleep(0.05)
        await app.close()

        assert isinstance(await waiting, ConfigurationError)
        assert isinstance(await _error_of(chain.wait()), ConfigurationError)


async def _error_of(waiting: Any) -> Exception | None:
    try:
        await waiting
    except Exception as error:  # noqa: BLE001 - what is asked for
        return error
    return None


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_a_server_that_does_not_answer_does_not_keep_those_who_wait(make_app: Any, target: str) -> None:
    async with proxied(target) as (proxy, dsn), make_app(never, target=dsn) as app:
        chain = await app.start(never, 1)
        with pytest.raises(WaitTimeout):
            await chain.wait(timeout=timedelta(milliseconds=100))

        proxy.silence()
        began = time.monotonic()
        with pytest.raises(WaitTimeout):
            await chain.wait(timeout=timedelta(milliseconds=500))

        took = time.monotonic() - began
        proxy.cut()  # what was silent has ended, so that the app can be closed
    assert took < 4


async def test_who_begins_to_wait_while_the_app_is_closed_is_told(opened: Any) -> None:
    app: Onward = await opened(never)
    chain = await app.start(never, 1)
    async with asyncio.timeout(SOON.total_seconds()), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(_error_of(app._awaiting.wait(chain.id, None)))
        await asyncio.sleep(0)  # it has joined those who wait, and nobody looks yet

        await app._awaiting.close()

        assert isinstance(await waiting, ConfigurationError)


async def test_waiting_with_an_app_that_was_closed_is_refused_in_words(make_app: Any) -> None:
    app: Onward = make_app(never)
    async with app:
        chain = await app.start(never, 1)

    with pytest.raises(ConfigurationError, match="app was closed"):
        await chain.wait(timeout=SOON)


def test_as_long_as_can_be_said_is_long_enough() -> None:
    assert Deadline(new_id(), timedelta.max, None).remaining == timedelta.max

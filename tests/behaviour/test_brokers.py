"""Hints over Redis and NATS: what another app starts begins at once, and without the broker by polling."""

import asyncio
import secrets
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import servers
from onward import Attempt, Onward, job
from onward.notify.contract import NotifyAdapter
from onward.notify.nats import NatsNotify
from onward.notify.redis import RedisNotify
from onward.observe import events
from support import SOON, Recorder


@job("double")
async def double(attempt: Attempt[int]) -> int:
    return attempt.input * 2


@pytest.fixture
def target(postgres_dsn: str) -> str:
    return postgres_dsn


@pytest.fixture(params=["redis", "nats"])
def broker(request: pytest.FixtureRequest) -> Callable[[], NotifyAdapter]:
    """Makes adapters on one channel."""
    url, name = request.getfixturevalue(f"{request.param}_url"), f"test_{secrets.token_hex(6)}"
    return lambda: RedisNotify(url, channel=name) if request.param == "redis" else NatsNotify(url, subject=name)


async def test_an_idle_worker_of_another_app_is_woken(
    broker: Callable[[], NotifyAdapter], running: Any, opened: Any
) -> None:
    await running(double, worker={"poll": timedelta(hours=1)}, notify=broker())
    client: Onward = await opened(double, notify=broker())

    for n in range(20):
        chain = await client.start(double, n)
        assert await chain.wait(timeout=SOON) == 2 * n


async def test_a_scheduled_start_is_noticed(broker: Callable[[], NotifyAdapter], running: Any, opened: Any) -> None:
    await running(double, worker={"poll": timedelta(hours=1)}, notify=broker())
    client: Onward = await opened(double, notify=broker())
    await (await client.start(double, 1)).wait(timeout=SOON)

    chain = await client.start(double, 3, delay=timedelta(milliseconds=200))

    assert await chain.wait(timeout=SOON) == 6


async def test_the_sync_client_wakes_a_worker_of_another_app(
    broker: Callable[[], NotifyAdapter], running: Any, make_app: Any
) -> None:
    await running(double, worker={"poll": timedelta(hours=1)}, notify=broker())

    def start() -> list[Any]:
        with make_app(double, notify=broker()).sync as client:
            return [client.start(double, n).wait(timeout=SOON) for n in range(5)]

    assert await asyncio.to_thread(start) == [0, 2, 4, 6, 8]


async def test_the_sync_client_and_the_open_app_share_an_adapter(
    broker: Callable[[], NotifyAdapter], running: Any, make_app: Any
) -> None:
    await running(double, worker={"poll": timedelta(hours=1)}, notify=broker())
    app: Onward = make_app(double, notify=broker())

    with app.sync as client:
        before = await asyncio.to_thread(lambda: client.start(double, 1).wait(timeout=SOON))
        async with app:
            meanwhile = await asyncio.to_thread(lambda: client.start(double, 2).wait(timeout=SOON))
        after = await asyncio.to_thread(lambda: client.start(double, 3).wait(timeout=SOON))

    assert (before, meanwhile, after) == (2, 4, 6)


@pytest.mark.parametrize("make", [RedisNotify, NatsNotify])
async def test_without_the_broker_jobs_run_by_polling(make: Any, running: Any, opened: Any, recorder: Recorder) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"{'redis' if make is RedisNotify else 'nats'}://127.0.0.1:{closed.getsockname()[1]}"
        # Hints are down, and then a worker looks every second, whatever it was told.
        await running(double, worker={"poll": timedelta(hours=1)}, notify=make(url))
        client: Onward = await opened(double, notify=make(url))

        chain = await client.start(double, 4)

        assert await chain.wait(timeout=SOON) == 8
        for n in range(20):
            await client.start(double, n)
        await recorder.next(events.ChainCompleted, count=21)
        # Each app says at most that it cannot send and that it cannot listen, and does not go on about it.
        assert 1 <= len(recorder.of(events.NotifyError)) <= 4


async def test_loss_and_return_of_the_broker_are_told(running: Any, recorder: Recorder) -> None:
    with servers.private_redis() as broker:
        app: Onward = await running(double, worker={"poll": timedelta(hours=1)}, notify=RedisNotify(broker.dsn))
        await asyncio.to_thread(broker.stop)
        await recorder.next(events.NotifyError)
        assert await (await app.start(double, 1)).wait(timeout=SOON) == 2

        await asyncio.to_thread(broker.start)
        await recorder.next(events.NotifyRecovered)

        assert await (await app.start(double, 2)).wait(timeout=SOON) == 4


async def test_a_full_worker_elsewhere_does_not_swallow_the_hint(
    broker: Callable[[], NotifyAdapter], running: Any, opened: Any, recorder: Recorder
) -> None:
    full, go_on = asyncio.Event(), asyncio.Event()

    @job("hold")
    async def hold(attempt: Attempt[int]) -> int:
        full.set()
        await go_on.wait()
        return attempt.input

    one_slot = {"poll": timedelta(hours=1), "concurrency": 1}
    await running(hold, double, worker=one_slot, notify=broker())
    client: Onward = await opened(hold, double, notify=broker())
    await client.start(hold, 1)
    await full.wait()
    await running(hold, double, worker=one_slot, notify=broker())

    for n in range(10):  # not waited for as chains: that would wake every worker
        await client.start(double, n)
        await recorder.next(events.JobCompleted, count=n + 1)
    go_on.set()

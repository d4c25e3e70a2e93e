"""Waiting keeps to its deadline, whatever the database does meanwhile, and leaves its connections sound."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from onward import Attempt, JobStatus, Onward, WaitTimeout, job
from proxy import Proxy, proxied
from support import SOON


@job("work")
async def work(attempt: Attempt[int]) -> int:
    return attempt.input


@pytest.fixture
def target(postgres_dsn: str) -> str:
    return postgres_dsn


@pytest.fixture(params=["asyncpg", "psycopg"])
async def behind_proxy(request: pytest.FixtureRequest, postgres_dsn: str) -> AsyncIterator[tuple[Proxy, str]]:
    async with proxied(postgres_dsn) as (proxy, dsn):
        yield proxy, dsn.replace("postgresql://", f"postgresql+{request.param}://")


async def test_waiting_ends_in_time_though_the_server_never_answers(
    make_app: Any, behind_proxy: tuple[Proxy, str]
) -> None:
    proxy, dsn = behind_proxy
    app: Onward = make_app(work, target=dsn)

    async with app:
        chain = await app.start(work, 1)
        proxy.silence(for_good=True)

        async with asyncio.timeout(SOON.total_seconds()):
            with pytest.raises(WaitTimeout, match="the database did not answer"):
                await chain.wait(timeout=timedelta(seconds=0.3))
        proxy.cut()  # else closing the app would wait as well


async def test_looks_that_are_cut_short_leave_connections_that_work(
    make_app: Any, behind_proxy: tuple[Proxy, str]
) -> None:
    app: Onward = make_app(work, target=behind_proxy[1], pool_size=2)

    async with app:
        chain = await app.start(work, 1)
        for milliseconds in range(20):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(milliseconds / 1000):
                    await chain.wait()

        async with asyncio.timeout(SOON.total_seconds()):
            found = [await chain.get() for _ in range(4)]
        assert {one.status for one in found} == {JobStatus.PENDING}

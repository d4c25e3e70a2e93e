"""Hints: other apps and processes notice at once what would otherwise wait for the poll."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from onward import Attempt, Onward, job
from onward.observe import events
from support import SOON, Recorder

NEVER = {"poll": timedelta(hours=1)}
"""With this, only a hint, or the change counter, can wake an idle worker in time."""


@job("double")
async def double(attempt: Attempt[int]) -> int:
    return attempt.input * 2


async def test_an_idle_worker_of_another_app_is_woken(running: Any, opened: Any, recorder: Recorder) -> None:
    await running(double, worker=NEVER)
    client: Onward = await opened(double)
    await (await client.start(double, 1)).wait(timeout=SOON)

    for n in range(5):
        chain = await client.start(double, n)
        assert await chain.wait(timeout=SOON) == 2 * n


async def test_a_start_on_a_bare_connection_is_noticed_after_its_commit(running: Any, opened: Any, target: str) -> None:
    await running(double, worker=NEVER)
    client: Onward = await opened(double)

    async with bare_transaction(target) as connection:
        chain = await client.start(double, 4, tx=connection)

    assert await chain.wait(timeout=SOON) == 8


@asynccontextmanager
async def bare_transaction(target: str) -> AsyncIterator[Any]:
    """A transaction that the application began on a connection of its own."""
    if target.startswith("postgres"):
        connection = await asyncpg.connect(target)
        async with connection.transaction():
            yield connection
        await connection.close()
    else:
        with closing(sqlite3.connect(target.removeprefix("sqlite:///"), isolation_level=None)) as raw:
            raw.execute("BEGIN IMMEDIATE")
            yield raw
            raw.execute("COMMIT")


async def test_a_scheduled_start_is_noticed_though_the_worker_slept_before(running: Any, opened: Any) -> None:
    await running(double, worker=NEVER)
    client: Onward = await opened(double)
    await asyncio.sleep(0.05)

    chain = await client.start(double, 3, delay=timedelta(milliseconds=200))

    assert await chain.wait(timeout=SOON) == 6


async def test_without_hints_everything_still_works_later(opened: Any) -> None:
    from onward.notify.memory import NoNotify

    worker_app: Onward = await opened(double, notify=NoNotify())
    client: Onward = await opened(double, notify=NoNotify())
    async with worker_app.worker(poll=timedelta(milliseconds=100)):
        chain = await client.start(double, 1)

        assert await chain.wait(timeout=SOON) == 2


async def test_rolled_back_starts_wake_nobody(running: Any, opened: Any, recorder: Recorder) -> None:
    await running(double, worker=NEVER)
    client: Onward = await opened(double)

    for n in range(20):
        with pytest.raises(ZeroDivisionError):
            async with client.transaction() as tx:
                await client.start(double, n, tx=tx)
                raise ZeroDivisionError

    assert not recorder.of(events.AttemptStarted)
    assert not recorder.of(events.ChainStarted)

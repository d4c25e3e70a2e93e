"""Adding many, and adding at once what cannot be added: it is told what happened, and each fails alone."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from onward.queue import Memory, ProviderFactory, Queue, QueueDataError, QueueError, QueuePartlyAdded
from onward.queue.providers.bullmq import BullMQ
from onward.queue.providers.database import Database
from onward.queue.providers.nats import Nats
from onward.queue.providers.redis import Redis

HUGE = 10**30
BAD: list[dict[str, Any]] = [
    {"priority": HUGE},
    {"attempts": HUGE},
    {"max_stalls": HUGE},
    {"delay": timedelta.max},
    {"ttl": timedelta.max},
    {"id": "\ud800"},
    {"name": "\ud800"},
    {"data": object()},
    {"data": "\ud800"},
]


@pytest.fixture(params=["memory", "redis", "bullmq", "sqlite", "nats"])
def factory(request: pytest.FixtureRequest, tmp_path: Path) -> ProviderFactory[Any]:
    if request.param == "memory":
        return Memory()
    if request.param == "sqlite":
        return Database(Onward(f"sqlite:///{tmp_path}/q.db", jobs=[], migrate=True))
    if request.param == "nats":
        return Nats(request.getfixturevalue("nats_url"))
    return {"redis": Redis, "bullmq": BullMQ}[request.param](request.getfixturevalue("redis_url"))


@pytest.fixture
async def queue(factory: ProviderFactory[Any]) -> AsyncIterator[Queue[Any]]:
    async with Queue(f"test-{secrets.token_hex(6)}", provider=factory) as queue:
        yield queue
        await queue.delete()


async def test_one_that_cannot_be_added_fails_alone(queue: Queue[Any]) -> None:
    answers: list[QueueError | None] = []

    async def add(name: str, data: Any, **options: Any) -> None:
        try:
            await queue.add(name, data, **options)
            answers.append(None)
        except QueueError as error:
            answers.append(error)

    async with asyncio.TaskGroup() as tasks:
        for n, bad in enumerate(BAD):
            # Not alike: those with a priority and those without go different ways.
            tasks.create_task(add("letter", n, priority=n % 2))
            tasks.create_task(add(**{"name": "letter", "data": 1, **bad}))
            tasks.create_task(add("letter", n))

    errors = [error for error in answers if error is not None]
    assert len(errors) == len(BAD)
    assert all(isinstance(error, QueueDataError) and not error.retryable for error in errors), errors
    assert (await queue.stats()).waiting == 2 * len(BAD)


async def test_of_several_it_is_told_which_were_added(queue: Queue[Any], factory: ProviderFactory[Any]) -> None:
    await queue.add("letter", 0, id="taken")
    ids = iter(["first", "taken", "last"])

    async with Queue(queue.name, provider=factory, job_id=lambda name, data: next(ids)) as several:
        with pytest.raises(QueueError) as caught:
            await several.add_many("letter", [1, 2, 3])

    added = list(caught.value.added) if isinstance(caught.value, QueuePartlyAdded) else []
    assert not caught.value.retryable
    assert "taken" not in added
    assert (await queue.stats()).waiting == 1 + len(added)

"""A queue shared with Node.js: the npm package `bullmq` on one side, Onward on the other."""

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from onward import Backoff, Permanent
from onward.conformance.queue.session import until
from onward.queue import ActiveJob, Queue, QueueJobStatus, QueueWorker
from onward.queue.providers.bullmq import BullMQ

PROGRAM = Path(__file__).parent.parent / "programs" / "bullmq_node.cjs"
DATA = {"to": "a@example.org", "n": [1, 2.5, None, True, [], {}], "text": "naïve – 数"}
Node = Callable[..., Awaitable[list[Any]]]


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue[Any]]:
    async with Queue(f"node-{secrets.token_hex(6)}", provider=BullMQ(redis_url)) as queue:
        yield queue
        await queue.delete()


@pytest.fixture
def node(node_modules: str, redis_url: str, queue: Queue[Any]) -> Node:
    """Runs the program beside with the queue; what it prints, line by line."""

    async def run(mode: str, *arguments: object) -> list[Any]:
        command = ["node", str(PROGRAM), mode, redis_url, queue.name, *map(str, arguments)]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, env={**os.environ, "NODE_PATH": node_modules}
        )
        try:
            async with asyncio.timeout(60):
                printed, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0
        return [json.loads(line) for line in printed.splitlines()]

    return run


async def test_jobs_added_here_are_run_by_node(queue: Queue[Any], node: Node) -> None:
    plain = await queue.add("welcome", DATA, metadata={"tenant": "7", "tags": [], "none": None})
    urgent = await queue.add("urgent", 2, priority=9)
    late = await queue.add("late", 3, delay=timedelta(milliseconds=500), priority=9)
    broken = await queue.add("broken", 4, attempts=2, backoff=Backoff(initial=timedelta(milliseconds=100), factor=1))

    seen = await node("work", 5)

    order = [job["name"] for job in seen]
    assert order[0] == "urgent"
    assert order.count("broken") == 2
    assert set(order) == {"urgent", "welcome", "late", "broken"}
    [welcome] = [job for job in seen if job["name"] == "welcome"]
    assert (welcome["id"], welcome["data"]) == (plain.id, DATA)
    stored = {job.id: await queue.get_job(job.id) for job in (plain, urgent, late, broken)}
    for job in (plain, urgent, late):
        kept = stored[job.id]
        assert kept is not None
        assert (kept.status, kept.attempts, kept.priority) == (QueueJobStatus.COMPLETED, 0, job.priority)
    assert stored[plain.id].metadata == {"tenant": "7", "tags": [], "none": None}  # type: ignore[union-attr]
    [letter] = await queue.dead_letters()
    assert (letter.id, letter.attempts, letter.max_attempts) == (broken.id, 2, 2)
    assert letter.error == "no such mailbox"

    await queue.retry(broken.id)
    [again, *_] = await node("work", 2)
    assert again["id"] == broken.id


async def test_jobs_added_by_node_are_run_here(queue: Queue[Any], node: Node) -> None:
    ran: list[ActiveJob[Any]] = []
    failed: list[Any] = []
    completed: list[Any] = []

    async def handler(data: Any, job: ActiveJob[Any]) -> Any:
        ran.append(job)
        if job.name == "hopeless":
            raise Permanent("never")
        if job.name == "flaky" and job.attempts == 0:
            raise ValueError("once")
        return {"seen": data}

    opts = {"attempts": 3, "backoff": {"type": "exponential", "delay": 50}}
    jobs: list[dict[str, Any]] = [
        {"name": "plain", "data": DATA},
        {"name": "prioritised", "data": 1, "opts": {"priority": 1}},
        {"name": "delayed", "data": 2, "opts": {"delay": 200, "jobId": "mine"}},
        {"name": "flaky", "data": 3, "opts": opts},
        {"name": "odd strategy", "data": 4, "opts": {"attempts": 2, "backoff": {"type": "of-node", "delay": 50}}},
        {"name": "hopeless", "data": 5, "opts": opts},
    ]
    async with QueueWorker(queue.name, handler, provider=queue.provider, concurrency=2) as worker:
        worker.on("failed", failed.append)
        worker.on("completed", completed.append)
        [ids] = await node("add", json.dumps(jobs))
        await until(lambda: len(completed) == 5 and len(failed) == 2)

    by_name = {job.name: job for job in ran}
    assert by_name["plain"].data == DATA
    assert (by_name["plain"].id, by_name["plain"].priority) == (ids[0], 0)
    assert by_name["prioritised"].priority > 2_000_000
    assert by_name["delayed"].id == "mine"
    assert (by_name["flaky"].attempts, by_name["flaky"].max_attempts) == (1, 3)
    assert {(event.name, event.will_retry) for event in failed} == {("flaky", True), ("hopeless", False)}
    [letter] = await queue.dead_letters()
    assert (letter.name, letter.attempts, letter.error) == ("hopeless", 1, "never")


async def test_a_failing_job_with_a_strategy_of_nodes_is_tried_again_after_its_delay(
    queue: Queue[Any], node: Node
) -> None:
    await node("add", json.dumps([{"name": "x", "opts": {"attempts": 2, "backoff": {"type": "of-node", "delay": 50}}}]))
    async with asyncio.timeout(30):
        [job] = await queue.provider.fetch(1, timedelta(seconds=10))

        assert await queue.provider.nack(job, ValueError("no")) == timedelta(milliseconds=50)
        [again] = await queue.provider.fetch(1, timedelta(seconds=10))

    assert again.attempts == 1


async def test_a_job_scheduler_of_nodes_goes_on_here(queue: Queue[Any], node: Node) -> None:
    ran: list[str] = []

    async def handler(data: Any, job: ActiveJob[Any]) -> None:
        ran.append(job.name)

    async with QueueWorker(queue.name, handler, provider=queue.provider):
        await node("repeat", 100)
        await until(lambda: len(ran) >= 3)

    assert set(ran) == {"tick"}


async def test_both_sides_count_the_workers_of_the_other(queue: Queue[Any], node: Node) -> None:
    async def handler(data: Any, job: ActiveJob[Any]) -> None: ...

    async with QueueWorker(queue.name, handler, provider=queue.provider):

        async def is_known() -> bool:
            return (await queue.health()).active_workers == 1

        await until(is_known)
        assert await node("workers") == [1]
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(node("work", 1))

            async def both_are_known() -> bool:
                return (await queue.health()).active_workers == 2

            await until(both_are_known)
            while not working.done():  # until Node.js has got one
                await queue.add("for whoever comes first", 1)
                await asyncio.sleep(0.05)

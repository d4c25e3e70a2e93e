"""Redis is killed, stopped or frozen in use: producers are told, workers go on by themselves, nothing is lost."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

import servers
from onward.conformance.queue.session import LONG, until
from onward.errors import QueueError, QueueErrorCode, QueueRuntimeError
from onward.queue import Keep, Queue, QueueWorker
from onward.queue.providers.redis import Redis

LEASE = timedelta(seconds=1)
OFTEN = 1_000


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Instance]:
    with servers.private_redis(appendonly="yes", appendfsync="always") as server:
        yield server


ALL = Keep(count=1_000_000, age=timedelta(days=1))


class Load:
    """Jobs that are added and completed all the time."""

    def __init__(self, queue: Queue[int]) -> None:
        self._queue = queue
        self.added: list[str] = []
        self.completed: set[str] = set()
        self.refused: list[QueueErrorCode] = []
        self.troubles: list[Any] = []

    async def produce(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            job_id = f"job-{len(self.added)}"
            while not await self._add(job_id):
                await asyncio.sleep(0.05)
            self.added.append(job_id)

    async def _add(self, job_id: str) -> bool:
        """As an application would that cannot do without: after an unknown outcome, add the same once more."""
        try:
            await self._queue.add("letter", 1, id=job_id, attempts=OFTEN)
        except QueueError as error:
            if error.code == QueueErrorCode.DUPLICATE:
                return True
            if not error.retryable:
                raise
            self.refused.append(error.code)
            return False
        return True

    async def goes_on(self) -> None:
        """What is added from now on is completed."""
        first = len(self.added)
        await until(lambda: len(self.added) > first + 5 and self.added[first + 5] in self.completed)


@asynccontextmanager
async def under_load(server: servers.Instance, name: str, **options: Any) -> AsyncIterator[Load]:
    """At the end everything that was added has been completed."""
    stop = asyncio.Event()

    async def handler(data: int, job: object) -> None: ...

    def make() -> Redis:
        return Redis(server.dsn, lease=LEASE, keep_completed=ALL, **options)

    async with Queue(name, provider=make(), data=int) as queue:
        load = Load(queue)
        worker = QueueWorker(
            name, handler, provider=make(), concurrency=10, batch_size=10, error_backoff=timedelta(seconds=0.1)
        )
        worker.on("completed", lambda event: load.completed.add(event.job_id))
        worker.on("queue.error", load.troubles.append)
        async with worker:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(load.produce(stop))
                await load.goes_on()
                yield load
                await load.goes_on()
                stop.set()
            await until(lambda: load.completed >= set(load.added) or _all_done(queue, load))
        stats = await queue.stats()
        assert (stats.completed, stats.waiting, stats.active, stats.failed) == (len(load.added), 0, 0, 0)
        await queue.delete()


async def _all_done(queue: Queue[int], load: Load) -> bool:
    """Some may have been completed although the answer was lost."""
    return (await queue.stats()).completed == len(load.added)


@pytest.mark.parametrize("mode", ["kill", "fast"])
async def test_a_server_that_goes_and_comes_back_under_load(
    server: servers.Instance, mode: str, scale: Callable[[int], int]
) -> None:
    async with under_load(server, mode) as load:
        for _ in range(scale(20)):
            before = len(load.troubles), len(load.refused)
            await asyncio.to_thread(server.stop, mode)
            await until(lambda before=before: len(load.troubles) > before[0] and len(load.refused) > before[1])
            await asyncio.to_thread(server.start)
            await load.goes_on()

    assert set(load.refused) == {QueueErrorCode.ENQUEUE}
    assert {type(trouble.error) for trouble in load.troubles} == {QueueRuntimeError}


async def test_a_server_that_does_not_answer_hangs_nobody(server: servers.Instance) -> None:
    async with under_load(server, "frozen", socket_timeout=0.5) as load:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(LONG):
                await until(lambda: bool(load.troubles) and bool(load.refused))
        finally:
            os.kill(server.pid, signal.SIGCONT)


async def test_a_worker_stops_while_the_server_is_away(server: servers.Instance) -> None:
    troubles: list[Any] = []

    async def handler(data: int, job: object) -> None: ...

    worker = QueueWorker("away", handler, provider=Redis(server.dsn))
    worker.on("queue.error", troubles.append)
    async with worker:
        await asyncio.to_thread(server.stop)
        try:
            await until(lambda: bool(troubles))
            async with asyncio.timeout(LONG):
                await worker.close()
        finally:
            await asyncio.to_thread(server.start)


async def test_a_server_that_stalls_during_a_fetch_fails_no_job(server: servers.Instance) -> None:
    """With the default options: one attempt. The fetch is carried out, and its answer comes too late."""
    runs: list[Any] = []

    async def handler(data: int, job: Any) -> None:
        runs.append((job.attempts, job.stalls))

    provider = Redis(server.dsn, lease=LEASE, socket_timeout=0.3)
    async with Queue[int]("stall", provider=provider) as queue:
        held = provider.for_queue("stall")
        await held.connect()
        assert list(await held.fetch(1)) == []  # the server knows the script
        await queue.add("one", 1)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            worker = QueueWorker("stall", handler, provider=held, error_backoff=timedelta(milliseconds=50))
            troubles: list[Any] = []
            worker.on("queue.error", troubles.append)
            await worker.start()
            await until(lambda: len(troubles) >= 1)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await until(lambda: len(runs) == 1)
        await worker.close()
        stats = await queue.stats()
        await held.disconnect()
        await queue.delete()

    assert runs == [(0, 0)]
    assert (stats.completed, stats.failed, stats.active) == (1, 0, 0)


@pytest.mark.parametrize("ends_well", [True, False])
async def test_a_server_that_stalls_during_an_outcome_gets_it_afterwards(
    server: servers.Instance, ends_well: bool
) -> None:
    told: list[Any] = []
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def handler(data: int, job: Any) -> str:
        begun.set()
        await may_end.wait()
        if not ends_well:
            raise ValueError("no such mailbox")
        return "sent"

    provider = Redis(server.dsn, lease=timedelta(seconds=20), socket_timeout=0.3)
    async with Queue[int]("blip", provider=provider) as queue:
        await queue.add("one", 1)
        async with QueueWorker("blip", handler, provider=provider) as worker:
            troubles: list[Any] = []
            worker.on("completed", told.append)
            worker.on("failed", told.append)
            worker.on("queue.error", troubles.append)
            await begun.wait()
            os.kill(server.pid, signal.SIGSTOP)
            try:
                may_end.set()
                await until(lambda: any("ack() failed" in trouble.message for trouble in troubles))
            finally:
                os.kill(server.pid, signal.SIGCONT)
            await until(lambda: len(told) == 1)
        stats = await queue.stats()
        await queue.delete()

    assert [event.event for event in told] == ["completed" if ends_well else "failed"]
    assert (stats.completed, stats.failed) == ((1, 0) if ends_well else (0, 1))


@pytest.mark.chaos
async def test_a_node_of_a_cluster_that_is_killed_takes_nothing_with_it() -> None:
    """Its replica takes over. Redis copies a moment later: what is asserted of is what the replica has."""
    done: set[int] = set()
    troubles: list[Any] = []

    async def handler(data: int, job: object) -> None:
        done.add(data)
        await asyncio.sleep(0.01)

    with servers.private_redis_cluster(replicas=True) as nodes:
        provider = Redis(nodes[0].dsn, cluster=True, lease=LEASE)
        async with Queue[int]("load", provider=provider) as queue:
            await queue.add_many("n", range(200))
            holder = await asyncio.to_thread(servers.copied_to_replica, nodes, "onward:{load}:jobs")
            worker = QueueWorker(
                "load", handler, provider=provider, concurrency=3, error_backoff=timedelta(seconds=0.1)
            )
            worker.on("queue.error", troubles.append)
            async with worker:
                await until(lambda: len(done) >= 10)
                await asyncio.to_thread(holder.stop, "kill")
                await until(lambda: done == set(range(200)))
                await queue.add("n", 200)
                # Those whose outcome was not copied are run again.
                await until(lambda: nothing_is_left(queue))
            assert (await queue.stats()).failed == 0

    assert 200 in done
    assert troubles


async def nothing_is_left(queue: Queue[int]) -> bool:
    stats = await queue.stats()
    return (stats.waiting, stats.active) == (0, 0)

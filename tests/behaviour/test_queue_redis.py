"""Queues in Redis, where they promise more than every provider does."""

import asyncio
import re
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as native

import servers
from onward.conformance.queue.session import LONG, names, until
from onward.errors import (
    Permanent,
    QueueConfigurationError,
    QueueDataError,
    QueueErrorCode,
    QueuePartlyAdded,
    QueueRuntimeError,
)
from onward.queue import Keep, Queue, QueueJobStatus, QueueWorker
from onward.queue.providers.redis import Redis, RedisProvider, connection

PAGE = Path(__file__).parents[2] / "docs/how-to/queues-redis.md"
SECOND = timedelta(seconds=1)
FOREVER = timedelta(seconds=20)
"""Longer than any test waits."""


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[native.Redis]:
    async with native.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue[Any]]:
    async with Queue(f"test-{secrets.token_hex(6)}", provider=Redis(redis_url)) as queue:
        yield queue
        await queue.delete()


@pytest.fixture
async def open_provider(redis_url: str, queue: Queue[Any]) -> AsyncIterator[Callable[..., Awaitable[RedisProvider]]]:
    """One more provider on the queue, as another process would have it."""
    opened: list[RedisProvider] = []

    async def open(**options: Any) -> RedisProvider:
        opened.append(Redis(redis_url, **options).for_queue(queue.name))
        await opened[-1].connect()
        return opened[-1]

    yield open
    for provider in opened:
        await provider.disconnect()


def key(queue: Queue[Any], part: str) -> str:
    return f"onward:{{{queue.name}}}:{part}"


async def added(queue: Queue[Any], *job_names: str, **options: Any) -> list[str]:
    return [(await queue.add(name, name, **options)).id for name in job_names]


# -- leases


async def test_a_job_of_a_dead_worker_comes_back_and_a_stall_is_counted(queue: Queue[Any], open_provider: Any) -> None:
    [job_id] = await added(queue, "one")
    dead, alive = await open_provider(lease=SECOND), await open_provider(lease=SECOND)
    [lost] = await dead.fetch(1)

    [job] = await alive.fetch(1, FOREVER)

    assert (job.id, job.attempts, job.stalls) == (job_id, 0, 1)
    for late in (dead.ack(lost), dead.nack(lost, ValueError())):
        with pytest.raises(QueueRuntimeError, match="not active") as caught:
            await late
        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.PROCESSING, False)
    assert await dead.renew([lost]) == [lost]
    await alive.ack(job)
    assert (await queue.stats()).completed == 1


async def test_a_job_whose_workers_all_died_has_failed(queue: Queue[Any], open_provider: Any) -> None:
    [job_id] = await added(queue, "one", max_stalls=0)
    [gone] = await added(queue, "gone", max_stalls=0, remove_on_fail=True)
    provider = await open_provider(lease=SECOND)
    told: list[Any] = []
    provider.on_ended = told.append
    assert len(await provider.fetch(2)) == 2

    assert list(await provider.fetch(1, 1.5 * SECOND)) == []

    [letter] = await queue.dead_letters()
    assert (letter.id, letter.attempts, letter.stalls, letter.status) == (job_id, 0, 1, QueueJobStatus.FAILED)
    assert "died" in (letter.error or "")
    assert [(job.id, job.reason) for job in told] == [(job_id, "stalled"), (gone, "stalled")]
    stats = await queue.stats()
    assert (stats.active, stats.failed) == (0, 1)


async def test_a_renewed_lease_does_not_run_out(queue: Queue[Any], open_provider: Any) -> None:
    await added(queue, "one")
    holder, other = await open_provider(lease=SECOND), await open_provider(lease=SECOND)
    [job] = await holder.fetch(1)

    for _ in range(8):
        assert await holder.renew([job]) == []
        assert list(await other.fetch(1, timedelta(milliseconds=200))) == []

    await holder.ack(job)


async def test_a_worker_renews_what_takes_longer_than_the_lease(queue: Queue[Any], redis_url: str) -> None:
    runs: list[int] = []
    done = asyncio.Event()

    async def slow(data: str, job: Any) -> None:
        runs.append(job.attempts)
        await asyncio.sleep(2.5)
        done.set()

    async with QueueWorker(queue.name, slow, provider=Redis(redis_url, lease=SECOND), concurrency=2):
        await added(queue, "one", attempts=3)
        async with asyncio.timeout(LONG):
            await done.wait()

    assert runs == [0]
    assert (await queue.stats()).completed == 1


# -- order


async def test_urgent_jobs_come_first_and_equal_ones_in_order(queue: Queue[Any], open_provider: Any) -> None:
    for n, priority in enumerate([0, 5, 1, 5, 0, 2**31 - 1, 1]):
        await queue.add(f"{priority}-{n}", None, priority=priority)
    provider = await open_provider()

    taken = names(await provider.fetch(3)) + names(await provider.fetch(10))

    assert taken == ["2147483647-5", "5-1", "5-3", "1-2", "1-6", "0-0", "0-4"]


async def test_what_is_given_back_is_first_again_and_in_its_order(queue: Queue[Any], open_provider: Any) -> None:
    await added(queue, "a", "b", "c")
    await added(queue, "u", "v", "w", priority=2)
    provider = await open_provider()

    for count in (2, 4, 5):
        await provider.release(await provider.fetch(count))

    jobs = await provider.fetch(6)
    assert names(jobs) == ["u", "v", "w", "a", "b", "c"]
    assert {job.attempts for job in jobs} == {0}


async def test_a_job_that_failed_goes_to_the_end(queue: Queue[Any], open_provider: Any) -> None:
    await added(queue, "a", "b", attempts=2)
    provider = await open_provider()
    [job] = await provider.fetch(1)

    assert await provider.nack(job, ValueError("no \ud800")) == timedelta()

    jobs = await provider.fetch(2)
    assert [(job.name, job.attempts, job.error) for job in jobs] == [("b", 0, None), ("a", 1, "no \\ud800")]


# -- waiting: here nobody looks by himself within the time that the tests allow

BEFORE_ANYBODY_LOOKS = 4.0


@pytest.fixture
def unprompted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_ANSWER", 60.0)
    monkeypatch.setattr(connection, "_LONGEST_BLOCK", 30.0)


@pytest.mark.usefixtures("unprompted")
async def test_a_delayed_job_that_is_due_ends_the_wait(queue: Queue[Any], open_provider: Any) -> None:
    await added(queue, "much later", delay=timedelta(hours=1))
    provider = await open_provider()
    async with asyncio.timeout(BEFORE_ANYBODY_LOOKS), asyncio.TaskGroup() as tasks:
        fetching = tasks.create_task(provider.fetch(2, FOREVER))
        await until(lambda: bool(provider._waking.waits))
        await added(queue, "sooner", delay=timedelta(milliseconds=300))

    assert names(fetching.result()) == ["sooner"]


@pytest.mark.usefixtures("unprompted")
async def test_every_job_wakes_one_who_waits(queue: Queue[Any], open_provider: Any) -> None:
    providers = [await open_provider() for _ in range(5)]
    async with asyncio.timeout(BEFORE_ANYBODY_LOOKS), asyncio.TaskGroup() as tasks:
        fetching = [tasks.create_task(provider.fetch(1, FOREVER)) for provider in providers]
        await until(lambda: all(provider._waking.waits for provider in providers))
        await queue.add_many("letter", range(5))

    assert [len(task.result()) for task in fetching] == [1] * 5


@pytest.mark.usefixtures("unprompted")
@pytest.mark.parametrize("change", ["release", "nack", "retry", "resume"])
async def test_whatever_makes_a_job_available_wakes_one_who_waits(
    queue: Queue[Any], open_provider: Any, change: str
) -> None:
    await added(queue, "one", attempts=2)
    holder, waiter = await open_provider(), await open_provider()
    jobs = await holder.fetch(1)
    if change == "retry":
        await holder.nack(jobs[0], Permanent("no"))
    elif change == "resume":
        await queue.pause()
        await holder.release(jobs)
    async with asyncio.timeout(BEFORE_ANYBODY_LOOKS), asyncio.TaskGroup() as tasks:
        fetching = tasks.create_task(waiter.fetch(1, FOREVER))
        await until(lambda: bool(waiter._waking.waits))
        match change:
            case "release":
                await holder.release(jobs)
            case "nack":
                await holder.nack(jobs[0], ValueError("no"))
            case "retry":
                await queue.retry(jobs[0].id)
            case "resume":
                await queue.resume()

    assert names(fetching.result()) == ["one"]


async def test_there_is_never_more_than_one_token(queue: Queue[Any], open_provider: Any, client: native.Redis) -> None:
    for n in range(10):
        await queue.add_many("letter", range(10 * n, 10 * n + 10), delay=timedelta(milliseconds=n % 2))
    provider = await open_provider()
    taken = list(await provider.fetch(50))
    await provider.release(taken)
    await queue.resume()

    assert await client.llen(key(queue, "wake")) == 1


async def test_an_interrupted_wait_loses_no_job(
    queue: Queue[Any], open_provider: Any, scale: Callable[[int], int]
) -> None:
    provider, jobs = await open_provider(), list[str]()
    count = scale(1000)

    async def fetch() -> None:
        while len(jobs) < count:
            jobs.extend(job.id for job in await provider.fetch(3, FOREVER))

    async def interrupt() -> None:
        while len(jobs) < count:
            await asyncio.sleep(0.0005)
            provider.interrupt()

    async with asyncio.timeout(LONG), asyncio.TaskGroup() as tasks:
        tasks.create_task(fetch())
        tasks.create_task(interrupt())
        ids = [(await queue.add("letter", n)).id for n in range(count)]

    assert sorted(jobs) == sorted(ids)


@pytest.mark.usefixtures("unprompted")
async def test_a_token_that_nobody_wants_any_more_goes_to_another(queue: Queue[Any], open_provider: Any) -> None:
    busy, idle = await open_provider(), await open_provider()
    async with asyncio.timeout(BEFORE_ANYBODY_LOOKS), asyncio.TaskGroup() as tasks:
        left = tasks.create_task(busy.fetch(1, FOREVER))
        await until(lambda: _is_listening(busy))
        busy.interrupt()
        assert list(await left) == []
        # Redis serves those who block in their order: `busy` gets the token.
        waiting = tasks.create_task(idle.fetch(1, FOREVER))
        await until(lambda: _is_listening(idle))
        await added(queue, "one")

    assert names(waiting.result()) == ["one"]


def _is_listening(provider: RedisProvider) -> bool:
    return bool(provider._waking.waits)


async def test_two_workers_on_one_provider(queue: Queue[Any], redis_url: str) -> None:
    provider, done = Redis(redis_url).for_queue(queue.name), list[int]()

    async def handler(data: int, job: Any) -> None:
        done.append(data)

    first = QueueWorker(queue.name, handler, provider=provider)
    async with first, QueueWorker(queue.name, handler, provider=provider, concurrency=5):
        await queue.add_many("letter", range(20))
        await until(lambda: len(done) == 20)
        await first.close()
        await queue.add_many("letter", range(20, 40))
        await until(lambda: len(done) == 40)

    assert sorted(done) == list(range(40))
    assert not provider.is_connected


# -- what is kept


async def test_a_duplicate_among_many_adds_none_of_them(
    queue: Queue[Any], redis_url: str, client: native.Redis
) -> None:
    await queue.add("letter", 0, id="id-7")
    by_data = Queue(queue.name, provider=Redis(redis_url), job_id=lambda name, data: f"id-{data}")
    for numbers in (range(10), [20, 21, 20]):
        with pytest.raises(QueueDataError) as caught:
            await by_data.add_many("letter", numbers)
        assert caught.value.code == QueueErrorCode.DUPLICATE
        assert caught.value.job_id == f"id-{7 if numbers == range(10) else 20}"
    await by_data.disconnect()

    assert (await queue.stats()).waiting == 1
    assert await client.hlen(key(queue, "jobs")) == 1


async def test_concurrent_adds_of_one_id_add_one(queue: Queue[Any]) -> None:
    async def add() -> bool:
        try:
            await queue.add("letter", 1, id="same")
        except QueueDataError:
            return False
        return True

    async with asyncio.TaskGroup() as tasks:
        adding = [tasks.create_task(add()) for _ in range(20)]

    assert sum(task.result() for task in adding) == 1
    assert (await queue.stats()).waiting == 1


async def test_the_newest_completed_jobs_are_kept_with_their_results(
    queue: Queue[Any], redis_url: str, client: native.Redis
) -> None:
    done: list[str] = []

    async def handler(data: str, job: Any) -> dict[str, str]:
        return {"sent": data}

    ids = await added(queue, "a", "b", "c", "d", "e", attempts=2)
    await added(queue, "gone", remove_on_complete=True)
    worker = QueueWorker(
        queue.name, handler, provider=Redis(redis_url, keep_completed=Keep(count=2, age=timedelta(days=1)))
    )
    worker.on("completed", lambda event: done.append(event.job_id))
    async with worker:
        await until(lambda: len(done) == 6)

    assert (await queue.stats()).completed == 6
    assert sorted(await client.hkeys(key(queue, "jobs"))) == sorted(ids[3:])
    assert await client.hgetall(key(queue, "results")) == {ids[3]: '{"sent":"d"}', ids[4]: '{"sent":"e"}'}
    for part in ("taken", "completed"):
        kind = client.hlen if part == "taken" else client.zcard
        assert await kind(key(queue, part)) == 2
    assert await queue.get_job(ids[0]) is None
    await queue.add("letter", "again", id=ids[0])


async def test_dead_letters_come_newest_first(queue: Queue[Any], open_provider: Any) -> None:
    await added(queue, "a", "b", "c")
    provider = await open_provider()
    for job in await provider.fetch(3):
        await provider.nack(job, ValueError("no"))

    assert names(await queue.dead_letters()) == ["c", "b", "a"]
    assert names(await queue.dead_letters(limit=1)) == ["c"]
    assert list(await queue.dead_letters(limit=0)) == []


async def test_every_key_has_the_queue_in_its_hash_tag_and_none_is_left(
    queue: Queue[Any], open_provider: Any, client: native.Redis
) -> None:
    await added(queue, "a", "b", "c", "d", attempts=2)
    await added(queue, "urgent", priority=1)
    await added(queue, "later", delay=timedelta(hours=1))
    provider = await open_provider()
    one, two, three = await provider.fetch(3)
    await provider.ack(one, b"1")
    await provider.nack(two, ValueError("no"))
    await queue.pause()

    found = [name async for name in client.scan_iter(match=f"*{queue.name}*")]
    assert {name.rpartition(":")[0] for name in found} == {f"onward:{{{queue.name}}}"}
    assert len(found) >= 8

    await queue.delete()
    assert [name async for name in client.scan_iter(match=f"*{queue.name}*")] == []
    with pytest.raises(QueueRuntimeError, match="not active"):
        await provider.ack(three)


# -- options


async def test_native_options_override_the_others(queue: Queue[Any], open_provider: Any) -> None:
    native_options = {"priority": 9, "attempts": 4, "delay": timedelta(hours=1)}

    job = await queue.add("one", 1, priority=1, provider_options={"redis": native_options})

    assert (job.priority, job.max_attempts, job.status) == (9, 4, QueueJobStatus.DELAYED)
    assert await queue.get_job(job.id) is not None
    assert (await queue.stats()).delayed == 1


@pytest.mark.parametrize(
    "options",
    [{"provider_options": {"redis": {"delays": 1}}}, {"metadata": {"x": object()}}, {"id": "\ud800"}],
    ids=lambda given: re.sub(r" at 0x\w+", "", str(given)),
)
async def test_what_cannot_be_stored_is_refused_and_hurts_nobody_else(queue: Queue[Any], options: Any) -> None:
    async def refused() -> None:
        with pytest.raises(QueueDataError) as caught:
            await queue.add("one", 1, **options)
        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.VALIDATION, False)

    async with asyncio.TaskGroup() as tasks:
        for n in range(3):
            tasks.create_task(queue.add("fine", n))
            tasks.create_task(refused())

    assert (await queue.stats()).waiting == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: Redis("redis://localhost", lease=timedelta(milliseconds=10)),
        lambda: Redis("redis://localhost", lease=30),  # type: ignore[arg-type]
        lambda: Redis("redis://localhost", keep_completed=5),  # type: ignore[arg-type]
        lambda: Redis("redis://localhost", keep_completed=Keep(count=-1, age=SECOND)),
        lambda: Redis("redis://localhost", keep_failed=Keep(count=1, age=-SECOND)),
        lambda: Redis("redis://localhost", cluster=1),  # type: ignore[arg-type]
        lambda: Redis("redis://localhost", nosuch=1),
        lambda: Redis("localhost"),
        lambda: Redis(None),  # type: ignore[arg-type]
        lambda: Redis("redis://localhost").for_queue("a{b}c"),
    ],
)
def test_constructor_mistakes_fail_at_once(make: Callable[[], object]) -> None:
    with pytest.raises(QueueConfigurationError) as caught:
        make()
    assert caught.value.code == QueueErrorCode.INVALID_OPTION


# -- connections


async def test_a_client_lends_its_settings_and_stays_open(client: native.Redis, queue: Queue[Any]) -> None:
    async with Queue(queue.name, provider=Redis(client)) as borrowed:
        job = await borrowed.add("one", {"text": "naïve"})
        stored = await borrowed.get_job(job.id)

    assert stored is not None
    assert stored.data == {"text": "naïve"}
    assert await client.ping()


async def test_a_clusters_client_is_used_as_it_is(redis_cluster_url: str) -> None:
    async with native.RedisCluster.from_url(redis_cluster_url) as cluster:
        for n in range(3):
            async with Queue(f"test-{n}", provider=Redis(cluster)) as queue:
                await queue.add_many("one", range(3))
                assert (await queue.stats()).waiting == 3
                await queue.delete()
        assert await cluster.ping(target_nodes=native.RedisCluster.PRIMARIES)


async def test_an_address_where_nobody_listens_is_told_at_once() -> None:
    queue = Queue[int]("nowhere", provider=Redis("redis://127.0.0.1:1"))

    for call in (queue.connect, lambda: queue.add("one", 1)):
        with pytest.raises(QueueRuntimeError, match="cannot connect to redis") as caught:
            await call()
        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.CONNECTION, True)
        assert caught.value.cause is not None


async def test_a_full_server_refuses_jobs_and_lets_them_be_finished(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []

    async def handler(data: str, job: Any) -> None:
        done.append(1)
        if len(done) == 3:
            raise ValueError("no")

    with servers.private_redis(maxmemory="6mb", maxmemory_policy="noeviction") as server:
        async with Queue[str]("full", provider=Redis(server.dsn)) as queue:
            with pytest.raises(QueueRuntimeError, match="OutOfMemory") as caught:
                for _ in range(1000):
                    await queue.add("letter", "x" * 50_000, remove_on_complete=True)
            assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.ENQUEUE, True)
            waiting = (await queue.stats()).waiting or 0

            async with QueueWorker("full", handler, provider=Redis(server.dsn), concurrency=4, batch_size=4):
                await until(lambda: len(done) == waiting)
            await queue.add("letter", "x" * 50_000)

    assert waiting > 3
    assert "throw queued jobs away" not in caplog.text


async def test_a_server_that_may_throw_jobs_away_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with servers.private_redis(maxmemory="100mb", maxmemory_policy="allkeys-lru") as server:
        async with Queue[int]("careless", provider=Redis(server.dsn)) as queue:
            await queue.add("letter", 1)

    [warning] = [record for record in caplog.records if record.name == "onward.queue"]
    assert "maxmemory-policy is allkeys-lru" in warning.getMessage()
    assert "noeviction" in warning.getMessage()


@pytest.mark.parametrize("may_ask", [True, False])
async def test_the_rights_that_the_documentation_names_suffice(may_ask: bool) -> None:
    [rights] = re.findall(r"^ACL SETUSER jobs (.*)$", PAGE.read_text(), re.MULTILINE)
    done = asyncio.Event()

    async def handler(data: int, job: Any) -> None:
        done.set()

    with servers.private_redis() as server:
        async with native.Redis.from_url(server.dsn) as client:
            words = [word for word in rights.split() if may_ask or word not in ("+info", "+type", "+rename")]
            await client.execute_command("ACL", "SETUSER", "jobs", *words)
        provider = Redis(server.dsn, username="jobs", password="secret")
        async with Queue[int]("emails", provider=provider) as queue, QueueWorker("emails", handler, provider=provider):
            await queue.add("later", 1, delay=timedelta(hours=1))
            await queue.pause()
            await queue.resume()
            await queue.add("urgent", 2, priority=1)
            async with asyncio.timeout(LONG):
                await done.wait()
            assert await queue.dead_letters() == []
            assert (await queue.stats()).delayed == 1
            await queue.delete()


async def test_scripts_are_sent_again_to_a_server_that_forgot_them() -> None:
    with servers.private_redis() as server:
        async with native.Redis.from_url(server.dsn) as client, Queue[int]("q", provider=Redis(server.dsn)) as queue:
            await queue.add("letter", 1)
            await client.script_flush()
            await queue.add("letter", 2)

            assert (await queue.stats()).waiting == 2


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("import sys; sys.modules['redis'] = None; import onward.queue.providers.redis", "pip install 'onward[redis]'"),
        ("import sys, onward.queue; sys.exit('redis' in sys.modules)", ""),
    ],
)
def test_redis_is_needed_by_those_who_use_it_only(program: str, expected: str) -> None:
    ran = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)

    assert (ran.returncode == 0) == (expected == "")
    assert expected in ran.stderr


# -- records that are not there, and workers that are


async def test_a_record_that_is_not_there_or_cannot_be_read_hurts_no_other(
    queue: Queue[Any], redis_url: str, client: native.Redis
) -> None:
    ran: list[int] = []
    told: list[Any] = []
    troubles: list[Any] = []

    async def handler(data: int, job: Any) -> None:
        ran.append(data)

    jobs = await queue.add_many("one", range(10))
    await client.hdel(key(queue, "jobs"), jobs[3].id)  # type: ignore[misc]
    await client.hset(key(queue, "jobs"), jobs[5].id, "[3,0,false,what?")  # type: ignore[misc]
    worker = QueueWorker(queue.name, handler, provider=Redis(redis_url), concurrency=10)
    worker.on("failed", told.append)
    worker.on("queue.error", troubles.append)
    async with worker:
        await until(lambda: len(ran) == 8 and len(told) == 1)

    assert sorted(ran) == [0, 1, 2, 4, 6, 7, 8, 9]
    assert [trouble.error.job_id for trouble in troubles] == [jobs[3].id]
    assert (told[0].job_id, told[0].reason) == (jobs[5].id, "permanent")
    [letter] = await queue.dead_letters()
    assert (letter.id, letter.name) == (jobs[5].id, "(unreadable)")
    stats = await queue.stats()
    assert (stats.waiting, stats.active, stats.failed) == (0, 0, 1)
    await queue.remove(letter.id)


async def test_the_workers_are_known(queue: Queue[Any], redis_url: str) -> None:
    async def handler(data: int, job: Any) -> None: ...

    async def are_there(count: int) -> bool:
        return (await queue.health()).active_workers == count

    assert await are_there(0)
    async with QueueWorker(queue.name, handler, provider=Redis(redis_url)):
        async with QueueWorker(queue.name, handler, provider=Redis(redis_url)):
            await until(lambda: are_there(2))
        await until(lambda: are_there(1))
    assert await are_there(0)


async def test_old_jobs_go_and_nothing_of_them_stays(queue: Queue[Any], redis_url: str, client: native.Redis) -> None:
    async def handler(data: int, job: Any) -> int:
        job.report_progress(0.5)
        if data % 2:
            raise Permanent("no")
        return data

    brief = Keep(count=1000, age=timedelta(milliseconds=1))
    made = Redis(redis_url, keep_completed=brief, keep_failed=brief)
    done: list[Any] = []
    worker = QueueWorker(queue.name, handler, provider=made)
    worker.on("completed", done.append)
    worker.on("failed", done.append)
    async with worker:
        for n in range(8):
            await queue.add("one", n, ttl=timedelta(hours=1))
            await until(lambda n=n: len(done) == n + 1)  # type: ignore[misc]
            await asyncio.sleep(0.005)

    for part in ("jobs", "taken", "attempts", "errors", "reasons", "results", "progress", "expires"):
        assert await client.hlen(key(queue, part)) <= 2, part  # type: ignore[misc]


# -- servers of other kinds


async def test_a_cluster_of_one_primary() -> None:
    with servers.private_redis(cluster_enabled="yes") as server:
        async with native.Redis.from_url(server.dsn) as client:
            await client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        async with Queue[int]("alone", provider=Redis(server.dsn, cluster=True)) as queue:

            async def is_added() -> bool:
                try:
                    await queue.add("one", 1)
                except QueueRuntimeError:
                    return False  # it has not seen yet that it has every slot
                return True

            await until(is_added)
            assert (await queue.stats()).waiting == 1


async def test_a_clusters_client_that_decodes_is_refused(redis_cluster_url: str) -> None:
    async with native.RedisCluster.from_url(redis_cluster_url, decode_responses=True) as cluster:
        with pytest.raises(QueueConfigurationError, match="decode_responses"):
            Redis(cluster)


async def test_a_wrong_password_and_a_wrong_host_are_told_in_words() -> None:
    with servers.private_redis() as server:
        async with native.Redis.from_url(server.dsn) as client:
            await client.config_set("requirepass", "secret")
        wrong = server.dsn.replace("redis://", "redis://:nope@")
        for address, words in ((wrong, "password is wrong"), (server.dsn, "password is wrong")):
            with pytest.raises(QueueRuntimeError, match=words) as caught:
                await Queue[int]("closed", provider=Redis(address)).connect()
            assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.CONNECTION, False)
    with pytest.raises(QueueRuntimeError, match="no such host") as caught:
        await Queue[int]("closed", provider=Redis("redis://nohost.invalid")).connect()
    assert not caught.value.retryable


# -- what something else has written


TYPES = {"list": ("waiting", "wake"), "zset": ("urgent", "active")}


@pytest.mark.parametrize("part", ["waiting", "wake", "urgent", "active", "jobs", "attempts", "locks", "meta"])
async def test_a_key_of_the_wrong_type_is_moved_away_and_told(
    queue: Queue[Any], redis_url: str, client: native.Redis, part: str
) -> None:
    done, troubles = list[int](), list[Any]()

    async def handler(data: int, job: Any) -> None:
        done.append(data)
        if data == 3 and job.attempts == 0:
            raise ValueError("once more")

    queue.on("queue.error", troubles.append)
    await queue.add_many("letter", [1, 2])
    await client.set(key(queue, part), "somebody else's")
    worker = QueueWorker(queue.name, handler, provider=Redis(redis_url), concurrency=2)
    worker.on("queue.error", troubles.append)
    async with worker:
        await queue.add("letter", 3, attempts=2, ttl=timedelta(hours=1))
        await queue.add("letter", 4)
        await queue.add("letter", 5, priority=1)
        await until(lambda: {3, 4, 5} <= set(done) and done.count(3) == 2)
        if part not in ("jobs", "waiting"):
            await until(lambda: {1, 2} <= set(done))
        await until(lambda: any(part in trouble.message for trouble in troubles))

    assert await client.get(key(queue, part) + ":moved-away") == "somebody else's"
    [told] = [one for one in troubles if "moved to" in one.message]
    assert f"{part} was a string and not a {_type_of(part)}" in told.message


def _type_of(part: str) -> str:
    return next((kind for kind, parts in TYPES.items() if part in parts), "hash")


# -- one that cannot be added


async def test_what_is_large_is_sent_alone(queue: Queue[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    provider: Any = queue.provider
    send = provider._adding._send

    async def watch(groups: Any) -> Any:
        sent.append(len(groups))
        if max(map(len, groups)) > 1_000_000:
            raise ConnectionError("the server did not take that")
        return await send(groups)

    monkeypatch.setattr(provider._adding, "_send", watch)
    adding = [queue.add("letter", "x" * (1_500_000 if n == 4 else 10), priority=1) for n in range(10)]

    answers = await asyncio.gather(*adding, return_exceptions=True)  # noqa: TID251 - each outcome is looked at

    assert [n for n, answer in enumerate(answers) if isinstance(answer, Exception)] == [4]
    assert (await queue.stats()).waiting == 9


async def test_many_that_were_added_in_part_are_named(queue: Queue[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.queue.providers.redis.provider._MOST_ADDED", 3)
    ids = iter(["a", "b", "c", "d", "a", "e", "f"])
    named = Queue(queue.name, provider=queue.provider, job_id=lambda name, data: next(ids))

    async with named:
        with pytest.raises(QueuePartlyAdded, match=r"3 of 7 jobs.*'a' is already there") as caught:
            await named.add_many("letter", range(7))

    assert caught.value.added == ["a", "b", "c"]
    assert not caught.value.retryable
    assert (await queue.stats()).waiting == 3

"""What is peculiar to queues shared with BullMQ; what every provider does is in the conformance suite."""

import asyncio
import json
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

import servers
from onward import Backoff, Permanent
from onward.conformance.queue.session import arrived, names, until
from onward.errors import QueueConfigurationError, QueueDataError, QueueErrorCode, QueueRuntimeError
from onward.queue import ActiveJob, Keep, Provider, Queue, QueueJobStatus, QueueWorker
from onward.queue.providers.bullmq import BullMQ

SHORT = {"lock": timedelta(seconds=1), "stalled_interval": timedelta(milliseconds=200)}
"""For tests that wait until a lock has run out."""


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue[Any]]:
    async with Queue(f"test-{secrets.token_hex(6)}", provider=BullMQ(redis_url)) as queue:
        yield queue
        await queue.delete()


@pytest.fixture
async def provider(redis_url: str, queue: Queue[Any]) -> AsyncIterator[Callable[..., Any]]:
    """More providers of the queue, each on a connection of its own."""
    made: list[Provider] = []

    async def connected(**options: Any) -> Provider:
        made.append(BullMQ(redis_url, **options).for_queue(queue.name))
        await made[-1].connect()
        return made[-1]

    yield connected
    for one in made:
        await one.disconnect(everyone=True)


async def options_of(redis: Redis, queue: Queue[Any], job_id: str) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(await redis.hget(f"bull:{queue.name}:{job_id}", "opts"))  # type: ignore[misc,arg-type]
    return stored


# -- keeping


@pytest.mark.parametrize("ends_well", [True, False])
async def test_old_ones_go_when_the_next_one_ends(
    queue: Queue[Any], provider: Callable[..., Any], ends_well: bool
) -> None:
    brief = Keep(count=1_000_000, age=timedelta(seconds=1))
    worker = await provider(keep_completed=brief, keep_failed=brief)

    async def end_one() -> str:
        await queue.add("letter", 1)
        [job] = await arrived(worker, 1)
        await (worker.ack(job) if ends_well else worker.nack(job, Permanent("no")))
        return str(job.id)

    first = await end_one()
    assert await queue.get_job(first) is not None

    async def is_gone() -> bool:
        await end_one()
        return await queue.get_job(first) is None

    await until(is_gone)


# -- adding


@pytest.mark.parametrize("id", ["7", "-7", "007", "user:7", "a:b:c", "wait", "meta", "marker"])
async def test_ids_that_bullmq_cannot_have_are_refused(queue: Queue[Any], id: str) -> None:
    with pytest.raises(QueueDataError, match="id of a job") as caught:
        await queue.add("welcome", 1, id=id)

    assert (caught.value.code, caught.value.job_id) == (QueueErrorCode.VALIDATION, id)
    assert (await queue.stats()).waiting == 0
    assert await queue.get_job(id) is None


async def test_of_many_who_add_one_id_at_once_one_succeeds(queue: Queue[Any], redis_url: str) -> None:
    queues = [Queue(queue.name, provider=BullMQ(redis_url)) for _ in range(10)]
    for one in queues:
        await one.connect()
    outcomes: list[str] = []

    async def add(one: Queue[Any], n: int) -> None:
        try:
            outcomes.append((await one.add("welcome", n, id="user-7")).id)
        except QueueDataError as error:
            outcomes.append(error.code)

    async with asyncio.TaskGroup() as tasks:
        for n in range(40):
            tasks.create_task(add(queues[n % 10], n))
    for one in queues:
        await one.disconnect()

    assert sorted(outcomes) == sorted(["user-7"] + [QueueErrorCode.DUPLICATE] * 39)
    assert (await queue.stats()).waiting == 1


async def test_an_id_is_taken_until_its_job_is_removed(queue: Queue[Any]) -> None:
    for _ in range(2):
        await queue.add("welcome", 1, id="user-7", remove_on_complete=True)
        [job] = await arrived(queue.provider, 1)
        with pytest.raises(QueueDataError):
            await queue.add("welcome", 2, id="user-7")
        await queue.provider.ack(job)


async def test_options_are_translated_one_to_one(queue: Queue[Any], redis: Redis) -> None:
    job = await queue.add(
        "welcome",
        {"to": "a"},
        attempts=4,
        backoff=Backoff(initial=timedelta(seconds=2)),
        delay=timedelta(seconds=90),
        priority=5,
        remove_on_complete=True,
        remove_on_fail=True,
        metadata={"tags": [], "none": None, "n": 2**60, "x": 0.1234567890123456},
        provider_options={"bullmq": {"attempts": 6, "removeOnFail": {"count": 10}, "jobId": "no"}},
    )

    native = await options_of(redis, queue, job.id)
    fields = await redis.hgetall(f"bull:{queue.name}:{job.id}")  # type: ignore[misc]
    assert json.loads(fields["data"]) == {"to": "a"}
    assert native["attempts"] == 6
    assert native["delay"] == 90_000
    assert native["priority"] == 2**21 - 1 - 5
    assert (native["backoff"]["type"], native["backoff"]["delay"]) == ("exponential", 2000)
    assert (native["removeOnComplete"], native["removeOnFail"]) == (True, {"count": 10})
    stored = await queue.get_job(job.id)
    assert stored is not None
    assert (stored.max_attempts, stored.priority, stored.status) == (6, 5, QueueJobStatus.DELAYED)
    assert stored.metadata == {"tags": [], "none": None, "n": 2**60, "x": 0.1234567890123456}
    assert job.max_attempts == 6
    assert stored.created_at == job.created_at
    assert stored.scheduled_for is not None
    assert abs(stored.scheduled_for - job.created_at - timedelta(seconds=90)) < timedelta(milliseconds=2)


async def test_what_is_not_asked_for_is_left_to_the_other_side(queue: Queue[Any], redis: Redis) -> None:
    job = await queue.add("welcome", 1, backoff=Backoff(initial=timedelta(seconds=3), factor=1))

    native = await options_of(redis, queue, job.id)

    assert "removeOnComplete" not in native
    assert "removeOnFail" not in native
    assert "onward.metadata" not in native
    assert (native["backoff"]["type"], native["backoff"]["delay"]) == ("fixed", 3000)


async def test_without_a_priority_of_bullmqs_a_job_waits_in_its_plain_list(queue: Queue[Any]) -> None:
    await queue.add("second", 1, priority=9)
    native: Any = {"bullmq": {"priority": 0, "lifo": True}}
    first = await queue.add("first", 1, provider_options=native)

    assert first.priority == 0
    assert names(await arrived(queue.provider, 2)) == ["first", "second"]


async def test_the_order_holds_at_both_ends_of_the_scale(queue: Queue[Any]) -> None:
    most = 2**21 - 2
    for n in range(20):
        await queue.add(f"low-{n}", n)
    for n in range(20):
        await queue.add(f"high-{n}", n, priority=most)

    jobs = await arrived(queue.provider, 40)

    assert names(jobs) == [f"high-{n}" for n in range(20)] + [f"low-{n}" for n in range(20)]
    assert {job.priority for job in jobs} == {0, most}
    with pytest.raises(QueueDataError, match="at most 2097150") as caught:
        await queue.add("too high", 1, priority=most + 1)
    assert caught.value.code == QueueErrorCode.VALIDATION


@pytest.mark.parametrize(
    "metadata", [{"x": object()}, {"x": "\ud800"}], ids=lambda given: re.sub(r" at 0x\w+", "", str(given))
)
async def test_metadata_that_is_not_json_is_refused(queue: Queue[Any], metadata: dict[str, object]) -> None:
    with pytest.raises(QueueDataError, match="metadata") as caught:
        await queue.add("welcome", 1, metadata=metadata)

    assert caught.value.code == QueueErrorCode.VALIDATION
    assert (await queue.stats()).waiting == 0


async def test_many_are_added_in_few_round_trips_and_keep_their_order(queue: Queue[Any]) -> None:
    added = await queue.add_many("letter", range(1200))

    assert (await queue.stats()).waiting == 1200
    first = await arrived(queue.provider, 20)
    assert [job.id for job in first] == [job.id for job in added[:20]]


def test_the_name_of_a_queue_has_no_colon(redis_url: str) -> None:
    with pytest.raises(QueueConfigurationError, match="':'"):
        Queue("a:b", provider=BullMQ(redis_url))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"prefix": ""}, "prefix"),
        ({"lock": timedelta(milliseconds=10)}, "lock"),
        ({"stalled_interval": timedelta()}, "stalled_interval"),
        ({"max_stalled": -1}, "max_stalled"),
    ],
)
def test_constructor_mistakes_fail_at_once(options: dict[str, Any], match: str) -> None:
    with pytest.raises(QueueConfigurationError, match=match):
        BullMQ("redis://localhost", **options)


def test_without_the_package_the_error_says_what_to_install() -> None:
    program = "import sys; sys.modules['bullmq'] = None; import onward.queue.providers.bullmq"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert "QueueConfigurationError: bullmq is not installed: pip install 'onward[bullmq]'" in done.stderr


def test_queues_do_without_the_package() -> None:
    program = "import sys, onward.queue; print([name for name in ('bullmq', 'redis') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert done.stdout.strip() == "[]"


async def test_a_client_lends_its_settings(redis_url: str, queue: Queue[Any]) -> None:
    async with Redis.from_url(redis_url) as lent, Queue(queue.name, provider=BullMQ(lent)) as other:
        await other.add("welcome", {"text": "数"})
        await other.disconnect()

        assert await lent.ping()  # type: ignore[misc]
    [job] = await arrived(queue.provider, 1)
    assert bytes(job.data) == '{"text":"数"}'.encode()


async def test_queues_of_another_prefix_are_other_queues(redis_url: str, queue: Queue[Any]) -> None:
    async with Queue(queue.name, provider=BullMQ(redis_url, prefix="other")) as other:
        await other.add("welcome", 1)

        assert (await queue.stats()).waiting == 0
        assert (await other.stats()).waiting == 1
        await other.delete()


# -- taking and settling


async def test_our_backoff_is_kept_whole(queue: Queue[Any]) -> None:
    backoff = Backoff(initial=timedelta(milliseconds=10), factor=3, maximum=timedelta(milliseconds=60))
    await queue.add("welcome", 1, attempts=5, backoff=backoff)
    waits: list[timedelta | None] = []
    for _ in range(5):
        [job] = await arrived(queue.provider, 1)
        waits.append(await queue.provider.nack(job, ValueError("no")))

    assert waits == [*(timedelta(milliseconds=n) for n in (10, 30, 60, 60)), None]


async def test_a_job_that_waits_for_its_next_attempt_says_until_when(queue: Queue[Any]) -> None:
    await queue.add("welcome", 1, id="one", attempts=2, backoff=Backoff(initial=timedelta(minutes=5)))
    [job] = await arrived(queue.provider, 1)
    before = datetime.now(UTC)
    await queue.provider.nack(job, ValueError("no such mailbox"))

    stored = await queue.get_job("one")

    assert stored is not None
    assert (stored.status, stored.attempts, stored.error) == (QueueJobStatus.DELAYED, 1, "no such mailbox")
    assert stored.scheduled_for is not None
    assert abs(stored.scheduled_for - before - timedelta(minutes=5)) < timedelta(seconds=5)


async def test_the_traceback_is_kept_where_node_expects_it(queue: Queue[Any], redis: Redis) -> None:
    await queue.add("welcome", 1, id="one")
    [job] = await arrived(queue.provider, 1)

    def fails() -> None:
        raise ValueError("no such \ud800 mailbox")

    try:
        fails()
    except ValueError as error:
        await queue.provider.nack(job, error)

    fields = await redis.hgetall(f"bull:{queue.name}:one")  # type: ignore[misc]
    [trace] = json.loads(fields["stacktrace"])
    assert "in fails" in trace
    assert fields["failedReason"] == "no such \\ud800 mailbox"


async def test_what_is_given_back_comes_first_and_was_no_attempt(queue: Queue[Any]) -> None:
    for name in ("one", "two", "three"):
        await queue.add(name, 1)
    taken = await arrived(queue.provider, 2)

    await queue.provider.release(taken[:1])

    assert (await queue.stats()).waiting == 2
    again = await arrived(queue.provider, 2)
    assert names(again) == ["one", "three"]
    assert again[0].attempts == 0


async def test_giving_back_leaves_a_marker_for_who_waits(queue: Queue[Any], redis: Redis) -> None:
    await queue.add("one", 1)
    [job] = await arrived(queue.provider, 1)
    await redis.delete(f"bull:{queue.name}:marker")

    await queue.provider.release([job])

    assert await redis.zscore(f"bull:{queue.name}:marker", "0") == 0


async def test_a_wait_is_interrupted_and_nothing_is_lost(queue: Queue[Any]) -> None:
    provider = queue.provider
    async with asyncio.timeout(20):
        for n in range(5):
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(provider.fetch(1, timedelta(seconds=60)))
                await asyncio.sleep(0.01 * n)
                while not waiting.done():
                    provider.interrupt()
                    await asyncio.sleep(0.01)
            assert list(waiting.result()) == []
        await queue.add("one", 1)

        assert names(await provider.fetch(1, timedelta(seconds=10))) == ["one"]


async def test_a_job_whose_holder_died_is_fetched_again(queue: Queue[Any], provider: Callable[..., Any]) -> None:
    dead, alive = await provider(**SHORT), await provider(**SHORT)
    await queue.add("one", 1)
    [job] = await arrived(dead, 1)

    [again] = await arrived(alive, 1)

    assert (again.id, again.attempts) == (job.id, 0)
    for refused in (dead.ack(job), dead.nack(job, ValueError("late")), dead.release([job])):
        with pytest.raises(QueueRuntimeError, match="not active") as caught:
            await refused
        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.PROCESSING, False)
    assert [lost.id for lost in await dead.renew([job])] == [job.id]
    await alive.ack(again)


async def test_a_job_whose_holders_die_too_often_fails(queue: Queue[Any], provider: Callable[..., Any]) -> None:
    await queue.add("deadly", 1, attempts=10)
    await queue.add("harmless", 1)
    one = await provider(**SHORT, max_stalled=0)
    [job] = await arrived(one, 1)
    assert job.name == "deadly"

    async def has_failed() -> bool:
        for other in await one.fetch(1):
            await one.ack(other)
        return (await queue.stats()).failed == 1

    await until(has_failed)
    [letter] = await queue.dead_letters()
    assert (letter.name, letter.error) == ("deadly", "job stalled more than allowable limit")
    await queue.retry(letter.id)
    assert names(await arrived(one, 1)) == ["deadly"]


async def test_deleting_takes_jobs_from_those_who_hold_them(queue: Queue[Any]) -> None:
    await queue.add("one", 1)
    [job] = await arrived(queue.provider, 1)

    await queue.delete()

    with pytest.raises(QueueRuntimeError, match="not active"):
        await queue.provider.ack(job)
    assert await queue.get_job(job.id) is None


# -- working


async def test_a_long_handler_keeps_its_job(queue: Queue[Any], redis_url: str) -> None:
    runs, done = 0, asyncio.Event()

    async def handler(data: int, job: ActiveJob[int]) -> None:
        nonlocal runs
        runs += 1
        await asyncio.sleep(2.5)
        done.set()

    provider, other = BullMQ(redis_url, **SHORT), BullMQ(redis_url, **SHORT)
    async with (
        QueueWorker(queue.name, handler, provider=provider),
        QueueWorker(queue.name, handler, provider=other),
    ):
        await queue.add("long", 1)
        async with asyncio.timeout(30):
            await done.wait()

    assert runs == 1
    assert (await queue.stats()).completed == 1


async def test_long_handlers_keep_their_jobs_while_the_worker_closes(queue: Queue[Any], redis_url: str) -> None:
    begun: list[int] = []

    async def handler(seconds: float, job: ActiveJob[float]) -> None:
        begun.append(job.attempts)
        await asyncio.sleep(seconds)

    worker = QueueWorker(queue.name, handler, provider=BullMQ(redis_url, **SHORT), concurrency=2)
    await worker.start()
    await queue.add_many("long", [0.1, 2.5])
    await until(lambda: len(begun) == 2)
    other = QueueWorker(queue.name, handler, provider=BullMQ(redis_url, **SHORT))
    async with other:
        await worker.close()

    assert begun == [0, 0]
    assert (await queue.stats()).completed == 2


async def test_a_handler_whose_lock_is_lost_is_cancelled(queue: Queue[Any], redis_url: str, redis: Redis) -> None:
    troubles: list[Any] = []
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(data: int, job: ActiveJob[int]) -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    async with QueueWorker(queue.name, handler, provider=BullMQ(redis_url, **SHORT)) as worker:
        worker.on("queue.error", troubles.append)
        await queue.add("long", 1, id="one")
        async with asyncio.timeout(30):
            await began.wait()
            await redis.set(f"bull:{queue.name}:one:lock", "another")
            await cancelled.wait()
        await until(lambda: len(troubles) == 1)
        await queue.delete()

    assert (troubles[0].error.job_id, troubles[0].error.code) == ("one", QueueErrorCode.PROCESSING)


@pytest.mark.parametrize("limit", [{"concurrency": 1}, {"max": 2, "duration": 200}], ids=["concurrency", "rate"])
async def test_limits_that_node_set_for_the_whole_queue_are_kept(
    queue: Queue[Any], redis: Redis, limit: dict[str, int]
) -> None:
    active = most = done = 0

    async def handler(data: int, job: ActiveJob[int]) -> None:
        nonlocal active, most, done
        active += 1
        most = max(most, active)
        await asyncio.sleep(0.01)
        active -= 1
        done += 1

    await queue.add_many("limited", range(6))
    await redis.hset(f"bull:{queue.name}:meta", mapping=limit)  # type: ignore[misc]
    async with QueueWorker(queue.name, handler, provider=queue.provider, concurrency=3):
        await until(lambda: done == 6)

    assert most <= limit.get("concurrency", 2)


async def test_nothing_is_left_behind(queue: Queue[Any]) -> None:
    before = asyncio.all_tasks()

    async def handler(data: int, job: ActiveJob[int]) -> None: ...

    # On the queue's connections: the one that a worker named goes back to them.
    worker = QueueWorker(queue.name, handler, provider=queue.provider, concurrency=3)
    for _ in range(2):
        await worker.start()

        async def is_known() -> bool:
            return (await queue.health()).active_workers == 1

        await until(is_known)
        await worker.close()
        assert asyncio.all_tasks() == before

        async def is_gone() -> bool:
            return (await queue.health()).active_workers == 0

        await until(is_gone)


async def test_a_cancelled_worker_leaves_nothing_running(queue: Queue[Any]) -> None:
    before = asyncio.all_tasks()
    began = asyncio.Event()

    async def handler(data: int, job: ActiveJob[int]) -> None:
        began.set()
        await asyncio.sleep(60)

    await queue.add("long", 1)
    worker = QueueWorker(queue.name, handler, provider=queue.provider)
    running = asyncio.get_running_loop().create_task(worker.run())
    async with asyncio.timeout(30):
        await began.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    assert asyncio.all_tasks() == before
    assert (await queue.stats()).waiting == 1


# -- a server that goes away


async def test_redis_restarted_under_load(scale: Callable[[int], int]) -> None:
    troubles: list[Any] = []
    refusals: list[QueueRuntimeError] = []
    added: set[str] = set()
    seen: set[str] = set()
    restarted, count = asyncio.Event(), scale(1000)

    async def handler(data: int, job: ActiveJob[int]) -> None:
        seen.add(job.id)

    with servers.private_redis(appendonly="yes", appendfsync="always") as server:
        provider = BullMQ(server.dsn, **SHORT)
        async with (
            Queue("load", provider=provider) as queue,
            QueueWorker("load", handler, provider=provider, concurrency=5) as worker,
        ):
            worker.on("queue.error", troubles.append)

            async def produce() -> None:
                while not restarted.is_set():
                    try:
                        await queue.add("count", len(added), id=f"job-{len(added)}")
                    except QueueDataError:
                        pass  # it had got through
                    except QueueRuntimeError as error:
                        refusals.append(error)
                        await asyncio.sleep(0.05)
                        continue
                    added.add(f"job-{len(added)}")

            async with asyncio.timeout(90), asyncio.TaskGroup() as tasks:
                tasks.create_task(produce())
                for mode in ("kill", "fast"):
                    enough, was = len(added) + count, len(refusals)
                    await until(lambda enough=enough: len(added) >= enough)  # type: ignore[misc]
                    await asyncio.to_thread(server.stop, mode)
                    await until(lambda was=was: len(refusals) > was)  # type: ignore[misc]
                    await asyncio.to_thread(server.start)
                restarted.set()

            async def all_done() -> bool:
                try:
                    stats = await queue.stats()
                except QueueRuntimeError:
                    return False  # on a connection that was cut
                return (stats.waiting, stats.delayed, stats.active) == (0, 0, 0)

            await until(all_done)

    assert seen >= added
    assert {(error.code, error.retryable) for error in refusals} == {(QueueErrorCode.ENQUEUE, True)}
    assert any("fetch() failed" in trouble.message for trouble in troubles)


async def test_a_server_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    with servers.private_redis() as server:
        async with Queue("frozen", provider=BullMQ(server.dsn, socket_timeout=0.5)) as queue:
            await queue.add("one", 1)
            os.kill(server.pid, signal.SIGSTOP)
            try:
                for call in (queue.add("two", 2), queue.stats(), queue.provider.fetch(1, timedelta(seconds=5))):
                    async with asyncio.timeout(10):
                        with pytest.raises(QueueRuntimeError) as caught:
                            await call
                    assert caught.value.retryable
            finally:
                os.kill(server.pid, signal.SIGCONT)

            assert names(await arrived(queue.provider, 1)) == ["one"]


async def test_a_server_that_is_not_there(unused_address: str) -> None:
    with pytest.raises(QueueRuntimeError, match="cannot connect to bullmq") as caught:
        await Queue("emails", provider=BullMQ(unused_address)).connect()

    assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.CONNECTION, True)


@pytest.fixture
def unused_address() -> str:
    return "redis://127.0.0.1:1"


# -- rights


async def test_the_rights_that_the_page_names_suffice() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "queues-bullmq.md"
    [rights] = re.findall(r"^ACL SETUSER jobs (.*)$", page.read_text(), re.MULTILINE)
    done: list[str] = []
    troubles: list[Any] = []

    async def handler(data: str, job: ActiveJob[str]) -> None:
        if data == "broken":
            raise Permanent("no such mailbox")
        done.append(data)

    with servers.private_redis() as server:
        async with Redis.from_url(server.dsn) as admin:
            await admin.execute_command("ACL", "SETUSER", "jobs", *rights.split())  # type: ignore[no-untyped-call]
        factory = BullMQ(server.dsn, username="jobs", password="secret", **SHORT)
        async with Queue("letters", provider=factory) as queue:
            await queue.add("later", "later", delay=timedelta(milliseconds=100), attempts=2)
            await queue.add("broken", "broken")
            await queue.add("one", "one", priority=3, remove_on_complete=True)
            await queue.pause()
            await queue.resume()
            async with QueueWorker("letters", handler, provider=factory, concurrency=2) as worker:
                worker.on("queue.error", troubles.append)
                await until(lambda: sorted(done) == ["later", "one"])

                async def has_failed() -> bool:
                    return (await queue.stats()).failed == 1

                await until(has_failed)
                [letter] = await queue.dead_letters()
                await queue.retry(letter.id)
                await until(has_failed)
            await queue.add("held", "held")
            [job] = await arrived(queue.provider, 1)
            assert list(await queue.provider.renew([job])) == []
            await queue.provider.release([job])
            assert (await queue.health()).active_workers is None
            await queue.delete()

    assert troubles == []

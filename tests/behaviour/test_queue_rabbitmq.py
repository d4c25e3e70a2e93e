"""What only RabbitMQ has: its queues and messages, deaths that are counted, failed jobs in order, lost connections."""

import asyncio
import concurrent.futures
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import timedelta
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel
from aiormq.exceptions import DeliveryError
from hypothesis import given
from hypothesis import strategies as st
from pamqp.commands import Basic
from yarl import URL

import servers
from onward.conformance.queue.session import arrived, until
from onward.errors import (
    QueueConfigurationError,
    QueueDataError,
    QueueErrorCode,
    QueuePartlyAdded,
    QueueRuntimeError,
)
from onward.model import Backoff
from onward.queue import Queue, QueueWorker
from onward.queue.model import Keep, QueueFailureReason, QueueJobStatus
from onward.queue.provider import Provider
from onward.queue.providers.rabbitmq import RabbitMQ, delivery
from onward.queue.providers.rabbitmq.topology import LONGEST_DELAY, Topology, every_delay, roughly, rounded
from proxy import proxied

TYPES = ["quorum", "classic"]


class Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Bench:
    """A queue of this test's own, and what the tests do with it."""

    def __init__(self, url: str, queue_type: Any, stack: AsyncExitStack) -> None:
        self.url, self.queue_type, self._stack = url, queue_type, stack
        self.name = f"test-{secrets.token_hex(6)}"
        self.queue: Queue[Any] = Queue(self.name, provider=self.factory())

    def factory(self, url: str | None = None, **options: Any) -> RabbitMQ:
        return RabbitMQ(url or self.url, queue_type=self.queue_type, **options)

    async def provider(self) -> Provider:
        provider = self.factory().for_queue(self.name)
        await provider.connect()
        self._stack.push_async_callback(provider.disconnect)
        return provider

    def worker(self, handler: Callable[..., Any], url: str | None = None, **options: Any) -> QueueWorker[Any]:
        return QueueWorker(self.name, handler, provider=self.factory(url), **options)

    async def channel(self) -> AbstractChannel:
        """As any other program would talk to the broker."""
        connection = await self._stack.enter_async_context(await aio_pika.connect(self.url))
        return await connection.channel()

    async def fail(self, *names: str, **options: Any) -> None:
        provider = await self.provider()
        for name in names:
            await self.queue.add(name, name, **options)
            [job] = await arrived(provider, 1)
            await provider.nack(job, ValueError(f"no {name}"))

    async def die(self, times: int) -> None:
        """Take a job and go away without a word."""
        for _ in range(times):
            provider = self.factory().for_queue(self.name)
            await provider.connect()
            await arrived(provider, 1)
            await provider.disconnect()


@pytest.fixture(params=TYPES)
async def bench(request: pytest.FixtureRequest, rabbitmq_url: str) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        bench = Bench(rabbitmq_url, request.param, stack)
        await bench.queue.connect()
        try:
            yield bench
        finally:
            await stack.aclose()
            cleaner: Queue[Any] = Queue(bench.name, provider=bench.factory())
            await cleaner.delete()
            await cleaner.disconnect()
            await bench.queue.disconnect()


class TestMessages:
    async def test_another_program_finds_what_it_knows(self, bench: Bench) -> None:
        backoff = Backoff(initial=timedelta(seconds=2), factor=3.0, maximum=timedelta(minutes=1))
        added = await bench.queue.add("welcome", {"to": "a"}, attempts=3, backoff=backoff, metadata={"tenant": "7"})

        queue = await (await bench.channel()).get_queue(bench.name)
        message = await queue.get()
        assert message is not None

        assert json.loads(message.body) == {"to": "a"}
        assert (message.message_id, message.type) == (added.id, "welcome")
        assert message.content_type == "application/json"
        assert message.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
        assert message.headers["x-max-retries"] == 2
        assert (message.headers["x-retry-delay"], message.headers["x-retry-max-delay"]) == (2_000, 60_000)
        assert json.loads(str(message.headers["x-metadata"])) == {"tenant": "7"}
        await message.ack()

    async def test_jobs_of_another_program_are_run(self, bench: Bench) -> None:
        exchange = (await bench.channel()).default_exchange
        headers: dict[str, Any] = {"x-max-retries": 1, "x-retry-delay": 100, "theirs": "kept"}
        await exchange.publish(aio_pika.Message(b'{"to":"a"}', headers=headers, correlation_id="c-1"), bench.name)
        seen: list[Any] = []

        async def send(data: dict[str, str], job: Any) -> None:
            seen.append((data, job.attempts, job.max_attempts, job.native.headers["theirs"], job.native.correlation_id))
            raise ValueError("no")

        async with bench.worker(send):
            await until(lambda: len(seen) == 2)

        assert seen == [({"to": "a"}, 0, 2, "kept", "c-1"), ({"to": "a"}, 1, 2, "kept", "c-1")]

    async def test_what_is_no_json_fails_and_is_shown_as_text(self, bench: Bench) -> None:
        exchange = (await bench.channel()).default_exchange
        await exchange.publish(aio_pika.Message(b"<xml/>", headers={"x-max-retries": 5, "x-metadata": "?"}), bench.name)

        async def send(data: Any, job: Any) -> None:
            raise AssertionError("not reached")

        async with bench.worker(send):
            await until(self._failed(bench, 1))

        [letter] = await bench.queue.dead_letters()
        assert letter.data == "<xml/>"
        await bench.queue.retry(letter.id)

    async def test_provider_options_override(self, bench: Bench) -> None:
        native = {"correlation_id": "c-1", "headers": {"tenant": "7", "x-max-retries": 4}}
        await bench.queue.add("one", 1, attempts=2, provider_options={"rabbitmq": native})

        [job] = await arrived(await bench.provider(), 1)

        assert (job.native.correlation_id, job.native.headers["tenant"], job.max_attempts) == ("c-1", "7", 5)

    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("one", {"id": "x" * 256}),
            ("x" * 256, {}),
            ("one", {"metadata": {"large": "x" * 200_000}}),
            ("one", {"provider_options": {"rabbitmq": {"no_such_property": 1}}}),
            ("one", {"provider_options": {"rabbitmq": {"headers": {"x": object()}}}}),
        ],
        ids=["id", "name", "metadata", "property", "header"],
    )
    async def test_what_does_not_fit_is_refused_before_it_is_sent(
        self, bench: Bench, name: str, options: dict[str, Any]
    ) -> None:
        with pytest.raises(QueueDataError, match="cannot be sent") as caught:
            await bench.queue.add(name, 1, **options)

        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.VALIDATION, False)
        await bench.queue.add("fits", 1)
        assert (await bench.queue.stats()).waiting == 1

    async def test_a_priority_beyond_the_highest_is_the_highest(self, bench: Bench) -> None:
        warnings: list[Any] = []
        queue: Queue[Any] = Queue(bench.name, provider=bench.factory(), on_unsupported_feature=warnings.append)
        async with queue:
            await queue.add("low", 1, priority=1)
            high = await queue.add("high", 1, priority=1_000)

        jobs = await arrived(await bench.provider(), 2)

        if bench.queue_type == "classic":
            assert ([job.name for job in jobs], high.priority, warnings) == (["high", "low"], 10, [])
        else:
            assert ([job.name for job in jobs], high.priority, len(warnings)) == (["low", "high"], 0, 1)

    def _failed(self, bench: Bench, count: int) -> Any:
        async def failed() -> bool:
            return (await bench.queue.stats()).failed == count

        return failed


class TestQueues:
    async def test_one_that_was_made_otherwise_is_refused_in_words(self, bench: Bench) -> None:
        other: Any = "classic" if bench.queue_type == "quorum" else "quorum"
        queue: Queue[Any] = Queue(bench.name, provider=RabbitMQ(bench.url, queue_type=other))

        with pytest.raises(QueueConfigurationError, match=r"exists with another x-.*wanted is.*queue_type") as caught:
            await queue.connect()

        assert caught.value.code == QueueErrorCode.INVALID_OPTION
        await bench.queue.add("one", 1)

    async def test_a_queue_that_somebody_deleted_is_made_again(self, bench: Bench) -> None:
        done: list[str] = []
        troubles: list[Any] = []

        async def send(data: str, job: Any) -> None:
            done.append(data)

        worker = bench.worker(send)
        worker.on("queue.error", troubles.append)
        async with worker:
            await (await bench.channel()).queue_delete(bench.name)
            await until(lambda: len(troubles) == 1)
            await bench.queue.add("one", "one")
            await bench.queue.add("two", "two", delay=timedelta(milliseconds=1))
            await until(lambda: sorted(done) == ["one", "two"])

        assert "was the queue deleted" in troubles[0].message

    async def test_adding_to_a_queue_that_somebody_deleted(self, bench: Bench) -> None:
        await (await bench.channel()).queue_delete(bench.name)

        await bench.queue.add("one", 1)

        assert (await bench.queue.stats()).waiting == 1

    async def test_delays_of_other_processes_are_deleted_too(self, bench: Bench) -> None:
        async with Queue(bench.name, provider=bench.factory()) as other:
            await other.add("later", 1, delay=timedelta(milliseconds=600))

        await bench.queue.delete()

        await bench.queue.add("now", 1)
        channel = await bench.channel()
        with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
            await channel.declare_queue(f"{bench.name}.delay.600.{int(time.time()) // 600}", passive=True)

    async def test_a_delay_queue_ends_by_itself_and_never_with_jobs_in_it(self, bench: Bench) -> None:
        before = time.time()
        await bench.queue.add("later", 1, delay=timedelta(minutes=5))
        channel = await bench.channel()

        # Ten minutes in which it is published to, five until the last job in it is due, and ten for what may go wrong.
        safe = {
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
            "x-delivery-limit": 2**31 - 1,
        }
        arguments = {
            "x-queue-type": bench.queue_type,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": bench.name,
            "x-message-ttl": 300_000,
            "x-expires": 1_500_000,
            **(safe if bench.queue_type == "quorum" else {}),
        }
        names = {f"{bench.name}.delay.300000.{int(now) // 600}" for now in (before, time.time())}
        counts = [
            (await channel.declare_queue(name, durable=True, arguments=arguments)).declaration_result.message_count
            for name in names
        ]
        assert sum(count or 0 for count in counts) == 1

    async def test_attempts_with_jitter_share_few_delay_queues(self, bench: Bench) -> None:
        backoff = Backoff(initial=timedelta(seconds=20), jitter=0.5)
        await bench.queue.add_many("n", range(40), attempts=2, backoff=backoff)
        provider: Any = await bench.provider()

        delays = [await provider.nack(job, ValueError("no")) for job in await arrived(provider, 40)]

        assert all(timedelta(seconds=10) <= delay <= timedelta(seconds=40) for delay in delays)
        assert len(set(delays)) <= 7

    @given(st.timedeltas(min_value=timedelta(), max_value=LONGEST_DELAY), st.integers(0, 2**32))
    def test_every_delay_queue_that_may_exist_is_known(self, delay: timedelta, now: int) -> None:
        topology = Topology("q", "quorum", 0)
        milliseconds = rounded(delay) or 100

        made = topology.delay(milliseconds, now)
        ends = topology._arguments(made)["x-expires"] / 1000

        assert made in topology.delays(now)
        assert made in topology.delays(now + ends - 1)
        assert ends * 1000 < 2**32
        # It may be made when its period begins, and published to when that ends.
        assert now + 600 + milliseconds / 1000 < now + ends

    @given(st.timedeltas(min_value=timedelta(), max_value=LONGEST_DELAY))
    def test_the_wait_for_an_attempt_is_rounded_up_by_a_third_at_most(self, delay: timedelta) -> None:
        given = roughly(delay)

        assert rounded(given) * timedelta(milliseconds=1) == given
        assert delay <= given <= max(delay * 1.4, delay + timedelta(milliseconds=100))

    @given(st.timedeltas(min_value=timedelta(), max_value=LONGEST_DELAY))
    def test_a_delay_is_rounded_up_by_an_eighth_at_most(self, delay: timedelta) -> None:
        given = timedelta(milliseconds=rounded(delay))

        assert delay <= given <= max(delay * 1.125, delay + timedelta(milliseconds=100))
        assert not delay or rounded(delay) in set(every_delay())
        assert len(every_delay()) < 210


class TestCounting:
    async def test_a_worker_that_dies_is_a_stall_and_no_attempt(self, bench: Bench) -> None:
        await bench.queue.add("one", 1)

        await bench.die(3)
        [job] = await arrived(await bench.provider(), 1)

        assert (job.attempts, job.stalls) == (0, 3)

    async def test_a_job_that_kills_its_workers_fails_and_that_is_told(self, bench: Bench) -> None:
        await bench.queue.add("poison", 1, attempts=5, max_stalls=1)
        ended: list[Any] = []
        provider = await bench.provider()
        provider.on_ended = ended.append

        await bench.die(2)

        assert list(await provider.fetch(1)) == []
        [letter] = await bench.queue.dead_letters()
        assert (letter.name, letter.attempts, letter.stalls) == ("poison", 0, 2)
        assert (letter.status, letter.reason) == (QueueJobStatus.FAILED, QueueFailureReason.STALLED)
        assert "its worker died" in (letter.error or "")
        assert letter.failed_at is not None
        assert [(job.id, job.reason, job.stalls, job.error) for job in ended] == [
            (letter.id, letter.reason, 2, letter.error)
        ]

    async def test_a_worker_tells_of_a_job_that_killed_others(self, bench: Bench) -> None:
        await bench.queue.add("poison", 1, max_stalls=0)
        await bench.die(1)
        failed: list[Any] = []

        worker = bench.worker(lambda data, job: None)
        worker.on("failed", failed.append)
        async with worker:
            await until(lambda: len(failed) == 1)

        assert (failed[0].name, failed[0].reason) == ("poison", QueueFailureReason.STALLED)

    async def test_what_nobody_began_in_time_fails(self, bench: Bench) -> None:
        ended: list[Any] = []
        provider = await bench.provider()
        provider.on_ended = ended.append
        await bench.queue.add("late", 1, ttl=timedelta(milliseconds=1))
        await bench.queue.add("in time", 1, ttl=timedelta(minutes=1))

        [job] = await arrived(provider, 1)

        assert job.name == "in time"
        [letter] = await bench.queue.dead_letters()
        assert (letter.name, letter.reason) == ("late", QueueFailureReason.EXPIRED)
        assert [job.name for job in ended] == ["late"]
        await bench.queue.retry(letter.id)
        [again] = await arrived(provider, 1)
        assert (again.name, again.expires_at) == ("late", None)

    async def test_a_fetch_that_was_cancelled_loses_no_job(self, bench: Bench) -> None:
        await bench.queue.add_many("n", range(3))
        provider: Any = await bench.provider()
        [held] = await arrived(provider, 1)

        for _ in range(3):
            fetching = asyncio.get_running_loop().create_task(provider.fetch(1))
            await asyncio.sleep(0)
            fetching.cancel()
            await asyncio.wait([fetching])
        jobs = [held, *await arrived(provider, 1)]
        fetching = asyncio.get_running_loop().create_task(provider.fetch(1))
        while provider._asked is None:
            await asyncio.sleep(0)
        fetching.cancel()
        await asyncio.wait([fetching])
        for job in jobs:
            await provider.ack(job)
        await provider.disconnect()

        [last] = await arrived(await bench.provider(), 1)
        assert (last.attempts, last.stalls) == (0, 0)
        assert len({last.id, *(job.id for job in jobs)}) == 3

    async def test_giving_back_counts_nothing(self, bench: Bench) -> None:
        await bench.queue.add("one", 1, attempts=2)
        provider = await bench.provider()

        for _ in range(3):
            [job] = await arrived(provider, 1)
            await provider.release([job])
        [job] = await arrived(provider, 1)

        assert job.attempts == 0

    async def test_deaths_and_errors_are_counted_apart(self, bench: Bench) -> None:
        await bench.queue.add("one", 1, attempts=4)
        await bench.die(1)
        provider = await bench.provider()
        [job] = await arrived(provider, 1)
        await provider.nack(job, ValueError("no"))

        await bench.die(1)
        [job] = await arrived(provider, 1)

        assert (job.attempts, job.stalls, job.error) == (1, 2, "no")


class TestFailedJobs:
    async def test_reading_leaves_them_as_they_were(self, bench: Bench) -> None:
        names = [f"n{n}" for n in range(12)]
        await bench.fail(*names)

        for _ in range(5):
            assert [job.name for job in await bench.queue.dead_letters()] == names[::-1]
            some = [names.index(job.name) for job in await bench.queue.dead_letters(limit=3)]
            assert len(some) == 3
            assert some == sorted(some, reverse=True)
        assert (await bench.queue.stats()).failed == 12
        assert list(await bench.queue.dead_letters(limit=0)) == []

    async def test_no_more_are_read_than_are_asked_for(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        await bench.fail(*(f"n{n}" for n in range(30)))
        asked: list[int] = []
        qos = aio_pika.Channel.set_qos

        async def set_qos(channel: Any, prefetch_count: int = 0, **options: Any) -> Any:
            asked.append(prefetch_count)
            return await qos(channel, prefetch_count, **options)

        monkeypatch.setattr(aio_pika.Channel, "set_qos", set_qos)
        await bench.queue.dead_letters(limit=10)

        assert asked == [10]

    async def test_they_are_kept_in_number_and_for_a_time(self, bench: Bench) -> None:
        name = f"{bench.name}-few"
        factory = bench.factory(keep_failed=Keep(count=5, age=timedelta(seconds=2)))
        async with Queue[Any](name, provider=factory) as queue:
            provider = factory.for_queue(name)
            await provider.connect()
            for n in range(12):
                await queue.add("n", n)
            for job in await arrived(provider, 12):
                await provider.nack(job, ValueError("no"))

            async def failed(count: int) -> bool:
                return (await queue.stats()).failed == count

            await until(lambda: failed(5))
            assert [job.data for job in await queue.dead_letters()] == [11, 10, 9, 8, 7]
            await until(lambda: failed(0))
            await provider.disconnect()
            await queue.delete()

    async def test_a_queue_that_keeps_them_otherwise_is_used_as_it_is(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        await bench.fail("one")
        other = bench.factory(keep_failed=Keep(count=5, age=timedelta(days=1)))

        async with Queue[Any](bench.name, provider=other) as queue:
            assert (await queue.stats()).failed == 1
            assert [job.name for job in await queue.dead_letters()] == ["one"]

        assert [record for record in caplog.messages if "another keep_failed" in record] != []

    async def test_readers_in_several_processes_each_see_all(self, bench: Bench) -> None:
        names = [f"n{n}" for n in range(10)]
        await bench.fail(*names)
        others = [await bench.provider() for _ in range(3)]

        async with asyncio.TaskGroup() as tasks:
            reading = [tasks.create_task(other.dead_letters()) for other in others for _ in range(2)]
            retrying = tasks.create_task(bench.queue.retry((await bench.queue.dead_letters())[4].id))

        assert retrying.done()
        assert {len(task.result()) for task in reading} <= {9, 10}
        assert len(await bench.queue.dead_letters()) == 9

    async def test_a_crash_while_one_is_retried_loses_nothing(self, bench: Bench) -> None:
        await bench.fail("one", "two")
        [_, letter] = await bench.queue.dead_letters()
        provider = await bench.provider()
        send = provider._publisher.send  # type: ignore[attr-defined]

        async def send_and_crash(*args: Any) -> None:
            await send(*args)
            raise SystemError

        provider._publisher.send = send_and_crash  # type: ignore[attr-defined]
        with pytest.raises(QueueRuntimeError) as caught:
            await provider.retry(letter.id)

        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.PROVIDER_ERROR, True)
        assert [job.name for job in await bench.queue.dead_letters()] == ["two", "one"]
        [job] = await arrived(await bench.provider(), 1)
        assert (job.id, job.attempts, job.error) == (letter.id, 0, None)


class TestSending:
    """What goes on is published before what came is acknowledged."""

    async def test_a_failure_that_cannot_be_noted_may_be_told_again(self, bench: Bench) -> None:
        await bench.queue.add("one", 1, attempts=3)
        provider: Any = await bench.provider()
        [job] = await arrived(provider, 1)
        with self._broken(provider), pytest.raises(QueueRuntimeError, match="no room") as caught:
            await provider.nack(job, ValueError("no"))

        await provider.nack(job, ValueError("no"))

        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.PROCESSING, True)
        [job] = await arrived(await bench.provider(), 1)
        assert (job.attempts, job.error) == (1, "no")

    async def test_a_worker_that_dies_before_it_could_note_a_failure_loses_nothing(self, bench: Bench) -> None:
        await bench.queue.add("one", 1, attempts=3)
        provider: Any = bench.factory().for_queue(bench.name)
        await provider.connect()
        [job] = await arrived(provider, 1)
        with self._broken(provider), pytest.raises(QueueRuntimeError):
            await provider.nack(job, ValueError("no"))
        await provider.disconnect()

        [job] = await arrived(await bench.provider(), 1)

        assert (job.attempts, job.stalls) == (0, 1)

    async def test_a_worker_that_cannot_note_a_failure_tries_until_it_can(self, bench: Bench) -> None:
        troubles: list[Any] = []
        runs: list[tuple[str, int]] = []

        async def send(data: str, job: Any) -> None:
            runs.append((data, job.attempts))
            if runs == [("one", 0)]:
                raise ValueError("no")

        failed: list[Any] = []
        worker = bench.worker(send)
        worker.on("queue.error", troubles.append)
        worker.on("failed", failed.append)
        async with worker:
            with self._broken(worker.provider):
                await bench.queue.add("one", "one", attempts=3)
                await until(lambda: len(troubles) > 2)
            await bench.queue.add("two", "two")
            await until(lambda: len(runs) == 3)

        assert sorted(runs) == [("one", 0), ("one", 1), ("two", 0)]
        assert "no room" in troubles[0].message
        assert [event.attempts for event in failed] == [1]

    @contextmanager
    def _broken(self, provider: Any) -> Iterator[None]:
        publish = provider._publisher._publish

        async def fail(*args: Any) -> None:
            raise OSError("no room")

        provider._publisher._publish = fail
        yield
        provider._publisher._publish = publish


class TestRefusals:
    """What RabbitMQ does not take, and what it does not take any more."""

    @pytest.mark.parametrize(
        "native",
        [
            {"user_id": "somebody else"},
            {"expiration": -1},
            {"reply_to": "amq.rabbitmq.reply-to"},
            {"headers": {"CC": 5}},
            {"headers": {"BCC": "x"}},
            {"headers": 5},
            {"headers": {5: 1}},
            {"priority": 300},
            {"delivery_mode": 7},
            {"type": "x" * 300},
            {"no such": 1},
        ],
        ids=repr,
    )
    async def test_a_property_that_is_refused_fails_that_job_alone(self, bench: Bench, native: dict[str, Any]) -> None:
        async def add(number: int) -> None:
            await bench.queue.add("good", number)

        async with asyncio.TaskGroup() as tasks:
            for number in range(20):
                tasks.create_task(add(number))
            with pytest.raises(QueueDataError) as caught:
                await bench.queue.add("bad", 1, provider_options={"rabbitmq": native})

        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.VALIDATION, False)
        assert (await bench.queue.stats()).waiting == 20

    @pytest.mark.parametrize("native", [{"user_id": None}, {"expiration": 60}, {"headers": {"CC": []}}], ids=repr)
    async def test_a_property_that_might_be_refused_and_is_not(self, bench: Bench, native: dict[str, Any]) -> None:
        provider = await bench.provider()
        if "user_id" in native:
            native = {"user_id": URL(bench.url).user or "guest"}
        await bench.queue.add("one", 1, provider_options={"rabbitmq": native}, attempts=2)
        [job] = await arrived(provider, 1)
        await provider.nack(job, ValueError("no"))

        [again] = await arrived(provider, 1)

        assert again.attempts == 1
        assert "CC" not in again.native.headers  # whoever got a copy does not get another one
        await provider.ack(again)

    async def test_of_several_it_is_told_which_were_added(self, bench: Bench) -> None:
        post = bench.queue.provider._publisher  # type: ignore[attr-defined]
        send = post.send

        async def cut(message: aio_pika.Message, delay: timedelta) -> Any:
            if message.body == b"3":
                raise ConnectionError("the line was cut")
            return await send(message, delay)

        post.send = cut
        with pytest.raises(QueuePartlyAdded, match="took 4 of 5 jobs: the line was cut") as caught:
            await bench.queue.add_many("one", range(5))

        assert (len(caught.value.added), (await bench.queue.stats()).waiting) == (4, 4)

    async def test_a_channel_on_which_everything_is_refused_is_left(self, bench: Bench) -> None:
        """As RabbitMQ may do after a node of its cluster was lost; not before others have their answers."""
        line = bench.queue.provider._publisher._sending  # type: ignore[attr-defined]
        old = await line.channel()
        publish, under_way, may_go_on = old.default_exchange.publish, asyncio.Event(), asyncio.Event()

        async def refuse(*args: Any, **kwargs: Any) -> Any:
            if not under_way.is_set():
                under_way.set()
                await may_go_on.wait()
                return await publish(*args, **kwargs)
            raise DeliveryError(None, Basic.Nack())

        old.default_exchange.publish = refuse  # type: ignore[method-assign]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bench.queue.add("slow", 0))
            await under_way.wait()
            for number in range(3):
                await bench.queue.add("one", number)
            assert await line.channel() is not old
            assert not old.is_closed
            may_go_on.set()

        await until(lambda: old.is_closed)
        assert (await bench.queue.stats()).waiting == 4


class TestDelivery:
    async def test_the_broker_never_hands_out_more_than_the_concurrency(self, bench: Bench) -> None:
        active = 0
        may_end = asyncio.Semaphore(0)

        async def send(data: int, job: Any) -> None:
            nonlocal active
            active += 1
            await may_end.acquire()
            active -= 1

        def waiting(count: int) -> Any:
            async def are_waiting() -> bool:
                return (await bench.queue.stats()).waiting == count

            return are_waiting

        await bench.queue.add_many("letter", range(20))
        async with bench.worker(send, concurrency=6) as worker:
            await until(waiting(14))
            worker.set_concurrency(2)
            consumer: Any = (
                worker._source._consumer
            )  # the broker counts a consumer until its last message is acknowledged
            await until(lambda: consumer._live == [])
            may_end.release()
            may_end.release()
            await until(lambda: active == 4)
            assert (await bench.queue.stats()).waiting == 14

            for left in (13, 12, 11):
                for _ in range(3 if left == 13 else 1):
                    may_end.release()
                await until(waiting(left))
                await until(lambda: active == 2)

            worker.set_concurrency(5)
            await until(waiting(8))
            await until(lambda: active == 5)
            for _ in range(20):
                may_end.release()
            await until(waiting(0))
            await until(lambda: active == 0)

    async def test_a_lost_connection_ends_handlers_and_others_get_their_jobs(self, bench: Bench) -> None:
        troubles: list[Any] = []
        runs: list[int] = []
        cancelled = asyncio.Event()

        async def send(data: str, job: Any) -> None:
            runs.append(job.stalls)
            if len(runs) == 1:
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.set()

        async with proxied(bench.url) as (proxy, url):
            worker = bench.worker(send, url)
            worker.on("queue.error", troubles.append)
            async with worker:
                await bench.queue.add("one", "one", attempts=3)
                await until(lambda: runs == [0])
                proxy.cut()
                proxy.mend()
                await until(lambda: runs == [0, 1])
                await bench.queue.add("two", "two")
                await until(lambda: len(runs) == 3)

        assert cancelled.is_set()
        assert {trouble.error.code for trouble in troubles} == {QueueErrorCode.CONNECTION, QueueErrorCode.PROCESSING}
        assert any("is not active" in trouble.message for trouble in troubles)

    async def test_a_producer_goes_on_after_a_lost_connection(self, bench: Bench) -> None:
        async with proxied(bench.url) as (proxy, url), Queue(bench.name, provider=bench.factory(url)) as queue:
            await queue.add("one", 1)
            proxy.cut()
            proxy.mend()
            added, refused = 1, list[QueueRuntimeError]()
            while added < 3:
                try:
                    await queue.add("next", 1)
                    added += 1
                except QueueRuntimeError as error:
                    refused.append(error)

        assert all((error.code, error.retryable) == (QueueErrorCode.ENQUEUE, True) for error in refused)
        assert all(error.cause is not None for error in refused)
        assert (await bench.queue.stats()).waiting in (3, 3 + len(refused))

    async def test_who_is_cancelled_while_asking_costs_nobody_the_channel(self, bench: Bench) -> None:
        """As a worker is whose start is cancelled, and which is started again."""
        provider = await bench.provider()

        async def ask() -> None:
            await provider.stats()

        for turns in range(15):  # how far it comes: a question is under way in most of them
            asking = asyncio.get_running_loop().create_task(ask())
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(ask())
                for _ in range(turns):
                    await asyncio.sleep(0)
                asking.cancel()
                await asyncio.wait([asking])
                await ask()

    async def test_an_address_where_nobody_is(self) -> None:
        queue: Queue[Any] = Queue("nowhere", provider=RabbitMQ("amqp://guest:guest@127.0.0.1:1/"))

        with pytest.raises(QueueRuntimeError) as caught:
            await queue.add("one", 1)

        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.CONNECTION, True)

    async def test_a_connection_made_by_the_caller(self, rabbitmq_url: str) -> None:
        name = f"test-{secrets.token_hex(6)}"
        async with Queue(name, provider=RabbitMQ(lambda: aio_pika.connect(rabbitmq_url))) as queue:
            await queue.add("one", 1)
            assert (await queue.stats()).waiting == 1
            await queue.delete()

    async def test_a_handler_that_cancels_its_own_task_has_failed_and_leaves_its_slot(self, bench: Bench) -> None:
        told: list[Any] = []

        async def handler(data: str, job: Any) -> None:
            task = asyncio.current_task()
            if data == "odd" and task is not None:
                task.cancel()
            await asyncio.sleep(0)

        worker = bench.worker(handler)
        for event in ("failed", "completed"):
            worker.on(event, told.append)
        await bench.queue.add("one", "odd")
        await bench.queue.add("two", "fine")
        async with worker:
            await until(lambda: len(told) == 2)

        assert [(event.name, event.event) for event in told] == [("one", "failed"), ("two", "completed")]
        assert "the handler let itself be cancelled" in told[0].error

    async def test_a_worker_that_is_cancelled_gives_back(self, bench: Bench) -> None:
        begun, told = asyncio.Event(), list[Any]()

        async def hang(data: int, job: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

        async def is_back() -> bool:
            return (await bench.queue.stats()).waiting == 1

        await bench.queue.add("one", 1)
        worker = bench.worker(hang)
        worker.on("failed", told.append)
        running = asyncio.get_running_loop().create_task(worker.run())
        await begun.wait()
        running.cancel()
        await asyncio.wait([running])

        await until(is_back)
        assert told == []


class TestAnIdleConsumer:
    """A quorum queue's is made anew now and then; nobody notices."""

    async def test_jobs_that_come_meanwhile_run(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(delivery, "_IDLE", 0.02)
        done: list[int] = []
        troubles: list[Any] = []

        async def send(data: int, job: Any) -> None:
            done.append(data)

        worker = bench.worker(send)
        worker.on("queue.error", troubles.append)
        async with worker:
            for n in range(100):
                await bench.queue.add("n", n)
                await asyncio.sleep(random.uniform(0.01, 0.04))
            await until(lambda: len(done) >= 100)

        assert sorted(done) == list(range(100))
        assert troubles == []
        assert (await bench.queue.stats()).failed == 0

    async def test_a_neighbour_on_the_same_connection_is_left_alone(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(delivery, "_IDLE", 0.02)
        may_end = asyncio.Event()
        done: list[Any] = []
        factory, neighbour = bench.factory(), f"{bench.name}-neighbour"

        async def quick(data: int, job: Any) -> None: ...

        async def slow(data: int, job: Any) -> None:
            await may_end.wait()
            done.append(data)

        async with Queue[Any](neighbour, provider=bench.factory()) as queue:
            async with (
                QueueWorker(bench.name, quick, provider=factory),
                QueueWorker(neighbour, slow, provider=factory, concurrency=5),
            ):
                await queue.add_many("slow", range(5))
                for n in range(50):
                    await bench.queue.add("n", n)
                    await asyncio.sleep(random.uniform(0.01, 0.04))
                may_end.set()
                await until(lambda: len(done) == 5)
            await queue.delete()  # not before: a worker would make it again

        assert sorted(done) == list(range(5))

    async def test_a_queue_that_was_deleted_and_made_again_at_once_is_consumed(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(delivery, "_IDLE", 0.5)
        done: list[int] = []

        async def send(data: int, job: Any) -> None:
            done.append(data)

        async with bench.worker(send):
            await bench.queue.delete()
            await bench.queue.add("n", 1)
            await until(lambda: done == [1])

    async def test_nothing_is_acknowledged_on_a_channel_that_closes(self, bench: Bench) -> None:
        factory, neighbour = bench.factory(), f"{bench.name}-neighbour"
        provider, other = factory.for_queue(bench.name), factory.for_queue(neighbour)
        await provider.connect()
        await other.connect()
        async with Queue[Any](neighbour, provider=bench.factory()) as queue:
            await queue.add("theirs", 1)
            await bench.queue.add("ours", 1)
            [theirs], [ours] = await arrived(other, 1), await arrived(provider, 1)

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(provider._pulling.close())
                await asyncio.sleep(0)
                with pytest.raises(QueueRuntimeError, match="not active") as caught:
                    await provider.ack(ours)
            await other.ack(theirs)

            assert not caught.value.retryable
            assert list(await other.fetch(1)) == []
            await provider.disconnect()
            await other.disconnect()
            await queue.delete()


class TestWhateverLeavesAHandler:
    """Of one who uses `process` without a worker."""

    @pytest.mark.parametrize(
        "error",
        [asyncio.CancelledError(), concurrent.futures.CancelledError(), SystemExit(3), KeyboardInterrupt(), Wordless()],
        ids=lambda error: type(error).__name__,
    )
    async def test_it_counts_and_delivery_goes_on(self, bench: Bench, error: BaseException) -> None:
        provider = await bench.provider()
        runs: list[tuple[str, int]] = []
        troubles: list[Any] = []

        async def handle(job: Any) -> None:
            runs.append((job.name, job.attempts))
            if job.name == "odd":
                raise error

        consumer = await provider.process(handle, concurrency=1, on_error=troubles.append)
        await bench.queue.add("odd", 1, attempts=2)
        await until(lambda: len(runs) == 2)
        await bench.queue.add("fine", 1)
        await until(lambda: len(runs) == 3)
        await consumer.stop()
        await consumer.wait()

        assert (runs, troubles) == ([("odd", 0), ("odd", 1), ("fine", 0)], [])
        [letter] = await bench.queue.dead_letters()
        assert (letter.attempts, letter.reason) == (2, QueueFailureReason.ATTEMPTS)


class TestHealth:
    async def test_the_workers_of_a_queue_are_counted(self, bench: Bench) -> None:
        async def send(data: Any, job: Any) -> None: ...

        assert (await bench.queue.health()).active_workers == 0
        async with bench.worker(send), bench.worker(send):
            assert (await bench.queue.health()).active_workers == 2

        async def none_left() -> bool:
            return (await bench.queue.health()).active_workers == 0

        await until(none_left)


class TestConstructing:
    @pytest.mark.parametrize(
        ("address", "options", "words"),
        [
            ("amqp://localhost", {"host": "rabbit.example.org"}, "host is a part of the address"),
            ("amqp://localhost", {"login": "jobs"}, "login is a part of the address"),
            ("amqp://localhost", {"heart_beat": 3}, "heart_beat is not an option"),
            ("amqp://localhost", {"keep_failed": 5}, "keep_failed must be Keep"),
            ("amqp://localhost", {"keep_failed": Keep(count=-1, age=timedelta())}, "keep_failed.count must be"),
            ("amqp://localhost", {"keep_failed": Keep(count=1, age=timedelta(days=60))}, "keep_failed.age must be at"),
            ("localhost", {}, "target must be an address like amqp"),
            ("redis://localhost", {}, "target must be an address like amqp"),
            (None, {}, "target must be an address, or a function"),
            (lambda: None, {"heartbeat": 3}, "heartbeat: give that to the connection that your function makes"),
        ],
    )
    def test_addresses_and_their_options(self, address: Any, options: dict[str, Any], words: str) -> None:
        with pytest.raises(QueueConfigurationError, match=words):
            RabbitMQ(address, **options)

    def test_a_password_is_not_shown(self) -> None:
        with pytest.raises(QueueConfigurationError) as caught:
            RabbitMQ("ampq://jobs:secret@localhost")

        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda url: url.with_password("wrong"), "does not accept the user or the password"),
            (lambda url: url.with_path("/no-such-vhost"), "refused the virtual host"),
            (lambda url: url.with_host("no-such-host.invalid"), "there is no such host"),
            (lambda url: URL(str(url).replace("amqp:", "amqps:")), "does not speak TLS"),
        ],
        ids=["password", "vhost", "host", "tls"],
    )
    async def test_what_is_wrong_with_an_address_is_said_and_not_tried_again(
        self, rabbitmq_url: str, change: Callable[[URL], URL], words: str
    ) -> None:
        queue: Queue[Any] = Queue("nowhere", provider=RabbitMQ(str(change(URL(rabbitmq_url)))))

        with pytest.raises(QueueRuntimeError, match=words) as caught:
            await queue.add("one", 1)

        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.CONNECTION, False)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"queue_type": "mirrored"}, 'queue_type must be "quorum" or "classic"'),
            ({"max_priority": 256}, "max_priority must be a whole number from 0 to 255"),
            ({"max_job_size": 0}, "max_job_size must be"),
        ],
    )
    def test_mistakes_fail_at_once(self, options: dict[str, Any], words: str) -> None:
        with pytest.raises(QueueConfigurationError, match=words):
            RabbitMQ("amqp://localhost", **options)

    @pytest.mark.parametrize("name", ["", "amq.direct", "x" * 250])
    def test_names_that_rabbitmq_does_not_take(self, name: str) -> None:
        with pytest.raises(QueueConfigurationError, match="name must be"):
            RabbitMQ("amqp://localhost").for_queue(name)

    def test_what_a_queue_can_do_depends_on_its_type(self) -> None:
        def has_priority(**options: Any) -> bool:
            return RabbitMQ("amqp://localhost", **options).for_queue("q").capabilities.priority

        assert not has_priority()
        assert has_priority(queue_type="classic")
        assert not has_priority(queue_type="classic", max_priority=0)


@pytest.mark.chaos
@pytest.mark.timeout(300)
class TestOutage:
    """A server of the test's own goes away and comes back."""

    @pytest.mark.parametrize("queue_type", TYPES)
    @pytest.mark.parametrize("mode", ["fast", "kill"])
    async def test_stopped_and_started_under_load_loses_nothing(self, queue_type: Any, mode: str) -> None:
        with servers.private_rabbitmq() as server:
            done: set[int] = set()
            added: set[int] = set()
            refused: list[QueueRuntimeError] = []
            troubles: list[Any] = []
            stop = asyncio.Event()

            async def send(data: int, job: Any) -> None:
                await asyncio.sleep(0.01)
                done.add(data)

            async def produce(queue: Queue[int]) -> None:
                number = 0
                while not stop.is_set():
                    try:
                        await queue.add("n", number, attempts=50)
                        added.add(number)
                    except QueueRuntimeError as error:
                        refused.append(error)
                        await asyncio.sleep(0.2)
                    number += 1

            queue: Queue[int] = Queue("load", provider=RabbitMQ(server.dsn, queue_type=queue_type))
            if mode == "kill":
                # RabbitMQ 3.10 writes down within minutes which quorum queues it has: a kill before loses them.
                async with queue:
                    await asyncio.to_thread(server.restart)
            worker = QueueWorker("load", send, provider=RabbitMQ(server.dsn, queue_type=queue_type), concurrency=5)
            worker.on("queue.error", troubles.append)
            async with queue, worker, asyncio.TaskGroup() as tasks:
                tasks.create_task(produce(queue))
                await until(lambda: len(done) > 50)
                await asyncio.to_thread(server.stop, mode)
                before = len(refused)
                await until(lambda: len(refused) > before + 3)
                await asyncio.to_thread(server.start)
                so_far = len(added)
                async with asyncio.timeout(60):
                    while len(added) < so_far + 50:
                        await asyncio.sleep(0.05)
                stop.set()
                async with asyncio.timeout(60):
                    while not added <= done:
                        await asyncio.sleep(0.05)
                assert (await queue.stats()).failed == 0

            assert {(error.code, error.retryable) for error in refused} == {(QueueErrorCode.ENQUEUE, True)}
            assert troubles

    async def test_a_broker_that_takes_nothing_more_is_still_emptied(self) -> None:
        done: list[int] = []

        async def send(data: int, job: Any) -> None:
            done.append(data)

        with servers.private_rabbitmq() as server:
            async with Queue("full", provider=(factory := RabbitMQ(server.dsn))) as queue:
                await queue.add_many("n", range(100))
                await asyncio.to_thread(servers.rabbitmqctl, server, "set_vm_memory_high_watermark", "0.00001")
                with pytest.raises(QueueRuntimeError, match="gave no answer within") as caught:
                    await queue.add("n", 100)
                async with QueueWorker("full", send, provider=factory, concurrency=5):
                    await until(lambda: len(done) >= 100)
                await asyncio.to_thread(servers.rabbitmqctl, server, "set_vm_memory_high_watermark", "0.6")
                await until(self._works(queue))

        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.ENQUEUE, True)

    async def test_a_frozen_server_is_an_error_in_time(self) -> None:
        with servers.private_rabbitmq() as server:
            async with Queue("frozen", provider=RabbitMQ(server.dsn)) as queue:
                await queue.add("one", 1)
                process = server.pid
                os.kill(process, signal.SIGSTOP)
                try:
                    began = time.monotonic()
                    for call in (lambda: queue.add("two", 2), queue.stats, queue.dead_letters):
                        with pytest.raises(QueueRuntimeError, match="gave no answer within") as caught:
                            await call()
                        assert caught.value.retryable
                    assert time.monotonic() - began < 60
                finally:
                    os.kill(process, signal.SIGCONT)
                await until(self._works(queue))

    def _works(self, queue: Queue[Any]) -> Any:
        async def works() -> bool:
            try:
                await queue.add("three", 3)
            except QueueRuntimeError:
                return False
            return True

        return works

    async def test_a_node_that_is_killed_takes_nothing_with_it(self) -> None:
        """Whoever publishes by way of another node goes on, also where the queue was led by the one that is gone."""
        done: set[int] = set()
        added: set[int] = set()
        refused: list[QueueRuntimeError] = []

        async def send(data: int, job: Any) -> None:
            done.add(data)

        with servers.private_rabbitmq_cluster() as nodes:
            lost, other, third = (node.dsn for node in nodes)
            async with Queue[int]("load", provider=RabbitMQ(lost)) as queue:
                await queue.add("n", -1)  # a queue is led by the node that it was made by
            queue = Queue("load", provider=RabbitMQ(other))
            worker = QueueWorker("load", send, provider=RabbitMQ(third), concurrency=5)
            for one in (queue, worker):
                one.on("queue.error", lambda event: None)
            async with queue, worker:

                async def add(number: int) -> None:
                    try:
                        await queue.add("n", number)
                        added.add(number)
                    except QueueRuntimeError as error:
                        refused.append(error)
                        await asyncio.sleep(0.2)

                for number in range(50):
                    await add(number)
                nodes[0].stop("kill")
                number, until_then = 50, time.monotonic() + 90
                while len(added) < 150 and time.monotonic() < until_then:
                    await asyncio.wait([asyncio.get_running_loop().create_task(add(number + n)) for n in range(5)])
                    number += 5
                assert len(added) >= 150, [str(error) for error in refused[-3:]]
                async with asyncio.timeout(60):
                    while not added <= done:
                        await asyncio.sleep(0.05)
                assert (await queue.stats()).failed == 0
        assert {(error.code, error.retryable) for error in refused} <= {(QueueErrorCode.ENQUEUE, True)}


def test_without_the_package_the_error_says_what_to_install() -> None:
    program = "import sys; sys.modules['aio_pika'] = None; import onward.queue.providers.rabbitmq"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert "QueueConfigurationError: aio-pika is not installed: pip install 'onward[rabbitmq]'" in done.stderr

"""What only NATS JetStream has: its streams and messages, leases by the clock, notes of what became of jobs."""

import asyncio
import json
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import nats
import pytest
from msgspec import Raw
from nats.js import JetStreamContext, api
from nats.js.errors import NotFoundError

import certificates
import servers
from onward import Permanent
from onward.conformance.queue.session import LONG, arrived, names, until
from onward.errors import QueueConfigurationError, QueueDataError, QueueErrorCode, QueueRuntimeError
from onward.model import Backoff, Progress
from onward.queue import Keep, Queue, QueueJobStatus, QueueWorker
from onward.queue.model import QueueFailureReason
from onward.queue.providers.nats import Nats
from onward.queue.providers.nats.provider import NatsProvider
from proxy import proxied

T = TypeVar("T")
SECOND = timedelta(seconds=1)
PAGE = Path(__file__).parents[2] / "docs/how-to/queues-nats.md"
ODD = ["a.b", "two words", "stars.*.>", "ünïcødé 数", "per%cent", "$JS.API", "tab\there", "a/b:c"]


class Bench:
    """A queue of this test's own, and what the tests do with it."""

    def __init__(self, url: str, stack: AsyncExitStack, name: str | None = None) -> None:
        self.url, self._stack = url, stack
        self.name = name or f"test-{secrets.token_hex(6)}"
        self.queue: Queue[Any] = Queue(self.name, provider=self.factory())
        self.queue.on("queue.error", lambda event: None)

    def factory(self, url: str | None = None, **options: Any) -> Nats:
        return Nats(url or self.url, **{"wait": SECOND, **options})

    async def provider(self, url: str | None = None, **options: Any) -> NatsProvider:
        provider = self.factory(url, **options).for_queue(self.name)
        await provider.connect()
        self._stack.push_async_callback(provider.disconnect)
        return provider

    async def worker(self, handler: Callable[..., Any], **options: Any) -> QueueWorker[Any]:
        worker = QueueWorker(self.name, handler, provider=self.factory(), **options)
        worker.on("queue.error", lambda event: None)
        await worker.start()
        self._stack.push_async_callback(worker.close)
        return worker

    async def native(self) -> JetStreamContext:
        """As any other program would talk to the server."""
        client = await nats.connect(self.url)
        self._stack.push_async_callback(client.close)
        return client.jetstream()

    def stream(self, kind: str) -> str:
        return f"onward-{kind}-{self.name}"

    async def messages(self, kind: str) -> int:
        return (await (await self.native()).stream_info(self.stream(kind))).state.messages

    async def publish(self, kind: str, last: str, data: bytes = b"1", **headers: str) -> None:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        await (await self.native()).publish(f"onward.{self.name}.{kind}.{last}", data, headers=given or None)


@pytest.fixture
async def bench(nats_url: str) -> AsyncIterator[Bench]:
    async with opened(nats_url) as bench:
        yield bench


@asynccontextmanager
async def opened(url: str, name: str | None = None) -> AsyncIterator[Bench]:
    """A bench; its queue is deleted at the end."""
    async with AsyncExitStack() as stack:
        bench = Bench(url, stack, name)
        await bench.queue.connect()
        try:
            yield bench
        finally:
            await stack.aclose()
            cleaner: Queue[Any] = Queue(bench.name, provider=bench.factory())
            await cleaner.delete()
            await cleaner.disconnect()
            await bench.queue.disconnect()


def begun(call: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """A call under way; the test waits for it."""
    return asyncio.get_running_loop().create_task(call)


async def refusal(call: Any) -> QueueRuntimeError:
    with pytest.raises(QueueRuntimeError) as caught:
        await call
    return caught.value


class TestConstructing:
    """Mistakes are found when it is made, and named."""

    @pytest.mark.parametrize(
        "servers",
        [
            *("", "localhost", "localhost:4222", "http://localhost", "nats://", "nats://host:0", "nats://host:99999"),
            *("redis://localhost", "nats:localhost", [], (), ["nats://a", "b"], ["nats://a", 5], 5, None, b"nats://a"),
        ],
    )
    def test_servers(self, servers: Any) -> None:
        with pytest.raises(QueueConfigurationError, match=r"\[Nats\] servers .*(must be an address|port)") as caught:
            Nats(servers)

        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.INVALID_OPTION, False)

    def test_a_password_is_not_shown(self) -> None:
        with pytest.raises(QueueConfigurationError) as caught:
            Nats("nats//ada:s3cret@host")

        assert "s3cret" not in str(caught.value)

    @pytest.mark.parametrize(
        "servers", ["nats://h", "tls://h:1", "ws://h", "wss://h", ["nats://a", "nats://b:5"], ("nats://a",)]
    )
    def test_servers_that_may_be(self, servers: Any) -> None:
        assert Nats(servers).for_queue("emails").capabilities.duplicates

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            *(("lease", bad) for bad in (30, 30.0, "30", timedelta(milliseconds=999), timedelta(), -SECOND)),
            *(("wait", bad) for bad in (4, None, -SECOND, timedelta(seconds=21))),
            *(("replicas", bad) for bad in (0, 6, -1, "1", 1.5, None)),
            *(("storage", bad) for bad in ("disk", "", None, 1)),
            *(("prefix", bad) for bad in ("", "a.b", "a b", "ä", "x" * 41, 5, None, "*", ">")),
            *(("domain", bad) for bad in ("", "a.b", "x" * 41, 5)),
            *((keep, bad) for keep in ("keep_completed", "keep_failed") for bad in (5, "all", timedelta(days=1))),
            *(("keep_failed", bad) for bad in (Keep(count=-1, age=SECOND), Keep(count=1, age=-SECOND))),
        ],
    )
    def test_options(self, option: str, value: Any) -> None:
        with pytest.raises(QueueConfigurationError, match=rf"\[Nats\] {option}.* must be"):
            Nats("nats://localhost", **{option: value})

    @pytest.mark.parametrize("option", ["host", "port", "url", "server"])
    def test_parts_of_the_address(self, option: str) -> None:
        with pytest.raises(QueueConfigurationError, match=f"{option} is a part of the address"):
            Nats(**{option: "localhost"})

    @pytest.mark.parametrize("option", ["allow_reconnect", "max_reconnect_attempts", "closed_cb", "pasword"])
    def test_options_that_are_none(self, option: str) -> None:
        with pytest.raises(QueueConfigurationError, match=f"{option} is not an option of Nats or of its client"):
            Nats("nats://localhost", **{option: 1})

    @pytest.mark.parametrize("name", ["x" * 181, "数" * 61, "." * 100])
    def test_names_that_are_too_long(self, name: str) -> None:
        with pytest.raises(QueueConfigurationError, match="at most 180 characters, as in an URL"):
            Nats("nats://localhost").for_queue(name)


class TestStreams:
    """Made as the page says, and changed only by who says so."""

    async def test_as_documented(self, bench: Bench) -> None:
        jetstream = await bench.native()
        jobs, state, completed, failed = [
            (await jetstream.stream_info(bench.stream(kind))).config
            for kind in ("jobs", "state", "completed", "failed")
        ]
        consumers = {
            kind: (await jetstream.consumer_info(bench.stream("jobs"), kind)).config for kind in ("job", "later")
        }

        prefix = f"onward.{bench.name}"
        assert jobs.subjects == [f"{prefix}.job.*", f"{prefix}.later.*"]
        assert (jobs.retention, jobs.duplicate_window) == (api.RetentionPolicy.WORK_QUEUE, 120)
        assert (state.subjects, state.max_msgs_per_subject) == ([f"{prefix}.state.*"], 1)
        assert (completed.max_msgs, completed.max_age) == (1_000, 86_400)
        assert (failed.max_msgs, failed.max_age) == (10_000, 30 * 86_400)
        for stream in (jobs, state, completed, failed):
            assert (stream.storage, stream.num_replicas) == (api.StorageType.FILE, 1)
        for kind, consumer in consumers.items():
            assert (consumer.durable_name, consumer.filter_subject) == (kind, f"{prefix}.{kind}.*")
            assert (consumer.ack_policy, consumer.ack_wait) == (api.AckPolicy.EXPLICIT, 30)
            assert (consumer.max_deliver, consumer.max_ack_pending) == (-1, -1)

    async def test_what_is_given_changes_it_and_what_is_left_out_stays(self, bench: Bench) -> None:
        few, fewer = Keep(count=7, age=timedelta(hours=1)), Keep(count=5, age=timedelta(minutes=1))
        await bench.provider(lease=2 * SECOND, keep_completed=few, keep_failed=fewer)
        assert (await bench.provider()).lease == 2 * SECOND  # as it is

        jetstream = await bench.native()
        completed, failed = [
            (await jetstream.stream_info(bench.stream(kind))).config for kind in ("completed", "failed")
        ]
        consumer = (await jetstream.consumer_info(bench.stream("jobs"), "job")).config
        assert (completed.max_msgs, completed.max_age, failed.max_msgs, failed.max_age) == (7, 3600, 5, 60)
        assert consumer.ack_wait == 2

    async def test_none_kept(self, bench: Bench) -> None:
        none = Keep(count=0, age=timedelta())
        provider = await bench.provider(keep_completed=none, keep_failed=none)
        done, failed = await bench.queue.add("one", 1), await bench.queue.add("two", 2)
        for job in await arrived(provider, 2):
            if job.name == "one":
                await provider.ack(job)
            else:
                await provider.nack(job, Permanent("no"))

        for kind in ("jobs", "completed", "failed"):
            assert await bench.messages(kind) == 0
        assert [await provider.get_job(job.id) for job in (done, failed)] == [None, None]

    async def test_the_newest_are_kept(self, bench: Bench) -> None:
        provider = await bench.provider(keep_completed=Keep(count=2, age=timedelta(days=1)))
        for n in range(4):
            await bench.queue.add(f"job {n}", n)
            [job] = await arrived(provider, 1)
            await provider.ack(job)

        assert names((await provider.jobs(QueueJobStatus.COMPLETED, after=None, limit=9)).items) == ["job 3", "job 2"]

    async def test_in_memory_and_with_a_prefix(self, nats_url: str) -> None:
        name, prefix = f"test-{secrets.token_hex(6)}", f"t-{secrets.token_hex(3)}"
        factory = Nats(nats_url, storage="memory", prefix=prefix)
        async with Queue[int](name, provider=factory) as queue:
            await queue.add("one", 1)
            client = await nats.connect(nats_url)
            info = await client.jetstream().stream_info(f"{prefix}-jobs-{name}")
            await client.close()
            await queue.delete()

        assert (info.config.storage, info.state.messages) == (api.StorageType.MEMORY, 1)

    async def test_more_replicas_than_servers(self, nats_url: str) -> None:
        queue: Queue[int] = Queue(f"test-{secrets.token_hex(6)}", provider=Nats(nats_url, replicas=3))

        with pytest.raises((QueueConfigurationError, QueueRuntimeError), match="replicas") as caught:
            await queue.connect()

        assert not caught.value.retryable

    async def test_subjects_of_another_stream(self, nats_url: str) -> None:
        name = f"test-{secrets.token_hex(6)}"
        client = await nats.connect(nats_url)
        await client.jetstream().add_stream(name=f"theirs-{name}", subjects=[f"onward.{name}.>"])
        try:
            with pytest.raises(
                QueueConfigurationError, match=f"does not make the stream 'onward-jobs-{name}'"
            ) as caught:
                await Queue[int](name, provider=Nats(nats_url)).connect()
        finally:
            await client.jetstream().delete_stream(f"theirs-{name}")
            await client.close()

        assert not caught.value.retryable

    @pytest.mark.parametrize("odd", ODD)
    async def test_odd_names_of_queues(self, nats_url: str, odd: str) -> None:
        async with opened(nats_url, f"{odd} {secrets.token_hex(4)}") as bench:
            provider = await bench.provider()
            done, tried, failed = [
                await bench.queue.add(name, name, attempts=2) for name in ("done", "tried", "failed")
            ]
            for job in await arrived(provider, 3):
                if job.name == "done":
                    await provider.ack(job)
                else:
                    await provider.nack(job, Permanent("no") if job.name == "failed" else ValueError("no"))
            [again] = await arrived(provider, 1)
            assert (again.id, again.attempts) == (tried.id, 1)
            assert await provider.renew([again]) == []
            await provider.ack(again)

            stats = await bench.queue.stats()
            assert (stats.waiting, stats.active, stats.completed, stats.failed) == (0, 0, 2, 1)
            assert (await provider.get_job(done.id)).queue_name == bench.name  # type: ignore[union-attr]
            assert [job.id for job in await bench.queue.dead_letters()] == [failed.id]

    async def test_names_that_look_alike_are_different_queues(self, nats_url: str) -> None:
        stem = secrets.token_hex(6)
        async with opened(nats_url, f"{stem}.a") as one, opened(nats_url, f"{stem}%2Ea") as other:
            await one.queue.add("one", 1)

            assert list(await (await other.provider()).fetch(1)) == []
            assert names(await (await one.provider()).fetch(1)) == ["one"]


class TestAdding:
    @pytest.mark.parametrize("odd", [*ODD, "x" * 400])
    async def test_odd_ids(self, bench: Bench, odd: str) -> None:
        provider = await bench.provider()
        added = await bench.queue.add("one", 1, id=odd)
        [job] = await arrived(provider, 1)
        await provider.nack(job, Permanent("no"))

        assert (added.id, job.id) == (odd, odd)
        assert (await provider.get_job(odd)).status is QueueJobStatus.FAILED  # type: ignore[union-attr]
        await provider.retry(odd)
        [job] = await arrived(provider, 1)
        await provider.ack(job)
        await provider.remove(odd)
        assert await provider.get_job(odd) is None

    @pytest.mark.parametrize("long", ["x" * 401, "数" * 60, "." * 200])
    async def test_ids_that_are_too_long(self, bench: Bench, long: str) -> None:
        with pytest.raises(QueueDataError, match="at most 400 characters on NATS") as caught:
            await bench.queue.add("one", 1, id=long)

        assert caught.value.code == QueueErrorCode.VALIDATION

    @pytest.mark.parametrize("where", ["waiting", "running", "delayed", "completed", "failed", "removed"])
    async def test_an_id_is_refused_wherever_its_job_is(self, bench: Bench, where: str) -> None:
        """For two minutes, whatever became of it."""
        provider = await bench.provider()
        await bench.queue.add("one", 1, id="mine", delay=timedelta(hours=1) if where == "delayed" else timedelta())
        if where == "removed":
            await provider.remove("mine")
        elif where not in ("waiting", "delayed"):
            [job] = await arrived(provider, 1)
            if where == "completed":
                await provider.ack(job)
            elif where == "failed":
                await provider.nack(job, Permanent("no"))

        with pytest.raises(QueueDataError) as caught:
            await bench.queue.add("two", 2, id="mine")

        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.DUPLICATE, False)

    async def test_an_id_that_is_due_meanwhile_is_moved_once(self, bench: Bench) -> None:
        first, second = await bench.provider(), await bench.provider()
        await bench.queue.add("one", 1, id="mine", delay=timedelta(milliseconds=300))

        async def look(provider: NatsProvider) -> int:
            return len(await provider.fetch(5, SECOND))

        found: list[int] = []

        async def is_found() -> bool:
            looks = [begun(look(one)) for one in (first, second, first, second)]
            found.extend([await one for one in looks])
            return any(found[:-4])  # and once more after that

        await until(is_found)
        assert sum(found) == 1
        assert await bench.messages("jobs") == 1

    async def test_a_delay(self, bench: Bench) -> None:
        provider = await bench.provider()
        began = time.monotonic()
        added = await bench.queue.add("later", 1, delay=2 * SECOND)

        stats = await bench.queue.stats()
        assert (stats.waiting, stats.delayed) == (0, 1)
        assert (await provider.get_job(added.id)).status is QueueJobStatus.DELAYED  # type: ignore[union-attr]
        assert names((await provider.jobs(QueueJobStatus.DELAYED, after=None, limit=5)).items) == ["later"]
        [job] = await arrived(provider, 1)
        assert time.monotonic() - began >= 1.95
        assert (job.name, job.scheduled_for) == ("later", added.scheduled_for)
        await provider.ack(job)
        assert await bench.messages("jobs") == 0

    async def test_a_delayed_job_is_removed(self, bench: Bench) -> None:
        provider = await bench.provider()
        added = await bench.queue.add("later", 1, delay=SECOND / 2)
        await provider.fetch(1)  # it was looked at, and is on its way

        await provider.remove(added.id)

        await asyncio.sleep(0.7)
        assert list(await provider.fetch(1, SECOND)) == []
        assert await provider.get_job(added.id) is None

    async def test_headers_of_the_applications(self, bench: Bench) -> None:
        provider = await bench.provider()
        native = {"nats": {"headers": {"Trace": "7", "Other-One": "x y: z"}}}
        await bench.queue.add("one", 1, provider_options=native, attempts=2)

        for attempt in range(2):
            [job] = await arrived(provider, 1)
            assert (job.native.headers["Trace"], job.native.headers["Other-One"]) == ("7", "x y: z")
            await provider.nack(job, ValueError(f"{attempt}"))
        await provider.retry(job.id)
        [job] = await arrived(provider, 1)
        assert job.native.headers["Trace"] == "7"

    @pytest.mark.parametrize(
        "native",
        [
            {"headers": 5},
            {"headers": ["a"]},
            {"headers": {"a": 1}},
            {"headers": {5: "a"}},
            {"headers": {"": "a"}},
            {"headers": {" ": "a"}},
            {"headers": {"a b": "x"}},
            {"headers": {"a:b": "x"}},
            {"headers": {"ä": "x"}},
            {"headers": {"a\r\nb": "x"}},
            {"headers": {"a": "x\r\ny: z"}},
            {"headers": {"a": "x\ny"}},
            {"headers": {"a": "\0"}},
            {"headers": {"a": None}},
            {"headers": {"a": "x" * 2_000_000}},
            {"headers": {"Nats-Msg-Id": "taken"}},
            {"headers": {"Nats-Expected-Stream": "another"}},
            {"headers": {"onward-job": "{}"}},
            {"subject": "elsewhere"},
            {"ttl": 5},
        ],
        ids=lambda native: repr(native)[:40],
    )
    async def test_a_bad_one_is_refused_and_ends_nothing(self, bench: Bench, native: dict[Any, Any]) -> None:
        """The connection is that of everybody here."""
        client = await bench.queue.provider._link.client()  # type: ignore[attr-defined]
        others = [begun(bench.queue.add("good", n)) for n in range(20)]

        with pytest.raises(QueueDataError) as caught:
            await bench.queue.add("bad", 1, provider_options={"nats": native})

        await asyncio.wait(others)
        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.VALIDATION, False)
        assert (await bench.queue.stats()).waiting == 20
        assert await bench.queue.provider._link.client() is client  # type: ignore[attr-defined]

    async def test_size(self, bench: Bench) -> None:
        most = bench.queue.capabilities.max_job_size
        assert most == (1 << 20) - (1 << 16)
        provider = await bench.provider()

        await bench.queue.add("large", "x" * (most - 100))
        for size in (most, 1 << 20, 3 << 20):
            with pytest.raises(QueueDataError) as caught:
                await bench.queue.add("too large", "x" * size)
            assert caught.value.code == QueueErrorCode.VALIDATION
        with pytest.raises(QueueDataError, match="with its metadata"):
            await bench.queue.add("metadata", "x" * (most - 100), metadata={"note": "y" * 100_000})

        [job] = await arrived(provider, 1)
        assert len(bytes(job.data)) == most - 98
        await provider.nack(job, Permanent("no"))
        assert names(await bench.queue.dead_letters()) == ["large"]

    @pytest.mark.parametrize("size", [65_300, 70_000, 500_000, 2_000_000])
    async def test_a_result_that_is_too_large_is_told_and_the_job_has_completed(self, bench: Bench, size: int) -> None:
        """It goes into a header, of which the server takes 64 KiB in all, however large a message may be."""
        told: list[Any] = []

        async def handler(data: int, job: Any) -> str:
            return "x" * size

        worker = await bench.worker(handler)
        worker.on("queue.error", told.append)
        added = await bench.queue.add("one", 1)

        assert await bench.queue.wait(added.id, timeout=timedelta(seconds=LONG)) is None
        assert any("too large for NATS" in event.message for event in told)

    async def test_a_result_that_just_fits_is_kept(self, bench: Bench) -> None:
        provider = await bench.provider()
        added = await bench.queue.add("one", 1, metadata={"m": "x" * 30_000})
        [job] = await arrived(provider, 1)

        await provider.ack(job, Raw(json.dumps("y" * 34_000).encode()))

        assert await bench.queue.wait(added.id, timeout=timedelta(seconds=LONG)) == "y" * 34_000

    async def test_metadata_and_headers_that_are_too_large(self, bench: Bench) -> None:
        for size in (57_500, 65_500, 70_000, 900_000):
            for options in (
                {"metadata": {"m": "x" * size}},
                {"metadata": {"m": "ü" * (size // 6)}},
                {"provider_options": {"nats": {"headers": {"Trace": "x" * size}}}},
            ):
                with pytest.raises(QueueDataError, match=r"57,343: NATS takes 64 KiB|with its metadata") as caught:
                    await bench.queue.add("one", 1, **options)
                assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.VALIDATION, False)

        assert (await bench.queue.stats()).waiting == 0

    @pytest.mark.parametrize("letter", ["e", "ü", "😀", "\0", '"'])
    async def test_there_is_room_for_what_becomes_of_a_job(self, bench: Bench, letter: str) -> None:
        """With as much metadata as it may have, and with as much data: errors and notes are cut."""
        provider = await bench.provider()
        most = bench.queue.capabilities.max_job_size
        large, words = {"m": "x" * 56_500}, letter * 100_000
        added = await bench.queue.add("one", 1, attempts=2, metadata=large)
        other = await bench.queue.add("two", "x" * (most - 100), attempts=2, metadata={"m": "x" * 30_000})

        for _ in range(2):
            for job in await arrived(provider, 2):
                await provider.report_progress(job, Progress(0.5, words))
                await provider.nack(job, ValueError(words))

        for job_id in (added.id, other.id):
            kept = await bench.queue.get_job(job_id)
            assert kept is not None
            assert (kept.status, kept.attempts, kept.stalls) == (QueueJobStatus.FAILED, 2, 0)
            assert letter * 300 in (kept.error or "")
            assert kept.metadata["m"].startswith("x" * 30_000)
            assert kept.progress is not None
            assert kept.progress.fraction == 0.5

    @pytest.mark.parametrize("outcome", ["completed", "failed"])
    async def test_another_programs_headers_that_leave_no_room(self, bench: Bench, outcome: str) -> None:
        """The job ends all the same, and is not run again for that."""
        told: list[Any] = []
        provider = await bench.provider()
        provider.events.on("queue.error", told.append)
        await bench.publish("job", "theirs", Trace="x" * 65_450)
        [job] = await arrived(provider, 1)

        await (provider.ack(job, Raw(b'"y"')) if outcome == "completed" else provider.nack(job, ValueError("no")))

        kept = await bench.queue.get_job("theirs")
        assert kept is not None
        assert (kept.status.value, kept.data) == (outcome, 1)
        assert any("leave no room" in event.message for event in told)

    async def test_many(self, bench: Bench) -> None:
        provider = await bench.provider()
        await bench.queue.add_many("one", range(1_200))

        jobs = await arrived(provider, 1_200)

        assert [int(bytes(job.data)) for job in jobs] == sorted(int(bytes(job.data)) for job in jobs)
        assert len({job.id for job in jobs}) == 1_200

    async def test_cancelled_while_it_is_added(self, bench: Bench) -> None:
        """It is there or not, and the connection serves others."""
        for n in range(60):
            adding = begun(bench.queue.add("maybe", n, id=f"job {n}"))
            await asyncio.sleep(n * 0.00003)
            adding.cancel()
            await asyncio.wait([adding])
        await bench.queue.add("last", 60)

        provider = await bench.provider()
        count = (await bench.queue.stats()).waiting or 0
        jobs = await arrived(provider, count)
        assert names(jobs)[-1] == "last"
        assert len({job.id for job in jobs}) == count


class TestTaking:
    async def test_who_waits_gets_what_is_added_at_once(self, bench: Bench) -> None:
        provider = await bench.provider(wait=timedelta(seconds=10))
        waiting = begun(provider.fetch(1, timedelta(seconds=10)))
        await asyncio.sleep(0.3)
        began = time.monotonic()
        await bench.queue.add("one", 1)

        assert names(await waiting) == ["one"]
        assert time.monotonic() - began < 5  # not when its wait is over

    async def test_an_interrupted_wait_ends_at_once_and_loses_nothing(self, bench: Bench) -> None:
        provider = await bench.provider(wait=timedelta(seconds=20))
        began = time.monotonic()
        waiting = begun(provider.fetch(1, timedelta(seconds=20)))
        await asyncio.sleep(0.2)
        provider.interrupt()

        assert list(await waiting) == []
        assert time.monotonic() - began < 10
        await bench.queue.add("one", 1)  # comes for the request that nobody waits for any more
        [job] = await arrived(provider, 1)
        assert (job.attempts, job.stalls) == (0, 0)

    async def test_who_is_interrupted_before_it_waits_does_not_wait(self, bench: Bench) -> None:
        """As a worker is that is closed right after it started."""
        provider = await bench.provider(wait=timedelta(seconds=20))
        pulling = await provider._incoming.puller("job")
        look, waits = pulling.some, list[float]()

        async def interrupted(count: int) -> Any:
            provider.interrupt()
            return await look(count)

        async def wait(seconds: float, **options: Any) -> Any:
            waits.append(seconds)
            return []

        pulling.some, pulling.one = interrupted, wait  # type: ignore[method-assign]
        await provider.fetch(1, timedelta(seconds=20))
        assert waits == []

        pulling.some = look  # type: ignore[method-assign]
        await provider.fetch(1, timedelta(seconds=20))
        assert waits == [20.0]

    async def test_what_came_for_nobody_goes_back_uncounted(self, bench: Bench) -> None:
        provider = await bench.provider(wait=timedelta(seconds=20))
        waiting = begun(provider.fetch(1, timedelta(seconds=20)))
        await asyncio.sleep(0.2)
        waiting.cancel()
        await asyncio.wait([waiting])
        await bench.queue.add("one", 1)
        await until(lambda: len(provider._incoming.spare) == 1)

        await provider.disconnect()

        [job] = await arrived(await bench.provider(), 1)
        assert (job.attempts, job.stalls) == (0, 0)

    async def test_fetches_that_are_cancelled_lose_nothing_and_count_nothing(self, bench: Bench) -> None:
        await bench.queue.add_many("one", range(30))
        provider = await bench.provider()
        found: set[str] = set()
        for n in range(40):
            fetching = begun(provider.fetch(2))
            await asyncio.sleep(n * 0.0001)
            fetching.cancel()
            await asyncio.wait([fetching])
            if not fetching.cancelled():
                found |= {job.id for job in fetching.result()}

        rest = await arrived(provider, 30 - len(found))

        assert len(found | {job.id for job in rest}) == 30
        assert {(job.attempts, job.stalls) for job in rest} <= {(0, 0)}

    @pytest.mark.parametrize("what", ["ack", "nack", "release"])
    async def test_cancelled_while_it_is_settled(self, bench: Bench, what: str) -> None:
        """It is settled, or it may be settled again; never lost, and never counted twice."""
        count = 25
        await bench.queue.add_many("one", range(count), attempts=100)
        provider = await bench.provider()
        settle: dict[str, Callable[[Any], Any]] = {
            "ack": provider.ack,
            "nack": lambda job: provider.nack(job, ValueError("no")),
            "release": lambda job: provider.release([job]),
        }
        for n, job in enumerate(await arrived(provider, count)):
            settling = begun(settle[what](job))
            await asyncio.sleep(n * 0.0001)
            settling.cancel()
            await asyncio.wait([settling])
            with suppress(QueueRuntimeError):  # it was settled
                await settle[what](job)

        if what == "ack":
            assert (await bench.queue.stats()).completed == count
            assert await bench.messages("jobs") == 0
            return
        again = await arrived(provider, count)
        assert {(job.attempts, job.stalls) for job in again} == {(1 if what == "nack" else 0, 0)}

    async def test_the_wait_before_the_next_attempt(self, bench: Bench) -> None:
        provider = await bench.provider()
        added = await bench.queue.add("one", 1, attempts=3, backoff=Backoff(initial=2 * SECOND, jitter=0.0))
        [job] = await arrived(provider, 1)

        began = time.monotonic()
        assert await provider.nack(job, ValueError("no")) == 2 * SECOND

        shown = await provider.get_job(added.id)
        assert shown is not None
        assert (shown.status, shown.attempts, shown.error) == (QueueJobStatus.DELAYED, 1, "no")
        assert names((await provider.jobs(QueueJobStatus.DELAYED, after=None, limit=5)).items) == ["one"]
        [again] = await arrived(provider, 1)
        assert time.monotonic() - began >= 1.95
        assert (again.attempts, again.stalls, again.error) == (1, 0, "no")
        assert (await provider.get_job(added.id)).status is QueueJobStatus.ACTIVE  # type: ignore[union-attr]

    async def test_nothing_is_known_of_a_job_that_has_ended(self, bench: Bench) -> None:
        provider = await bench.provider()
        await bench.queue.add("done", 1, attempts=3)
        await bench.queue.add("failed", 1, attempts=2)
        for _ in range(2):
            for job in await arrived(provider, 2 - (await bench.queue.stats()).completed):  # type: ignore[operator]
                if job.name == "done" and job.attempts:
                    await provider.ack(job)
                else:
                    await provider.nack(job, ValueError("no"))

        assert [await bench.messages(kind) for kind in ("jobs", "state", "completed", "failed")] == [0, 0, 1, 1]

    async def test_progress_outlives_its_worker(self, bench: Bench) -> None:
        provider = await bench.provider(lease=2 * SECOND)
        added = await bench.queue.add("one", 1)
        [job] = await arrived(provider, 1)
        await provider.report_progress(job, Progress(fraction=0.5))

        assert (await provider.get_job(added.id)).progress == Progress(fraction=0.5)  # type: ignore[union-attr]
        [again] = await arrived(await bench.provider(), 1)
        assert again.stalls == 1
        await provider.report_progress(job, Progress(fraction=0.9))  # too late: nothing happens

        assert (await provider.get_job(added.id)).progress == Progress(fraction=0.5)  # type: ignore[union-attr]

    async def test_a_lease_is_renewed(self, bench: Bench) -> None:
        holder, other = await bench.provider(lease=2 * SECOND), await bench.provider(lease=2 * SECOND)
        await bench.queue.add("one", 1)
        [job] = await arrived(holder, 1)

        for _ in range(10):
            assert await holder.renew([job]) == []
            assert list(await other.fetch(1, timedelta(milliseconds=250))) == []

        await holder.ack(job)

    async def test_who_is_too_late_changes_nothing(self, bench: Bench) -> None:
        dead, alive = await bench.provider(lease=2 * SECOND), await bench.provider(lease=2 * SECOND)
        await bench.queue.add("one", 1)
        [lost] = await arrived(dead, 1)
        [job] = await arrived(alive, 1)

        assert (job.attempts, job.stalls) == (0, 1)
        for late in (dead.ack(lost), dead.nack(lost, ValueError())):
            error = await refusal(late)
            assert (error.code, error.retryable) == (QueueErrorCode.PROCESSING, False)
        await dead.release([lost])
        assert await dead.renew([lost]) == [lost]
        await alive.ack(job)
        assert (await bench.queue.stats()).completed == 1

    @pytest.mark.parametrize("most", [0, 1])
    async def test_deaths_are_counted_apart_and_limited(self, bench: Bench, most: int) -> None:
        provider = await bench.provider(lease=SECOND)
        told: list[Any] = []
        provider.on_ended = told.append
        await bench.queue.add("one", 1, max_stalls=most)
        for deaths in range(most + 1):
            [job] = await arrived(provider, 1)
            assert (job.attempts, job.stalls) == (0, deaths)

        async def is_told() -> bool:
            assert list(await provider.fetch(1, SECOND / 5)) == []
            return bool(told)

        await until(is_told)
        [letter] = await bench.queue.dead_letters()
        assert (letter.reason, letter.attempts, letter.stalls) == (QueueFailureReason.STALLED, 0, most + 1)
        assert [(job.id, job.reason) for job in told] == [(letter.id, QueueFailureReason.STALLED)]
        assert [await bench.messages(kind) for kind in ("jobs", "state")] == [0, 0]

    async def test_deaths_between_attempts(self, bench: Bench) -> None:
        provider = await bench.provider()
        await bench.queue.add("one", 1, attempts=3)
        [job] = await arrived(provider, 1)
        await provider.nack(job, ValueError("first"))
        [job] = await arrived(provider, 1)
        assert (job.attempts, job.stalls) == (1, 0)
        await job.native.nak()  # and nobody says how that ended
        [job] = await arrived(provider, 1)
        assert (job.attempts, job.stalls) == (1, 1)
        await provider.nack(job, ValueError("second"))
        [job] = await arrived(provider, 1)
        assert (job.attempts, job.stalls, job.error) == (2, 1, "second")
        await provider.release([job])
        [job] = await arrived(provider, 1)
        assert (job.attempts, job.stalls) == (2, 1)

    async def test_too_late_to_begin(self, bench: Bench) -> None:
        provider = await bench.provider()
        told: list[Any] = []
        provider.on_ended = told.append
        await bench.queue.add("one", 1, ttl=timedelta(milliseconds=100))
        await asyncio.sleep(0.2)

        assert list(await provider.fetch(1)) == []
        assert [job.reason for job in told] == [QueueFailureReason.EXPIRED]
        assert (await bench.queue.stats()).failed == 1

    async def test_what_was_known_of_an_earlier_job_does_not_count_for_one_of_the_same_id(self, bench: Bench) -> None:
        """It is left behind by whoever dies between acknowledging a job and forgetting it."""
        provider = await bench.provider()
        await bench.publish("state", "mine", b"", Onward_State=json.dumps({"attempts": 7, "stalls": 7, "of": 10**9}))
        await bench.queue.add("one", 1, id="mine", attempts=3)
        [job] = await arrived(provider, 1)
        assert (job.attempts, job.stalls) == (0, 0)

        await provider.nack(job, ValueError("no"))

        [job] = await arrived(provider, 1)
        assert (job.attempts, job.stalls) == (1, 0)
        await job.native.nak()
        [job] = await arrived(provider, 1)
        assert (job.attempts, job.stalls) == (1, 1)
        await provider.ack(job)
        assert await bench.messages("state") == 0


class TestAtTheSameTime:
    """The server's clock and ours: a job comes to somebody else while its holder believes to have it."""

    async def holder_whose_lease_is_over(self, bench: Bench) -> tuple[NatsProvider, NatsProvider, Any]:
        """It does not know yet, as if its message had been long on its way."""
        late, other = await bench.provider(lease=2 * SECOND), await bench.provider(lease=2 * SECOND)
        [lost] = await arrived(late, 1)
        late._held.take([lost.receipt_handle or ""], time.monotonic() + 60)
        await asyncio.sleep(2.1)
        return late, other, lost

    async def test_an_error_that_is_told_while_the_next_looks_is_counted(self, bench: Bench) -> None:
        """Between reading what is known of the job and noting that it has begun."""
        await bench.queue.add("one", 1, attempts=3)
        late, other, lost = await self.holder_whose_lease_is_over(bench)
        look, told = other._store.noted, []

        async def look_slowly(job_id: str) -> Any:
            found = await look(job_id)
            if not told:
                told.append(await late.nack(lost, ValueError("late, and not too late")))
            return found

        other._store.noted = look_slowly  # type: ignore[method-assign]
        [job] = await arrived(other, 1)

        assert told == [timedelta()]
        assert (job.attempts, job.stalls, job.error) == (1, 0, "late, and not too late")

    @pytest.mark.parametrize("what", ["nack", "release"])
    async def test_who_tells_after_the_next_has_begun_is_refused(self, bench: Bench, what: str) -> None:
        await bench.queue.add("one", 1, attempts=3)
        late, other, lost = await self.holder_whose_lease_is_over(bench)
        [job] = await arrived(other, 1)
        assert (job.attempts, job.stalls) == (0, 1)

        telling = late.nack(lost, ValueError("too late")) if what == "nack" else late.release([lost])
        error = await refusal(telling)

        assert (error.code, error.retryable) == (QueueErrorCode.PROCESSING, False)
        await other.nack(job, ValueError("in time"))
        [again] = await arrived(other, 1)
        assert (again.attempts, again.stalls, again.error) == (1, 1, "in time")

    async def test_a_note_that_the_server_does_not_find_at_first(self, bench: Bench) -> None:
        """An answer that nothing is there is not believed where the server has something."""
        provider = await bench.provider()
        await bench.queue.add("one", 1, attempts=3)
        [job] = await arrived(provider, 1)
        await provider.nack(job, ValueError("no"))
        get, asked = provider._store.get, []

        async def forgetful(stream: str, subject: str) -> Any:
            asked.append(subject)
            return None if len(asked) == 1 else await get(stream, subject)

        provider._store.get = forgetful  # type: ignore[method-assign]
        [again] = await arrived(provider, 1)

        assert len(asked) == 2
        assert (again.attempts, again.stalls) == (1, 0)

    async def test_one_that_comes_again_as_if_it_were_new(self, bench: Bench) -> None:
        """As NATS 2.9 does when a request expires just as a message is to be delivered again."""
        provider = await bench.provider()
        await bench.queue.add("one", 1, attempts=3)
        [job] = await arrived(provider, 1)
        await provider.nack(job, ValueError("no"))
        receive = self.forged(provider)
        [again] = await arrived(provider, 1)

        assert receive == [2]
        assert again.native.metadata.num_delivered == 1
        assert (again.attempts, again.stalls, again.error) == (1, 0, "no")

    async def test_one_that_comes_to_another_as_if_it_were_new(self, bench: Bench) -> None:
        first, second = await bench.provider(), await bench.provider()
        added = await bench.queue.add("one", 1, attempts=3)
        [job] = await arrived(first, 1)
        await first.nack(job, ValueError("first"))
        self.forged(second)
        [again] = await arrived(second, 1)

        await second.nack(again, ValueError("second"))

        shown = await second.get_job(added.id)
        assert shown is not None
        assert (shown.attempts, shown.stalls, shown.error) == (2, 0, "second")

    def forged(self, provider: NatsProvider) -> list[int]:
        """From now on all that comes says that it is the first delivery; what it said in truth."""
        told: list[int] = []
        begin = provider._begun

        async def forge(spare: Any, arrivals: Any) -> Any:
            for arrival in arrivals:
                tokens = arrival.message.reply.split(".")
                told.append(int(tokens[-5]))
                tokens[-5] = "1"
                arrival.message.reply = ".".join(tokens)
            return await begin(spare, arrivals)

        provider._begun = forge  # type: ignore[method-assign]
        return told

    @pytest.mark.parametrize("call", ["note", "answer"])
    async def test_an_outcome_whose_answer_was_lost_is_told_again_and_counted_once(
        self, bench: Bench, call: str
    ) -> None:
        provider = await bench.provider()
        await bench.queue.add("one", 1, attempts=3)
        [job] = await arrived(provider, 1)
        owner, name = (provider._store, "note") if call == "note" else (provider, "_answer")
        real, lost = getattr(owner, name), []

        async def unheard(*args: Any, **kwargs: Any) -> Any:
            said = await real(*args, **kwargs)
            if not lost:
                lost.append(said)
                raise ConnectionError("the answer was lost")
            return said

        setattr(owner, name, unheard)
        assert (await refusal(provider.nack(job, ValueError("no")))).retryable
        with suppress(QueueRuntimeError):  # it was given back, and may have come to somebody
            await provider.nack(job, ValueError("no"))

        [again] = await arrived(provider, 1)
        assert (again.attempts, again.stalls) == (1, 0)

    async def test_a_beginning_whose_answer_was_lost_is_counted_once(self, bench: Bench) -> None:
        provider = await bench.provider()
        await bench.queue.add("one", 1)
        first = await bench.provider()
        [job] = await arrived(first, 1)
        await first.release([job])
        real, lost = provider._store.note, []

        async def unheard(*args: Any, **kwargs: Any) -> Any:
            said = await real(*args, **kwargs)
            if not lost:
                lost.append(said)
                raise ConnectionError("the answer was lost")
            return said

        provider._store.note = unheard  # type: ignore[method-assign]
        with suppress(QueueRuntimeError):
            assert list(await provider.fetch(1)) == []
        [again] = await arrived(provider, 1)

        assert lost
        assert (again.attempts, again.stalls) == (0, 0)


class TestWhatOthersPublish:
    """Anything may be in a stream: it is run, or fails alone."""

    async def test_a_message_without_headers_is_a_job(self, bench: Bench) -> None:
        await bench.publish("job", "their-id", b'{"to": "ada"}')
        provider = await bench.provider()

        [job] = await arrived(provider, 1)

        assert (job.id, job.name, bytes(job.data)) == ("their-id", bench.name, b'{"to": "ada"}')
        assert (job.max_attempts, job.max_stalls) == (1, 3)
        await provider.nack(job, ValueError("no"))
        assert [letter.id for letter in await bench.queue.dead_letters()] == ["their-id"]

    @pytest.mark.parametrize(
        "header",
        [
            *("", "{", "null", "[]", "5", '"x"', "\x7f", '{"max_attempts": "many"}', '{"created_at": "yesterday"}'),
            *('{"metadata": 5}', '{"backoff": {}}', '{"id": 5}', '{"max_attempts": 1e400}', '{"expires_at": -1}'),
        ],
    )
    async def test_a_header_that_cannot_be_read(self, bench: Bench, header: str) -> None:
        await bench.publish("job", "odd", Onward_Job=header)
        await bench.queue.add("good", 2)
        done: list[str] = []

        async def handler(data: int, job: Any) -> None:
            done.append(job.id)

        await bench.worker(handler)
        await until(lambda: len(done) == 2)
        await until(lambda: bench_is_empty(bench))

        assert "odd" in done

    @pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"nul", b'"\xed\xa0\x80"', b"1 2", b"\0"])
    async def test_a_body_that_is_no_json_fails_alone(self, bench: Bench, body: bytes) -> None:
        await bench.publish("job", "odd", body)
        await bench.queue.add("good", 2)
        done: list[str] = []

        async def handler(data: Any, job: Any) -> None:
            done.append(job.name)

        await bench.worker(handler)
        await until(lambda: done == ["good"])

        async def has_failed() -> bool:
            return (await bench.queue.stats()).failed == 1

        await until(has_failed)
        assert [letter.id for letter in await bench.queue.dead_letters()] == ["odd"]
        assert len((await bench.queue.jobs("failed")).items) == 1
        shown = await bench.queue.get_job("odd")
        assert shown is not None
        assert shown.status is QueueJobStatus.FAILED

    @pytest.mark.parametrize("last", ["%", "%zz", "%FF%FE", "%00", "a%2", "UPPER", "~", "%25%2E"])
    async def test_an_id_that_is_written_in_another_way(self, bench: Bench, last: str) -> None:
        await bench.publish("job", last)
        provider = await bench.provider()
        [job] = await arrived(provider, 1)
        await provider.release([job])
        [job] = await arrived(provider, 1)

        await provider.ack(job)

        assert await bench.messages("jobs") == 0

    async def test_one_that_is_late_without_saying_until_when(self, bench: Bench) -> None:
        await bench.publish("later", "odd")
        await bench.publish("later", "odder", Onward_Job="{")

        assert sorted(job.id for job in await arrived(await bench.provider(), 2)) == ["odd", "odder"]

    @pytest.mark.parametrize("state", ["", "{", "[]", '{"attempts": "x"}', '{"stalls": -5}', '{"is_open": 7}', "\x7f"])
    async def test_a_note_that_cannot_be_read(self, bench: Bench, state: str) -> None:
        provider = await bench.provider()
        await bench.queue.add("one", 1, id="mine", attempts=3)
        [job] = await arrived(provider, 1)
        await bench.publish("state", "mine", b"", Onward_State=state)
        await job.native.nak()  # as if its lease had run out

        [job] = await arrived(provider, 1)

        assert job.attempts == 0
        await provider.nack(job, ValueError("no"))
        [job] = await arrived(provider, 1)
        assert job.attempts == 1
        await provider.ack(job)

    async def test_ended_jobs_that_cannot_be_read_are_listed(self, bench: Bench) -> None:
        for kind in ("completed", "failed"):
            await bench.publish(kind, "odd", b"{", Onward_Job="{", Onward_State="{")
            await bench.publish(kind, "odder", b"")

            page = await bench.queue.jobs(kind)
            assert sorted(job.id for job in page.items) == ["odd", "odder"]
        assert sorted(job.id for job in await bench.queue.dead_letters()) == ["odd", "odder"]


def bench_is_empty(bench: Bench) -> Any:
    async def is_empty() -> bool:
        stats = await bench.queue.stats()
        return not stats.waiting and not stats.active

    return is_empty()


class TestDeleted:
    """Somebody deletes a queue that is used: it is made again."""

    @pytest.mark.parametrize("what", ["streams", "consumers", "state"])
    async def test_a_worker_goes_on(self, bench: Bench, what: str) -> None:
        done: list[int] = []

        async def handler(data: int, job: Any) -> None:
            done.append(data)

        await bench.worker(handler)
        await bench.queue.add("before", 1)
        await until(lambda: bench_is_empty(bench))
        await self.delete(bench, what)

        await bench.queue.add("after", 2)

        await until(lambda: done == [1, 2])

    async def test_a_job_that_runs_meanwhile_is_no_longer_held(self, bench: Bench) -> None:
        provider = await bench.provider()
        await bench.queue.add_many("one", range(3))
        first, second, third = await arrived(provider, 3)
        await self.delete(bench, "consumers")

        for settling in (provider.ack(first), provider.nack(second, ValueError("no"))):
            error = await refusal(settling)
            assert (error.code, error.retryable) == (QueueErrorCode.PROCESSING, False)
        assert await provider.renew([third]) == [third]

    async def delete(self, bench: Bench, what: str) -> None:
        jetstream = await bench.native()
        if what == "streams":
            for kind in ("jobs", "state", "completed", "failed"):
                with suppress(NotFoundError):  # it was not made again yet
                    await jetstream.delete_stream(bench.stream(kind))
        elif what == "consumers":
            for consumer in ("job", "later"):
                await jetstream.delete_consumer(bench.stream("jobs"), consumer)
        else:
            await jetstream.delete_stream(bench.stream("state"))

    async def test_calls_in_between(self, bench: Bench) -> None:
        provider = await bench.provider()
        await self.delete(bench, "streams")

        stats = await bench.queue.stats()

        assert (stats.waiting, stats.failed) == (0, 0)
        await self.delete(bench, "streams")
        assert list(await provider.fetch(1)) == []
        added = await bench.queue.add("one", 1)
        assert await bench.queue.get_job(added.id) is not None
        assert names(await arrived(provider, 1)) == ["one"]

    async def test_settling_a_job_of_a_queue_that_was_deleted(self, bench: Bench) -> None:
        provider = await bench.provider()
        await bench.queue.add_many("one", range(2), attempts=2)
        first, second = await arrived(provider, 2)
        await self.delete(bench, "streams")

        for settling in (provider.ack(first), provider.nack(second, ValueError("no"))):
            with suppress(QueueRuntimeError):
                async with asyncio.timeout(LONG):
                    await settling
        await bench.queue.add("after", 1)
        assert names(await arrived(provider, 1)) == ["after"]

    async def test_a_worker_of_several_queues_is_not_held_up_by_one_that_was_deleted(self, nats_url: str) -> None:
        stem = secrets.token_hex(6)
        done: dict[int, float] = {}

        async def handler(data: int, job: Any) -> None:
            done[data] = time.monotonic()

        async with opened(nats_url, f"one-{stem}") as one, opened(nats_url, f"other-{stem}") as other:
            factory = Nats(nats_url)
            worker = QueueWorker([one.name, other.name], handler, provider=factory)
            worker.on("queue.error", lambda event: None)
            async with worker:
                await one.queue.add("n", 0)
                await until(lambda: 0 in done)
                delays = []
                for n in range(1, 4):
                    await self.delete(one, "streams")
                    began = time.monotonic()
                    await other.queue.add("n", n)
                    await until(lambda n=n: n in done)  # type: ignore[misc]
                    delays.append(done[n] - began)
                await one.queue.add("n", 9)
                await until(lambda: 9 in done)

        assert min(delays) < 3, delays


class TestConnections:
    async def test_a_lost_connection_is_an_error_and_the_next_call_has_another(self, bench: Bench) -> None:
        async with proxied(bench.url) as (proxy, url):
            provider = await bench.provider(url)
            await bench.queue.add("one", 1, attempts=3)
            [job] = await arrived(provider, 1)
            proxy.cut()
            with pytest.raises(QueueRuntimeError) as caught:
                async with asyncio.timeout(LONG):
                    while True:
                        await provider.stats()
            assert caught.value.retryable
            proxy.mend()

            async def is_back() -> bool:
                with suppress(QueueRuntimeError):
                    await provider.stats()
                    return True
                return False

            await until(is_back)
            await provider.nack(job, ValueError("over another connection"))
            [again] = await arrived(provider, 1)
            assert (again.attempts, again.stalls) == (1, 0)
            await provider.disconnect()

    async def test_a_wait_ends_when_the_connection_does(self, bench: Bench) -> None:
        async with proxied(bench.url) as (proxy, url):
            provider = await bench.provider(url, wait=timedelta(seconds=20))
            waiting = begun(provider.fetch(1, timedelta(seconds=20)))
            await asyncio.sleep(0.3)
            began = time.monotonic()
            proxy.cut()

            error = await refusal(waiting)

            assert error.retryable
            assert time.monotonic() - began < 10
            proxy.mend()
            await provider.disconnect()

    async def test_a_worker_goes_on(self, bench: Bench) -> None:
        done: set[int] = set()

        async def handler(data: int, job: Any) -> None:
            await asyncio.sleep(0.01)
            done.add(data)

        async with proxied(bench.url) as (proxy, url):
            worker = QueueWorker(
                bench.name,
                handler,
                provider=bench.factory(url, lease=2 * SECOND),
                concurrency=5,
                error_backoff=SECOND / 5,
            )
            worker.on("queue.error", lambda event: None)
            async with worker:
                for n in range(4):
                    await bench.queue.add_many("n", range(30 * n, 30 * n + 30))
                    await until(lambda n=n: len(done) > 30 * n + 5)  # type: ignore[misc]
                    proxy.cut()
                    proxy.mend()
                await until(lambda: len(done) == 120)
            assert (await bench.queue.stats()).failed == 0

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"user": "ada", "password": "wrong"}, "does not accept the user, the password"),
            ({}, "does not accept the user, the password"),
            ({"token": "wrong"}, "does not accept the user, the password"),
        ],
    )
    async def test_a_wrong_password_is_said_and_not_tried_again(self, options: dict[str, Any], words: str) -> None:
        with servers.private_nats("--user", "ada", "--pass", "s3cret") as server:
            with pytest.raises(QueueRuntimeError, match=words) as caught:
                await Queue[int]("private", provider=Nats(server.dsn, **options)).connect()
            assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.CONNECTION, False)

            for right in ({"user": "ada", "password": "s3cret"}, {}):
                address = server.dsn if right else server.dsn.replace("//", "//ada:s3cret@")
                async with Queue[int]("private", provider=Nats(address, **right)) as queue:
                    await queue.add("one", 1)

    async def test_a_server_without_jetstream(self) -> None:
        plain = servers.replace(
            servers.NATS,
            command=lambda program, scratch, port: [str(program), "--addr", "127.0.0.1", "--port", str(port)],
        )
        with (
            servers.private(plain) as server,
            pytest.raises(QueueRuntimeError, match="this NATS has no JetStream") as caught,
        ):
            await Queue[int]("private", provider=Nats(server.dsn)).connect()

        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.CONNECTION, False)

    async def test_a_host_that_does_not_exist(self) -> None:
        nowhere = "nats://no-such-host.invalid"
        with pytest.raises(QueueRuntimeError, match="there is no such host") as caught:
            await Queue[int]("private", provider=Nats(nowhere)).connect()
        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.CONNECTION, False)

        away = f"nats://127.0.0.1:{servers._free_port()}"
        with pytest.raises(QueueRuntimeError) as caught:
            await Queue[int]("private", provider=Nats([nowhere, away])).connect()
        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.CONNECTION, True)

    async def test_options_of_the_client_reach_it(self, nats_url: str) -> None:
        factory = Nats(nats_url, name="my program", inbox_prefix="_MINE")
        async with Queue[int](f"test-{secrets.token_hex(6)}", provider=factory) as queue:
            client = await queue.provider._link.client()  # type: ignore[attr-defined]
            assert client.options["name"] == "my program"
            assert client.new_inbox().startswith("_MINE")
            await queue.add("one", 1)
            assert len(await queue.provider.fetch(1)) == 1
            await queue.delete()

    async def test_the_first_of_several_servers_is_away(self, bench: Bench) -> None:
        away = f"nats://127.0.0.1:{servers._free_port()}"

        for _ in range(4):
            provider = Nats([away, bench.url], wait=SECOND).for_queue(bench.name)
            await provider.connect()
            assert (await provider.stats()).waiting == 0
            await provider.disconnect()

    async def test_what_the_page_says_of_rights_suffices(self) -> None:
        rights = PAGE.read_text().split("## Rights that suffice")[1].split("```")[1].strip()
        publish, subscribe = (line.partition(":")[2].strip() for line in rights.splitlines())
        assert "onward.emails.>" in publish
        permissions = f"{{ publish: [{publish}], subscribe: [{subscribe}] }}"
        users = f"{{ user: ada, password: s3cret, permissions: {permissions} }}, {{ user: root, password: s3cret }}"
        with certificates.folder() as folder:
            (folder / "nats.conf").write_text(f"authorization {{ users: [ {users} ] }}\n")
            (folder / "nats.conf").chmod(0o644)
            with servers.private_nats("--config", str(folder / "nats.conf")) as server:
                done = asyncio.Event()

                async def handler(data: int, job: Any) -> None:
                    if job.attempts == 0:
                        raise ValueError("once")
                    done.set()

                ada = server.dsn.replace("//", "//ada:s3cret@")
                async with Queue[int]("emails", provider=Nats(ada)) as queue:
                    async with QueueWorker("emails", handler, provider=Nats(ada)):
                        await queue.add("one", 1, attempts=2)
                        await asyncio.wait_for(done.wait(), LONG)
                    await queue.add("two", 1, delay=timedelta(hours=1))
                    assert (await queue.stats()).delayed == 1
                    await queue.delete()


class TestServersOfItsOwn:
    """Started for the test, which stops, freezes and kills them."""

    @pytest.mark.parametrize("mode", ["fast", pytest.param("kill", marks=pytest.mark.slow)])
    async def test_restarted_under_load_loses_nothing(self, mode: str) -> None:
        done: set[int] = set()
        added: set[int] = set()
        refused: list[QueueRuntimeError] = []
        stop = asyncio.Event()

        async def handler(data: int, job: Any) -> None:
            await asyncio.sleep(0.005)
            done.add(data)

        async def produce(queue: Queue[int]) -> None:
            number = 0
            while not stop.is_set():
                try:
                    await queue.add("n", number)
                    added.add(number)
                except QueueRuntimeError as error:
                    refused.append(error)
                    await asyncio.sleep(0.05)
                number += 1

        with servers.private_nats() as server:
            factory = Nats(server.dsn, lease=2 * SECOND, wait=SECOND)
            queue: Queue[int] = Queue("load", provider=factory)
            queue.on("queue.error", lambda event: None)
            worker = QueueWorker("load", handler, provider=factory, concurrency=5, error_backoff=SECOND / 5)
            worker.on("queue.error", lambda event: None)
            async with queue, worker, asyncio.TaskGroup() as tasks:
                tasks.create_task(produce(queue))
                await until(lambda: len(done) > 30)
                await asyncio.to_thread(server.stop, mode)
                before = len(refused)
                await until(lambda: len(refused) > before + 1)
                await asyncio.to_thread(server.start)
                so_far = len(added)
                await until(lambda: len(added) > so_far + 30)
                stop.set()
                await until(lambda: added <= done)
                assert (await queue.stats()).failed == 0

        assert {(error.code, error.retryable) for error in refused} == {(QueueErrorCode.ENQUEUE, True)}

    @pytest.mark.slow
    async def test_a_frozen_server_is_an_error_in_time(self) -> None:
        with servers.private_nats() as server:
            async with Queue[int]("frozen", provider=Nats(server.dsn)) as queue:
                queue.on("queue.error", lambda event: None)
                await queue.add("one", 1)
                process = server.pid
                os.kill(process, signal.SIGSTOP)
                try:
                    began = time.monotonic()
                    for call in (lambda: queue.add("two", 2), queue.stats):
                        assert (await refusal(call())).retryable
                    assert time.monotonic() - began < 40
                finally:
                    os.kill(process, signal.SIGCONT)

                async def is_back() -> bool:
                    with suppress(QueueRuntimeError):
                        await queue.add("three", 3)
                        return True
                    return False

                await until(is_back)

    @pytest.mark.chaos
    @pytest.mark.timeout(300)
    async def test_one_of_three_servers_is_killed_under_load(self) -> None:
        done: set[int] = set()
        added: set[int] = set()

        async def handler(data: int, job: Any) -> None:
            done.add(data)

        with servers.private_nats_cluster() as nodes:
            addresses = [node.dsn for node in nodes]
            factory = Nats(addresses, replicas=3, lease=2 * SECOND, wait=SECOND)
            queue: Queue[int] = Queue("load", provider=factory)
            queue.on("queue.error", lambda event: None)
            worker = QueueWorker("load", handler, provider=factory, concurrency=5, error_backoff=SECOND / 5)
            worker.on("queue.error", lambda event: None)

            async def connected() -> bool:
                with suppress(QueueRuntimeError, QueueConfigurationError):  # until they have found each other
                    await queue.connect()
                    return True
                return False

            await until(connected)
            async with queue, worker:
                for victim in nodes:
                    start = max(added, default=-1) + 1
                    for number in range(start, start + 200):
                        if number == start + 50:
                            await asyncio.to_thread(victim.stop, "kill")
                        with suppress(QueueRuntimeError):
                            await queue.add("n", number)
                            added.add(number)
                    await until(lambda: added <= done)
                    await asyncio.to_thread(victim.start)
                assert (await queue.stats()).failed == 0
            assert len(added) > 300

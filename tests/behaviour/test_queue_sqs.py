"""What is SQS's own: policies and limits read from the queue, receipts, batches, FIFO queues, dead letters, rights."""

import asyncio
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from msgspec import Raw

import servers
from onward import Permanent
from onward.conformance.queue.session import arrived, names, until
from onward.model import Backoff
from onward.queue import (
    ActiveJob,
    Options,
    Queue,
    QueueConfigurationError,
    QueueDataError,
    QueueErrorCode,
    QueueFailureReason,
    QueueJobStatus,
    QueueNotFound,
    QueuePartlyAdded,
    QueueRuntimeError,
    QueueWorker,
    UnsupportedFeature,
)
from onward.queue.providers.sqs import SQS, NewQueue, SQSProvider
from proxy import proxied
from servers import SQS_CLIENT

PAGE = Path(__file__).parents[2] / "docs/how-to/queues-sqs.md"
SECOND = timedelta(seconds=1)
AWS = get_session()


@asynccontextmanager
async def native(url: str, service: str = "sqs", **options: str) -> AsyncIterator[Any]:
    """A client of AWS's own."""
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", **options}
    async with AWS.create_client(service, endpoint_url=url, region_name="eu-west-1", **keys) as client:
        yield client


@pytest.fixture
async def sqs(sqs_url: str) -> AsyncIterator[Any]:
    async with native(sqs_url) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def factory(sqs_url: str) -> Callable[..., SQS]:
    def make(**options: Any) -> SQS:
        if "client" in options:
            return SQS(**{"create": NewQueue(), "wait": SECOND, **options})
        return SQS(sqs_url, **{"create": NewQueue(), "wait": SECOND, "session": AWS, **SQS_CLIENT, **options})

    return make


@pytest.fixture
def connected(factory: Callable[..., SQS], name: str, stack: AsyncExitStack) -> Callable[..., Any]:
    """`await connected()`: a provider for this test's queue."""

    async def connect(queue_name: str = name, **options: Any) -> SQSProvider:
        provider = factory(**options).for_queue(queue_name)
        await provider.connect()
        stack.push_async_callback(provider.disconnect)
        return provider

    return connect


async def attributes_of(sqs: Any, name: str) -> dict[str, str]:
    url = (await sqs.get_queue_url(QueueName=name))["QueueUrl"]
    return (await sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"]))["Attributes"]


class TestTheQueue:
    """Found, or made when that was asked for; what it allows is read from it."""

    async def test_a_missing_queue_is_named_with_what_to_do(self, factory: Callable[..., SQS], name: str) -> None:
        queue = Queue(name, provider=factory(create=None))

        with pytest.raises(QueueConfigurationError, match=f"no SQS queue '{name}'.*create-queue.*NewQueue") as caught:
            await queue.add("letter", 1)

        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.INVALID_OPTION, False)
        assert not queue.provider.is_connected

    async def test_a_new_one_has_dead_letters_and_the_timeout_asked_for(
        self, connected: Callable[..., Any], sqs: Any, name: str
    ) -> None:
        await connected(create=NewQueue(attempts=5, visibility_timeout=timedelta(seconds=7)))

        made = await attributes_of(sqs, name)
        policy = json.loads(made["RedrivePolicy"])
        assert (made["VisibilityTimeout"], policy["maxReceiveCount"]) == ("7", 5)
        assert policy["deadLetterTargetArn"].endswith(f":{name}-failed")

        await connected(create=NewQueue(attempts=9))  # it is there: what it is like stays

        assert await attributes_of(sqs, name) == made

    async def test_limits_are_those_of_the_queue(self, factory: Callable[..., SQS], sqs: Any, name: str) -> None:
        attributes = {"MaximumMessageSize": "2048", "VisibilityTimeout": "9"}
        await sqs.create_queue(QueueName=name, Attributes=attributes)

        async with Queue(name, provider=factory(create=None)) as queue:
            assert queue.capabilities.max_job_size == 2048
            assert queue.provider.lease == timedelta(seconds=9)
            assert not queue.capabilities.dead_letters
            with pytest.raises(QueueConfigurationError, match="redrive policy") as caught:
                await queue.dead_letters()
            assert caught.value.code == QueueErrorCode.UNSUPPORTED_FEATURE

    async def test_a_queue_that_hides_nothing_is_refused(
        self, factory: Callable[..., SQS], sqs: Any, name: str
    ) -> None:
        await sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "0"})

        with pytest.raises(QueueConfigurationError, match="visibility timeout is 0"):
            await Queue(name, provider=factory()).connect()

    async def test_attempts_warn_where_they_differ_from_the_policy(
        self, factory: Callable[..., SQS], name: str
    ) -> None:
        warnings: list[UnsupportedFeature] = []
        queue = Queue[int](name, provider=factory(), on_unsupported_feature=warnings.append)

        added = await queue.add("letter", 1, attempts=4)
        assert (added.max_attempts, warnings) == (4, [])

        added = await queue.add("letter", 2, attempts=5)
        assert added.max_attempts == 4
        assert [warning.option for warning in warnings] == ["attempts"]
        assert "5 attempts for this job: the redrive policy of the queue allows 4" in warnings[0].message

        await queue.add("letter", 3, backoff=Backoff(initial=timedelta(days=1), maximum=timedelta(days=2)))
        assert [warning.option for warning in warnings] == ["attempts", "backoff"]
        await queue.disconnect()

    @pytest.mark.parametrize("bad", ["two words", "a/b", "x" * 81, "emails.first"])
    async def test_names_that_sqs_does_not_have(self, factory: Callable[..., SQS], bad: str) -> None:
        with pytest.raises(QueueConfigurationError, match="names of SQS queues"):
            await Queue(bad, provider=factory()).connect()

    async def test_deleting_takes_its_own_dead_letters_along(
        self, connected: Callable[..., Any], sqs: Any, name: str
    ) -> None:
        provider = await connected()

        await provider.delete()

        assert not (await sqs.list_queues(QueueNamePrefix=name)).get("QueueUrls")
        with pytest.raises(QueueRuntimeError, match="there is no queue") as caught:
            await provider.stats()
        assert not caught.value.retryable

    async def test_dead_letters_of_several_queues_are_not_deleted(
        self, connected: Callable[..., Any], sqs: Any, name: str
    ) -> None:
        shared = (await sqs.create_queue(QueueName=f"{name}-shared"))["QueueUrl"]
        arn = (await attributes_of(sqs, f"{name}-shared"))["QueueArn"]
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 2})
        await sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": policy})

        provider = await connected(create=None)
        assert provider.capabilities.dead_letters
        await provider.delete()

        assert (await sqs.list_queues(QueueNamePrefix=name))["QueueUrls"] == [shared]


class TestAdding:
    """Checked before anything is sent."""

    async def test_the_limit_counts_the_attributes(self, factory: Callable[..., SQS], sqs: Any, name: str) -> None:
        await sqs.create_queue(QueueName=name, Attributes={"MaximumMessageSize": "1024"})
        async with Queue[str](name, provider=factory()) as queue:
            with pytest.raises(QueueDataError, match=r"the job has 1,0\d\d bytes .* takes 1,024") as caught:
                await queue.add("letter", "x" * 900)
            assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.VALIDATION, False)
            with pytest.raises(QueueDataError, match="bytes"):
                await queue.add_many("letter", ["fits", "x" * 1000])
            assert (await queue.stats()).waiting == 0

            over = int(re.findall(r"has ([\d,]+) bytes", str(caught.value))[0].replace(",", "")) - 1024
            await queue.add("letter", "x" * (900 - over))
            assert (await queue.stats()).waiting == 1

    async def test_what_sqs_cannot_carry(self, factory: Callable[..., SQS], connected: Any, name: str) -> None:
        strange = "tab\t one\x01 \ufffe \uffff 数 \U0001f680 \x7f"
        async with Queue[Any](name, provider=factory()) as queue:
            await queue.add("letter", strange, metadata={"note": strange})
            for wrong in ({"id": "a\x00b"}, {"metadata": {"what": object()}}):
                with pytest.raises(QueueDataError) as caught:
                    await queue.add("letter", 1, **wrong)  # type: ignore[arg-type]
                assert caught.value.code == QueueErrorCode.VALIDATION
            with pytest.raises(QueueDataError, match="control characters"):
                await queue.add("let\x01ter", 1)

            [job] = await arrived(await connected(), 1)
            assert queue._payload.decode(job) == strange
            assert job.metadata == {"note": strange}

    async def test_native_options(self, factory: Callable[..., SQS], connected: Any, name: str) -> None:
        attribute = {"DataType": "String", "StringValue": "urgent"}
        async with Queue[int](name, provider=factory()) as queue:
            mine = {"DelaySeconds": 900, "MessageAttributes": {"kind": attribute}}
            await queue.add("letter", 1, provider_options={"sqs": mine})
            assert (await queue.stats()).delayed == 1
            await queue.add("letter", 2, provider_options={"sqs": {"MessageAttributes": {"kind": attribute}}})
            [job] = await arrived(await connected(), 1)
            assert job.native["MessageAttributes"]["kind"]["StringValue"] == "urgent"
            many = {f"a{n}": attribute for n in range(7)}
            with pytest.raises(QueueDataError, match="at most 9 attributes"):
                await queue.add("letter", 3, provider_options={"sqs": {"MessageAttributes": many}})

    async def test_many_bytes_go_in_several_calls(self, factory: Callable[..., SQS], name: str) -> None:
        async with Queue[str](name, provider=factory()) as queue:
            await queue.add_many("letter", ["x" * 200_000] * 12)
            assert (await queue.stats()).waiting == 12

    async def test_what_was_added_is_said_when_the_rest_was_refused(
        self, factory: Any, connected: Any, name: str
    ) -> None:
        provider: SQSProvider = await connected()
        queue = Queue[int](name, provider=factory())
        jobs = [queue._new("letter", n, None, {}) for n in range(25)]
        jobs[13] = jobs[13][0], Options(native={"DelaySeconds": 901})  # SQS refuses this entry, and takes the others

        with pytest.raises(QueuePartlyAdded, match=r"took 19 of 25 jobs.*DelaySeconds") as caught:
            await provider.add_many(jobs)

        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.ENQUEUE, False)
        assert caught.value.added == [job.id for job, _ in [*jobs[:13], *jobs[14:20]]]
        assert (await provider.stats()).waiting == 19

    async def test_nothing_is_said_to_be_partly_added_when_all_was_refused(
        self, factory: Any, connected: Any, name: str
    ) -> None:
        provider: SQSProvider = await connected()
        queue = Queue[int](name, provider=factory())
        too_late = Options(native={"DelaySeconds": 901})
        jobs = [(job, too_late) for job, _ in (queue._new("letter", n, None, {}) for n in range(2))]

        with pytest.raises(QueueRuntimeError, match="DelaySeconds") as caught:
            await provider.add_many(jobs)

        assert not isinstance(caught.value, QueuePartlyAdded)
        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.ENQUEUE, False)
        assert (await provider.stats()).waiting == 0


class TestHolding:
    """Who has a job keeps it as long as it runs; who lost it changes nothing."""

    async def test_visibility_is_extended_while_a_job_runs(
        self, factory: Callable[..., SQS], name: str, stack: AsyncExitStack
    ) -> None:
        runs: list[int] = []
        make = lambda: factory(create=NewQueue(visibility_timeout=SECOND))  # noqa: E731

        async def slow(data: int, job: ActiveJob[int]) -> None:
            runs.append(job.attempts)
            await asyncio.sleep(3)

        done = asyncio.Event()
        queue = await stack.enter_async_context(Queue[int](name, provider=make()))
        for _ in range(2):
            worker = await stack.enter_async_context(QueueWorker[int](name, slow, provider=make()))
            worker.on("completed", lambda event: done.set())
        await queue.add("letter", 1)
        await asyncio.wait_for(done.wait(), 20)

        assert runs == [0]
        assert (await queue.stats()).active == 0

    async def test_a_holder_whose_time_ran_out_learns_it(
        self, connected: Callable[..., Any], factory: Any, name: str
    ) -> None:
        new = NewQueue(visibility_timeout=SECOND)
        first, second = await connected(create=new), await connected(create=new)
        async with Queue[int](name, provider=factory()) as queue:
            await queue.add_many("letter", [1, 2])
        stale = await arrived(first, 2)
        taken = await arrived(second, 2)  # a second later

        await until(lambda: not any(first._held.has(job) for job in stale))  # by its own clock, a little later

        assert [job.attempts for job in taken] == [1, 1]
        for settle in (first.ack, lambda job: first.nack(job, ValueError("late"))):
            with pytest.raises(QueueRuntimeError, match="not active") as caught:
                await settle(stale[0])
            assert caught.value.code == QueueErrorCode.PROCESSING
        assert {job.id for job in await first.renew(stale)} == {job.id for job in stale}
        assert list(await first.renew(stale)) == []  # told once
        assert (await second.stats()).active == 2
        for job in taken:
            await second.ack(job)

    async def test_acknowledgements_travel_together(self, connected: Any, factory: Any, sqs: Any, name: str) -> None:
        calls: list[int] = []
        sqs.meta.events.register(
            "before-parameter-build.sqs.DeleteMessageBatch", lambda params, **_: calls.append(len(params["Entries"]))
        )
        provider = await connected(client=sqs)
        async with Queue[int](name, provider=factory()) as queue:
            await queue.add_many("letter", range(30))
        jobs = await arrived(provider, 30)

        async with asyncio.TaskGroup() as tasks:
            for job in jobs:
                tasks.create_task(provider.ack(job))

        assert sum(calls) == 30
        assert max(calls) == 10
        assert len(calls) <= 4
        assert (await provider.stats()).active == 0

    @pytest.mark.parametrize("outcome", ["ack", "nack", "release"])
    async def test_an_outcome_that_did_not_get_through_is_told_again(
        self, connected: Any, factory: Any, sqs: Any, name: str, outcome: str
    ) -> None:
        def fail(**_: Any) -> None:
            raise OSError("the answer was lost")

        provider = await connected(client=sqs)
        async with Queue[int](name, provider=factory()) as queue:
            await queue.add("letter", 1)
            [job] = await arrived(provider, 1)
            tell = {
                "ack": lambda: provider.ack(job),
                "nack": lambda: provider.nack(job, ValueError("no")),
                "release": lambda: provider.release([job]),
            }[outcome]
            # After SQS has done it: only the answer is missing.
            sqs.meta.events.register("after-call.sqs", fail)
            with pytest.raises(QueueRuntimeError) as caught:
                await tell()
            sqs.meta.events.unregister("after-call.sqs", fail)

            await tell()

            assert caught.value.retryable
            assert (await queue.stats()).active == 0
            assert (await queue.stats()).waiting == (0 if outcome == "ack" else 1)

    async def test_what_nobody_began_in_time_fails(self, connected: Any, factory: Any, name: str) -> None:
        ended: list[Any] = []
        provider = await connected()
        provider.on_ended = ended.append
        async with Queue[int](name, provider=factory()) as queue:
            await queue.add("late", 1, ttl=timedelta(milliseconds=1))
            await queue.add("in time", 1, ttl=timedelta(minutes=1))

            [job] = await arrived(provider, 1)
            [letter] = await queue.dead_letters()
            await queue.retry(letter.id)
            [again] = await arrived(provider, 1)

        assert job.name == "in time"
        assert (letter.name, letter.reason) == ("late", QueueFailureReason.EXPIRED)
        assert [(one.id, one.reason) for one in ended] == [(letter.id, letter.reason)]
        assert (again.name, again.expires_at) == ("late", None)

    async def test_what_comes_while_closing_is_given_back(self, factory: Any, name: str) -> None:
        async def never(data: int, job: ActiveJob[int]) -> None:
            raise AssertionError("not reached")

        async with Queue[int](name, provider=factory()) as queue:
            worker = QueueWorker[int](name, never, provider=factory(wait=timedelta(seconds=5)))
            await worker.start()
            await asyncio.sleep(0.3)  # its request for jobs is under way
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(worker.close())
                await asyncio.sleep(0)
                await queue.add("letter", 1)

            stats = await queue.stats()
            assert (stats.waiting, stats.active) == (1, 0)

    async def test_whole_seconds_between_attempts(self, connected: Any, factory: Any, name: str) -> None:
        provider = await connected()
        async with Queue[int](name, provider=factory()) as queue:
            await queue.add("letter", 1, backoff=Backoff(initial=timedelta(seconds=0.4)))
        [job] = await arrived(provider, 1)

        assert await provider.nack(job, ValueError("no")) == SECOND


class TestDeadLetters:
    """Looked at without being taken away; each in one queue or, after a crash, in two, never in none."""

    async def fail(self, provider: SQSProvider, count: int, error: Exception = Permanent("no such mailbox")) -> None:  # noqa: B008
        for job in await arrived(provider, count):
            await provider.nack(job, error)

    async def test_looking_takes_nothing_away(self, connected: Any, factory: Any, name: str) -> None:
        provider = await connected()
        async with Queue[int](name, provider=factory()) as queue:
            added = await queue.add_many("letter", range(25), metadata={"tenant": "7"})
            await self.fail(provider, 25)

            for _ in range(2):
                letters = await queue.dead_letters()
                assert {job.id for job in letters} == {job.id for job in added}
            assert len(await queue.dead_letters(limit=12)) == 12
            assert list(await queue.dead_letters(limit=0)) == []
            assert (await queue.stats()).failed == 25
            assert {(job.attempts, job.max_attempts, job.error) for job in letters} == {(1, 4, "no such mailbox")}
            assert letters[0].metadata == {"tenant": "7"}
            times = [job.failed_at for job in letters if job.failed_at is not None]
            assert times == sorted(times, reverse=True)

    async def test_what_sqs_moved_by_itself(self, connected: Any, factory: Any, name: str) -> None:
        """Its workers died, so that nobody can say why."""
        provider = await connected(create=NewQueue(attempts=2, visibility_timeout=SECOND))
        async with Queue[str](name, provider=factory()) as queue:
            added = await queue.add("letter", "x")
            for _ in range(2):
                await arrived(provider, 1)  # and nothing more
            await until(lambda: self._has_failed(provider, 1))

            [letter] = await queue.dead_letters()
            assert (letter.id, letter.attempts, letter.error, letter.status) == (
                added.id, 2, None, QueueJobStatus.FAILED,
            )  # fmt: skip
            assert letter.reason is QueueFailureReason.STALLED
            await queue.retry(letter.id)
            [job] = await arrived(provider, 1)
            assert (job.id, job.attempts, job.name) == (added.id, 0, "letter")

    async def _has_failed(self, provider: SQSProvider, count: int) -> bool:
        await provider.fetch(1)  # SQS moves it when somebody asks
        return (await provider.stats()).failed == count

    async def test_dying_between_sending_and_removing_loses_nothing(
        self, connected: Any, factory: Any, sqs: Any, name: str
    ) -> None:
        def die(**_: Any) -> None:
            raise OSError("the process died here")

        provider = await connected(client=sqs)
        async with Queue[int](name, provider=factory()) as queue:
            added = await queue.add("letter", 1)
            [job] = await arrived(provider, 1)
            sqs.meta.events.register("before-call.sqs.DeleteMessageBatch", die)
            with pytest.raises(QueueRuntimeError, match="died here") as caught:
                await provider.nack(job, Permanent("no"))
            assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.PROCESSING, True)
            sqs.meta.events.unregister("before-call.sqs.DeleteMessageBatch", die)

            stats = await queue.stats()
            assert (stats.active, stats.failed) == (1, 1)
            await provider.nack(job, Permanent("no"))
            [letter] = await queue.dead_letters()
            assert (letter.id, letter.reason) == (added.id, QueueFailureReason.PERMANENT)

    async def test_a_long_error_is_cut_to_what_fits(self, factory: Any, connected: Any, sqs: Any, name: str) -> None:
        provider = await connected()
        for queue_name in (name, f"{name}-failed"):
            url = (await sqs.get_queue_url(QueueName=queue_name))["QueueUrl"]
            await sqs.set_queue_attributes(QueueUrl=url, Attributes={"MaximumMessageSize": "1024"})
        provider = await connected()
        async with Queue[str](name, provider=factory()) as queue:
            await queue.add("letter", "x" * 600)
            await self.fail(provider, 1, Permanent('"\x00' * 5000))
            [letter] = await queue.dead_letters()

        assert letter.error is not None
        assert 0 < len(letter.error) < 300

    async def test_without_a_redrive_policy_nothing_is_kept(self, connected: Any, sqs: Any, name: str) -> None:
        url = (await sqs.create_queue(QueueName=name))["QueueUrl"]
        provider = await connected()
        await sqs.send_message(QueueUrl=url, MessageBody="1")
        [job] = await arrived(provider, 1)
        assert await provider.nack(job, ValueError("again")) == timedelta()  # for as long as the message lives
        await self.fail(provider, 1)

        stats = await provider.stats()
        assert (stats.waiting, stats.active, stats.failed) == (0, 0, None)


class TestWhatOthersSent:
    """Messages without our attributes are jobs too."""

    @pytest.mark.parametrize(("body", "data"), [("hello", b'"hello"'), ('{"Records":[]}', b'{"Records":[]}')])
    async def test_their_message_is_a_job(self, connected: Any, sqs: Any, name: str, body: str, data: bytes) -> None:
        provider: SQSProvider = await connected()
        url = (await sqs.get_queue_url(QueueName=name))["QueueUrl"]
        attributes = {"kind": {"DataType": "Binary", "BinaryValue": b"\x00\x01"}}
        sent = await sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attributes)

        [job] = await arrived(provider, 1)
        assert (job.id, job.name, job.data, job.metadata) == (sent["MessageId"], name, Raw(data), {})
        await provider.nack(job, Permanent("unknown kind"))

        [letter] = await provider.dead_letters()
        assert (letter.id, letter.data, letter.error) == (job.id, Raw(data), "unknown kind")
        await provider.retry(letter.id)
        [again] = await arrived(provider, 1)
        assert (again.id, again.data, again.attempts) == (job.id, Raw(data), 0)
        assert again.native["MessageAttributes"]["kind"]["BinaryValue"] == b"\x00\x01"


class TestFifo:
    """Order within a group; ids that SQS has seen in the last five minutes are dropped without a word."""

    @pytest.fixture
    def name(self) -> str:
        return f"test-{secrets.token_hex(6)}.fifo"

    async def test_order_and_what_it_lacks(self, connected: Any, factory: Any, name: str) -> None:
        warnings: list[UnsupportedFeature] = []
        provider: SQSProvider = await connected()
        async with Queue[int](name, provider=factory(), on_unsupported_feature=warnings.append) as queue:
            for n in range(8):
                await queue.add(f"n{n}", n, delay=SECOND)
            await queue.add_many("last", [8], provider_options={"sqs": {"MessageGroupId": "another"}})
            await queue.add("once", 9, id="same", provider_options={"sqs": {"MessageGroupId": "third"}})
            await queue.add("twice", 9, id="same", provider_options={"sqs": {"MessageGroupId": "third"}})

            jobs = await arrived(provider, 10)

        assert (provider.capabilities.ordered, provider.capabilities.duplicates) == (True, False)
        assert [warning.option for warning in warnings] == ["delay"]
        assert names(jobs) == [*(f"n{n}" for n in range(8)), "last", "once"]
        groups = [job.native["Attributes"]["MessageGroupId"] for job in jobs]
        assert groups == [name.removesuffix(".fifo")] * 8 + ["another", "third"]

    async def test_failing_and_retrying_twice_within_minutes(self, connected: Any, factory: Any, name: str) -> None:
        """SQS must not take the second for a copy of the first."""
        provider: SQSProvider = await connected()
        async with Queue[int](name, provider=factory()) as queue:
            options = {"sqs": {"MessageGroupId": "customer-7"}}
            added = await queue.add("letter", 1, id="a name that is no id, 数", provider_options=options)
            for _ in range(2):
                [job] = await arrived(provider, 1)
                assert job.native["Attributes"]["MessageGroupId"] == "customer-7"
                await provider.nack(job, Permanent("no"))
                assert names(await queue.dead_letters()) == ["letter"]
                await queue.retry(added.id)
            [job] = await arrived(provider, 1)
            assert (job.id, job.attempts) == (added.id, 0)

    async def test_more_than_ten_dead_letters_of_one_group(self, connected: Any, factory: Any, name: str) -> None:
        provider: SQSProvider = await connected()
        async with Queue[int](name, provider=factory()) as queue:
            added = await queue.add_many("letter", range(13))
            for count in (10, 3):
                for job in await arrived(provider, count):
                    await provider.nack(job, Permanent("no"))

            assert len(await queue.dead_letters()) == 13
            await queue.retry(added[12].id)
            with pytest.raises(QueueNotFound):
                await queue.retry("no-such-job")


class TestTrouble:
    """Every failure in words; every call ends; whoever was cut off goes on when the server is back."""

    async def test_rights_that_are_missing_are_named(self, connected: Any, factory: Any, sqs: Any, name: str) -> None:
        provider: SQSProvider = await connected(client=sqs)
        job, options = Queue[int](name, provider=factory())._new("letter", 1, None, {})
        answers = {
            "AccessDenied": (False, "need the right sqs:SendMessage on http"),
            "InvalidClientTokenId": (False, "credentials are not valid"),
            "RequestThrottled": (True, "RequestThrottled"),
        }
        for code, (retryable, words) in answers.items():
            sqs.meta.events.register("before-call.sqs.SendMessageBatch", refusing(code), unique_id=code)
            with pytest.raises(QueueRuntimeError, match=words) as caught:
                await provider.add_many([(job, options)])
            assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.ENQUEUE, retryable)
            sqs.meta.events.unregister("before-call.sqs.SendMessageBatch", unique_id=code)

    async def test_no_region_and_no_credentials(self, monkeypatch: pytest.MonkeyPatch, sqs_url: str) -> None:
        for variable in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

        for options, words in (({}, "no AWS region"), ({"region": "eu-west-1"}, "no AWS credentials")):
            with pytest.raises(QueueRuntimeError, match=words) as caught:
                await Queue("emails", provider=SQS(sqs_url, **options)).connect()  # type: ignore[arg-type]
            assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.CONNECTION, False)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"wait": timedelta(seconds=21)}, "wait must be at most 20 seconds"),
            ({"wait": timedelta(seconds=-1)}, "wait must be a timedelta that is not negative"),
            ({"wait": 5}, "wait must be a timedelta"),
            ({"endpoint_url": "localhost:9324"}, "endpoint_url must be an address like https"),
            ({"region": 7}, "region must be a name"),
            ({"region_name": "eu-west-1"}, "region_name is called region here"),
            ({"login": "me"}, "login is not an option of SQS"),
            ({"create": 3}, "create must be NewQueue"),
            ({"create": NewQueue(attempts=0)}, "create.attempts must be a whole number from 1"),
            ({"create": NewQueue(attempts=1001)}, "create.attempts must be at most 1,000"),
            (
                {"create": NewQueue(visibility_timeout=timedelta(hours=13))},
                "must be at most 12 hours",
            ),
            ({"client": object(), "region": "eu-west-1"}, "client is complete"),
        ],
    )
    def test_mistakes_fail_at_once(self, options: dict[str, Any], words: str) -> None:
        with pytest.raises(QueueConfigurationError, match=words):
            SQS(**options)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"endpoint_url": "http://no-such-host.invalid"}, "there is no such host"),
            ({"region": "not a region"}, "these settings make no client"),
        ],
    )
    async def test_what_is_wrong_with_an_address_is_said_and_not_tried_again(
        self, options: dict[str, Any], words: str
    ) -> None:
        queue: Queue[Any] = Queue("nowhere", provider=SQS(**{**SQS_CLIENT, **options}))

        with pytest.raises(QueueRuntimeError, match=words) as caught:
            await queue.add("one", 1)

        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.CONNECTION, False)

    async def test_a_policy_that_lets_no_worker_die_is_warned_about(
        self, connected: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        await connected(create=NewQueue(attempts=1))

        assert [text for text in caplog.messages if "maxReceiveCount of its redrive policy is 1" in text] != []

    async def test_a_server_that_is_away_and_back(self, sqs_url: str, stack: AsyncExitStack, name: str) -> None:
        proxy, url = await stack.enter_async_context(proxied(sqs_url))
        new = NewQueue(attempts=100, visibility_timeout=SECOND)
        make = lambda: SQS(url, create=new, wait=SECOND, session=AWS, **SQS_CLIENT)  # noqa: E731
        queue = await stack.enter_async_context(Queue[int](name, provider=make()))
        added, done, stop = list[int](), set[int](), asyncio.Event()
        refused, troubles = list[QueueRuntimeError](), list[Any]()

        async def send(data: int, job: ActiveJob[int]) -> None:
            done.add(data)

        async def produce() -> None:
            while not stop.is_set():
                try:
                    await queue.add("letter", len(added))
                except QueueRuntimeError as error:
                    refused.append(error)
                else:
                    added.append(len(added))

        async def more(jobs: int) -> None:
            goal = len(done) + jobs
            await until(lambda: len(done) >= goal)

        worker = QueueWorker[int](name, send, provider=make(), concurrency=5, error_backoff=SECOND / 5)
        worker.on("queue.error", troubles.append)
        await stack.enter_async_context(worker)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(produce())
            for _ in range(2):
                await more(5)
                proxy.cut()
                before = len(refused), len(troubles)
                await until(lambda: len(refused) > before[0] and len(troubles) > before[1])  # noqa: B023
                proxy.mend()
            await more(5)
            stop.set()

        await until(lambda: set(added) <= done)
        assert {(error.code, error.retryable) for error in refused} == {(QueueErrorCode.ENQUEUE, True)}
        assert {type(trouble.error) for trouble in troubles} == {QueueRuntimeError}

    async def test_a_server_that_does_not_answer(self, name: str) -> None:
        with servers.private_sqs() as server:
            impatient = AioConfig(read_timeout=1)
            factory = SQS(server.dsn, create=NewQueue(), wait=SECOND, config=impatient, **SQS_CLIENT)
            async with Queue[int](name, provider=factory) as queue:
                os.kill(server.pid, signal.SIGSTOP)
                try:
                    async with asyncio.timeout(30):
                        with pytest.raises(QueueRuntimeError, match="imeout") as caught:
                            await queue.add("letter", 1)
                finally:
                    os.kill(server.pid, signal.SIGCONT)
                assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.ENQUEUE, True)
                await queue.add("letter", 2)

    async def test_the_rights_that_the_page_names_suffice(self, name: str) -> None:
        policies = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)]
        assert len(policies) == 2
        with servers.private_sqs() as server:
            keys = [await _user_with(server.dsn, policy) for policy in policies]
            async with Queue("emails", provider=SQS(server.dsn, create=NewQueue(), **SQS_CLIENT)):
                pass  # made by somebody who may
            _check_rights_from_now_on(server.dsn)
            producer, worker = (SQS(server.dsn, wait=SECOND, region="eu-west-1", **key) for key in keys)

            async with Queue[int]("emails", provider=producer) as queue:
                await queue.add("letter", 1, attempts=3)
                await queue.add_many("letter", [2, 3])
                with pytest.raises(QueueRuntimeError, match="sqs:ReceiveMessage on http"):
                    await queue.provider.fetch(1)
                with pytest.raises(QueueRuntimeError, match="sqs:DeleteQueue on http"):
                    await queue.delete()
            async with Queue[int]("emails", provider=worker) as queue:
                provider = worker.for_queue("emails")
                await provider.connect()
                jobs = await arrived(provider, 3)
                assert list(await provider.renew(jobs)) == []
                await provider.ack(jobs[0])
                await provider.nack(jobs[1], Permanent("no"))
                await provider.release([jobs[2]])
                [letter] = await queue.dead_letters()
                await queue.retry(letter.id)
                assert (await queue.stats()).waiting == 2
                await provider.disconnect()


def refusing(code: str) -> Callable[..., Any]:
    """What SQS answers to somebody who may not, is not known, or asks too often."""
    error = {"Error": {"Code": code, "Message": "said SQS"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
    return lambda **_: (SimpleNamespace(status_code=403, headers={}), error)


async def _user_with(url: str, policy: dict[str, Any]) -> dict[str, str]:
    """The keys of a new user who may do what the policy says. moto knows no resources, and calls batches actions."""
    for statement in policy["Statement"]:
        actions = statement["Action"]
        statement["Resource"] = "*"
        statement["Action"] = [*actions, *(f"{action}Batch" for action in actions)]
    user = secrets.token_hex(4)
    async with native(url, "iam") as iam:
        await iam.create_user(UserName=user)
        await iam.put_user_policy(UserName=user, PolicyName="onward", PolicyDocument=json.dumps(policy))
        key = (await iam.create_access_key(UserName=user))["AccessKey"]
    return {"aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}


def _check_rights_from_now_on(url: str) -> None:
    """From the first request on: moto lets that many through first."""
    request = urllib.request.Request(f"{url}/moto-api/reset-auth", data=b"0", headers={"Content-Type": "text/plain"})
    urllib.request.urlopen(request).close()


def test_the_client_is_imported_only_with_the_provider_and_a_missing_one_is_named() -> None:
    script = """
import sys
import onward.queue
assert not {"aiobotocore", "botocore"} & set(sys.modules)
sys.modules["aiobotocore.config"] = None
try:
    from onward.queue.providers.sqs import SQS
except onward.errors.ConfigurationError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert run.stdout == "aiobotocore is not installed: pip install 'onward[sqs]'\n"

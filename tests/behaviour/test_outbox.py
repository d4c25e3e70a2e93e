"""The outbox: added in the caller's transaction, published by the app's workers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from onward import Attempt, Backoff, FailedJob, FailureReason, JobStatus, Onward, job
from onward.conformance.queue.session import arrived, names, until
from onward.observe.events import AttemptFailed
from onward.queue import (
    Keep,
    Memory,
    Queue,
    QueueConfigurationError,
    QueueDataError,
    QueueErrorCode,
    QueueJobStatus,
    QueueRuntimeError,
)
from onward.queue.contract import StoredJob
from onward.queue.options import Options
from onward.queue.provider import Provider
from onward.queue.providers.database import Database
from support import SOON, Recorder


@job("other")
async def other(attempt: Attempt[None]) -> str:
    return "done"


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def app(make_app: Callable[..., Onward]) -> Onward:
    return make_app(other)


@pytest.fixture
async def broker(tmp_path: Path, stack: AsyncExitStack) -> Provider:
    """The other side: what is published arrives here."""
    provider = _broker(tmp_path).for_queue("emails")
    await provider.connect()
    stack.push_async_callback(provider.disconnect)
    return provider


def _broker(tmp_path: Path) -> Database:
    return Database(Onward(f"sqlite:///{tmp_path}/broker.db", jobs=[]))


@pytest.fixture
def queue(app: Onward, tmp_path: Path) -> Queue[Any]:
    return Queue("emails", provider=_broker(tmp_path), outbox=app)


class TestPublishing:
    async def test_a_job_is_published_after_the_commit(self, app: Onward, queue: Queue[Any], broker: Provider) -> None:
        async with app, app.worker():
            async with app.transaction() as tx:
                added = await queue.add("welcome", {"to": "ada"}, tx=tx)
                assert (await broker.stats()).waiting == 0

            [job] = await arrived(broker, 1)

        assert (job.id, job.name, bytes(job.data)) == (added.id, "welcome", b'{"to":"ada"}')

    async def test_a_rolled_back_transaction_publishes_nothing(
        self, app: Onward, queue: Queue[Any], broker: Provider
    ) -> None:
        async with app, app.worker():
            with pytest.raises(ZeroDivisionError):
                async with app.transaction() as tx:
                    await queue.add("never", 1, tx=tx)
                    raise ZeroDivisionError
            async with app.transaction() as tx:
                await queue.add("welcome", 2, tx=tx)

            assert names(await arrived(broker, 1)) == ["welcome"]

        assert (await broker.stats()).waiting == 0

    async def test_what_the_provider_will_never_take_fails_and_holds_up_nobody(
        self, app: Onward, queue: Queue[Any], broker: Provider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add = queue.provider.add

        async def picky(job: StoredJob, options: Options) -> StoredJob:
            if job.name == "huge":
                raise QueueDataError("too large", code=QueueErrorCode.VALIDATION, queue_name="emails")
            return await add(job, options)

        monkeypatch.setattr(queue.provider, "add", picky)
        async with app, app.worker():
            async with app.transaction() as tx:
                await queue.add("huge", 1, tx=tx)
                await queue.add("welcome", 2, tx=tx)

            assert names(await arrived(broker, 1)) == ["welcome"]
            await until(lambda: _has_failed_for_good(app))

    async def test_options_arrive_and_the_delay_counts_from_adding(
        self, app: Onward, queue: Queue[Any], broker: Provider
    ) -> None:
        async with app:
            async with app.transaction() as tx:
                added = await queue.add(
                    "late",
                    1,
                    id="ada",
                    tx=tx,
                    delay=timedelta(hours=1),
                    attempts=3,
                    backoff=Backoff(initial=timedelta(seconds=7)),
                    priority=4,
                    metadata={"tenant": "7"},
                )
            assert added.status is QueueJobStatus.DELAYED
            await asyncio.sleep(1)
            async with app.worker():
                await until(lambda: _is_there(broker, "ada"))

        found = await broker.get_job("ada")
        assert found is not None
        assert (found.max_attempts, found.priority, found.metadata) == (3, 4, {"tenant": "7"})
        assert found.scheduled_for is not None
        assert added.scheduled_for is not None
        assert abs(found.scheduled_for - added.scheduled_for) < timedelta(seconds=0.5)

    async def test_one_process_publishes_in_order(self, app: Onward, queue: Queue[Any], broker: Provider) -> None:
        async with app:
            for n in range(40):
                async with app.transaction() as tx:
                    await queue.add("one", n, tx=tx)
            async with app.worker(concurrency=10):
                jobs = await arrived(broker, 40)

        assert [int(bytes(job.data)) for job in jobs] == list(range(40))

    async def test_without_tx_it_goes_to_the_provider_at_once(self, queue: Queue[Any], broker: Provider) -> None:
        async with queue:
            await queue.add("now", 1)

        assert names(await arrived(broker, 1)) == ["now"]

    async def test_a_handler_adds_with_its_own_commit(
        self, make_app: Callable[..., Onward], tmp_path: Path, broker: Provider
    ) -> None:
        @job("sign up")
        async def sign_up(attempt: Attempt[str]) -> str:
            async with attempt.complete() as tx:
                await queue.add("welcome", attempt.input, tx=tx)
                return "signed up"

        app = make_app(sign_up)
        queue = Queue[Any]("emails", provider=_broker(tmp_path), outbox=app)
        async with app, app.worker():
            chain = await app.start(sign_up, "ada")
            await chain.wait(timeout=SOON)
            [letter] = await arrived(broker, 1)

        assert bytes(letter.data) == b'"ada"'


class TestKeeping:
    async def test_what_was_published_is_kept_by_count(self, app: Onward, tmp_path: Path, broker: Provider) -> None:
        few = Keep(count=2, age=timedelta(days=1))
        queue = Queue[Any]("emails", provider=_broker(tmp_path), outbox=app, keep_published=few)
        async with app, app.worker():
            async with app.transaction() as tx:
                for n in range(6):
                    await queue.add(f"letter {n}", n, tx=tx)
            await arrived(broker, 6)

            async def two_are_left() -> bool:
                return len((await app.chains(types=["onward.relay:emails"])).items) == 2

            await until(two_are_left)

    async def test_two_queues_of_one_name_must_agree(self, app: Onward) -> None:
        memory = Memory()
        Queue("emails", provider=memory, outbox=app)
        with pytest.raises(QueueConfigurationError, match="keep_published"):
            Queue("emails", provider=memory, outbox=app, keep_published=Keep(count=1, age=timedelta(days=1)))


class TestRefusals:
    async def test_an_id_that_was_added_before_is_a_duplicate(self, app: Onward, queue: Queue[Any]) -> None:
        async with app, app.transaction() as tx:
            await queue.add("one", 1, id="ada", tx=tx)
            with pytest.raises(QueueDataError) as caught:
                await queue.add("one", 2, id="ada", tx=tx)
            await queue.add("one", 3, tx=tx)

        assert (caught.value.code, caught.value.job_id) == (QueueErrorCode.DUPLICATE, "ada")

    async def test_what_cannot_be_kept_is_refused(self, app: Onward, queue: Queue[Any]) -> None:
        async with app, app.transaction() as tx:
            for options, words in (({"metadata": {"x": float("nan")}}, "nan"), ({"metadata": {"x": object()}}, "JSON")):
                with pytest.raises(QueueDataError, match=words) as caught:
                    await queue.add("one", 1, tx=tx, **options)  # type: ignore[arg-type]
                assert caught.value.code == QueueErrorCode.VALIDATION

    async def test_an_app_that_is_not_open(self, queue: Queue[Any]) -> None:
        with pytest.raises(QueueConfigurationError, match="not open"):
            await queue.add("one", 1, tx=object())

    async def test_a_transaction_that_does_not_fit(self, app: Onward, queue: Queue[Any]) -> None:
        async with app:
            with pytest.raises(QueueConfigurationError, match=r"builtins\.object"):
                await queue.add("one", 1, tx=object())

    async def test_two_brokers_for_one_queue(self, app: Onward) -> None:
        memory = Memory()
        Queue("emails", provider=memory, outbox=app)
        Queue("emails", provider=memory, outbox=app)

        with pytest.raises(QueueConfigurationError, match="share the provider"):
            Queue("emails", provider=Memory(), outbox=app)
        Queue("letters", provider=Memory(), outbox=app)


class TestWorkers:
    async def test_a_worker_that_does_not_know_the_queue_leaves_it_alone(
        self, make_app: Callable[..., Onward], app: Onward, queue: Queue[Any], broker: Provider
    ) -> None:
        stranger = make_app(other)
        async with app, stranger, stranger.worker():
            async with app.transaction() as tx:
                await queue.add("welcome", 1, tx=tx)
            chain = await stranger.start(other, None)
            assert await chain.wait(timeout=SOON) == "done"
            assert (await broker.stats()).waiting == 0

            async with app.worker():
                assert names(await arrived(broker, 1)) == ["welcome"]

    async def test_required_middleware_is_not_required_of_the_relay(
        self, make_app: Callable[..., Onward], tmp_path: Path
    ) -> None:
        class Audit:
            def around_handler(self, attempt: Any) -> Any: ...

        app = make_app()
        Queue("emails", provider=_broker(tmp_path), outbox=app)

        app.worker(required_middleware=[Audit()])


class Away(Memory):
    """A broker that can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = True
        self.asked = 0

    def for_queue(self, queue_name: str) -> Any:
        provider = super().for_queue(queue_name)
        inner = provider.add

        async def add(job: StoredJob, options: Options) -> StoredJob:
            self.asked += 1
            if self.is_away:
                raise QueueRuntimeError("away", code=QueueErrorCode.ENQUEUE, retryable=True)
            return await inner(job, options)

        provider.add = add  # type: ignore[method-assign]
        return provider


async def test_a_broker_that_is_away_costs_nothing_but_time(app: Onward, recorder: Recorder) -> None:
    away = Away()
    queue = Queue[Any]("emails", provider=away, outbox=app)
    async with app, app.worker(concurrency=4):
        for n in range(8):
            async with app.transaction() as tx:
                await queue.add("one", n, tx=tx)
        await recorder.next(AttemptFailed, count=8)
        assert away.asked < 8
        chain = await app.start(other, None)
        assert await chain.wait(timeout=SOON) == "done"

        away.is_away = False

        provider = Memory.for_queue(away, "emails")
        await provider.connect()
        jobs = await arrived(provider, 8)
        await provider.disconnect()
    assert {int(bytes(one.data)) for one in jobs} == set(range(8))


async def _is_there(broker: Provider, job_id: str) -> bool:
    return await broker.get_job(job_id) is not None


async def _has_failed_for_good(app: Onward) -> bool:
    failed = (await app.jobs(status=JobStatus.FAILED)).items
    return [job.reason for job in failed if isinstance(job, FailedJob)] == [FailureReason.PERMANENT]

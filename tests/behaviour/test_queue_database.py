"""Queues in a database: transactions, leases, job types as queues, and what the numbers cost."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import msgspec
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

import servers
from onward import Attempt, Backoff, JobStatus, Next, Onward, job
from onward.client.checking import check_stored
from onward.conformance.queue.session import arrived, names, until
from onward.queue import (
    ActiveJob,
    Keep,
    Queue,
    QueueConfigurationError,
    QueueDataError,
    QueueErrorCode,
    QueueJobStatus,
    QueueRuntimeError,
    QueueWorker,
)
from onward.queue.contract import TakenJob
from onward.queue.providers.database import Database
from support import SOON, Run, intercept

SHORT = timedelta(seconds=1)


@dataclass
class Order:
    id: int


@job("charge", max_attempts=2, backoff=Backoff(initial=timedelta(milliseconds=10)))
async def charge(attempt: Attempt[Order]) -> str:
    return f"charged {attempt.input.id}"


@job("ship", internal=True)
async def ship(attempt: Attempt[Order]) -> str:
    return "shipped"


@job("route", continues_to=[ship])
async def route(attempt: Attempt[Order]) -> Next[str]:
    return attempt.continue_with(ship, attempt.input)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def app(make_app: Callable[..., Onward], stack: AsyncExitStack) -> Onward:
    return await stack.enter_async_context(make_app(charge, ship, route))


@pytest.fixture
async def queue(app: Onward, stack: AsyncExitStack) -> Queue[Any]:
    return await stack.enter_async_context(Queue("emails", provider=Database(app, lease=SHORT)))


async def depth(queue: Queue[Any]) -> int | None:
    return (await queue.stats()).waiting


class TestTransactions:
    """`tx=` is the caller's transaction: committed with it, or nothing."""

    async def test_a_job_commits_with_the_callers_data(self, app: Onward, queue: Queue[Any]) -> None:
        async with app.transaction() as tx:
            await tx.execute("CREATE TABLE IF NOT EXISTS letters (id text)")
            added = await queue.add("welcome", {"to": "ada"}, id="ada", tx=tx)
            assert await depth(queue) == 0

        assert await depth(queue) == 1
        found = await queue.get_job(added.id)
        assert found is not None
        assert (found.id, found.data) == ("ada", {"to": "ada"})

    async def test_a_job_rolls_back_with_the_callers_data(self, app: Onward, queue: Queue[Any]) -> None:
        with pytest.raises(ZeroDivisionError):
            async with app.transaction() as tx:
                await queue.add("welcome", 1, tx=tx)
                raise ZeroDivisionError

        assert await depth(queue) == 0

    async def test_a_waiting_worker_hears_of_the_commit(self, app: Onward, queue: Queue[Any]) -> None:
        async with asyncio.TaskGroup() as tasks:
            provider = Database(app).for_queue("emails")
            await provider.connect()
            fetching = tasks.create_task(provider.fetch(1, SOON))
            async with app.transaction() as tx:
                await queue.add("welcome", 1, tx=tx)
        assert names(fetching.result()) == ["welcome"]
        await provider.disconnect()

    @pytest.mark.parametrize("target", ["postgres"], indirect=True)
    async def test_any_transaction_that_the_app_takes(self, queue: Queue[Any], postgres_dsn: str) -> None:
        connection = await asyncpg.connect(postgres_dsn)
        async with connection.transaction():
            await queue.add("one", 1, tx=connection)
        await connection.close()

        assert await depth(queue) == 1

    @pytest.mark.parametrize("target", ["postgres"], indirect=True)
    async def test_a_session_of_sqlalchemy(self, make_app: Callable[..., Onward], postgres_dsn: str) -> None:
        engine = create_async_engine(postgres_dsn.replace("postgresql", "postgresql+asyncpg", 1))
        sessions = async_sessionmaker(engine)
        async with Queue[Any]("emails", provider=Database(make_app(target=sessions))) as queue:
            async with sessions.begin() as session:
                await session.execute(text("SELECT 1"))
                await queue.add("one", 1, tx=session)
            async with sessions() as session:
                await queue.add("two", 2, tx=session)
                await session.rollback()

            assert names(await arrived(queue.provider, 1)) == ["one"]
            assert await depth(queue) == 0
        await engine.dispose()

    @pytest.mark.parametrize("target", ["sqlite"], indirect=True)
    async def test_a_connection_of_sqlite3(self, queue: Queue[Any], target: str) -> None:
        with closing(sqlite3.connect(target.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            await queue.add("one", 1, tx=connection)
            connection.execute("COMMIT")

        assert await depth(queue) == 1

    async def test_a_transaction_that_does_not_fit_is_refused(self, app: Onward, queue: Queue[Any]) -> None:
        with pytest.raises(QueueConfigurationError, match=r"builtins\.object") as caught:
            await queue.add("one", 1, tx=object())
        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.INVALID_OPTION, False)

        with pytest.raises(QueueConfigurationError, match="pass tx=tx"):
            async with app.transaction():
                await queue.add("one", 1)

    async def test_a_refusal_leaves_the_transaction_usable(self, app: Onward, queue: Queue[Any]) -> None:
        await queue.add("one", 1, id="ada")
        async with app.transaction() as tx:
            with pytest.raises(QueueDataError) as caught:
                await queue.add("again", 2, id="ada", tx=tx)
            await queue.add("two", 3, tx=tx)

        assert caught.value.code == QueueErrorCode.DUPLICATE
        assert await depth(queue) == 2

    async def test_what_a_handler_adds_knows_where_it_comes_from(
        self, make_app: Callable[..., Onward], stack: AsyncExitStack
    ) -> None:
        @job("sign up")
        async def sign_up(attempt: Attempt[None]) -> str:
            async with attempt.complete() as tx:
                return (await queue.add("welcome", 1, tx=tx)).id

        app = await stack.enter_async_context(make_app(sign_up))
        queue = await stack.enter_async_context(Queue[Any]("emails", provider=Database(app)))
        await stack.enter_async_context(app.worker())
        chain = await app.start(sign_up, None)

        added = await chain.wait(timeout=SOON)

        [letter] = (await app.jobs(types=["queue:emails"])).items
        assert (str(letter.id), letter.origin_id, letter.root_id) == (added, chain.id, chain.id)


class TestIds:
    async def test_ids_belong_to_their_queue(self, app: Onward, queue: Queue[Any]) -> None:
        async with Queue[Any]("letters", provider=Database(app)) as letters:
            await queue.add("one", 1, id="ada")
            await letters.add("one", 1, id="ada")

            with pytest.raises(QueueDataError):
                await letters.add("two", 2, id="ada")

    async def test_a_uuid_is_the_id_of_the_chain(self, app: Onward, queue: Queue[Any]) -> None:
        wanted = uuid4()
        await queue.add("one", 1, id=str(wanted))
        await queue.add("two", 2, id=str(wanted).upper())

        assert await app.find_chain(wanted) is not None
        assert {job.id for job in await arrived(queue.provider, 2)} == {str(wanted), str(wanted).upper()}

    async def test_a_chain_that_is_no_job_of_the_queue_is_nothing_to_it(self, app: Onward, queue: Queue[Any]) -> None:
        chain = await app.start(charge, Order(7))

        assert await queue.get_job(str(chain.id)) is None

    async def test_of_several_jobs_all_or_none_are_added(self, app: Onward) -> None:
        async with Queue[Any]("emails", provider=Database(app), job_id=lambda name, data: f"n{data}") as queue:
            await queue.add("one", 3)
            with pytest.raises(QueueDataError) as caught:
                await queue.add_many("one", [1, 2, 3, 4])

            assert (caught.value.code, caught.value.job_id) == (QueueErrorCode.DUPLICATE, "n3")
            assert await depth(queue) == 1
            assert await queue.add_many("one", []) == []


class TestBadInput:
    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({"priority": 2**31}, "priority"),
            ({"metadata": {"x": float("nan")}}, "metadata"),
            ({"metadata": {"x": "\0"}}, "NUL"),
            ({"id": "a\0b"}, "NUL"),
            ({"provider_options": {"database": {"colour": "red"}}}, "provider_options.*colour"),
        ],
        ids=lambda given: re.sub(r" at 0x\w+", "", str(given)),
    )
    async def test_is_refused_before_anything_is_stored(
        self, queue: Queue[Any], given: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(QueueDataError, match=words) as caught:
            await queue.add("one", 1, **given)

        assert caught.value.code == QueueErrorCode.VALIDATION
        assert await depth(queue) == 0

    async def test_what_cannot_be_a_provider_says_so(self, app: Onward) -> None:
        for make, words in (
            (lambda: Database("sqlite:///x.db"), "must be an Onward app"),  # type: ignore[arg-type]
            (lambda: Database(app, lease=timedelta()), "at least 1 s"),
            (lambda: Database(app).for_queue("ship"), "'ship' is internal"),
        ):
            with pytest.raises(QueueConfigurationError, match=words):
                make()

    @pytest.mark.parametrize("target", ["postgres"], indirect=True)
    async def test_missing_tables_name_the_command(self, make_app: Callable[..., Onward]) -> None:
        queue = Queue[Any]("emails", provider=Database(make_app(migrate=False)))

        with pytest.raises(QueueConfigurationError, match="onward migrate"):
            await queue.add("one", 1)

    @pytest.mark.parametrize("part", ["user", "database"])
    async def test_what_is_wrong_with_an_address_is_said_and_not_tried_again(
        self, postgres_dsn: str, part: str
    ) -> None:
        url = make_url(postgres_dsn).set(**{("username" if part == "user" else part): "nobody_knows"})
        app = Onward(url.render_as_string(hide_password=False), jobs=[])

        with pytest.raises(QueueRuntimeError, match="nobody_knows") as caught:
            await Queue("emails", provider=Database(app)).add("one", 1)

        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.CONNECTION, False)

    async def test_what_something_else_wrote_is_failed_and_not_given_out(
        self, make_app: Callable[..., Onward], queue: Queue[Any]
    ) -> None:
        @job("queue:emails")
        async def stranger(attempt: Attempt[str]) -> None: ...

        async with make_app(stranger) as other:
            chain = await other.start(stranger, "not an envelope")
            assert list(await queue.provider.fetch(1)) == []
            await until(lambda: _has_failed(chain))


class TestOperators:
    """Whoever looks at the jobs of the app sees those of queues beside them."""

    async def test_what_queue_workers_take_is_not_called_stranded(self, app: Onward, queue: Queue[Any]) -> None:
        await queue.add("one", 1)

        health, verdict = await app.health(), await check_stored(app.registry, app.store)
        told = await app.explain((await app.jobs()).items[0].id)

        assert [one for one in health.findings if one.level == "error"] == []
        assert verdict.is_good
        assert "waits for a worker of its queue 'emails'" in told.sentence


async def _has_failed(chain: Any) -> bool:
    return (await chain.get()).status is JobStatus.FAILED


class TestLeases:
    """A worker of which nothing is heard for a lease has crashed."""

    async def test_a_lost_job_is_tried_again_and_the_stall_counted(self, queue: Queue[Any]) -> None:
        await queue.add("one", 1)
        [lost] = await arrived(queue.provider, 1)

        [again] = await arrived(queue.provider, 1)

        assert (again.id, again.attempts, again.stalls) == (lost.id, 0, 1)
        for late in (queue.provider.ack(lost), queue.provider.nack(lost, ValueError()), queue.provider.release([lost])):
            with pytest.raises(QueueRuntimeError, match="not active") as caught:
                await late
            assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.PROCESSING, False)
        assert [job.id for job in await queue.provider.renew([lost])] == [lost.id]
        await queue.provider.ack(again)

    async def test_at_the_limit_it_has_failed(self, queue: Queue[Any]) -> None:
        await queue.add("one", 1, id="ada", max_stalls=0)
        await queue.add("two", 1, id="bob", max_stalls=0, remove_on_fail=True)
        await arrived(queue.provider, 2)

        await until(lambda: self._both_reaped(queue))

        [letter] = await queue.dead_letters()
        assert (letter.id, letter.status, letter.attempts) == ("ada", QueueJobStatus.FAILED, 0)
        assert (letter.reason, letter.stalls) == ("stalled", 1)
        assert "lease" in (letter.error or "")
        assert await queue.get_job("bob") is None

    async def _both_reaped(self, queue: Queue[Any]) -> bool:
        await queue.provider.fetch(1)
        stats = await queue.stats()
        return (stats.active, stats.failed) == (0, 1)

    async def test_a_job_that_runs_longer_than_its_lease_stays_with_its_worker(
        self, app: Onward, queue: Queue[Any]
    ) -> None:
        runs: list[Any] = []

        async def slow(data: Any, job: ActiveJob[Any]) -> None:
            runs.append(data)
            await asyncio.sleep(2.5)

        done = asyncio.Event()
        async with QueueWorker("emails", slow, provider=Database(app, lease=SHORT), concurrency=2) as worker:
            worker.on("completed", lambda event: done.set())
            await queue.add("one", 1, attempts=3)
            await asyncio.wait_for(done.wait(), SOON.total_seconds())

        assert runs == [1]

    async def test_a_cancelled_job_is_stopped_and_failed(self, app: Onward, queue: Queue[Any]) -> None:
        begun, stopped = asyncio.Event(), asyncio.Event()

        async def hang(data: Any, job: ActiveJob[Any]) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        wanted = uuid4()
        async with QueueWorker("emails", hang, provider=Database(app, lease=SHORT)):
            await queue.add("one", 1, id=str(wanted), attempts=5)
            await asyncio.wait_for(begun.wait(), SOON.total_seconds())
            await app.cancel(wanted)
            await asyncio.wait_for(stopped.wait(), SOON.total_seconds())
            await until(lambda: self._is_failed(queue, str(wanted)))

    async def _is_failed(self, queue: Queue[Any], job_id: str) -> bool:
        found = await queue.get_job(job_id)
        return found is not None and found.status is QueueJobStatus.FAILED

    async def test_jobs_whose_take_was_not_answered_are_taken_again_and_nothing_is_counted(
        self, app: Onward, queue: Queue[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await queue.add_many("one", range(3), attempts=1)
        [held] = await arrived(queue.provider, 1)

        async def take_and_lose(run: Run, **_: Any) -> Any:
            await run()
            monkeypatch.undo()
            raise ConnectionResetError

        intercept(monkeypatch, app.state, "take", take_and_lose)
        with pytest.raises(QueueRuntimeError) as caught:
            await queue.provider.fetch(2)

        jobs = await arrived(queue.provider, 2)
        assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.CONNECTION, True)
        assert [one.attempts for one in jobs] == [0, 0]
        await queue.provider.ack(held)

    async def test_a_lock_token_of_another_take_is_worth_nothing(self, queue: Queue[Any]) -> None:
        await queue.add("one", 1)
        [job] = await arrived(queue.provider, 1)

        for forged in ("", "0/somebody", (job.lock_token or "").replace("1/", "2/")):
            with pytest.raises(QueueRuntimeError, match="not active"):
                await queue.provider.ack(msgspec.structs.replace(job, lock_token=forged))
        await queue.provider.ack(job)


class TestSettling:
    async def test_outcomes_that_come_together_are_committed_together(
        self, app: Onward, queue: Queue[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await queue.add_many("one", range(50))
        jobs = await arrived(queue.provider, 50)
        batches: list[int] = []

        async def counted(run: Run, settlements: Any, **_: Any) -> Any:
            batches.append(len(settlements))
            return await run()

        intercept(monkeypatch, app.state, "settle", counted)
        async with asyncio.TaskGroup() as tasks:
            for one in jobs:
                tasks.create_task(queue.provider.ack(one))

        assert sum(batches) == 50
        assert len(batches) <= 3

    async def test_dead_letters_come_in_the_order_they_died(self, queue: Queue[Any]) -> None:
        for n in range(5):
            await queue.add("one", n, id=f"n{n}")
        for one in reversed(await arrived(queue.provider, 5)):
            await queue.provider.nack(one, ValueError("no"))

        assert [letter.id for letter in await queue.dead_letters()] == ["n0", "n1", "n2", "n3", "n4"]
        assert [letter.id for letter in await queue.dead_letters(limit=1)] == ["n0"]
        assert list(await queue.dead_letters(limit=0)) == []

    async def test_what_was_retried_has_no_error(self, queue: Queue[Any]) -> None:
        await queue.add("one", 1, id="ada")
        [job] = await arrived(queue.provider, 1)
        await queue.provider.nack(job, ValueError("no"))

        await queue.retry("ada")

        found = await queue.get_job("ada")
        assert found is not None
        assert (found.status, found.attempts, found.error) == (QueueJobStatus.WAITING, 0, None)

    async def test_old_ones_go(self, app: Onward, queue: Queue[Any], stack: AsyncExitStack) -> None:
        await queue.add_many("one", [1, 2])
        good, bad = await arrived(queue.provider, 2)
        await queue.provider.ack(good)
        await queue.provider.nack(bad, ValueError("no"))
        brief = Keep(count=100, age=timedelta(milliseconds=1))
        provider = Database(app, keep_completed=brief, keep_failed=brief).for_queue(queue.name)
        await provider.connect()
        stack.push_async_callback(provider.disconnect)

        await provider.fetch(1)  # who fetches looks after what is kept

        async def nothing_is_kept() -> bool:
            return [await queue.get_job(job.id) for job in (good, bad)] == [None, None]

        await until(nothing_is_kept)

    async def test_the_result_and_when_it_was_taken_are_kept(self, app: Onward, queue: Queue[Any]) -> None:
        added = await queue.add("one", 1)
        [job] = await arrived(queue.provider, 1)

        await queue.provider.ack(job, msgspec.Raw(b'{"sent":true}'))

        stored = await app.find_chain(msgspec.convert(added.id, type(uuid4())))
        assert stored is not None
        assert stored.current.output["result"] == {"sent": True}  # type: ignore[union-attr]
        found = await queue.get_job(added.id)
        assert found is not None
        assert found.processed_at == job.processed_at


class TestJobTypes:
    """A queue with the name of a job type of the app."""

    @pytest.fixture
    async def charges(self, app: Onward, stack: AsyncExitStack) -> Queue[Order]:
        return await stack.enter_async_context(Queue("charge", provider=Database(app), data=Order))

    async def test_workers_of_the_app_run_what_the_queue_adds(self, app: Onward, charges: Queue[Order]) -> None:
        added = await charges.add(charge, Order(7))

        async with app.worker():
            output = await app.chain(charge, msgspec.convert(added.id, type(uuid4()))).wait(timeout=SOON)

        assert output == "charged 7"
        found = await charges.get_job(added.id)
        assert found is not None
        assert (found.status, found.data, found.name) == (QueueJobStatus.COMPLETED, Order(7), "charge")

    async def test_a_queue_worker_runs_what_the_app_starts(self, app: Onward) -> None:
        async def pay(order: Order, job: ActiveJob[Order]) -> str:
            return f"paid {order.id}"

        async with QueueWorker("charge", pay, provider=Database(app)):
            chain = await app.start(charge, Order(7))

            assert await chain.wait(timeout=SOON) == "paid 7"

    async def test_data_that_does_not_fit_the_type_is_refused(self, app: Onward) -> None:
        async with Queue[Any]("charge", provider=Database(app)) as queue:
            for name, data, id, words in (
                ("charge", {"id": "seven"}, None, r"input at \$\.id: Expected `int`"),
                ("pay", {"id": 7}, None, "of the job type 'charge', not 'pay'"),
                ("charge", {"id": 7}, "ada", "UUIDs"),
            ):
                with pytest.raises(QueueDataError, match=words) as caught:
                    await queue.add(name, data, id=id)
                assert caught.value.code == QueueErrorCode.VALIDATION
            assert await depth(queue) == 0
            assert await queue.get_job("ada") is None

    async def test_a_result_that_does_not_fit_is_a_failed_attempt(self, app: Onward, charges: Queue[Order]) -> None:
        runs: list[int] = []

        async def pay(order: Order, job: ActiveJob[Order]) -> int:
            runs.append(job.attempts)
            return 7

        await charges.add(charge, Order(7))
        async with QueueWorker("charge", pay, provider=Database(app)):
            await until(lambda: self._is_dead(charges))

        assert runs == [0, 1]
        assert "Expected `str`" in ((await charges.dead_letters())[0].error or "")

    async def _is_dead(self, queue: Queue[Any]) -> bool:
        return len(await queue.dead_letters()) == 1

    async def test_what_belongs_to_the_type_cannot_be_said_per_job(self, app: Onward) -> None:
        warned: list[str] = []
        queue = Queue[Any](
            "charge", provider=Database(app), on_unsupported_feature=lambda feature: warned.append(feature.option)
        )
        async with queue:
            await queue.add(charge, {"id": 7}, attempts=5, metadata={"a": 1}, backoff=Backoff(), remove_on_fail=True)
            [taken] = await arrived(queue.provider, 1)

        assert sorted(warned) == ["attempts", "backoff", "metadata", "remove_on_fail"]
        assert (taken.max_attempts, taken.metadata) == (2, {})

    async def test_a_type_that_always_continues_is_for_workers_of_the_app(self, app: Onward) -> None:
        async with Queue[Any]("route", provider=Database(app)) as queue:
            await queue.add(route, {"id": 7})
            [taken] = await arrived(queue.provider, 1)
            with pytest.raises(QueueDataError, match="always continues"):
                await queue.provider.ack(taken)


class TestApps:
    async def test_the_app_is_opened_and_closed_with_its_queues(self, make_app: Callable[..., Onward]) -> None:
        app = make_app()
        factory = Database(app)
        async with Queue[Any]("emails", provider=factory):
            async with Queue[Any]("letters", provider=factory):
                assert app.is_open
            assert app.is_open
        assert not app.is_open

    async def test_an_app_that_was_open_stays_open(self, app: Onward) -> None:
        async with Queue[Any]("emails", provider=Database(app)):
            pass

        assert app.is_open


@pytest.mark.chaos
async def test_a_server_that_goes_away_and_comes_back() -> None:
    done: list[int] = []
    troubles: list[Any] = []

    async def note(data: int, job: TakenJob) -> None:
        done.append(data)

    with servers.private_postgres() as server:
        app = Onward(server.dsn, jobs=[], migrate=True)
        queue = Queue[int]("emails", provider=Database(app))
        async with queue, QueueWorker("emails", note, provider=Database(app), concurrency=4, batch_size=4) as worker:
            worker.on("queue.error", troubles.append)
            added: set[int] = set()
            for n in range(300):
                if n == 100:
                    await asyncio.to_thread(server.stop, "immediate")
                    with pytest.raises(QueueRuntimeError) as caught:
                        await queue.add("one", -1)
                    assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.ENQUEUE, True)
                    await until(lambda: len(troubles) > 0)
                    await asyncio.to_thread(server.start)
                await queue.add("one", n, attempts=5)
                added.add(n)
            await until(lambda: added <= set(done))

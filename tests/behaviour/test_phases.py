"""The phases of a handler: what commits together, and what a mistake leads to."""

import asyncio
import re
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Any

import pytest

from onward import Attempt, Backoff, ChainFailed, Onward, Reschedule, SyncTransaction, job
from onward.errors import PhaseError, TransactionClosed, TransactionOpen
from onward.observe.events import AttemptEnded, AttemptFailed
from support import SOON, Recorder

QUICK = Backoff(initial=timedelta(milliseconds=50))


async def make_table(app: Onward) -> None:
    async with app.transaction() as tx:
        await tx.execute("DROP TABLE IF EXISTS ledger")
        await tx.execute("CREATE TABLE ledger (entry text)")


async def entries(app: Onward) -> list[str]:
    async with app.transaction() as tx:
        return [row["entry"] for row in await tx.fetch("SELECT entry FROM ledger ORDER BY entry")]


async def test_prepare_commits_with_its_block_and_complete_with_the_job(running: Any) -> None:
    @job("staged")
    async def staged(attempt: Attempt[str]) -> str:
        async with attempt.prepare() as tx:
            await tx.execute("INSERT INTO ledger VALUES (:entry)", entry="prepared")
        assert await entries(app) == ["prepared"]
        async with attempt.complete() as tx:
            await tx.execute("INSERT INTO ledger VALUES (:entry)", entry="completed")
            return "done"

    app: Onward = await running(staged)
    await make_table(app)

    assert await (await app.start(staged, "x")).wait(timeout=SOON) == "done"

    assert await entries(app) == ["completed", "prepared"]


async def test_an_atomic_prepare_is_one_transaction_with_complete(running: Any) -> None:
    @job("atomic", backoff=QUICK)
    async def atomic(attempt: Attempt[str]) -> int:
        async with attempt.prepare(atomic=True) as tx:
            await tx.execute("INSERT INTO ledger VALUES (:entry)", entry=f"prepared {attempt.number}")
        async with attempt.complete() as tx:
            if attempt.failures == 0:
                raise ValueError("first time")
            await tx.execute("INSERT INTO ledger VALUES (:entry)", entry="completed")
            return attempt.number

    app: Onward = await running(atomic)
    await make_table(app)

    assert await (await app.start(atomic, "x")).wait(timeout=SOON) == 2

    assert await entries(app) == ["completed", "prepared 2"]


@pytest.mark.parametrize("where", ["prepare", "between", "complete", "after"])
async def test_an_error_anywhere_rolls_the_open_phase_back_and_the_job_runs_again(running: Any, where: str) -> None:
    @job("clumsy", backoff=QUICK)
    async def clumsy(attempt: Attempt[str]) -> int:
        def stumble(here: str) -> None:
            if here == where and attempt.failures == 0:
                raise ValueError(here)

        async with attempt.prepare() as tx:
            await tx.fetchval("SELECT 1")
            stumble("prepare")
        stumble("between")
        async with attempt.complete() as tx:
            await tx.execute("INSERT INTO ledger VALUES (:entry)", entry=f"attempt {attempt.number}")
            stumble("complete")
        stumble("after")
        return attempt.number

    app: Onward = await running(clumsy)
    await make_table(app)

    assert await (await app.start(clumsy, "x")).wait(timeout=SOON) == 2

    assert await entries(app) == ["attempt 2"]


async def test_an_error_that_left_complete_counts_though_the_handler_swallowed_it(running: Any) -> None:
    @job("stubborn", backoff=QUICK)
    async def stubborn(attempt: Attempt[str]) -> int:
        try:
            async with attempt.complete() as tx:
                await tx.execute("INSERT INTO ledger VALUES (:entry)", entry="x")
                if attempt.failures == 0:
                    raise ValueError("inside")
        except ValueError:
            pass
        return attempt.number

    app: Onward = await running(stubborn)
    await make_table(app)

    assert await (await app.start(stubborn, "x")).wait(timeout=SOON) == 2

    assert await entries(app) == ["x"]


async def test_a_statement_that_failed_unnoticed_never_leaves_half_a_job(running: Any) -> None:
    """On Postgres the transaction is poisoned and the attempt fails; on SQLite the statement alone is undone."""

    @job("poisoned", backoff=QUICK)
    async def poisoned(attempt: Attempt[str]) -> int:
        async with attempt.complete() as tx:
            await tx.execute("INSERT INTO ledger VALUES (:entry)", entry=f"attempt {attempt.number}")
            if attempt.failures == 0:
                with suppress(Exception):
                    await tx.execute("INSERT INTO no_such_table VALUES (1)")
            return attempt.number

    app: Onward = await running(poisoned)
    await make_table(app)

    number = await (await app.start(poisoned, "x")).wait(timeout=SOON)

    assert await entries(app) == [f"attempt {number}"]


@pytest.mark.parametrize("mistake", ["prepare twice", "complete twice", "prepare after complete", "nested"])
async def test_phases_in_the_wrong_order_are_a_clear_error(running: Any, recorder: Recorder, mistake: str) -> None:
    @job("confused", max_attempts=1)
    async def confused(attempt: Attempt[str]) -> None:
        first, second = {
            "prepare twice": (attempt.prepare, attempt.prepare),
            "complete twice": (attempt.complete, attempt.complete),
            "prepare after complete": (attempt.complete, attempt.prepare),
            "nested": (attempt.prepare, attempt.complete),
        }[mistake]
        async with first():
            if mistake == "nested":
                async with second():
                    pass
        async with second():
            pass

    app: Onward = await running(confused)
    chain = await app.start(confused, "x")

    with pytest.raises(ChainFailed) as failed:
        await chain.wait(timeout=SOON)

    assert failed.value.error is not None
    assert failed.value.error.type == PhaseError.__name__


async def test_after_its_block_the_transaction_takes_no_more_statements(running: Any) -> None:
    @job("late", max_attempts=1)
    async def late(attempt: Attempt[str]) -> None:
        async with attempt.complete() as tx:
            await tx.fetchval("SELECT 1")
        await tx.fetchval("SELECT 2")

    app: Onward = await running(late)
    chain = await app.start(late, "x")

    with pytest.raises(ChainFailed) as failed:
        await chain.wait(timeout=SOON)

    assert failed.value.error is not None
    assert failed.value.error.type == TransactionClosed.__name__


@pytest.mark.parametrize("deed", ["delete", "complete"])
async def test_a_phase_that_does_away_with_its_own_job_fails_and_says_why(running: Any, deed: str) -> None:
    @job("undone", max_attempts=1)
    async def undone(attempt: Attempt[str]) -> str:
        async with attempt.complete() as tx:
            await tx.execute("INSERT INTO ledger VALUES ('undone')")
            if deed == "delete":
                await app.delete(attempt.chain_id, tx=tx)
            else:
                async with app.complete(attempt.chain_id, tx=tx) as completion:
                    await completion.done("by itself")
            return attempt.input

    app: Onward = await running(undone)
    await make_table(app)

    with pytest.raises(ChainFailed, match="PhaseError: the transaction of this attempt has deleted its own job"):
        await (await app.start(undone, "x")).wait(timeout=SOON)
    assert await entries(app) == []


async def test_starting_inside_a_phase_without_joining_it_is_refused(running: Any) -> None:
    @job("outside", max_attempts=1)
    async def outside(attempt: Attempt[str]) -> None:
        async with attempt.complete():
            await app.start(outside, "again")

    app: Onward = await running(outside)
    chain = await app.start(outside, "x")

    with pytest.raises(ChainFailed) as failed:
        await chain.wait(timeout=SOON)

    assert failed.value.error is not None
    assert failed.value.error.type == TransactionOpen.__name__
    assert len((await app.jobs()).items) == 1


async def test_reschedule_raised_undoes_the_phase_and_returned_keeps_it(running: Any) -> None:
    @job("raised")
    async def raised(attempt: Attempt[str]) -> int:
        async with attempt.complete() as tx:
            await tx.execute("INSERT INTO ledger VALUES (:entry)", entry=f"raised {attempt.number}")
            if attempt.number == 1:
                raise Reschedule(delay=timedelta(milliseconds=20))
            return attempt.failures

    @job("returned")
    async def returned(attempt: Attempt[str]) -> Any:
        async with attempt.complete() as tx:
            await tx.execute("INSERT INTO ledger VALUES (:entry)", entry=f"returned {attempt.number}")
            if attempt.number == 1:
                return attempt.reschedule(delay=timedelta(milliseconds=20))
            return attempt.failures

    app: Onward = await running(raised, returned)
    await make_table(app)

    chains = [await app.start(raised, "x"), await app.start(returned, "x")]

    assert [await chain.wait(timeout=SOON) for chain in chains] == [0, 0]
    assert await entries(app) == ["raised 2", "returned 1", "returned 2"]


async def test_def_handlers_have_the_same_phases_in_a_thread(running: Any) -> None:
    import threading

    @job("plain", backoff=QUICK)
    def plain(attempt: Attempt[str, SyncTransaction]) -> str:
        with attempt.prepare() as tx:
            count = tx.fetchval("SELECT count(*) FROM ledger")
        with attempt.complete() as tx:
            tx.execute("INSERT INTO ledger VALUES (:entry)", entry=f"attempt {attempt.number}")
            if attempt.failures == 0:
                raise ValueError("first time")
            return f"{count} in {threading.current_thread().name.rpartition('_')[0]}"

    app: Onward = await running(plain)
    await make_table(app)

    assert await (await app.start(plain, "x")).wait(timeout=SOON) == "0 in onward-handler"

    assert await entries(app) == ["attempt 2"]


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_an_error_at_commit_fails_the_attempt(running: Any, recorder: Recorder) -> None:
    @job("orphan", max_attempts=1)
    async def orphan(attempt: Attempt[str]) -> None:
        async with attempt.complete() as tx:
            await tx.execute("INSERT INTO child VALUES (1)")

    app: Onward = await running(orphan)
    async with app.transaction() as tx:
        await tx.execute("DROP TABLE IF EXISTS child")
        await tx.execute("DROP TABLE IF EXISTS parent")
        await tx.execute("CREATE TABLE parent (id int PRIMARY KEY)")
        await tx.execute("CREATE TABLE child (id int REFERENCES parent(id) DEFERRABLE INITIALLY DEFERRED)")
    chain = await app.start(orphan, "x")

    with pytest.raises(ChainFailed):
        await chain.wait(timeout=SOON)

    assert "ForeignKey" in (await recorder.next(AttemptFailed)).error.type


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
async def test_a_phase_that_keeps_the_only_write_lock_for_long_is_logged_with_its_job(
    running: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.worker.phases._LONG_LOCK", 0.0)

    @job("slow writer")
    async def slow_writer(attempt: Attempt[str]) -> None:
        async with attempt.complete():
            pass

    app: Onward = await running(slow_writer)
    chain = await app.start(slow_writer, "x")
    await chain.wait(timeout=SOON)

    assert re.search(rf"slow writer held SQLite's only write lock for \d+\.\d s \(job {chain.id}\)", caplog.text)


async def all_of_the_pool(app: Onward, size: int) -> None:
    """Lend every connection there is at once, and work with each."""
    async with asyncio.timeout(SOON.total_seconds()), AsyncExitStack() as stack:
        for _ in range(size):
            connection = await stack.enter_async_context(app.driver.connection())
            assert len((await connection.query("SELECT 1", {})).rows) == 1


async def test_of_two_tasks_that_open_a_phase_at_once_one_is_refused(running: Any) -> None:
    @job("hasty")
    async def hasty(attempt: Attempt[str]) -> list[str]:
        told = list[str]()

        async def look() -> None:
            try:
                async with attempt.prepare() as tx:
                    await tx.fetchval("SELECT 1")
            except PhaseError as error:
                told.append(str(error))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(look())
        return told

    app: Onward = await running(hasty, pool_size=2)

    for _ in range(2):
        told = await (await app.start(hasty, "x")).wait(timeout=SOON)
        assert told == ["prepare() inside another phase: leave that block first"]

    await all_of_the_pool(app, 2)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_phase_that_a_forgotten_task_opens_ends_with_the_attempt(
    running: Any, recorder: Recorder, fails: bool
) -> None:
    """It still waits for a connection when the handler returns, or raises what another task has raised."""
    lent, forgotten = asyncio.Event(), list[asyncio.Task[None]]()

    @job("forgetful", max_attempts=1)
    async def forgetful(attempt: Attempt[str]) -> str:
        async def look() -> None:
            async with attempt.prepare():
                pass

        await lent.wait()
        forgotten.append(asyncio.ensure_future(look()))  # noqa: TID251 - a handler may
        await asyncio.sleep(0)
        if fails:
            raise ValueError
        return "done"

    app: Onward = await running(forgetful, pool_size=1)
    await app.start(forgetful, "x")
    async with app.driver.connection():
        lent.set()
        ended = await recorder.next(AttemptEnded)

    with pytest.raises(PhaseError, match="after the attempt ended"):
        await forgotten[0]
    assert ended.outcome == ("failed" if fails else "completed")
    await all_of_the_pool(app, 1)

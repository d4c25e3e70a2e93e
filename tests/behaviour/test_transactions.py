"""Transactions that are treated badly: left elsewhere than entered, ended by hand, their connection closed."""

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from onward import Attempt, Backoff, ChainFailed, JobStatus, Onward, job
from onward.errors import DatabaseError, TransactionClosed, TransactionUnsuitable
from onward.observe.events import AttemptEnded, AttemptFailed
from support import SOON, Recorder

QUICK = Backoff(initial=timedelta(milliseconds=20))


@job("work")
async def work(attempt: Attempt[int]) -> int:
    return attempt.input


# -- left elsewhere


async def test_a_transaction_may_be_left_in_another_task_than_it_was_entered(opened: Any) -> None:
    app: Onward = await opened(work)
    block = app.transaction()
    tx = await asyncio.create_task(block.__aenter__())  # noqa: TID251
    chain = await app.start(work, 1, tx=tx)

    await asyncio.create_task(block.__aexit__(None, None, None))  # noqa: TID251

    assert (await chain.get()).status is JobStatus.PENDING
    assert await app.start(work, 2), "nobody here has a transaction open"


async def test_nor_does_it_matter_where_an_error_leaves_it(opened: Any) -> None:
    app: Onward = await opened(work)
    block = app.transaction()
    tx = await block.__aenter__()
    chain = await app.start(work, 1, tx=tx)
    error = ZeroDivisionError()

    assert not await asyncio.create_task(block.__aexit__(type(error), error, None))  # noqa: TID251

    assert await app.find_chain(chain.id) is None
    assert await app.start(work, 2), "the one that was open here has ended"


def test_a_transaction_may_be_left_in_another_thread_than_it_was_entered(make_app: Callable[..., Onward]) -> None:
    with make_app(work).sync as client:
        block = client.transaction()
        tx = block.__enter__()
        chain = client.start(work, 1, tx=tx)
        failed: list[BaseException] = []

        def leave() -> None:
            try:
                block.__exit__(None, None, None)
            except BaseException as error:  # noqa: BLE001 - shown below
                failed.append(error)

        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()

        assert failed == []
        assert chain.get().status is JobStatus.PENDING
        assert client.start(work, 2), "nobody here has a transaction open"


async def test_a_phase_may_be_left_in_another_task_than_it_was_entered(running: Any) -> None:
    @job("hands over", max_attempts=1)
    async def hands_over(attempt: Attempt[int]) -> int:
        for block in (attempt.prepare(), attempt.complete()):
            await asyncio.create_task(block.__aenter__())  # noqa: TID251
            await asyncio.create_task(block.__aexit__(None, None, None))  # noqa: TID251
        return attempt.input

    app: Onward = await running(hands_over)

    assert await (await app.start(hands_over, 7)).wait(timeout=SOON) == 7


# -- ended by hand, or closed


@dataclass
class Library:
    """A database library as an application has it."""

    target: Any
    run: Callable[[Any, str], Awaitable[Any]]
    """Runs a statement on what the library hands out, or on an Onward transaction."""
    close: Callable[[Any], Any]
    """Closes the connection of a transaction."""


async def _run(tx: Any, sql: str) -> None:
    await tx.execute(sql)


async def _run_text(tx: Any, sql: str) -> None:
    await tx.execute(text(sql))


KINDS = [
    "sqlite",
    "asyncpg",
    "psycopg",
    "asyncpg pool",
    "psycopg pool",
    "psycopg engine",
    "aiosqlite engine",
    "asyncpg sessions",
]


@pytest.fixture(params=KINDS)
async def library(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Library]:
    client, _, kind = request.param.partition(" ")
    file = f"{tmp_path}/jobs.db"
    dsn = "" if "sqlite" in client else request.getfixturevalue("postgres_dsn")
    async with AsyncExitStack() as stack:
        if kind == "":
            target = f"sqlite:///{file}" if client == "sqlite" else dsn.replace("postgresql", f"postgresql+{client}")
            yield Library(target, _run, lambda tx: tx.connection.close())
        elif kind == "pool":
            pool: Any = asyncpg.create_pool(dsn, min_size=1, max_size=4)
            if client == "psycopg":
                pool = AsyncConnectionPool(dsn, min_size=1, max_size=4, open=False)
            yield Library(await stack.enter_async_context(pool), _run, lambda tx: tx.close())
        else:
            scheme = f"sqlite+{client}:///{file}" if "sqlite" in client else ""
            engine = create_async_engine(scheme or dsn.replace("postgresql", f"postgresql+{client}"))
            stack.push_async_callback(engine.dispose)
            target = async_sessionmaker(engine) if kind == "sessions" else engine
            yield Library(target, _run_text, lambda tx: tx.close())


@pytest.fixture
def build(library: Library, recorder: Recorder) -> Callable[..., Onward]:
    def build(*jobs: Any) -> Onward:
        schema = f"t_{secrets.token_hex(6)}"
        return Onward(library.target, jobs=jobs, schema=schema, migrate=True, observers=[recorder])

    return build


async def make_notes(app: Onward) -> None:
    async with app.driver.connection() as connection:
        await connection.script("DROP TABLE IF EXISTS notes")
        await connection.script("CREATE TABLE notes (note text)")


async def goes_on(app: Onward, library: Library) -> None:
    """Every connection of the pool works, and nobody is in the way."""
    async with asyncio.timeout(SOON.total_seconds()):
        for _ in range(3):
            async with app.transaction() as tx:
                await library.run(tx, "INSERT INTO notes VALUES ('later')")
                await app.start(work, 1, tx=tx, delay=timedelta(hours=1))
            await app.start(work, 1, delay=timedelta(hours=1))


@pytest.mark.parametrize(("word", "swallowed"), [("COMMIT", False), ("COMMIT", True), ("ROLLBACK", False)])
async def test_a_transaction_that_is_ended_by_hand_says_so_and_stops_nobody(
    library: Library, build: Callable[..., Onward], word: str, swallowed: bool
) -> None:
    app = build(work)
    async with app:
        await make_notes(app)

        with pytest.raises(TransactionClosed, match="ended by your own code"):
            async with app.transaction() as tx:
                await app.start(work, 1, tx=tx)
                with suppress(*[TransactionClosed] if swallowed else []):
                    await library.run(tx, word)
                with suppress(*[TransactionClosed] if swallowed else []):
                    await app.start(work, 2, tx=tx)

        inputs = [chain.current.input async for chain in app.chains()]
        assert inputs == ([1] if word == "COMMIT" else []), "what came after is not stored outside a transaction"
        await goes_on(app, library)


async def test_one_that_the_database_did_not_commit_is_not_said_to_be_committed(
    library: Library, build: Callable[..., Onward]
) -> None:
    """Postgres answers COMMIT with a rollback where a statement has failed; SQLite commits the others."""
    app, is_told = build(work), False
    async with app:
        await make_notes(app)
        try:
            async with app.transaction() as tx:
                await app.start(work, 1, tx=tx)
                with suppress(Exception):
                    await library.run(tx, "INSERT INTO no_such_table VALUES (1)")
        except (TransactionUnsuitable, DatabaseError):
            is_told = True

        is_stored = bool((await app.chains()).items)
        assert is_stored is not is_told
        await goes_on(app, library)


async def test_one_that_is_ended_before_we_were_asked_for_anything_says_so_too(
    library: Library, build: Callable[..., Onward]
) -> None:
    app = build(work)
    async with app:
        await make_notes(app)

        with pytest.raises(TransactionClosed, match="ended by your own code"):
            async with app.transaction() as tx:
                await library.run(tx, "INSERT INTO notes VALUES ('first')")
                with suppress(TransactionClosed):
                    await library.run(tx, "COMMIT")
                with suppress(TransactionClosed):
                    await app.start(work, 1, tx=tx)

        assert not (await app.chains()).items
        await goes_on(app, library)


async def test_a_phase_that_is_ended_by_hand_is_the_handlers_own_failure(
    library: Library, build: Callable[..., Onward], recorder: Recorder
) -> None:
    @job("impatient", backoff=QUICK)
    async def impatient(attempt: Attempt[int]) -> int:
        async with attempt.complete() as tx:
            if attempt.failures == 0:
                with suppress(TransactionClosed):
                    await library.run(tx, "COMMIT")
            return attempt.failures

    app = build(work, impatient)
    async with app:
        await make_notes(app)
        async with app.worker():
            assert await (await app.start(impatient, 1)).wait(timeout=SOON) == 1
        await goes_on(app, library)

    assert [failed.error.type for failed in recorder.of(AttemptFailed)] == ["TransactionClosed"]


async def test_a_completion_whose_transaction_was_committed_by_hand_is_not_settled_outside(
    library: Library, build: Callable[..., Onward]
) -> None:
    app = build(work)
    async with app:
        await make_notes(app)
        chain = await app.start(work, 1)

        with pytest.raises(TransactionClosed):
            async with app.transaction() as tx, app.complete(chain, tx=tx) as completion:
                with suppress(TransactionClosed):
                    await library.run(tx, "COMMIT")
                await completion.done(5)

        assert (await chain.get()).status is JobStatus.PENDING
        await goes_on(app, library)


AT_FAULT = r"its connection was closed|ended by your own code"
CLOSING = [kind for kind in KINDS if kind != "asyncpg pool"]
"""There a connection that was closed looks like one that was lost."""


@pytest.mark.parametrize("library", CLOSING, indirect=True)
async def test_a_handler_that_closes_its_connection_fails_and_nothing_else_does(
    library: Library, build: Callable[..., Onward], recorder: Recorder
) -> None:
    @job("closes", backoff=QUICK, max_attempts=2)
    async def closes(attempt: Attempt[int]) -> int:
        async with attempt.complete() as tx:
            await library.run(tx, "INSERT INTO notes VALUES ('never')")
            closed = library.close(tx)
            if asyncio.iscoroutine(closed):
                await closed
            return 1

    app = build(work, closes)
    async with app:
        await make_notes(app)
        async with app.worker():
            with pytest.raises(ChainFailed, match=f"TransactionClosed: .*({AT_FAULT})"):
                await (await app.start(closes, 1)).wait(timeout=SOON)
            assert await (await app.start(work, 7)).wait(timeout=SOON) == 7
        await goes_on(app, library)

    assert len(recorder.of(AttemptFailed)) == 2


@pytest.mark.parametrize("library", CLOSING, indirect=True)
async def test_a_caller_who_closes_the_connection_is_told_so(library: Library, build: Callable[..., Onward]) -> None:
    app = build(work)
    async with app:
        await make_notes(app)

        with pytest.raises(TransactionClosed, match=AT_FAULT):
            async with app.transaction() as tx:
                await app.start(work, 1, tx=tx)
                closed = library.close(tx)
                if asyncio.iscoroutine(closed):
                    await closed

        assert not (await app.chains()).items
        await goes_on(app, library)


# -- on which something is still under way


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COMMIT_WITHIN", "_ROLL_BACK_WITHIN"):
        monkeypatch.setattr(f"onward.state.postgres.psycopg_connection.{name}", 0.05)


MANY = "SELECT generate_series(1, 100000)"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("library", ["psycopg", "psycopg pool"], indirect=True)
async def test_a_stream_that_is_not_read_to_its_end_holds_up_nobody(
    library: Library, build: Callable[..., Onward]
) -> None:
    """psycopg keeps the connection for it, also from COMMIT and ROLLBACK, for as long as anybody has the stream."""
    app = build(work)
    async with app, asyncio.timeout(SOON.total_seconds()):
        await make_notes(app)
        with pytest.raises(TransactionUnsuitable, match="a statement in it is still under way"):
            async with app.transaction() as tx:
                await app.start(work, 1, tx=tx)
                stream = getattr(tx, "connection", tx).cursor().stream(MANY)
                await anext(stream)

        assert not (await app.chains()).items
        await goes_on(app, library)


@pytest.mark.usefixtures("impatient")
def test_nor_does_one_without_an_event_loop(postgres_dsn: str) -> None:
    app = Onward(postgres_dsn, jobs=[work], schema=f"t_{secrets.token_hex(6)}", migrate=True, pool_size=1)
    with app.sync as client:
        with (
            pytest.raises(TransactionUnsuitable, match="a statement in it is still under way"),
            client.transaction() as tx,
        ):
            client.start(work, 1, tx=tx)
            stream = tx.connection.cursor().stream(MANY)
            next(stream)

        assert not client.chains().items
        with client.transaction() as tx:
            assert tx.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("library", ["asyncpg", "asyncpg pool"], indirect=True)
async def test_a_connection_that_is_gone_at_the_end_of_a_phase_is_the_databases_trouble(
    library: Library, build: Callable[..., Onward], recorder: Recorder
) -> None:
    @job("cut off", max_attempts=1)
    async def cut_off(attempt: Attempt[int]) -> int:
        async with attempt.complete() as tx:
            if attempt.number == 1:
                getattr(tx, "connection", tx).terminate()
            return attempt.failures

    app = build(cut_off)
    async with app, app.worker():
        assert await (await app.start(cut_off, 1)).wait(timeout=SOON) == 0

    assert [failed.counted for failed in recorder.of(AttemptFailed)] == [False]


@pytest.mark.parametrize(
    "library", ["asyncpg", "psycopg", "asyncpg pool", "asyncpg engine", "asyncpg sessions"], indirect=True
)
@pytest.mark.parametrize("fails", [False, True])
async def test_a_statement_that_is_left_behind_leaves_no_transaction_to_the_next(
    library: Library, build: Callable[..., Onward], recorder: Recorder, fails: bool
) -> None:
    """A task that nobody waited for is in the middle of it when the transaction is to end."""
    left: list[asyncio.Task[None]] = []

    @job("leaves", max_attempts=1)
    async def leaves(attempt: Attempt[int]) -> None:
        async with attempt.complete() as tx:
            await library.run(tx, "INSERT INTO notes VALUES ('written')")

            async def leave() -> None:
                with suppress(Exception):
                    await library.run(tx, "SELECT pg_sleep(0.05)")

            left.append(asyncio.ensure_future(leave()))  # noqa: TID251 - as applications do
            await asyncio.sleep(0)
            if fails:
                raise ZeroDivisionError

    app = build(work, leaves)
    async with app:
        await make_notes(app)
        async with app.worker():
            await app.start(leaves, 1)
            ended = await recorder.next(AttemptEnded)
            await asyncio.wait(left)
        await goes_on(app, library)
        async with app.transaction() as tx:
            await library.run(tx, "INSERT INTO notes VALUES ('last')")

        async with app.driver.reserved() as other:
            notes = [note for (note,) in await other.fetch("SELECT note FROM public.notes", {})]
    assert notes.count("written") == (ended.outcome == "completed")
    assert (notes.count("later"), notes.count("last")) == (3, 1)


@pytest.mark.parametrize("library", ["asyncpg", "asyncpg pool", "asyncpg engine", "asyncpg sessions"], indirect=True)
async def test_what_a_handler_deallocates_stops_nobody_who_is_lent_the_connection_next(
    library: Library, build: Callable[..., Onward]
) -> None:
    """asyncpg goes on asking for what it has prepared, until it hears that the server knows it no more."""

    @job("forgets")
    async def forgets(attempt: Attempt[int]) -> int:
        async with attempt.complete() as tx:
            await library.run(tx, "DEALLOCATE ALL")
            return attempt.failures

    app = build(work, forgets)
    async with app:
        await make_notes(app)
        async with app.worker():
            for number in range(3):
                chain = await app.start(forgets, number)
                assert await chain.wait(timeout=SOON) == 0
                assert (await chain.get()).status is JobStatus.COMPLETED
        await goes_on(app, library)

"""The same promises on every database library: their own objects as `tx`, in handlers and from callers."""

import asyncio
import importlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from psycopg import AsyncConnection as PsycopgConnection
from psycopg_pool import AsyncConnectionPool, PoolClosed
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker, create_async_engine

from onward import Attempt, JobStatus, Onward, Transaction, job
from onward.errors import ConfigurationError, DefinitionError, TransactionClosed, TransactionUnsuitable
from support import SOON


@dataclass
class Library:
    """A database library as an application has it."""

    target: Any
    transaction_type: Any
    insert: Callable[[Any, str], Awaitable[Any]]
    """Writes a note through the library's own object."""


async def _asyncpg(connection: Any, note: str) -> None:
    await connection.execute("INSERT INTO notes VALUES ($1)", note)


async def _psycopg(connection: Any, note: str) -> None:
    await connection.execute("INSERT INTO notes VALUES (%s)", [note])


async def _sqlalchemy(connection: Any, note: str) -> None:
    await connection.execute(text("INSERT INTO notes VALUES (:note)"), {"note": note})


async def _onward(tx: Transaction, note: str) -> None:
    await tx.execute("INSERT INTO notes VALUES (:note)", note=note)


KINDS = [
    "asyncpg dsn",
    "asyncpg pool",
    "psycopg dsn",
    "psycopg pool",
    "sqlalchemy asyncpg engine",
    "sqlalchemy asyncpg sessions",
    "sqlalchemy psycopg engine",
    "sqlalchemy psycopg sessions",
    "sqlalchemy aiosqlite engine",
    "sqlalchemy aiosqlite sessions",
    "pgbouncer asyncpg",
    "pgbouncer psycopg",
]


@pytest.fixture(params=KINDS)
async def library(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Library]:
    kind: str = request.param
    async with AsyncExitStack() as stack:
        if "aiosqlite" in kind:
            url = f"sqlite+aiosqlite:///{tmp_path}/notes.db"
        elif "pgbouncer" in kind:
            url = request.getfixturevalue("pgbouncer_dsn")
        else:
            url = request.getfixturevalue("postgres_dsn")
        if kind == "asyncpg pool":
            pool = await stack.enter_async_context(asyncpg.create_pool(url, min_size=1, max_size=4))
            yield Library(pool, asyncpg.Connection, _asyncpg)
        elif kind == "psycopg pool":
            psycopg_pool: Any = AsyncConnectionPool(url, min_size=1, max_size=4, open=False)
            yield Library(await stack.enter_async_context(psycopg_pool), PsycopgConnection, _psycopg)
        elif kind.startswith("sqlalchemy"):
            engine = create_async_engine(url.replace("postgresql://", f"postgresql+{kind.split()[1]}://"))
            stack.push_async_callback(engine.dispose)
            if kind.endswith("engine"):
                yield Library(engine, AsyncConnection, _sqlalchemy)
            else:
                yield Library(async_sessionmaker(engine), AsyncSession, _sqlalchemy)
        else:
            yield Library(
                url.replace("postgresql", f"postgresql+{kind.split()[-1 if 'pgb' in kind else 0]}"),
                Transaction,
                _onward,
            )


@pytest.fixture
def target() -> str:
    return "memory://"


@pytest.fixture
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"pgbouncer": True} if "pgbouncer" in request.node.name else {}


def note_job(library: Library) -> Any:
    """A handler annotated with the library's own transaction."""
    Tx = library.transaction_type  # noqa: N806 - a class

    @job("note", max_attempts=1)
    async def note(attempt: Attempt[str, Tx]) -> str:  # type: ignore[valid-type]
        async with attempt.prepare():
            pass
        async with attempt.complete() as tx:
            await library.insert(tx, f"handler {attempt.input}")
            return attempt.input.upper()

    return note


async def notes(app: Onward) -> list[str]:
    async with app.driver.connection() as connection:
        result = await connection.query("SELECT * FROM notes ORDER BY 1", {})
    return [row[0] for row in result.rows]


async def test_what_the_application_writes_and_starts_commits_together(
    library: Library, make_app: Any, options: dict[str, Any]
) -> None:
    note = note_job(library)
    app: Onward = make_app(note, target=library.target, **options)
    async with app:
        async with app.driver.connection() as connection:
            await connection.script("DROP TABLE IF EXISTS notes")
            await connection.script("CREATE TABLE notes (note text)")
        async with app.worker(concurrency=2):
            async with app.transaction() as tx:
                assert library.transaction_type is Transaction or isinstance(tx, library.transaction_type)
                await library.insert(tx, "committed")
                chain = await app.start(note, "one", tx=tx)
            with pytest.raises(ZeroDivisionError):
                async with app.transaction() as tx:
                    await library.insert(tx, "rolled back")
                    undone = await app.start(note, "two", tx=tx)
                    raise ZeroDivisionError
            assert await chain.wait(timeout=SOON) == "ONE"

        assert await app.find_chain(undone.id) is None
        assert await notes(app) == ["committed", "handler one"]
        assert (await chain.get()).status is JobStatus.COMPLETED


@pytest.mark.parametrize("library", [kind for kind in KINDS if "sqlalchemy" in kind], indirect=True)
async def test_a_session_of_the_applications_own_begins_and_commits_as_it_always_does(
    library: Library, make_app: Any
) -> None:
    note = note_job(library)
    app: Onward = make_app(note, target=library.target)
    make_session = library.target if isinstance(library.target, async_sessionmaker) else library.target.connect
    async with app, app.worker():
        async with make_session() as session:
            await session.execute(text("CREATE TABLE IF NOT EXISTS notes (note text)"))
            await session.execute(text("DELETE FROM notes"))
            async with session.begin_nested() as savepoint:
                undone = await app.start(note, "undone", tx=session)
                await savepoint.rollback()
            chain = await app.start(note, "kept", tx=session)
            await session.commit()
        assert await chain.wait(timeout=SOON) == "KEPT"
        assert await app.find_chain(undone.id) is None

        async with make_session() as session:
            abandoned = await app.start(note, "abandoned", tx=session)
            await session.rollback()
        assert await app.find_chain(abandoned.id) is None


async def test_connections_that_are_no_transaction_are_refused_in_words(
    postgres_dsn: str, postgres_server: str, make_app: Any
) -> None:
    @job("noop")
    async def noop(attempt: Attempt[int]) -> None: ...

    app: Onward = make_app(noop, target=postgres_dsn)
    ours, theirs = await asyncpg.connect(postgres_dsn), await asyncpg.connect(postgres_server)
    async with app:
        with pytest.raises(TransactionUnsuitable, match="not in a transaction"):
            await app.start(noop, 1, tx=ours)
        async with theirs.transaction():
            with pytest.raises(TransactionUnsuitable, match="another database"):
                await app.start(noop, 1, tx=theirs)
        async with ours.transaction(readonly=True):
            with pytest.raises(TransactionUnsuitable, match="read-only"):
                await app.start(noop, 1, tx=ours)
        async with app.transaction(ours) as tx:
            await app.start(noop, 1, tx=tx)
        await ours.close()
        with pytest.raises(TransactionUnsuitable, match="closed"):
            await app.start(noop, 1, tx=ours)
        assert len((await app.chains()).items) == 1
    await theirs.close()


async def test_a_connection_of_psycopgs_in_pipeline_mode_is_refused(postgres_dsn: str, make_app: Any) -> None:
    """Nothing has been answered there yet, which looks as if nothing had been found."""

    @job("noop")
    async def noop(attempt: Attempt[int]) -> None: ...

    app: Onward = make_app(noop, target=postgres_dsn.replace("postgresql", "postgresql+psycopg"))
    async with app, await PsycopgConnection.connect(postgres_dsn) as ours:
        async with ours.pipeline():
            with pytest.raises(TransactionUnsuitable, match="in pipeline mode"):
                await app.start(noop, 1, tx=ours)
        chain = await app.start(noop, 1, tx=ours)
        await ours.commit()

        assert [found.id for found in await app.chains()] == [chain.id]


async def test_a_handler_that_expects_another_librarys_transaction_is_found_when_the_app_is_built(
    make_app: Any,
) -> None:
    @job("mistaken")
    async def mistaken(attempt: Attempt[int, AsyncSession]) -> None: ...

    with pytest.raises(DefinitionError, match="mistaken: its handler expects AsyncSession"):
        make_app(mistaken)


async def test_what_a_handler_was_given_takes_no_statements_between_its_blocks_and_the_commit(
    library: Library, make_app: Any, options: dict[str, Any]
) -> None:
    Tx = library.transaction_type  # noqa: N806 - a class
    refused: list[str] = []

    async def insert_late(tx: Any, note: str) -> None:
        try:
            await library.insert(tx, note)
        except TransactionClosed:
            refused.append(note)

    @job("late", max_attempts=1)
    async def late(attempt: Attempt[str, Tx]) -> str:  # type: ignore[valid-type]
        async with attempt.prepare(atomic=True) as tx:
            await library.insert(tx, "in prepare")
        await insert_late(tx, "between")
        async with attempt.complete() as tx:
            await library.insert(tx, "in complete")
        await insert_late(tx, "after")
        return attempt.input

    app: Onward = make_app(late, target=library.target, **options)
    async with app:
        async with app.driver.connection() as connection:
            await connection.script("DROP TABLE IF EXISTS notes")
            await connection.script("CREATE TABLE notes (note text)")
        async with app.worker():
            for _ in range(3):
                assert await (await app.start(late, "done")).wait(timeout=SOON) == "done"
        async with app.transaction() as tx:
            await library.insert(tx, "the same connection, later")

        assert refused == ["between", "after"] * 3
        assert sorted(await notes(app)) == sorted(["in prepare", "in complete"] * 3 + ["the same connection, later"])


@pytest.mark.parametrize("library", [kind for kind in KINDS if "aiosqlite" not in kind], indirect=True)
async def test_a_handler_that_says_nothing_of_a_lost_connection_is_not_to_blame(
    library: Library, make_app: Any, options: dict[str, Any]
) -> None:
    Tx = library.transaction_type  # noqa: N806 - a class
    kill = "SELECT pg_terminate_backend(pg_backend_pid())"

    @job("silent", max_attempts=1)
    async def silent(attempt: Attempt[str, Tx]) -> int:  # type: ignore[valid-type]
        async with attempt.complete() as tx:
            if attempt.number == 1:
                with suppress(Exception):
                    await tx.execute(text(kill) if type(tx).__module__.startswith("sqlalchemy") else kill)
            return attempt.number

    app: Onward = make_app(silent, target=library.target, **options)
    async with app, app.worker():
        assert await (await app.start(silent, "x")).wait(timeout=SOON) == 2


@pytest.mark.parametrize("library", [kind for kind in KINDS if kind != "psycopg pool"], indirect=True)
async def test_nor_does_it_take_any_after_the_commit(library: Library, make_app: Any, options: dict[str, Any]) -> None:
    """A session would begin anew by itself, and nobody would end that: what it takes would be lost without a word."""
    Tx = library.transaction_type  # noqa: N806 - a class
    refused: list[str] = []

    async def use_late(tx: Any, note: str) -> None:
        for use in (library.insert(tx, note), app.start(late, note, tx=tx)):
            try:
                await use
            except Exception:  # noqa: BLE001 - each library has its own
                refused.append(note)

    @job("late", max_attempts=1)
    async def late(attempt: Attempt[str, Tx]) -> str:  # type: ignore[valid-type]
        async with attempt.prepare() as tx:
            await library.insert(tx, "kept")
        await use_late(tx, "after prepare()")
        return attempt.input

    app: Onward = make_app(late, target=library.target, **options)
    async with app:
        async with app.driver.connection() as connection:
            await connection.script("DROP TABLE IF EXISTS notes")
            await connection.script("CREATE TABLE notes (note text)")
        async with app.worker():
            assert await (await app.start(late, "done")).wait(timeout=SOON) == "done"
        async with app.transaction() as tx:
            await library.insert(tx, "kept, too")
        await use_late(tx, "after transaction()")
        with suppress(RuntimeError):
            async with app.transaction() as tx:
                raise RuntimeError
        await use_late(tx, "after a rollback")

        assert refused == [
            note for note in ("after prepare()", "after transaction()", "after a rollback") for _ in "12"
        ]
        assert sorted(await notes(app)) == ["kept", "kept, too"]
        assert len((await app.chains()).items) == 1


async def test_a_phase_whose_block_ends_while_its_job_is_settled_is_settled_all_the_same(
    library: Library, make_app: Any, options: dict[str, Any]
) -> None:
    """As where a generator of the handler's has opened it that the event loop closes, in a task of its own."""
    Tx = library.transaction_type  # noqa: N806 - a class
    gone = ValueError("the block's own end")

    async def leave(block: Any) -> None:
        await block.__aexit__(type(gone), gone, None)

    @job("left", max_attempts=1)
    async def left(attempt: Attempt[str, Tx]) -> str:  # type: ignore[valid-type]
        block = attempt.complete()
        await library.insert(await block.__aenter__(), "kept")
        later(block, int(attempt.input))
        return attempt.input

    def later(block: Any, rounds: int) -> None:
        if rounds:
            asyncio.get_running_loop().call_soon(later, block, rounds - 1)
        else:
            leaving.append(asyncio.get_running_loop().create_task(leave(block)))

    leaving: list[asyncio.Task[None]] = []
    app: Onward = make_app(left, target=library.target, **options)
    async with app:
        async with app.driver.connection() as connection:
            await connection.script("DROP TABLE IF EXISTS notes")
            await connection.script("CREATE TABLE notes (note text)")
        async with app.worker():
            for rounds in range(4):
                chain = await app.start(left, str(rounds))
                assert await chain.wait(timeout=SOON) == str(rounds)
        await asyncio.wait(leaving)

        assert await notes(app) == ["kept"] * 4


@pytest.mark.parametrize("library", ["psycopg pool", "asyncpg dsn", "psycopg dsn"], indirect=True)
async def test_nor_does_what_was_made_of_it_before(library: Library, make_app: Any) -> None:
    """A cursor of psycopg's; the client library's connection behind Onward's own transaction."""
    refused: list[type[BaseException]] = []
    Tx = library.transaction_type  # noqa: N806 - a class

    @job("late", max_attempts=1)
    async def late(attempt: Attempt[str, Tx]) -> str:  # type: ignore[valid-type]
        async with attempt.complete() as tx:
            later: Any = tx.connection if library.transaction_type is Transaction else tx
            later = later if isinstance(later, asyncpg.pool.PoolConnectionProxy) else later.cursor()
            await later.execute("SELECT 1")
        try:
            await later.execute("SELECT 1")
        except TransactionClosed as error:
            refused.append(type(error))
        return attempt.input

    app: Onward = make_app(late, target=library.target)
    async with app, app.worker():
        assert await (await app.start(late, "done")).wait(timeout=SOON) == "done"

    assert refused == [TransactionClosed]


@pytest.mark.parametrize("library", ["asyncpg dsn", "psycopg dsn"], indirect=True)
async def test_nor_does_a_connection_that_is_only_asked_for_then(library: Library, make_app: Any) -> None:
    refused: list[type[BaseException]] = []

    @job("late", max_attempts=1)
    async def late(attempt: Attempt[str]) -> str:
        async with attempt.complete() as tx:
            await tx.execute("SELECT 1")
        try:
            await tx.connection.execute("SELECT 1")
        except TransactionClosed as error:
            refused.append(type(error))
        return attempt.input

    app: Onward = make_app(late, target=library.target)
    async with app, app.worker():
        assert await (await app.start(late, "done")).wait(timeout=SOON) == "done"

    assert refused == [TransactionClosed]


@pytest.mark.parametrize("library", [kind for kind in KINDS if "pgbouncer" not in kind], indirect=True)
async def test_who_is_cancelled_at_any_moment_has_given_back_his_connection(library: Library, make_app: Any) -> None:
    @job("noop")
    async def noop(attempt: Attempt[int]) -> None: ...

    app: Onward = make_app(noop, target=library.target, **({"pool_size": 4} if isinstance(library.target, str) else {}))
    chance = random.Random(7)
    async with app:
        async with app.driver.connection() as connection:
            await connection.script("CREATE TABLE IF NOT EXISTS notes (note text)")

        async def work(number: int) -> None:
            if number % 3 == 0:
                await app.start(noop, number, delay=timedelta(hours=1))
            else:
                async with app.transaction() as tx:
                    await library.insert(tx, "cancelled, or not")
                    await asyncio.sleep(0)

        for _ in range(12):
            with suppress(TimeoutError):
                async with asyncio.timeout(chance.uniform(0.0005, 0.02)), asyncio.TaskGroup() as tasks:
                    for number in range(8):
                        tasks.create_task(work(number))

        async with asyncio.timeout(SOON.total_seconds()):
            together = 1 if app.driver.dialect == "sqlite" else 4
            barrier = asyncio.Barrier(together)

            async def meet() -> None:
                async with app.transaction() as tx:
                    await library.insert(tx, "all at once")
                    await barrier.wait()

            async with asyncio.TaskGroup() as tasks:
                for _ in range(together):
                    tasks.create_task(meet())


@pytest.mark.parametrize(
    ("library", "giving_back"),
    [
        ("psycopg dsn", "psycopg_pool.AsyncConnectionPool.putconn"),
        ("psycopg pool", "psycopg_pool.AsyncConnectionPool.putconn"),
        ("asyncpg pool", "asyncpg.pool.PoolConnectionHolder.release"),
        ("sqlalchemy asyncpg engine", "sqlalchemy.ext.asyncio.AsyncConnection.close"),
        ("sqlalchemy psycopg sessions", "sqlalchemy.ext.asyncio.AsyncSession.close"),
    ],
    indirect=["library"],
)
async def test_who_is_cancelled_while_giving_back_is_told_when_it_is_done(
    library: Library, giving_back: str, make_app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    @job("noop")
    async def noop(attempt: Attempt[int]) -> None: ...

    app: Onward = make_app(noop, target=library.target)
    began, let_go, given_back, seen = asyncio.Event(), asyncio.Event(), list[bool](), list[Any]()
    where, _, name = giving_back.rpartition(".")
    module, _, kind = where.rpartition(".")
    give_back = getattr(getattr(importlib.import_module(module), kind), name)

    async def slowly(*arguments: Any, **options: Any) -> Any:
        began.set()
        await let_go.wait()
        result = await give_back(*arguments, **options)
        given_back.append(True)
        return result

    async def borrow() -> None:
        async with app.driver.connection() as connection:
            await connection.begin()
            await connection.fetch("SELECT 1", {})
            await connection.rollback()
            seen.append(connection.raw)  # one that has been seen is not kept at hand

    async with app, asyncio.timeout(SOON.total_seconds()), asyncio.TaskGroup() as tasks:
        with monkeypatch.context() as patched:
            patched.setattr(giving_back, slowly)
            borrowing = tasks.create_task(borrow())
            await began.wait()
            for _ in range(3):
                borrowing.cancel()
                await asyncio.sleep(0)
            assert not borrowing.done()
            let_go.set()
            await asyncio.wait([borrowing])

    assert borrowing.cancelled()
    assert given_back == [True]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("library", ["psycopg dsn", "psycopg pool"], indirect=True)
async def test_a_cancellation_that_the_pool_forgets_is_remembered(
    library: Library, fails: bool, make_app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As asyncio.wait_for does before Python 3.12, if it comes together with a connection, or with an error."""

    @job("noop")
    async def noop(attempt: Attempt[int]) -> None: ...

    app: Onward = make_app(noop, target=library.target)
    waits, get = asyncio.Event(), AsyncConnectionPool.getconn

    async def forgetful(*arguments: Any, **options: Any) -> Any:
        waits.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        if fails:
            raise PoolClosed
        return await get(*arguments, **options)

    async with app, asyncio.timeout(SOON.total_seconds()), asyncio.TaskGroup() as tasks:
        # The one that is at hand is lent, so that the pool is asked for another.
        async with app.driver.connection():
            with monkeypatch.context() as patched:
                patched.setattr(AsyncConnectionPool, "getconn", forgetful)
                starting = tasks.create_task(app.start(noop, 1))
                await waits.wait()
                starting.cancel()
                await asyncio.wait([starting])

        assert starting.cancelled()
        assert not (await app.jobs()).items


async def test_who_has_the_only_connection_of_a_pool_can_start_in_it(postgres_dsn: str, make_app: Any) -> None:
    """Else as many as a pool has connections would wait for each other, each for one more."""

    @job("noop")
    async def noop(attempt: Attempt[int]) -> None: ...

    async with asyncpg.create_pool(postgres_dsn, min_size=1, max_size=1) as pool, make_app(noop, target=pool) as app:
        async with asyncio.timeout(SOON.total_seconds()):
            async with pool.acquire() as connection, connection.transaction():
                chain = await app.start(noop, 1, tx=connection)

            assert (await chain.get()).status is JobStatus.PENDING


async def test_handlers_and_callers_may_nest_a_transaction_of_asyncpgs_own(postgres_dsn: str, make_app: Any) -> None:
    """Which is how asyncpg makes savepoints; in a transaction that it knows nothing of it refuses to."""

    async def undo_a_part(connection: Any) -> list[str]:
        await connection.execute("CREATE TEMP TABLE part (name text) ON COMMIT DROP")
        async with connection.transaction():
            await connection.execute("INSERT INTO part VALUES ('kept')")
        with suppress(ZeroDivisionError):
            async with connection.transaction():
                await connection.execute("INSERT INTO part VALUES ('undone')")
                raise ZeroDivisionError
        return [row["name"] for row in await connection.fetch("SELECT name FROM part")]

    @job("nests")
    async def nests(attempt: Attempt[int, asyncpg.Connection]) -> list[str]:
        async with attempt.complete() as connection:
            return await undo_a_part(connection)

    @job("noop")
    async def noop(attempt: Attempt[int]) -> None: ...

    async with asyncpg.create_pool(postgres_dsn, min_size=1, max_size=2) as pool, make_app(nests, target=pool) as app:
        async with app.worker():
            assert await (await app.start(nests, 1)).wait(timeout=SOON) == ["kept"]
        async with app.transaction() as connection:
            assert await undo_a_part(connection) == ["kept"]
        async with pool.acquire() as own:
            async with app.transaction(own) as connection:
                assert await undo_a_part(connection) == ["kept"]
            async with own.transaction():
                assert await undo_a_part(own) == ["kept"]
    async with make_app(noop, target=postgres_dsn) as app, app.transaction() as tx:
        assert await undo_a_part(tx.connection) == ["kept"]


async def as_text(connection: Any, name: str) -> None:
    await connection.set_type_codec(name, encoder=str, decoder=str, schema="pg_catalog")


@pytest.mark.parametrize("name", ["uuid", "timestamptz", "float8"])
async def test_a_pool_that_makes_something_else_of_values_is_refused(
    postgres_dsn: str, make_app: Any, name: str
) -> None:
    @job("noop")
    async def noop(attempt: Attempt[int]) -> None: ...

    async with asyncpg.create_pool(postgres_dsn, min_size=1, init=lambda raw: as_text(raw, name)) as pool:
        app: Onward = make_app(noop, target=pool)
        with pytest.raises(ConfigurationError, match=f"a codec that makes a str of {name}"):
            await app.open()


async def test_but_of_json_it_may_make_what_it_likes(postgres_dsn: str, make_app: Any) -> None:
    @job("told")
    async def told(attempt: Attempt[dict[str, int]]) -> dict[str, int]:
        return attempt.input

    async def read_json(raw: Any) -> None:
        for name in ("json", "jsonb"):
            await raw.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")

    async with (
        asyncpg.create_pool(postgres_dsn, min_size=1, init=read_json) as pool,
        make_app(told, target=pool) as app,
    ):
        async with app.worker():
            chain = await app.start(told, {"a": 1}, meta={"b": 2})
            assert await chain.wait(timeout=SOON) == {"a": 1}
        assert (await chain.get()).current.input == {"a": 1}


async def test_what_a_handler_makes_of_values_is_forgotten_for_the_next(postgres_dsn: str, make_app: Any) -> None:
    @job("reads text")
    async def reads_text(attempt: Attempt[int]) -> str:
        async with attempt.complete() as tx:
            await as_text(tx.connection, "uuid")
            return str(await tx.fetchval("SELECT pg_typeof(gen_random_uuid())::text"))

    async with make_app(reads_text, target=postgres_dsn, pool_size=1) as app, app.worker():
        for _ in range(2):
            assert await (await app.start(reads_text, 1)).wait(timeout=SOON) == "uuid"

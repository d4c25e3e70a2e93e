"""What cannot be stored, compared or read back is refused at the edge: typed, in words, alike on every database."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from onward import Attempt, ChainFailed, JobStatus, Next, Onward, Reschedule, WaitTimeout, job, new_id, required
from onward.errors import (
    BlockerMissing,
    ConfigurationError,
    DatabaseError,
    DatabaseUnavailable,
    StartRefused,
    TransactionUnsuitable,
    UnknownJobType,
)
from onward.observe import events
from support import SOON, Recorder

NEVER = datetime.max.replace(tzinfo=UTC)
ODDLY = datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))


@job("work")
async def work(attempt: Attempt[int]) -> int:
    return attempt.input


@job("after", blocked_by=[work])
async def after(attempt: Attempt[int]) -> list[int]:
    return attempt.outputs_of(work)


@job("gather", blocked_by=[required(work), "after"])
async def gather(attempt: Attempt[int]) -> list[int]:
    return attempt.outputs_of(work)


STARTS: dict[str, tuple[dict[str, Any], str]] = {
    "at the end of time": ({"at": NEVER}, "at=9999-12-31 .* is out of range: from the year 1900 to 9000"),
    "at the end of time elsewhere": ({"at": ODDLY}, "is out of range"),
    "at the beginning of time": ({"at": datetime.min.replace(tzinfo=UTC)}, "is out of range"),
    "at a number": ({"at": 5}, "at=5: expected a datetime with a time zone"),
    "longest delay": ({"delay": timedelta.max}, "delay is too long: expected at most 365,000 days"),
    "delay that overflows": ({"delay": timedelta(days=365 * 9000)}, "delay is too long"),
    "delay as a number": ({"delay": 5}, r"delay=5: expected a timedelta, such as timedelta\(seconds=5\)"),
    "priority in words": ({"priority": "high"}, "priority='high': expected a whole number"),
    "priority yes": ({"priority": True}, "priority=True: expected a whole number"),
    "id as text": ({"id": "abc"}, "id='abc': expected a UUID"),
    "key as text": ({"deduplication": "key"}, r'expected a Deduplication, such as Deduplication\("key"\)'),
    "blocker as id": ({"blockers": [new_id()]}, r"expected app\.chain\(job_type, id\)"),
    "blocker alone": ({"blockers": work.with_input(1)}, "expected a list of chains"),
    "blocker as a type": ({"blockers": [work]}, r"expected a handle, or job_type\.with_input\(…\)"),
    "blockers as a number": ({"blockers": 5}, "blockers=5: expected a list of chains"),
}


@pytest.mark.parametrize("case", STARTS)
async def test_a_start_that_cannot_be_stored_is_refused_and_the_transaction_goes_on(opened: Any, case: str) -> None:
    app: Onward = await opened(work, after)
    options, advice = STARTS[case]

    async with app.transaction() as tx:
        with pytest.raises(StartRefused, match=f"'after': {advice}|{advice}"):
            await app.start(after, 1, tx=tx, **options)
        kept = await app.start(after, 1, tx=tx)
    with pytest.raises(StartRefused, match=advice):
        await app.start_many([after.with_input(1, **options)])

    assert [found.id async for found in app.jobs()] == [kept.id]


async def test_what_is_no_job_type_cannot_be_started(opened: Any) -> None:
    app: Any = await opened(work)

    for strange in ("work", work.run, 7):
        with pytest.raises(StartRefused, match="expected the job type itself"):
            await app.start(strange, 1)
    with pytest.raises(StartRefused, match=r"start_many takes what job_type\.with_input\(…\) makes"):
        await app.start_many([work])
    for strange in (work.with_input(1), (work.with_input(n) for n in range(2))):
        with pytest.raises(StartRefused, match="expected a list of what"):
            await app.start_many(strange)


@pytest.mark.parametrize("call", ["cancel", "retry", "trigger", "delete"])
async def test_what_is_no_chain_cannot_be_changed(opened: Any, call: str) -> None:
    app: Any = await opened(work)
    chain = await app.start(work, 1)

    for strange in ("abc", str(chain.id), 5, None, work):
        with pytest.raises(ConfigurationError, match=rf"{call}\(chain=.*expected a handle, .* or a UUID"):
            await getattr(app, call)(strange)
    with pytest.raises(ConfigurationError, match=rf"write {call}\(\*chains\)"):
        await getattr(app, call)([chain])


async def test_what_is_no_id_is_not_looked_for(opened: Any) -> None:
    app: Any = await opened(work)

    for look in (app.find_job, app.find_chain, app.blockers_of, lambda id: app.chain(work, id)):
        with pytest.raises(ConfigurationError, match="='nonsense': expected a UUID"):
            await look("nonsense")
    with pytest.raises(ConfigurationError, match=r"complete\(chain='nonsense'\)"):
        app.complete("nonsense")


@pytest.mark.parametrize(
    ("filters", "advice"),
    [
        ({"limit": 0}, "limit=0 is out of range: .*a page has 1 to 1000 items"),
        ({"limit": "5"}, "limit='5': expected a whole number from 1 to 1000"),
        ({"after": "abc"}, "after='abc': expected a UUID"),
        ({"created_from": NEVER}, "created_from=.* is out of range"),
        ({"created_before": datetime(2030, 1, 1)}, "created_before=.* has no time zone"),  # noqa: DTZ001
        ({"created_before": 5}, "created_before=5: expected a datetime"),
        ({"status": "done"}, "status='done': use one of"),
        ({"status": 5}, "status=5: use one of"),
        ({"types": "work"}, "types='work': expected a list of job types or names"),
        ({"types": [5]}, "types=5: expected a job type"),
        ({"chains": ["abc"]}, "expected a handle"),
        ({"root_id": "abc"}, "root_id='abc': expected a UUID"),
        ({"stat": "failed"}, "stat= is not an option; did you mean status=?"),
    ],
)
async def test_a_listing_is_checked_before_the_database_is_asked(make_app: Any, filters: Any, advice: str) -> None:
    app: Any = make_app(work)

    with pytest.raises(ConfigurationError, match=advice):
        app.jobs(**filters)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"concurrency": "4"}, "concurrency='4': expected a whole number from 1 to 1000000"),
        ({"concurrency": 0}, "concurrency=0 is out of range"),
        ({"poll": 5}, "poll=5: expected a timedelta"),
        ({"grace": 5}, "grace=5: expected a timedelta"),
        ({"lease": 0}, "lease=0: expected a timedelta"),
        ({"lease": timedelta(0)}, "lease=0:00:00 is too short: expected at least 1 seconds"),
        ({"stall": 1}, "stall=1: expected a timedelta"),
        ({"backoff": 3}, "backoff=3: expected a Backoff"),
        ({"guardian": "fork"}, "guardian='fork': use one of 'thread', 'process'"),
        ({"name": "a\0b"}, "name=.*no NUL"),
        ({"name": "caf\udce9"}, "name=.*lone surrogate"),
        ({"jobs": work}, "expected a list of job types"),
        ({"jobs": ["work"]}, "expected the job type itself"),
    ],
)
def test_a_worker_says_what_is_wrong_with_its_options(make_app: Any, options: Any, advice: str) -> None:
    with pytest.raises((ConfigurationError, StartRefused), match=advice):
        make_app(work).worker(**options)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"pool_size": "5"}, "pool_size='5': expected a whole number"),
        ({"max_payload": 0}, "max_payload=0 is out of range"),
        ({"lock_timeout": 5}, "lock_timeout=5: expected a timedelta"),
        ({"ageing": timedelta(0)}, "ageing=0:00:00 is too short"),
        ({"target": "postgres"}, "cannot tell the database from postgres: use postgresql://"),
    ],
)
def test_an_app_says_what_is_wrong_with_its_options(make_app: Any, options: Any, advice: str) -> None:
    with pytest.raises(ConfigurationError, match=advice):
        make_app(work, **options)


async def test_a_file_in_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    app = Onward(f"sqlite:///{tmp_path}/missing/jobs.db", jobs=[work])

    with pytest.raises(ConfigurationError, match=rf"the directory {tmp_path}/missing does not exist: make it first"):
        await app.open()
    with pytest.raises(ConfigurationError, match="does not exist"):
        app.sync.open()


async def test_pausing_a_name_that_nobody_knows_is_refused(opened: Any) -> None:
    app: Onward = await opened(work)

    with pytest.raises(UnknownJobType, match=r"'wrok' is not among the jobs .* did you mean 'work'\?"):
        await app.pause("wrok")

    assert not await app.paused()


async def test_outputs_of_a_type_that_is_not_declared_are_refused(running: Any) -> None:
    @job("asks", max_attempts=1)
    async def asks(attempt: Attempt[int]) -> list[int]:
        return attempt.outputs_of(work)

    app: Onward = await running(work, asks)
    chain = await app.start(asks, 1)

    with pytest.raises(ChainFailed, match=r"'asks' does not declare 'work': add it to blocked_by"):
        await chain.wait(timeout=SOON)


async def test_a_def_handler_that_returns_a_coroutine_is_told_so(running: Any) -> None:
    async def later() -> int:
        return 1

    @job("confused", max_attempts=1)
    def confused(attempt: Attempt[int]) -> int:
        return later()  # type: ignore[return-value]

    app: Onward = await running(confused)

    with pytest.raises(ChainFailed, match="is a def handler and returned a coroutine: write it as async def"):
        await (await app.start(confused, 1)).wait(timeout=SOON)


async def test_a_missing_parameter_is_named(opened: Any) -> None:
    app: Onward = await opened(work)

    async with app.transaction() as tx:
        with pytest.raises(ConfigurationError, match="the statement has :number, which was not given: pass number=…"):
            await tx.fetchval("select :number", numbr=1)
        assert await tx.fetchval("select 1") == 1, "it never reached the database"


async def test_a_session_for_an_app_on_an_address_is_told_what_to_build(opened: Any) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    app: Onward = await opened(work)
    engine = create_async_engine("sqlite+aiosqlite://")

    async with AsyncSession(engine) as session:
        with pytest.raises(TransactionUnsuitable, match=r"build the app on your sessionmaker or engine"):
            await app.start(work, 1, tx=session)
    await engine.dispose()


# -- reschedule, progress


@pytest.mark.parametrize("raises", [True, False])
async def test_a_reschedule_that_cannot_be_stored_is_a_failure_with_advice(running: Any, raises: bool) -> None:
    @job("late", max_attempts=1)
    async def late(attempt: Attempt[int]) -> int:
        when = datetime.now()  # noqa: DTZ005
        if raises:
            raise Reschedule(at=when)
        return attempt.reschedule(at=when)  # type: ignore[return-value]

    app: Onward = await running(late)

    with pytest.raises(ChainFailed, match=r"ConfigurationError: at=.* has no time zone; use datetime"):
        await (await app.start(late, 1)).wait(timeout=SOON)


@pytest.mark.parametrize("in_phase", [True, False])
async def test_a_note_that_is_no_valid_text_is_stored_with_marks(running: Any, in_phase: bool) -> None:
    @job("notes", max_attempts=1)
    async def notes(attempt: Attempt[int]) -> int:
        if not in_phase:
            attempt.progress(0.5, "caf\udce9\0.txt")
            return 1
        async with attempt.complete():
            attempt.progress(0.5, "caf\udce9\0.txt")
            return 1

    app: Onward = await running(notes)
    chain = await app.start(notes, 1)
    await chain.wait(timeout=SOON)

    progress = (await chain.get()).current.progress
    assert progress is not None
    assert progress.note == "caf\ufffd\ufffd.txt"


# -- required blockers


async def test_a_required_blocker_must_be_given(running: Any) -> None:
    app: Onward = await running(work, after, gather)

    with pytest.raises(BlockerMissing, match=r"'gather' requires blockers that were not given: pass a chain of 'work'"):
        await app.start(gather, 1)
    with pytest.raises(BlockerMissing) as refused:
        await app.start(gather, 1, blockers=[after.with_input(1)])
    assert refused.value.missing == ("work",)

    chain = await app.start(gather, 1, blockers=[work.with_input(3), work.with_input(4)])
    assert await chain.wait(timeout=SOON) == [3, 4]


async def test_a_continuation_needs_its_required_blockers_too(running: Any) -> None:
    @job("forgets", continues_to=[gather], max_attempts=1)
    async def forgets(attempt: Attempt[int]) -> Next[list[int]]:
        return attempt.continue_with(gather, 1)

    app: Onward = await running(work, after, gather, forgets)

    with pytest.raises(ChainFailed, match="BlockerMissing: 'gather' requires"):
        await (await app.start(forgets, 1)).wait(timeout=SOON)


# -- waiting


async def test_a_timeout_says_that_no_worker_takes_the_job(opened: Any) -> None:
    app: Onward = await opened(work)
    chain = await app.start(work, 1)

    with pytest.raises(WaitTimeout, match="'work', version 1, is still pending: no worker seems to take it") as late:
        await chain.wait(timeout=timedelta(0))

    assert late.value.job is not None
    assert late.value.job.status is JobStatus.PENDING


async def test_a_timeout_says_when_the_job_is_scheduled(opened: Any) -> None:
    app: Onward = await opened(work)
    chain = await app.start(work, 1, at=datetime(2999, 1, 1, tzinfo=UTC))

    with pytest.raises(WaitTimeout, match="is scheduled for 2999-01-01T00:00:00"):
        await chain.wait(timeout=timedelta(0))


async def test_a_timeout_says_that_the_type_is_paused(opened: Any) -> None:
    app: Onward = await opened(work)
    await app.pause(work)

    with pytest.raises(WaitTimeout, match="its type 'work' is paused"):
        await (await app.start(work, 1)).wait(timeout=timedelta(0))


async def test_a_timeout_says_what_the_job_waits_for(opened: Any) -> None:
    app: Onward = await opened(work, after)
    blocker = await app.start(work, 1)
    chain = await app.start(after, 1, blockers=[blocker])

    with pytest.raises(WaitTimeout, match=rf"1 chains that have not ended: {blocker.id} \('work', pending\)"):
        await chain.wait(timeout=timedelta(0))


async def test_a_timeout_of_the_wrong_kind_is_refused(opened: Any) -> None:
    app: Onward = await opened(work)
    chain: Any = await app.start(work, 1)

    with pytest.raises(ConfigurationError, match="timeout=5: expected a timedelta"):
        await chain.wait(timeout=5)


async def test_a_chain_that_failed_through_others_names_the_first_and_its_error(running: Any) -> None:
    @job("breaks", max_attempts=1)
    async def breaks(attempt: Attempt[int]) -> int:
        raise ValueError("no such account")

    @job("between", blocked_by=[breaks])
    async def between(attempt: Attempt[int]) -> int:
        return 1

    @job("last", blocked_by=[between])
    async def last(attempt: Attempt[int]) -> int:
        return 1

    app: Onward = await running(breaks, between, last)
    first = await app.start(breaks, 1)
    second = await app.start(between, 1, blockers=[first])
    third = await app.start(last, 1, blockers=[second])

    with pytest.raises(ChainFailed, match=r"'last' .* 'between' .* 'breaks' .*ValueError: no such account") as failed:
        await third.wait(timeout=SOON)

    assert failed.value.blocker is not None
    assert failed.value.blocker.chain_id == second.id
    assert failed.value.blocker.blocker is not None
    assert failed.value.blocker.blocker.chain_id == first.id


# -- the database's own


async def test_what_the_database_says_leaves_wrapped(opened: Any, target: str, recorder: Recorder) -> None:
    app: Onward = await opened(work)
    async with app.driver.connection() as connection:
        for table in ("blocker", "job"):
            name = f"{app.state.schema}.{table}" if app.state.dialect == "postgres" else f"onward_{table}"  # type: ignore[attr-defined]
            await connection.script(f"DROP TABLE {name};" if "sqlite" in target else f"DROP TABLE {name} CASCADE;")

    with pytest.raises(DatabaseError, match="start: the database refused: ") as refused:
        await app.start(work, 1)
    with pytest.raises(DatabaseError):
        await app.jobs()
    with pytest.raises(DatabaseError):
        async with app.transaction() as tx:
            await app.start(work, 1, tx=tx)

    assert not isinstance(refused.value, DatabaseUnavailable)
    assert refused.value.__cause__ is not None


async def test_errors_of_your_own_statements_stay_what_they_are(opened: Any) -> None:
    app: Onward = await opened(work)

    with pytest.raises(Exception, match="nowhere") as own:
        async with app.transaction() as tx:
            await tx.execute("select * from nowhere")

    assert not isinstance(own.value, DatabaseError)


async def test_a_server_that_is_not_there_is_told_when_the_app_is_opened() -> None:
    app = Onward("postgresql://postgres@127.0.0.1:1/nothing", jobs=[work])

    with pytest.raises(DatabaseUnavailable, match="open the app: the database refused: ") as refused:
        await app.open()

    assert refused.value.fault == "lost"
    assert isinstance(refused.value.__cause__, OSError)


# -- a lock that nobody gives up


async def test_a_forgotten_tx_on_sqlite_is_told_instead_of_waited_for_without_end(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    app = Onward(f"sqlite:///{path}", jobs=[work], lock_timeout=timedelta(milliseconds=200))

    async with app:
        own = sqlite3.connect(path, isolation_level=None)
        own.execute("BEGIN IMMEDIATE")
        advice = (
            rf"waited \d+ s for the write lock of {path}\. Either a transaction of this program is open: pass it as tx="
        )
        with pytest.raises(DatabaseUnavailable, match=advice):
            await app.start(work, 1)
        with pytest.raises(DatabaseUnavailable, match=advice):
            async with app.transaction():
                pass
        own.execute("COMMIT")
        own.close()

        assert (await app.start(work, 1)).id, "the connections are sound"


def test_a_forgotten_tx_without_an_event_loop_is_told_as_well(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    with Onward(f"sqlite:///{path}", jobs=[work], lock_timeout=timedelta(milliseconds=200)).sync as client:
        own = sqlite3.connect(path, isolation_level=None)
        own.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseUnavailable, match="pass it as tx="):
            client.start(work, 1)
        chain = client.start(work, 1, tx=own)
        own.execute("COMMIT")
        own.close()

        assert client.find_chain(chain.id) is not None


async def test_a_session_that_was_not_passed_is_told_as_well(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/jobs.db", connect_args={"timeout": 0.01})
    app = Onward(engine, jobs=[work], lock_timeout=timedelta(milliseconds=100))

    async with app, asyncio.timeout(SOON.total_seconds()):
        async with engine.connect() as own:
            await own.exec_driver_sql("CREATE TABLE orders (id int)")
            await own.exec_driver_sql("INSERT INTO orders VALUES (1)")
            with pytest.raises(DatabaseUnavailable, match="pass it as tx="):
                await app.start(work, 1)
            with pytest.raises(DatabaseUnavailable, match="pass it as tx="):
                async with app.transaction():
                    pass
            chain = await app.start(work, 1, tx=own)
            await own.commit()

        assert await app.find_chain(chain.id) is not None
        assert (await app.start(work, 1)).id, "the connections are sound"
    await engine.dispose()


def test_nor_one_without_an_event_loop(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/jobs.db", connect_args={"timeout": 0.01})
    app = Onward(engine, jobs=[work], lock_timeout=timedelta(milliseconds=100), migrate=True)

    with app.sync as client, engine.connect() as own:
        own.exec_driver_sql("CREATE TABLE orders (id int)")
        own.exec_driver_sql("INSERT INTO orders VALUES (1)")
        with pytest.raises(DatabaseUnavailable, match="pass it as tx="):
            client.start(work, 1)
        chain = client.start(work, 1, tx=own)
        own.commit()

        assert client.find_chain(chain.id) is not None
    engine.dispose()


@contextmanager
def written_to(path: Path) -> Iterator[None]:
    """A file of the application's, without a write-ahead log, to which somebody writes: it cannot get one meanwhile."""
    own = sqlite3.connect(path, isolation_level=None)
    own.execute("CREATE TABLE orders (id int)")
    own.execute("BEGIN IMMEDIATE")
    own.execute("INSERT INTO orders VALUES (1)")
    yield
    own.execute("COMMIT")
    own.close()


async def test_opening_a_file_that_somebody_has_locked_is_told_as_well(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    app = Onward(f"sqlite:///{path}", jobs=[work], lock_timeout=timedelta(milliseconds=200))

    with written_to(path):
        with pytest.raises(DatabaseUnavailable, match="for the write lock"):
            await app.open()
        with pytest.raises(DatabaseUnavailable, match="for the write lock"), app.sync:
            pass

    async with app:
        assert (await app.start(work, 1)).id


async def test_opening_it_can_be_cancelled(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    app = Onward(f"sqlite:///{path}", jobs=[work], lock_timeout=None)

    with written_to(path), pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await app.open()

    async with app:
        assert (await app.start(work, 1)).id


async def test_a_worker_waits_for_the_lock_for_as_long_as_it_takes(tmp_path: Path, recorder: Recorder) -> None:
    path = tmp_path / "jobs.db"
    app = Onward(f"sqlite:///{path}", jobs=[work], observers=[recorder], lock_timeout=timedelta(milliseconds=100))

    async with app:
        chain = await app.start(work, 1)
        own = sqlite3.connect(path, isolation_level=None)
        own.execute("BEGIN IMMEDIATE")
        async with app.worker(poll=timedelta(milliseconds=50)):
            await asyncio.sleep(0.5)  # several times the patience of calls
            own.execute("COMMIT")
            own.close()
            assert await chain.wait(timeout=SOON) == 1

    assert not recorder.of(events.StateError)


# -- a client that is not open


def test_a_client_that_is_not_open_says_how_to_open_it(make_app: Any) -> None:
    app: Onward = make_app(work)

    with pytest.raises(ConfigurationError, match=r"the client is not open: use `with app\.sync as client:`"):
        app.sync.start(work, 1)
    with pytest.raises(ConfigurationError, match="the client is not open"):
        app.sync.transaction().__enter__()


async def test_an_app_that_is_not_open_says_how_to_open_it(make_app: Any) -> None:
    app: Onward = make_app(work)

    with pytest.raises(ConfigurationError, match="the app is not open: use `async with app:`"):
        await app.start(work, 1)

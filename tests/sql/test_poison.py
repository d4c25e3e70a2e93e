"""A row written by hand, whatever its columns hold, stops neither the rows beside it nor a listing."""

import itertools
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

import odd_values
from onward.errors import ConfigurationError
from onward.model import FailedJob, JobError, JobId, JobStatus, new_id
from onward.state.contract import Filter, NewJob, Settlement, StateAdapter, TakenJob, TypeClaim
from onward.state.driver import Connection
from onward.state.postgres.adapter import PostgresState
from onward.state.postgres.asyncpg import AsyncpgDriver
from onward.state.postgres.psycopg import PsycopgDriver
from onward.state.rows import write_errors
from onward.state.sqlite.adapter import SqliteState
from onward.state.sqlite.sqlite3 import SqliteDriver

POSTGRES = PostgresState(schema="poison")
SQLITE = SqliteState()
TIMES = ["'infinity'", "'-infinity'", "'4000-01-01 BC'", "'12000-01-01'", "'0001-01-01 00:00+00'", "NULL"]
COUNTS = ["2147483647", "-2147483648", "-5"]
PAYLOADS = [
    "'{}'", "'null'", "'[1]'", "'\"\\ud800\"'", "'\"\\u0000\"'", "'1e999'", "repeat('9', 5000)::json",
    "(repeat('[', 3000) || repeat(']', 3000))::json", "'[{\"type\": 1}]'", "'[{\"type\": \"\\ud800\"}]'",
]  # fmt: skip
ON_POSTGRES = [
    *itertools.product(
        ["created_at", "scheduled_at", "leased_until", "ended_at", "cancel_requested_at", "chain_ended_at"], TIMES
    ),
    *itertools.product(
        ["attempt", "failures", "transients", "crashes", "rank", "payload_version", "blockers", "open_blockers",
         "chain_index"], COUNTS,
    ),
    *itertools.product(["scheduled_at"], [f"{time}, deferred = true" for time in TIMES]),
    *itertools.product(["input", "output", "errors"], PAYLOADS),
    *itertools.product(
        ["failure_reason", "leased_by", "completed_by", "limit_key", "progress_note"], ["'odd'", "NULL"]
    ),
    ("status", "'odd'"), ("status", "''"),
    ("progress", "'NaN'"), ("chain_id", "gen_random_uuid()"), ("root_id", "gen_random_uuid()"), ("deferred", "true"),
    ("has_dependents", "true"), ("chain_failed", "true"), ("runs_anyway", "true"), ("type_name", "''"),
]  # fmt: skip
COLUMNS = [
    "id", "chain_id", "chain_index", "type_name", "payload_version", "rank", "deferred", "limit_key", "input", "output",
    "created_at", "scheduled_at", "origin_id", "root_id", "attempt", "failures", "transients", "crashes", "leased_by",
    "leased_until", "cancel_requested_at", "errors", "progress", "progress_note", "failure_reason", "ended_at",
    "completed_by", "blockers", "open_blockers", "runs_anyway", "deduplication_key", "chain_ended_at", "chain_failed",
    "has_dependents",
]  # fmt: skip
VALUES = [
    "NULL", "''", "'soon'", "'{'", "'[1]'", "'0'", "x'ff'", "x''", "CAST(x'fffe' AS TEXT)", "9223372036854775807",
    "-4611686018427387904", "1.5", "-1", "'ABCDEF00-0000-7000-8000-000000000000'",
]  # fmt: skip


@asynccontextmanager
async def opened(driver: Any) -> AsyncIterator[Connection]:
    await driver.open()
    async with driver.reserved() as connection:
        yield connection
    await driver.close()


def new_job() -> NewJob:
    id = new_id()
    return NewJob(id=id, chain_id=id, type_name="work", payload_version=1, input="1", root_id=id)


def spoiled(column: str, value: str, status: str, table: str) -> str:
    """Makes a running job what the status says, with that value in a column."""
    ended = {"completed": "ended_at = created_at", "failed": "ended_at = created_at, failure_reason = 'permanent'"}
    changes = [f"status = '{status}'"]
    if status != "running":
        changes.append("leased_by = NULL")
    changes += [part for part in ended.get(status, "").split(", ") if part and not part.startswith(f"{column} ")]
    changes = [change for change in changes if not change.startswith(f"{column} ")]
    return f"UPDATE {table} SET {', '.join([*changes, f'{column} = {value}'])} WHERE type_name = 'work'"


async def survives(state: StateAdapter, connection: Connection, spoil: Callable[[str], bool], status: str) -> None:
    """Spoil a job; another one beside it is taken, settled and listed all the same."""
    poison = new_job()
    await connection.run(state.start([poison]))
    await connection.run(state.take(types=[TypeClaim("work", 1, -1.0)], limit=1, worker="gone"))
    if not spoil(status):
        return
    await connection.run(state.promote(type_names=["work"], limit=10))
    await connection.run(state.start([good := new_job()]))

    taken = await taken_by(state, connection)

    assert good.id in {job.id for job in taken}
    changes = await connection.run(state.settle([settlement(job) for job in taken]))
    assert good.id in {change.job_id for change in changes if change.kind == "settled"}
    await connection.run(state.promote(type_names=["work"], limit=10))
    reaped = await connection.run(state.reap(worker="w", type_names=["work"], held_here=[], limit=10, lease=60.0))
    assert reaped.next_in is None or reaped.next_in >= 0
    await connection.run(state.settle([settlement(job) for job in reaped.jobs]))
    await everything_is_listed(state, connection, good.id)


async def taken_by(state: StateAdapter, connection: Connection) -> Sequence[TakenJob]:
    """What a worker has in its hands after a turn or two."""
    try:
        return await connection.run(state.take(types=[TypeClaim("work", 1, 60.0)], limit=5, worker="w"))
    except sqlite3.OperationalError:
        return await connection.run(state.unanswered_takes(worker="w", held_here=[]))


def settlement(job: TakenJob) -> Settlement:
    return Settlement(
        job_id=job.id,
        attempt=job.attempt,
        holder="w",
        kind="requeue",
        delay=3600.0,
        failures=1,
        crashes=job.crashes + 1,
        errors=write_errors(job.errors, error_of(job)),
    )


def error_of(job: TakenJob) -> Any:
    return JobError(type="ValueError", message="it broke", attempt=job.attempt)


async def everything_is_listed(state: StateAdapter, connection: Connection, good: JobId) -> None:
    anything = Filter()
    failed = Filter(error_types=["ValueError"], failed_from=datetime(2000, 1, 1, tzinfo=UTC))
    for filter in (anything, failed, Filter(statuses=[JobStatus.FAILED])):
        jobs = await connection.run(state.list_jobs(filter, after=None, limit=100))
        await connection.run(state.list_chains(filter, after=None, limit=100))
        if filter is anything:
            assert good in {job.id for job in jobs}
            assert len(jobs) == 2
    await connection.run(state.list_failed("work", limit=10))
    await connection.run(state.count_jobs(["work"]))
    await connection.run(state.workers.list())
    await connection.run(state.due_types())
    await connection.run(state.figures.survey(most=10))
    await connection.run(state.work_left(types=[TypeClaim("work", 1, 60.0)]))
    assert (await connection.run(state.find_chains([good])))[0].id == good
    await connection.run(state.delete([good], cascade=True))


@pytest.mark.parametrize("driver", [AsyncpgDriver, PsycopgDriver])
@pytest.mark.parametrize("status", ["pending", "running", "completed", "failed", "blocked"])
async def test_a_row_spoiled_on_postgres_harms_no_other(postgres_dsn: str, driver: Any, status: str) -> None:
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        async with opened(driver(postgres_dsn)) as connection:
            await connection.run(POSTGRES.migrate())
            for column, value in ON_POSTGRES:

                def spoil(status: str, column: str = column, value: str = value) -> bool:
                    try:
                        admin.execute(spoiled(column, value, status, "poison.job").encode())
                    except (psycopg.DataError, psycopg.IntegrityError):
                        return False
                    return True

                admin.execute("DELETE FROM poison.job")
                await survives(POSTGRES, connection, spoil, status)


async def test_a_status_that_there_is_not_is_shown_as_failed_with_what_it_is(postgres_dsn: str) -> None:
    """The tables refuse none: to check each would cost all jobs more than a hand's slip is worth."""
    async with opened(AsyncpgDriver(postgres_dsn)) as connection:
        await connection.run(POSTGRES.migrate())
        await connection.run(POSTGRES.start([poison := new_job()]))
        with psycopg.connect(postgres_dsn, autocommit=True) as admin:
            admin.execute("UPDATE poison.job SET status = 'odd' WHERE id = %s", [poison.id])

        [shown] = await connection.run(POSTGRES.find_jobs([poison.id]))

        assert shown.status == "failed"
        assert "odd" in str(shown)
        await connection.run(POSTGRES.delete([poison.id], cascade=False))


@pytest.mark.parametrize("status", ["pending", "running", "completed", "failed", "blocked"])
async def test_a_row_spoiled_on_sqlite_harms_no_other(tmp_path: Path, status: str) -> None:
    path = tmp_path / "jobs.db"
    admin = sqlite3.connect(path, isolation_level=None)
    async with opened(SqliteDriver(path)) as connection:
        await connection.run(SQLITE.migrate())
        deferred = itertools.product(["scheduled_at"], [f"{value}, deferred = 1" for value in VALUES])
        for column, value in [*itertools.product(COLUMNS, VALUES), *deferred]:

            def spoil(status: str, column: str = column, value: str = value) -> bool:
                try:
                    admin.execute(spoiled(column, value, status, "onward_job"))
                except sqlite3.IntegrityError:
                    return False
                return True

            admin.execute("DELETE FROM onward_job")
            await survives(SQLITE, connection, spoil, status)
    admin.close()


@pytest.mark.parametrize(
    ("column", "value"),
    [("root_id", "'x'"), ("input", "x'ff'"), ("attempt", "1.5"), ("scheduled_at", "'soon'"), ("failures", "'many'")],
)
async def test_what_cannot_be_read_fails_alone_and_says_what_it_holds(tmp_path: Path, column: str, value: str) -> None:
    path = tmp_path / "jobs.db"
    async with opened(SqliteDriver(path)) as connection:
        await connection.run(SQLITE.migrate())
        await connection.run(SQLITE.start([poison := new_job(), good := new_job()]))
        await connection.run(SQLITE.start([waiting := NewJob(**{**fields(new_job()), "blockers": (poison.id,)})]))
        await connection.fetch(f"UPDATE onward_job SET {column} = {value} WHERE id = :id", {"id": str(poison.id)})

        taken = await connection.run(SQLITE.take(types=[TypeClaim("work", 1, 60.0)], limit=5, worker="w"))

        assert [job.id for job in taken] == [good.id]
        found, dependent = [(await connection.run(SQLITE.find_jobs([id])))[0] for id in (poison.id, waiting.id)]
        assert isinstance(found, FailedJob)
        assert found.reason == "unreadable"
        assert found.last_error is not None
        assert column in found.last_error.message
        assert dependent.status == "failed"
        assert (await connection.run(SQLITE.ended_chains([poison.id]))) == {poison.id: True}


async def test_what_waits_may_hold_anything_and_what_it_waits_for_ends(tmp_path: Path) -> None:
    async with opened(SqliteDriver(tmp_path / "jobs.db")) as connection:
        await connection.run(SQLITE.migrate())
        for column, value in itertools.product(COLUMNS, VALUES):
            await connection.run(SQLITE.start([good := new_job()]))
            await connection.run(SQLITE.start([waiting := NewJob(**{**fields(new_job()), "blockers": (good.id,)})]))
            (taken,) = await connection.run(SQLITE.take(types=[TypeClaim("work", 1, 60.0)], limit=5, worker="w"))
            spoil = f"UPDATE onward_job SET {column} = {value} WHERE id = :id"
            with suppress(sqlite3.IntegrityError):
                await connection.fetch(spoil, {"id": str(waiting.id)})

            completed = Settlement(job_id=taken.id, attempt=1, holder="w", kind="complete", completed_by="w")
            changes = await connection.run(SQLITE.settle([completed]))

            assert good.id in {change.job_id for change in changes if change.kind == "settled"}
            await connection.fetch("DELETE FROM onward_job", {})


def fields(job: NewJob) -> dict[str, Any]:
    return {name: getattr(job, name) for name in job.__struct_fields__}


async def test_pages_go_on_past_ids_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(SqliteDriver(path)) as connection:
        await connection.run(SQLITE.migrate())
        jobs = [new_job() for _ in range(6)]
        await connection.run(SQLITE.start(jobs))
        for job, name in zip(jobs[::2], ["nonsense", f"{jobs[3].id}x", "0"], strict=True):
            await connection.fetch("UPDATE onward_job SET id = :name WHERE id = :id", {"name": name, "id": str(job.id)})

        listed: list[Any] = []
        after = None
        while page := await connection.run(SQLITE.list_jobs(Filter(), after=after, limit=1)):
            listed += page
            after = page[-1].id

        assert [job.problem for job in listed if job.problem] == [
            f"id holds {name!r}" for name in ("nonsense", f"{jobs[3].id}x", "0")
        ]
        assert {job.id for job in jobs[1::2]} <= {job.id for job in listed}


async def test_a_time_that_no_driver_can_read_is_shown_with_what_it_holds(postgres_dsn: str) -> None:
    async with opened(AsyncpgDriver(postgres_dsn)) as connection:
        await connection.run(POSTGRES.migrate())
        await connection.run(POSTGRES.start([job := new_job()]))
        await connection.fetch(
            "UPDATE poison.job SET created_at = '4000-01-01 00:00:00+00 BC' WHERE id = :id::uuid", {"id": job.id}
        )

        (found,) = await connection.run(POSTGRES.find_jobs([job.id]))

        assert found.created_at.year == 1
        assert found.problem is not None
        assert "created_at holds 4000-01-01" in found.problem


async def test_what_is_no_uuid_is_not_stored(tmp_path: Path) -> None:
    async with opened(SqliteDriver(tmp_path / "jobs.db")) as connection:
        await connection.run(SQLITE.migrate())
        for spoil in ({"id": "abc"}, {"chain_id": "abc"}, {"root_id": 7}, {"id": str(new_id()), "id_is_callers": True}):
            with pytest.raises(ConfigurationError, match="UUID"):
                await connection.run(SQLITE.start([NewJob(**{**fields(new_job()), **spoil})]))

        assert list(await connection.run(SQLITE.list_jobs(Filter(), after=None, limit=10))) == []


STATUSES = ["pending", "running", "completed", "failed", "blocked"]


def some_of(cases: list[tuple[str, str]], scale: Callable[[int], int]) -> list[tuple[str, str, str]]:
    """All of them in `make test-all`, else some of every column; each with one state of the job after the other."""
    step = max(1, len(cases) // scale(len(cases)))
    return [
        (column, value, STATUSES[number % len(STATUSES)])
        for number, (column, value) in enumerate(cases)
        if number % step == 0
    ]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("driver", [AsyncpgDriver, PsycopgDriver])
async def test_fifty_odd_values_in_every_column_on_postgres_harm_no_other(
    postgres_dsn: str, driver: Any, scale: Callable[[int], int]
) -> None:
    tried = 0
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        async with opened(driver(postgres_dsn)) as connection:
            await connection.run(POSTGRES.migrate())
            columns = admin.execute(
                "SELECT column_name, data_type FROM information_schema.columns "
                "WHERE table_schema = 'poison' AND table_name = 'job' ORDER BY ordinal_position"
            ).fetchall()
            cases = [(column, value) for column, kind in columns for value in odd_values.ON_POSTGRES[kind]]
            for column, value, status in some_of(cases, scale):

                def spoil(status: str, column: str = column, value: str = value) -> bool:
                    nonlocal tried
                    try:
                        admin.execute(spoiled(column, value, status, "poison.job").encode())
                    except (psycopg.DataError, psycopg.IntegrityError, psycopg.OperationalError):
                        return False
                    tried += 1
                    return True

                admin.execute("DELETE FROM poison.job")
                await survives(POSTGRES, connection, spoil, status)
    assert tried > scale(len(cases)) // 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_fifty_odd_values_in_every_column_on_sqlite_harm_no_other(
    tmp_path: Path, scale: Callable[[int], int]
) -> None:
    path, tried = tmp_path / "jobs.db", 0
    admin = sqlite3.connect(path, isolation_level=None)
    async with opened(SqliteDriver(path)) as connection:
        await connection.run(SQLITE.migrate())
        columns = [row[1] for row in admin.execute("PRAGMA table_info(onward_job)")]
        cases = list(itertools.product(columns, odd_values.ON_SQLITE))
        for column, value, status in some_of(cases, scale):

            def spoil(status: str, column: str = column, value: str = value) -> bool:
                nonlocal tried
                try:
                    admin.execute(spoiled(column, value, status, "onward_job"))
                except sqlite3.IntegrityError:
                    return False
                tried += 1
                return True

            admin.execute("DELETE FROM onward_job")
            await survives(SQLITE, connection, spoil, status)
    admin.close()
    assert tried > scale(len(cases)) // 2


def test_there_are_fifty_values_for_every_type() -> None:
    kinds = {kind: values for kind, values in odd_values.ON_POSTGRES.items() if kind != "boolean"}
    for kind, values in {**kinds, "sqlite": odd_values.ON_SQLITE}.items():
        assert len(set(values)) >= 50, kind

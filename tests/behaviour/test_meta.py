"""What travels with a job beside its input: given at the start, read by handlers, inherited, refused."""

import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onward import Attempt, Next, Onward, job
from onward.errors import PayloadError, StartRefused
from onward.state.postgres.adapter import PostgresState
from onward.state.sqlite.adapter import SqliteState
from programs import cpu_jobs
from support import SOON


@job("leaf")
async def leaf(attempt: Attempt[int]) -> dict[str, Any]:
    return dict(attempt.meta)


@job("last", internal=True, blocked_by=[leaf])
def last(attempt: Attempt[int]) -> list[dict[str, Any]]:
    return [dict(attempt.meta), *attempt.outputs_of(leaf)]


@job("first", continues_to=[last])
async def first(attempt: Attempt[dict[str, Any] | None]) -> Next[list[dict[str, Any]]]:
    return attempt.continue_with(last, 1, meta=attempt.input, blockers=[leaf.with_input(1)])


async def test_handlers_read_it_and_continuations_inherit_it(running: Any) -> None:
    app: Onward = await running(first, last, leaf)

    chain = await app.start(first, None, meta={"request": "r-7"})

    assert await chain.wait(timeout=SOON) == [{"request": "r-7"}, {}]
    assert [listed.meta for listed in await app.jobs(chains=[chain.id])] == [{"request": "r-7"}] * 2


@pytest.mark.parametrize("told", [{}, {"request": "r-8"}])
async def test_unless_told_otherwise(running: Any, told: dict[str, Any]) -> None:
    app: Onward = await running(first, last, leaf)

    chain = await app.start(first, told, meta={"request": "r-7"})

    assert await chain.wait(timeout=SOON) == [told, {}]


async def test_where_a_job_belongs_is_passed_on_whatever_else_is_said(running: Any) -> None:
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    app: Onward = await running(first, last, leaf)

    chain = await app.start(first, {"a": 1}, meta={"request": "r-7", **trace})

    assert await chain.wait(timeout=SOON) == [{"a": 1, **trace}, trace]


async def test_a_process_has_it_too(running: Any) -> None:
    app: Onward = await running(cpu_jobs.meta)

    assert await (await app.start(cpu_jobs.meta, 1, meta={"a": [1]})).wait(timeout=SOON) == {"a": [1]}


async def test_completing_without_a_worker_hands_it_on(opened: Any) -> None:
    app: Onward = await opened(first, last, leaf)
    chain = await app.start(first, None, meta={"request": "r-7"})

    async with app.complete(chain) as completion:
        await completion.continue_with(last, 1, blockers=[leaf.with_input(1, meta={"b": 1})])
        assert completion.job is not None
        assert completion.job.meta == {"request": "r-7"}
    assert {listed.type_name: listed.meta for listed in await app.jobs()}["leaf"] == {"b": 1}


@pytest.mark.parametrize("wrong", ["text", ["a"], {1: "a"}, 7])
async def test_what_is_no_mapping_with_text_for_keys_is_refused(opened: Any, wrong: Any) -> None:
    app: Onward = await opened(leaf)

    with pytest.raises(StartRefused, match=r"meta=.*mapping whose keys are text"):
        await app.start(leaf, 1, meta=wrong)

    assert not await app.jobs()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"a": "x" * 4096}, "4,096"),
        ({"a": float("nan")}, "not a JSON number"),
        ({"a": "\0"}, "NUL"),
        ({"a": "\ud800"}, "surrogate"),
        ({"a": object()}, "object"),
    ],
)
async def test_what_cannot_be_stored_is_refused(opened: Any, wrong: Any, words: str) -> None:
    app: Onward = await opened(leaf)

    with pytest.raises(PayloadError, match=words):
        await app.start_many([leaf.with_input(1), leaf.with_input(2, meta=wrong)])

    assert not await app.jobs()


# -- tables from before


async def test_tables_without_it_are_upgraded_in_postgres(postgres_dsn: str) -> None:
    schema, sql = "onward_before_meta", PostgresState(schema="onward_before_meta")
    before = next(text for _, name, text in sql.sql.migrations() if name.startswith("0001"))
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        connection.execute(sql._bookkeeping().encode())
        connection.execute((before + sql._record(1, "0001_chains")).encode())
        # As they were called before: what comes later takes their place.
        for function in ("start(items json, at timestamptz)", "start_items(items json)"):
            connection.execute(
                f"CREATE FUNCTION {schema}.{function} RETURNS TABLE (item integer) LANGUAGE sql AS 'SELECT 1'".encode()
            )
        connection.execute(
            f"INSERT INTO {schema}.job (id, chain_id, chain_index, type_name, payload_version, status, rank,"
            " deferred, input, created_at, scheduled_at, root_id)"
            " SELECT i, i, 0, 'leaf', 1, 'pending', 0, false, '1', now(), now(), i"
            " FROM gen_random_uuid() AS g(i)".encode()
        )

        app = Onward(postgres_dsn, jobs=[leaf, first, last], schema=schema, migrate=True)
        async with app, app.worker():
            (old,) = await app.jobs()
            assert old.meta == {}
            assert await app.chain(leaf, old.chain_id).wait(timeout=SOON) == {}
            chain = await app.start(first, None, meta={"a": 1}, blockers=[])
            assert await chain.wait(timeout=SOON) == [{"a": 1}, {}]
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


async def test_tables_without_it_are_upgraded_in_sqlite(tmp_path: Path) -> None:
    sql = SqliteState()
    before = next(text for _, name, text in sql.sql.migrations() if name.startswith("0001"))
    with sqlite3.connect(tmp_path / "old.db") as connection:
        connection.executescript(sql.sql("migration_table") + before + sql._record(1, "0001_chains"))
        connection.execute(
            "INSERT INTO onward_job (id, chain_id, chain_index, type_name, payload_version, status, rank, deferred,"
            " input, created_at, scheduled_at, root_id) VALUES (:i, :i, 0, 'leaf', 1, 'pending', 0, 0, '1', 0, 0, :i)",
            {"i": "0198a3c0-0000-7000-8000-000000000001"},
        )
    connection.close()

    async with Onward(f"sqlite:///{tmp_path}/old.db", jobs=[leaf]) as app, app.worker():
        (old,) = await app.jobs()
        assert await app.chain(leaf, old.chain_id).wait(timeout=SOON) == {}
        assert await (await app.start(leaf, 1, meta={"a": 1})).wait(timeout=SOON) == {"a": 1}

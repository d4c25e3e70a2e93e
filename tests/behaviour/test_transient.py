"""Errors of the database that pass: tried again without counting, however often they come."""

import logging
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from onward import Attempt, Backoff, ChainFailed, Onward, job
from onward.notify.memory import MemoryNotify
from onward.observe import events
from support import SOON, Recorder

SERIALIZATION_FAILURE = "DO $$ BEGIN RAISE SQLSTATE '40001'; END $$"


@pytest.fixture
def target(postgres_dsn: str) -> str:
    return postgres_dsn


async def test_a_serialization_failure_in_a_phase_is_tried_again_without_counting(running: Any) -> None:
    @job("contended", max_attempts=1)
    async def contended(attempt: Attempt[int]) -> tuple[int, int]:
        async with attempt.complete() as tx:
            if attempt.number < 3:
                await tx.execute(SERIALIZATION_FAILURE)
            return attempt.number, attempt.failures

    app: Onward = await running(contended)

    assert await (await app.start(contended, 1)).wait(timeout=SOON) == (3, 0)


async def test_it_is_told_and_kept_as_a_failure_that_does_not_count(running: Any, recorder: Recorder) -> None:
    @job("told", max_attempts=2, backoff=Backoff(initial=timedelta(milliseconds=1)))
    async def told(attempt: Attempt[int]) -> int:
        if attempt.number == 2:
            raise ValueError("the handler's own")
        async with attempt.complete() as tx:
            if attempt.number == 1:
                await tx.execute(SERIALIZATION_FAILURE)
            return attempt.number

    app: Onward = await running(told)
    chain = await app.start(told, 1)

    assert await chain.wait(timeout=SOON) == 3
    failed = recorder.of(events.AttemptFailed)
    assert [(event.counted, event.error.counted) for event in failed] == [(False, False), (True, True)]
    found = await app.find_job(chain.id)
    assert found is not None
    assert [(error.type, error.attempt, error.counted) for error in found.errors] == [
        ("SerializationError", 1, False),
        ("ValueError", 2, True),
    ]


async def test_starting_in_a_phase_on_a_server_that_only_reads_is_not_held_against_the_job(running: Any) -> None:
    @job("follower")
    async def follower(attempt: Attempt[int]) -> int:
        return attempt.input

    @job("leader", max_attempts=1)
    async def leader(attempt: Attempt[int]) -> int:
        async with attempt.complete() as tx:
            if attempt.number == 1:
                await tx.execute("SET TRANSACTION READ ONLY")
            await attempt.start(follower, 1)
            return attempt.failures

    app: Onward = await running(leader, follower)

    assert await (await app.start(leader, 1)).wait(timeout=SOON) == 0


async def test_however_many_come_in_a_row_none_counts(running: Any) -> None:
    @job("long contended", max_attempts=1)
    async def long_contended(attempt: Attempt[int]) -> tuple[int, int]:
        async with attempt.complete() as tx:
            if attempt.number < 6:
                await tx.execute(SERIALIZATION_FAILURE)
            return attempt.number, attempt.failures

    app: Onward = await running(long_contended)

    assert await (await app.start(long_contended, 1)).wait(timeout=SOON * 2) == (6, 0)


async def test_a_failure_that_the_handler_swallowed_is_still_the_databases(running: Any) -> None:
    @job("swallows", max_attempts=1)
    async def swallows(attempt: Attempt[int]) -> int:
        async with attempt.complete() as tx:
            if attempt.number == 1:
                with pytest.raises(asyncpg.SerializationError):
                    await tx.execute(SERIALIZATION_FAILURE)
            return attempt.number

    app: Onward = await running(swallows)

    assert await (await app.start(swallows, 1)).wait(timeout=SOON) == 2


async def test_a_statement_of_the_handlers_own_that_takes_too_long_counts(running: Any) -> None:
    @job("slow statement", max_attempts=1)
    async def slow_statement(attempt: Attempt[int]) -> None:
        async with attempt.complete() as tx:
            await tx.execute("SELECT set_config('statement_timeout', '20ms', true)")
            await tx.fetchval("SELECT pg_sleep(5)")

    app: Onward = await running(slow_statement)
    chain = await app.start(slow_statement, 1)

    with pytest.raises(ChainFailed) as failed:
        await chain.wait(timeout=SOON)

    assert (failed.value.reason, failed.value.error and failed.value.error.type) == ("attempts", "QueryCanceledError")


async def test_a_timeout_of_the_handlers_own_is_not_taken_for_the_databases(running: Any) -> None:
    @job("slow partner", max_attempts=1)
    async def slow_partner(attempt: Attempt[int]) -> None:
        async with attempt.complete():
            raise TimeoutError("the partner did not answer")

    app: Onward = await running(slow_partner)
    chain = await app.start(slow_partner, 1)

    with pytest.raises(ChainFailed) as failed:
        await chain.wait(timeout=SOON)

    assert (failed.value.reason, (await chain.get()).current.attempt) == ("attempts", 1)


async def test_the_application_may_say_what_else_is_transient(running: Any) -> None:
    @job("odd database", max_attempts=1)
    async def odd_database(attempt: Attempt[int]) -> int:
        async with attempt.complete() as tx:
            if attempt.number == 1:
                await tx.execute("DO $$ BEGIN RAISE SQLSTATE 'XX999'; END $$")
            return attempt.number

    app: Onward = await running(odd_database, is_transient=lambda error: getattr(error, "sqlstate", None) == "XX999")

    assert await (await app.start(odd_database, 1)).wait(timeout=SOON) == 2


async def test_a_bare_connection_whose_commit_nobody_sees_is_warned_about_once(
    opened: Any, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    @job("noop")
    async def noop(attempt: Attempt[int]) -> None: ...

    app: Onward = await opened(noop, notify=MemoryNotify())
    connection = await asyncpg.connect(target)
    with caplog.at_level(logging.WARNING):
        async with connection.transaction():
            await app.start(noop, 1, tx=connection)
            await app.start(noop, 2, tx=connection)
    await connection.close()

    warnings = [record for record in caplog.records if "app.transaction(connection)" in record.message]
    assert len(warnings) == 1

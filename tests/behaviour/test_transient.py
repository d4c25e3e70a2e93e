"""Errors of the database that pass: tried again without counting, unless they keep coming."""

import logging
from typing import Any

import asyncpg
import pytest

from onward import Attempt, ChainFailed, Onward, job
from onward.notify.memory import MemoryNotify
from support import SOON

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


async def test_the_sixth_in_a_row_counts(running: Any) -> None:
    @job("always contended", max_attempts=1)
    async def always_contended(attempt: Attempt[int]) -> None:
        async with attempt.complete() as tx:
            await tx.execute(SERIALIZATION_FAILURE)

    app: Onward = await running(always_contended)
    chain = await app.start(always_contended, 1)

    with pytest.raises(ChainFailed):
        await chain.wait(timeout=SOON * 2)

    stored = (await chain.get()).current
    assert (stored.attempt, stored.failures) == (6, 1)


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

    app: Onward = await running(odd_database, also_transient=lambda error: getattr(error, "sqlstate", None) == "XX999")

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

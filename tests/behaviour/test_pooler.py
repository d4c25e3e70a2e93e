"""Behind a transaction pooler, where no setting of a session holds: a lock of somebody else's keeps nobody for long."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from onward import Attempt, Limit, Onward, Rate, Schedule, job
from onward.conformance.queue.session import until
from onward.errors import DatabaseUnavailable
from onward.state.driver import Fault
from onward.transport import STATEMENT
from support import SOON, Run, intercept

AT_ONCE = STATEMENT / 2
"""Seconds: before the connection would be given up on which somebody waits for a lock."""
CLIENTS = ["asyncpg", "psycopg"]


@pytest.fixture(params=CLIENTS)
def target(request: pytest.FixtureRequest, pgbouncer_dsn: str) -> str:
    return pgbouncer_dsn.replace("://", f"+{request.param}://", 1)


@asynccontextmanager
async def locked(postgres_dsn: str, sql: str) -> AsyncIterator[None]:
    """Rows, by a transaction of the application's."""
    async with await psycopg.AsyncConnection.connect(postgres_dsn) as connection:
        assert (await connection.execute(sql.encode())).rowcount > 0
        yield
        await connection.rollback()


class Gate:
    def __init__(self) -> None:
        self.inside, self.open = 0, asyncio.Event()

    async def __call__(self) -> None:
        self.inside += 1
        await self.open.wait()


async def test_a_job_that_somebody_has_locked_holds_no_other_outcome_up(running: Any, postgres_dsn: str) -> None:
    gate = Gate()

    @job("work")
    async def work(attempt: Attempt[int]) -> int:
        await gate()
        return attempt.input

    app: Onward = await running(work, pgbouncer=True)
    held, free = [await app.start(work, n) for n in range(2)]
    await until(lambda: gate.inside == 2)

    async with locked(postgres_dsn, f"SELECT FROM {app.state.schema}.job WHERE id = '{held.id}' FOR UPDATE"):
        gate.open.set()
        async with asyncio.timeout(AT_ONCE):
            assert await free.wait() == 1

    assert await held.wait(timeout=SOON) == 0


async def test_figures_that_somebody_has_locked_hold_no_outcome_up(
    running: Any, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.worker.figures._WRITE_EVERY", 0.05)
    written = 0

    async def record(run: Run, *_: Any) -> Any:
        nonlocal written
        answer = await run()
        written += 1
        return answer

    @job("work")
    async def work(attempt: Attempt[int]) -> int:
        return attempt.input

    app: Onward = await running(work, pgbouncer=True)
    intercept(monkeypatch, app.state.figures, "record", record)  # type: ignore[arg-type]
    await (await app.start(work, 1)).wait(timeout=SOON)
    await until(lambda: written > 0)

    async with locked(postgres_dsn, f"SELECT FROM {app.state.schema}.figure FOR UPDATE"):
        async with asyncio.timeout(AT_ONCE):
            for n in range(10):
                assert await (await app.start(work, n)).wait() == n
                await asyncio.sleep(0.05)


async def test_whoever_lets_jobs_in_does_not_wait_for_a_key_that_somebody_has_locked(
    opened: Any, postgres_dsn: str
) -> None:
    @job("work", limit=Limit("one", concurrency=1))
    async def work(attempt: Attempt[int]) -> int:
        return attempt.input

    app: Onward = await opened(work, pgbouncer=True)
    async with app.driver.reserved() as connection:
        first = await app.start(work, 1)
        assert (await connection.run(app.state.admit())).types == {"work": 1}
        await app.cancel(first)
        await app.start(work, 2)

        async with locked(postgres_dsn, f"SELECT FROM {app.state.schema}.limit_key FOR UPDATE"):
            with pytest.raises(Exception) as raised:  # noqa: PT011 - each client has its own
                async with asyncio.timeout(AT_ONCE):
                    await connection.run(app.state.admit())

        assert app.driver.fault(raised.value) is Fault.TIMEOUT
        assert (await connection.run(app.state.admit())).types == {"work": 1}


@pytest.mark.parametrize("table", ["limit_key", "limit_rule"])
async def test_whoever_changes_a_limit_does_not_wait_without_end_for_what_somebody_has_locked(
    opened: Any, postgres_dsn: str, table: str
) -> None:
    """All others who let jobs in wait for him meanwhile."""

    @job("work", limit=Limit("one", rate=Rate(1, per=timedelta(hours=1))))
    async def work(attempt: Attempt[int]) -> int:
        return attempt.input

    app: Onward = await opened(work, pgbouncer=True)
    await app.limits.reset("one")
    async with app.driver.reserved() as connection:
        await app.start(work, 1)
        assert (await connection.run(app.state.admit())).types == {"work": 1}

    async with locked(postgres_dsn, f"SELECT FROM {app.state.schema}.{table} FOR UPDATE"):
        with pytest.raises(DatabaseUnavailable, match="change a limit"):
            async with asyncio.timeout(STATEMENT):  # it is tried some times
                await app.limits.change("one", concurrency=2)

    await app.limits.change("one", concurrency=3)
    assert [one.concurrency for one in await app.limits.list()] == [3]


async def test_a_declaration_does_not_wait_for_a_schedule_that_somebody_has_locked(
    opened: Any, postgres_dsn: str
) -> None:
    @job("work")
    async def work(attempt: Attempt[int]) -> int:
        return attempt.input

    def twice(every: timedelta) -> list[Schedule[Any]]:
        return [Schedule("held", work, 1, every=every), Schedule("free", work, 2, every=every)]

    before: Onward = await opened(work, pgbouncer=True, schedules=twice(timedelta(days=1)))
    await before.schedules.resume("held")
    app: Onward = await opened(work, pgbouncer=True, schedules=twice(timedelta(days=2)))

    async def declared() -> dict[str, timedelta | None]:
        return {one.name: one.every for one in await app.schedules.list()}

    async with locked(postgres_dsn, f"SELECT FROM {app.state.schema}.schedule FOR UPDATE"), app.worker():
        async with asyncio.timeout(AT_ONCE):
            while (await declared()).get("free") != timedelta(days=2):
                await asyncio.sleep(0.01)

        assert (await declared())["held"] == timedelta(days=1)


@pytest.mark.parametrize("through", ["pooler", "session"])
async def test_a_key_that_somebody_has_locked_keeps_no_other_job_from_being_taken(
    running: Any, postgres_dsn: str, target: str, through: str
) -> None:
    @job("limited", limit=Limit("one", concurrency=1))
    async def limited(attempt: Attempt[int]) -> int:
        return attempt.input

    @job("free")
    async def free(attempt: Attempt[int]) -> int:
        return attempt.input

    behind = {"pgbouncer": True} if through == "pooler" else {"target": postgres_dsn}
    app: Onward = await running(limited, free, **behind)
    assert await (await app.start(limited, 1)).wait(timeout=SOON) == 1

    async with locked(postgres_dsn, f"SELECT FROM {app.state.schema}.limit_key FOR UPDATE"):
        held = await app.start(limited, 2)
        async with asyncio.timeout(AT_ONCE):
            for n in range(5):
                assert await (await app.start(free, n)).wait() == n

    assert await held.wait(timeout=SOON) == 2

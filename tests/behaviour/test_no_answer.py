"""A server that accepts connections and does not answer: statements of ours on connections of a pool have an end."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from onward.state.driver import Driver, Fault, run_now
from onward.state.postgres.asyncpg import AsyncpgDriver
from onward.state.postgres.psycopg import PsycopgDriver, SyncPsycopgDriver
from onward.state.sqlalchemy import SqlAlchemyDriver, SyncSqlAlchemyDriver
from proxy import proxied

QUICKLY = 0.4
KINDS = ["asyncpg", "psycopg", "sqlalchemy asyncpg", "sqlalchemy psycopg", "asyncpg pool", "psycopg pool"]


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("postgres.patience", "postgres.asyncpg", "postgres.psycopg", "sqlalchemy.driver"):
        monkeypatch.setattr(f"onward.state.{module}.STATEMENT", QUICKLY)
    for module in ("postgres.patience", "postgres.asyncpg", "sqlalchemy.driver"):
        monkeypatch.setattr(f"onward.state.{module}.CONNECT", QUICKLY)


@pytest.fixture(params=KINDS)
async def opened_driver(request: pytest.FixtureRequest) -> AsyncIterator[Callable[[str], Any]]:
    made: list[tuple[Any, Any]] = []

    async def make(dsn: str) -> Driver:
        library, _, rest = request.param.partition(" ")
        target: Any = None
        driver: Any
        if library == "sqlalchemy":
            target = create_async_engine(dsn.replace("://", f"+{rest}://", 1))
            driver = SqlAlchemyDriver(target)
        elif rest == "pool":
            if library == "asyncpg":
                target = await asyncpg.create_pool(dsn, min_size=1, max_size=2)
                driver = AsyncpgDriver(pool=target)
            else:
                target = AsyncConnectionPool(dsn, min_size=1, max_size=2, open=False)
                await target.open()
                driver = PsycopgDriver(pool=target)
        else:
            driver = AsyncpgDriver(dsn) if library == "asyncpg" else PsycopgDriver(dsn)
        await driver.open()
        made.append((driver, target))
        return driver

    yield make
    for driver, target in made:
        await driver.close()
        if hasattr(target, "dispose"):
            await target.dispose()
        elif hasattr(target, "terminate"):
            target.terminate()
        elif target is not None:
            await target.close()


async def test_a_statement_of_ours_that_gets_no_answer_ends_and_other_connections_are_made(
    postgres_dsn: str, opened_driver: Any
) -> None:
    async with proxied(postgres_dsn) as (proxy, dsn):
        driver: Driver = await opened_driver(dsn)
        async with driver.connection() as connection:
            await connection.fetch("SELECT 1", {})

        proxy.silence()
        faults: list[Fault | None] = []
        async with asyncio.timeout(20):
            while True:
                try:
                    async with driver.connection() as connection:
                        assert tuple((await connection.fetch("SELECT 2", {}))[0]) == (2,)
                        break
                except Exception as error:  # noqa: BLE001 - a pool may have made more than the one
                    faults.append(driver.fault(error))

    assert faults
    assert set(faults) == {Fault.LOST}


async def test_nor_does_a_transaction_wait_for_ever_for_its_commit(postgres_dsn: str, opened_driver: Any) -> None:
    async with proxied(postgres_dsn) as (proxy, dsn):
        driver: Driver = await opened_driver(dsn)
        with pytest.raises(Exception) as raised:  # noqa: PT011 - each library has its own
            async with asyncio.timeout(8), driver.connection() as connection:
                await connection.begin()
                await connection.query("SELECT 1", {})
                proxy.freeze()
                await connection.commit()
        proxy.thaw()

    assert driver.fault(raised.value) is Fault.LOST


async def test_a_statement_that_waits_for_a_lock_of_somebody_elses_is_not_given_up(
    postgres_dsn: str, opened_driver: Any
) -> None:
    driver: Driver = await opened_driver(postgres_dsn)
    holder = await asyncpg.connect(postgres_dsn)
    await holder.execute("SELECT pg_advisory_lock(31)")

    async def lock() -> None:
        async with driver.connection() as connection:
            await connection.fetch("SELECT pg_advisory_lock(31)::text", {})
            await connection.fetch("SELECT pg_advisory_unlock(31)", {})

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        locking = tasks.create_task(lock())
        await asyncio.sleep(6 * QUICKLY)
        assert not locking.done()
        await holder.execute("SELECT pg_advisory_unlock(31)")
    await holder.close()


@pytest.mark.parametrize("opened_driver", ["asyncpg", "psycopg"], indirect=True)
async def test_a_driver_whose_server_does_not_answer_closes_within_seconds(
    postgres_dsn: str, opened_driver: Any
) -> None:
    async with proxied(postgres_dsn) as (proxy, dsn):
        driver: Driver = await opened_driver(dsn)
        async with driver.connection() as connection:
            await connection.query("SELECT 1", {})
        async with driver.connection() as connection, asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(_quietly(connection.query("SELECT pg_sleep(600)", {})))
            await asyncio.sleep(0.05)
            proxy.freeze()

            began = time.monotonic()
            async with asyncio.timeout(15):
                await driver.close()
            closed = time.monotonic() - began
            asking.cancel()
        proxy.thaw()

    assert closed < 8


async def _quietly(work: Any) -> None:
    try:
        await work
    except Exception:  # noqa: BLE001 - what a user's statement says when it is cut off is not of interest here
        return


async def test_a_sync_client_does_not_wait_for_ever_either(postgres_dsn: str) -> None:
    async with proxied(postgres_dsn) as (proxy, dsn):
        driver = SyncPsycopgDriver(dsn, pool_size=1)

        async def ask() -> Any:
            async with driver.connection() as connection:
                return (await connection.fetch("SELECT 1", {}))[0][0]

        await asyncio.to_thread(run_now, driver.open())
        assert await asyncio.to_thread(run_now, ask()) == 1

        proxy.silence()
        began = time.monotonic()
        with pytest.raises(Exception, match="does not answer") as raised:
            await asyncio.to_thread(run_now, ask())
        waited = time.monotonic() - began
        assert await asyncio.to_thread(run_now, ask()) == 1
        await asyncio.to_thread(run_now, driver.close())

    assert driver.fault(raised.value) is Fault.LOST
    assert waited < 8


async def test_a_sync_client_waits_for_a_lock_of_somebody_elses(postgres_dsn: str) -> None:
    driver = SyncPsycopgDriver(postgres_dsn, pool_size=1)
    holder = await asyncpg.connect(postgres_dsn)
    await holder.execute("SELECT pg_advisory_lock(32)")

    async def lock() -> None:
        async with driver.connection() as connection:
            await connection.fetch("SELECT pg_advisory_lock(32)::text", {})

    await asyncio.to_thread(run_now, driver.open())
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        locking = tasks.create_task(asyncio.to_thread(run_now, lock()))
        await asyncio.sleep(6 * QUICKLY)
        assert not locking.done()
        await holder.execute("SELECT pg_advisory_unlock(32)")
    await asyncio.to_thread(run_now, driver.close())
    await holder.close()


async def test_nor_does_one_on_an_engine(postgres_dsn: str) -> None:
    async with proxied(postgres_dsn) as (proxy, dsn):
        engine = create_engine(
            dsn.replace("://", "+psycopg://", 1), connect_args={"connect_timeout": 2}, max_overflow=0, pool_size=1
        )
        driver = SyncSqlAlchemyDriver(engine)

        async def ask(*, begun: bool) -> Any:
            async with driver.connection() as connection:
                if begun:
                    await connection.begin()
                    await connection.fetch("SELECT 1", {})
                    proxy.silence()
                return (await connection.fetch("SELECT 1", {}))[0][0]

        assert await asyncio.to_thread(run_now, ask(begun=False)) == 1
        proxy.silence()
        for begun in (False, True):
            async with asyncio.timeout(30):
                with pytest.raises(Exception, match="does not answer") as raised:
                    await asyncio.to_thread(run_now, ask(begun=begun))
            assert driver.fault(raised.value) is Fault.LOST
            assert await asyncio.to_thread(run_now, ask(begun=False)) == 1

        await asyncio.to_thread(engine.dispose)
        proxy.freeze()
        async with asyncio.timeout(30):
            with pytest.raises(Exception, match="timeout") as raised:  # as the page on lost connections says
                await asyncio.to_thread(run_now, ask(begun=False))
        proxy.thaw()

    assert driver.fault(raised.value) is Fault.LOST

"""Another server takes over, while the old one stays up and takes no more writes: connections to it are replaced."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from psycopg_pool import AsyncConnectionPool
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

import servers
from onward import Attempt, Onward, job
from onward.observe import events
from proxy import Proxy, proxied
from support import Recorder

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]
KINDS = ["asyncpg", "psycopg", "asyncpg pool", "psycopg pool", "sqlalchemy asyncpg", "sqlalchemy psycopg"]


class Pair:
    """A primary, the standby that follows it, and the one address of both."""

    def __init__(self, old: servers.Instance, new: servers.Instance, proxy: Proxy, dsn: str) -> None:
        self.old, self.new, self.proxy, self.dsn = old, new, proxy, dsn

    async def fail_over(self) -> None:
        """The old one refuses to write and keeps its connections; the new one can, and is where new ones lead."""
        old, new = await asyncpg.connect(self.old.dsn), await asyncpg.connect(self.new.dsn)
        await old.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        await old.execute("SELECT pg_reload_conf()")
        written = await old.fetchval("SELECT pg_current_wal_flush_lsn()::text")
        while not await new.fetchval("SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", written):
            await asyncio.sleep(0.01)
        await new.execute("SELECT pg_promote()")
        self.proxy.lead_to(self.new.dsn)
        await old.close()
        await new.close()

    async def sessions_on_the_old_one(self) -> int:
        old = await asyncpg.connect(self.old.dsn)
        try:
            count: int = await old.fetchval(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
        finally:
            await old.close()
        return count


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    with servers.private_postgres() as old, servers.standby_of(old) as new:
        async with proxied(old.dsn) as (proxy, dsn):
            yield Pair(old, new, proxy, dsn)


async def target(kind: str, dsn: str, stack: AsyncExitStack) -> Any:
    library, _, rest = kind.partition(" ")
    if rest == "pool":
        if library == "asyncpg":
            return await stack.enter_async_context(asyncpg.create_pool(dsn, min_size=4, max_size=8))
        pool: Any = AsyncConnectionPool(dsn, min_size=4, max_size=8, open=False)
        return await stack.enter_async_context(pool)
    if library == "sqlalchemy":
        engine = create_async_engine(dsn.replace("postgresql://", f"postgresql+{rest}://"), pool_size=8)
        stack.push_async_callback(engine.dispose)
        return async_sessionmaker(engine)
    return dsn.replace("postgresql://", f"postgresql+{library}://")


@pytest.mark.parametrize("kind", KINDS)
async def test_the_first_job_is_settled_soon_after_another_server_took_over(
    pair: Pair, kind: str, say: Callable[[str], None]
) -> None:
    took_over = asyncio.Event()
    recorder = Recorder()

    @job("settled", lease=timedelta(seconds=10))
    async def settled(attempt: Attempt[int]) -> float:
        await took_over.wait()
        async with attempt.complete():
            return time.monotonic()

    async with AsyncExitStack() as stack:
        app = Onward(await target(kind, pair.dsn, stack), jobs=[settled], migrate=True, observers=[recorder])
        await stack.enter_async_context(app)
        await stack.enter_async_context(app.worker(concurrency=10, poll=timedelta(seconds=1)))
        async with asyncio.TaskGroup() as tasks:  # several connections, all idle in the pool when the server changes
            barrier = asyncio.Barrier(4)
            for _ in range(4):
                tasks.create_task(_use(app, barrier))
        chains = await app.start_many([settled.with_input(n) for n in range(10)])
        await recorder.next(events.AttemptStarted, count=10)

        await pair.fail_over()
        moved = time.monotonic()
        took_over.set()
        while len(chains) < 20:
            try:
                chains.append(await app.start(settled, len(chains)))
            except Exception as error:  # noqa: BLE001 - the application tries again
                fault = app.driver.fault(error)
                assert fault is not None
                assert fault.is_transient
        ends = [await chain.wait(timeout=timedelta(seconds=20)) for chain in chains]

        left = await pair.sessions_on_the_old_one()
        say(f"{kind}: the first after {min(ends) - moved:.2f} s, the last after {max(ends) - moved:.2f} s")
        say(f"attempts that failed: {len(recorder.of(events.AttemptFailed))}; left on the old server: {left}")
        assert min(ends) - moved < 5
        assert max(ends) - moved < 10
        assert [chain.failures for chain in (await app.jobs(limit=100)).items] == [0] * 20


async def _use(app: Onward, barrier: asyncio.Barrier) -> None:
    async with app.transaction():
        await barrier.wait()

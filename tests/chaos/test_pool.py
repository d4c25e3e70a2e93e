"""A pool that handlers have used up: taking, settling and renewing do not need it."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from chaos.conftest import trace
from onward import Onward
from onward.observe import events
from programs.under_chaos import LEASE, occupy
from support import Recorder

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]


@pytest.mark.parametrize("library", ["asyncpg", "psycopg"])
async def test_fifty_handlers_that_share_two_connections_lose_no_lease(
    postgres_dsn: str, open_app: Any, scale: Callable[[int], int], library: str
) -> None:
    recorder = Recorder()
    address = postgres_dsn.replace("postgresql://", f"postgresql+{library}://")
    client: Onward = await open_app(postgres_dsn)
    app: Onward = await open_app(address, pool_size=2, observers=[recorder])
    async with client.transaction() as tx:
        await tx.execute("DELETE FROM trace")
    longer = LEASE.total_seconds() * 1.25

    async with app.worker(concurrency=50):
        chains = await client.start_many([occupy.with_input(longer) for _ in range(max(scale(50), 8))])
        outputs = [await chain.wait(timeout=timedelta(seconds=250)) for chain in chains]

    troubles = [*recorder.of(events.LeaseLost), *recorder.of(events.JobReaped), *recorder.of(events.AttemptFailed)]
    assert not troubles
    assert set(outputs) == {1}
    assert await trace(client) == Counter({(str(chain.id), 1): 1 for chain in chains})

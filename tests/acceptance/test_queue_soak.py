"""Many jobs, and what is left of them: nothing grows for ever, with the options nobody gave."""

from collections.abc import Callable

import pytest

from onward.queue.model import KEEP_COMPLETED, KEEP_FAILED
from programs import queue_soak

SERVERS = {
    "memory": None,
    "redis": "redis_url",
    "bullmq": "redis_url",
    "sqlite": "sqlite_address",
    "postgres": "postgres_dsn",
}
"""Which fixture has the address of a provider's server."""
FACTS = {"redis": 8, "bullmq": 3}
"""The most entries that a job has beside others; BullMQ's stream of events has up to 10,000 and some more."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", SERVERS)
async def test_what_has_finished_is_kept_in_bounded_number(
    kind: str, request: pytest.FixtureRequest, scale: Callable[[int], int]
) -> None:
    fixture = SERVERS[kind]
    address = "" if fixture is None else request.getfixturevalue(fixture)

    left = await queue_soak.soak(f"{kind}+{address}", scale(20_000))

    kept = left["completed"] + left["failed"]
    assert left["completed"] == KEEP_COMPLETED.count
    assert left["failed"] <= KEEP_FAILED.count
    assert left["on the server"] <= FACTS.get(kind, 0) * kept + 12_000

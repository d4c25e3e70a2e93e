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

ALL_JOBS, FEW_JOBS, FEW_KEPT = 20_000, 120, 30
"""All jobs with what is kept by default; or few, of which fewer are kept."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", SERVERS)
async def test_what_has_finished_is_kept_in_bounded_number(
    kind: str, request: pytest.FixtureRequest, scale: Callable[[int], int]
) -> None:
    fixture = SERVERS[kind]
    address = "" if fixture is None else request.getfixturevalue(fixture)

    jobs = scale(ALL_JOBS)
    if jobs < ALL_JOBS:
        left = await queue_soak.soak(f"{kind}+{address}", FEW_JOBS, FEW_KEPT)
        most = FEW_KEPT, FEW_KEPT
    else:
        left = await queue_soak.soak(f"{kind}+{address}", jobs)
        most = KEEP_COMPLETED.count, KEEP_FAILED.count

    kept = left["completed"] + left["failed"]
    assert left["completed"] == most[0]
    assert left["failed"] <= most[1]
    assert left["on the server"] <= FACTS.get(kind, 0) * kept + 12_000

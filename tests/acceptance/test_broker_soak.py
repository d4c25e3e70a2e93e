"""Many jobs at a broker, and what is left of them: nothing grows for ever, with the options nobody gave."""

from collections.abc import Callable

import pytest

from onward.queue.model import KEEP_COMPLETED
from programs import broker_soak

SERVERS = {"nats": "nats_url", "rabbitmq": "rabbitmq_url", "rabbitmq-classic": "rabbitmq_url", "sqs": "sqs_url"}
"""Which fixture has the address of a provider's server."""
SLOW = {"sqs": 20}
"""How many times fewer jobs for a server that only plays its part."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", SERVERS)
async def test_what_has_finished_is_kept_in_bounded_number(
    kind: str, request: pytest.FixtureRequest, scale: Callable[[int], int]
) -> None:
    count = scale(20_000) // SLOW.get(kind, 1)

    left = await broker_soak.soak(f"{kind}+{request.getfixturevalue(SERVERS[kind])}", count)

    completed = KEEP_COMPLETED.count if kind == "nats" else 0  # the others keep nothing of what completed
    assert (left["completed"], left["failed"]) == (min(completed, count * 19 // 20), count // 20)
    assert left["on the server"] == left["completed"] + left["failed"]

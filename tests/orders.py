"""Job types of a small shop, for tests of commands."""

from typing import Any

from onward import Attempt, JobType, job

charge = JobType("orders.charge", input=dict[str, int], output=dict[str, str])
report = JobType("report", input=int, output=int, blocked_by=[charge])


@job("orders.ship", internal=True)
async def ship(attempt: Attempt[str]) -> dict[str, str]:
    return {"tracking": attempt.input}


def jobs() -> list[Any]:
    """Types as they are declared by whoever only starts them; with a step, so that chains can go on."""
    entry = JobType("orders.charge", input=dict[str, int], output=dict[str, str], continues_to=[ship])
    return [entry, report, ship]

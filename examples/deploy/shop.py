"""The application of the deploy examples: one job type, on the database that DATABASE_URL names."""

import os

from onward import Attempt, Onward, job


@job("orders.ship")
async def ship(attempt: Attempt[int]) -> str:
    return f"parcel-{attempt.input}"


app = Onward(os.environ["DATABASE_URL"], jobs=[ship])

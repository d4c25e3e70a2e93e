"""Counting primes in processes, while the event loop of the worker stays free.

Run it: python examples/cpu_bound.py
It prints:
    9592 primes below 100000
    in processes of their own: True
"""

import asyncio
import os
from dataclasses import dataclass
from datetime import timedelta

from onward import Attempt, Onward, job


@dataclass
class Range:
    first: int
    last: int


@dataclass
class Counted:
    primes: int
    process: int


@job("primes.count", executor="process", timeout=timedelta(seconds=30))
def count(attempt: Attempt[Range]) -> Counted:
    numbers = range(max(attempt.input.first, 2), attempt.input.last)
    return Counted(sum(map(is_prime, numbers)), os.getpid())


def is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, int(number**0.5) + 1))


async def main() -> None:
    app = Onward("memory://", jobs=[count])
    async with app, app.worker(concurrency=2):
        ranges = [Range(first, first + 25_000) for first in range(0, 100_000, 25_000)]
        chains = await app.start_many([count.with_input(part) for part in ranges])
        results = [await chain.wait(timeout=timedelta(seconds=60)) for chain in chains]
    print(sum(result.primes for result in results), "primes below 100000")
    print("in processes of their own:", os.getpid() not in {result.process for result in results})


if __name__ == "__main__":  # needed: the processes import this file to find the handler
    asyncio.run(main())

"""Several queues behind one worker: who gets how much."""

from collections import Counter
from datetime import timedelta

import pytest

from onward.queue import Memory, Queue
from onward.queue.several import Several


@pytest.mark.parametrize(
    ("waiting", "weights", "count", "shares"),
    [
        ((20, 20), (3, 1), 8, (6, 2)),
        ((20, 20), (1, 1), 8, (4, 4)),
        ((20, 1), (1, 3), 8, (7, 1)),  # what one leaves the other has
        ((20, 0), (1, 9), 8, (8, 0)),
    ],
)
async def test_each_queue_gets_its_share_and_what_others_leave(
    waiting: tuple[int, int], weights: tuple[int, int], count: int, shares: tuple[int, int]
) -> None:
    memory, names = Memory(), ("urgent", "other")
    providers = {name: memory.for_queue(name) for name in names}
    for name, number in zip(names, waiting, strict=True):
        await providers[name].connect()
        async with Queue[int](name, provider=memory) as queue:
            await queue.add_many("n", range(number))

    jobs = await Several(providers, dict(zip(names, weights, strict=True))).fetch(count, timedelta())

    taken = Counter(job.queue_name for job in jobs)
    assert tuple(taken[name] for name in names) == shares
    for provider in providers.values():
        await provider.disconnect()

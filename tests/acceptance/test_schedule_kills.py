"""Workers with schedules whose clocks are apart, and who are killed at random: every tick has started one chain."""

import asyncio
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from programs.scheduled import make_app

SECONDS = float(os.environ.get("ONWARD_SCHEDULE_SECONDS", "20"))
SCHEDULES, SECOND = 20, timedelta(seconds=1)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS * 2 + 120)
async def test_every_tick_is_started_once_whoever_is_killed_and_whatever_their_clocks_say(
    target: str,
    schema: str,
    launch: Callable[..., subprocess.Popen[bytes]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The clock of a file is that of whoever writes it: there, what the fastest holds for due is due.
    apart = 3600 if target.startswith("postgres") else 10
    chance = random.Random(1)
    async with make_app(target, schema, SCHEDULES) as app:

        def worker(place: int) -> subprocess.Popen[bytes]:
            return launch("scheduled", SCHEDULES, (0, apart, -apart, apart // 2)[place])

        workers = [worker(place) for place in range(4)]
        loop = asyncio.get_running_loop()
        kills, end = 0, loop.time() + SECONDS
        while loop.time() < end:
            await asyncio.sleep(chance.uniform(0.2, 1.5))
            place = chance.randrange(4)
            workers[place].kill()
            kills, workers[place] = kills + 1, worker(place)
        await asyncio.sleep(8)  # what a worker held that was killed is done by those that live
        now = datetime.now(UTC)
        stored = await app.schedules.list()
        started = Counter([job.input async for job in app.jobs(limit=1000)])

    with capsys.disabled():
        sys.stderr.write(f"\n  {kills} kills, {started.total()} ticks started, {len(started)} different\n")
    assert len(stored) == SCHEDULES
    assert kills >= SECONDS / 3
    assert [again for again, times in started.items() if times > 1] == []
    for n in range(SCHEDULES):
        ticks = sorted(datetime.fromisoformat(text.split()[1]) for text in started if text.split()[0] == str(n))
        assert {later - earlier for earlier, later in pairwise(ticks)} == {SECOND}
        assert len(ticks) >= SECONDS
        assert now - ticks[-1] < 5 * SECOND

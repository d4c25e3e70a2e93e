"""Limits at full size: workers are killed, jobs cancelled and retried, figures changed, and the ledger is right."""

import asyncio
import random
import statistics
import subprocess
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onward import Onward
from onward.errors import RetryRefused
from programs.limited import Work, make_app, paced, work

Launch = Callable[..., subprocess.Popen[bytes]]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


class Crew:
    """Workers in processes of their own, some of which are killed."""

    def __init__(self, launch: Launch, folder: Path, *, size: int, concurrency: int) -> None:
        self._launch, self._folder, self._concurrency = launch, folder, concurrency
        self._running = {self._new(n): n for n in range(size)}
        self._count = size
        self.killed: dict[int, float] = {}

    def _new(self, number: int) -> subprocess.Popen[bytes]:
        return self._launch("limited", self._folder / str(number), self._concurrency)

    def kill_one(self) -> None:
        process = random.choice(list(self._running))
        number = self._running.pop(process)
        self.killed[number] = time.monotonic()
        process.kill()
        process.wait()
        self._running[self._new(self._count)] = self._count
        self._count += 1

    def stop(self) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.wait()

    def most_at_a_time(self) -> dict[str, int]:
        """By key; what a killed process had begun ended with it."""
        changes = defaultdict[str, list[tuple[float, int]]](list)
        for file in self._folder.iterdir():
            runs = dict[str, str]()
            for line in file.read_text().splitlines():
                what, run, key, at = line.split()
                changes[key].append((float(at), 1 if what == "began" else -1))
                if what == "began":
                    runs[run] = key
                else:
                    runs.pop(run)
            for key in runs.values():
                changes[key].append((self.killed[int(file.name)], -1))
        most = dict[str, int]()
        for key, moments in changes.items():
            now = most[key] = 0
            for _, change in sorted(moments):
                now += change
                most[key] = max(most[key], now)
        return most


async def ended(app: Onward, *, meanwhile: Callable[[], Any], stalled_after: float = 120.0) -> None:
    """Until nothing is left to do; as long as something happens there is hope."""
    state, before, since = app.state, None, time.monotonic()
    while True:
        counts = (await app.store.read(state.count_jobs(["work"])))["work"]
        if not (counts.pending or counts.scheduled or counts.running):
            return
        if counts != before:
            before, since = counts, time.monotonic()
        assert time.monotonic() - since < stalled_after, f"stranded: {counts}"
        await meanwhile()


def deadlocks(target: str) -> int:
    """How many the server has had to end in this database."""
    if not target.startswith("postgres"):
        return 0
    with psycopg.connect(target) as connection:
        found = connection.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert found is not None
    return int(found[0])


@pytest.mark.parametrize("keys", [1, 50, 5000])
async def test_no_key_ever_has_more_than_its_places(
    target: str, schema: str, launch: Launch, tmp_path: Path, keys: int, scale: Callable[[int], int]
) -> None:
    count, deadlocks_before = scale(100_000), deadlocks(target)
    (ledger := tmp_path / "ledger").mkdir()
    async with make_app(target, schema) as app:
        chains = []
        for start in range(0, count, 1000):
            many = [work.with_input(Work(f"k{n % keys}", n)) for n in range(start, min(start + 1000, count))]
            chains += await app.start_many(many)
        crew = Crew(launch, ledger, size=3, concurrency=20)

        async def trouble() -> None:
            await asyncio.sleep(random.uniform(0.5, 1.5))
            match random.randrange(4):
                case 0:
                    crew.kill_one()
                case 1:
                    await app.cancel(*random.sample(chains, min(20, count)))
                case 2:
                    await app.limits.change("tenant", concurrency=random.choice([1, 2, 3]))
                case _:
                    failed = await app.chains(status="failed", limit=20)
                    with suppress(RetryRefused):  # one of them has just been cancelled, or is back
                        await app.retry(*[chain.id for chain in failed.items])

        await ended(app, meanwhile=trouble)
        uses = await app.limits.keys("tenant")
        crew.stop()
        statuses = Counter([chain.status async for chain in app.chains(limit=1000)])

    most = crew.most_at_a_time()
    assert max(most.values()) <= 3
    assert len(most) >= 0.9 * min(keys, count)
    assert (len(uses), sum(statuses.values())) == (0, count)
    assert set(statuses) <= {"completed", "failed"}
    assert deadlocks(target) == deadlocks_before


async def test_a_rate_is_kept_over_any_span_also_after_a_time_without_workers(
    target: str, schema: str, launch: Launch, tmp_path: Path
) -> None:
    (ledger := tmp_path / "ledger").mkdir()
    async with make_app(target, schema) as app:
        await app.start_many([paced.with_input(n) for n in range(6000)])
        crew = Crew(launch, ledger, size=2, concurrency=20)
        await asyncio.sleep(10)
        crew.stop()
        await asyncio.sleep(60)
        crew = Crew(launch, ledger, size=2, concurrency=20)
        await asyncio.sleep(12)
        crew.stop()
        admitted = sorted([job.scheduled_at async for job in app.jobs(types=[paced], status="completed", limit=1000)])

    began = sorted(float(line.split()[3]) for file in ledger.iterdir() for line in file.read_text().splitlines())
    assert most_within(began, 0.1) <= 10 + 20 + 10, "starts, as handlers saw them; their loop has its own delays"
    times = [moment.timestamp() for moment in admitted]
    assert most_within(times, 0.1) <= 10 + 20
    assert most_within(times, 1.0) <= 10 + 200
    pause = max(range(1, len(times)), key=lambda n: times[n] - times[n - 1])
    for part in (times[:pause], times[pause:]):  # what a busy machine misses for longer than the burst lasts is lost
        assert 150 < (len(part) - 10) / (part[-1] - part[0]) <= 204
        # On a quiet machine every second of a backlog has 199 to 201; here, half of them within 2 %.
        seconds = [within(part, moment, 1.0) for moment in part if part[0] + 1 <= moment <= part[-1] - 1]
        assert 196 <= statistics.median(seconds) <= 204


def within(times: list[float], since: float, span: float) -> int:
    return bisect_left(times, since + span) - bisect_left(times, since)


def most_within(times: list[float], span: float) -> int:
    """How many at most lie within any span of so many seconds."""
    most = first = 0
    for last, moment in enumerate(times):
        while times[first] <= moment - span:
            first += 1
        most = max(most, last - first + 1)
    return most


async def test_a_tenant_with_many_waiting_jobs_delays_no_other(
    target: str, schema: str, launch: Launch, tmp_path: Path, scale: Callable[[int], int]
) -> None:
    (ledger := tmp_path / "ledger").mkdir()
    async with make_app(target, schema) as app:
        for _ in range(scale(500_000) // 1000):
            await app.start_many([work.with_input(Work("big")) for _ in range(1000)])
        crew = Crew(launch, ledger, size=2, concurrency=20)
        await asyncio.sleep(3)
        began = time.monotonic()
        small = await app.start_many([work.with_input(Work(f"small{n}")) for n in range(1000)])
        for chain in small:
            await chain.wait(timeout=timedelta(minutes=5))
        took = time.monotonic() - began
        alone = time.monotonic()
        for chain in await app.start_many([work.with_input(Work(f"small{n}")) for n in range(1000)]):
            await chain.wait(timeout=timedelta(minutes=5))
        crew.stop()
        left = (await app.store.read(app.state.count_jobs(["work"])))["work"]

    assert left.pending > 0, "the many are still waiting"
    assert took < 3 * (time.monotonic() - alone) + 5

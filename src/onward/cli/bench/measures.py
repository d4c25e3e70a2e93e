"""What is measured: starting, running and the time in between, with jobs that do nothing."""

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from onward.cli.bench.tables import PREFIX, SCHEMA
from onward.client.app import Onward
from onward.define.attempt import Attempt
from onward.define.job_type import JobType, job

AT_ONCE = 1_000
"""Jobs in one call of `start_many`."""
_SECONDS_OF_ONE_BY_ONE = 3.0
LATENCIES = 200
"""How many starts are followed to their handlers."""
_GAP = 0.01


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the result."""

    words: str
    number: float
    unit: str = "/s"

    @property
    def value(self) -> str:
        return f"{self.number:,.0f} {self.unit}" if self.unit == "/s" else f"{self.number:.2f} {self.unit}"


Progress = Callable[[int], None]
"""Told now and then how many jobs a measure has dealt with so far."""


class Bench:
    """Two apps on one database, as a web process and its worker have them: what one starts, the other runs."""

    def __init__(self, url: str, *, count: int, concurrency: int) -> None:
        self.count, self._concurrency = count, concurrency
        self._started_at: dict[int, float] = {}
        self.expected = 0
        """How many jobs are to run."""
        self._all_started = asyncio.Event()
        self._job = self._make_job()
        self.app = self._make_app(url)
        self._worker_app = self._make_app(url)

    def _make_job(self) -> JobType[int, None]:
        @job("bench")
        async def note(attempt: Attempt[int]) -> None:
            self._started_at[attempt.input] = time.perf_counter()
            if len(self._started_at) == self.expected:
                self._all_started.set()

        return note

    def _make_app(self, url: str) -> Onward:
        return Onward(url, jobs=[self._job], schema=SCHEMA, prefix=PREFIX, migrate=False, observers=[])

    async def start_one_by_one(self, progress: Progress) -> Figure:
        """Each awaited before the next; `count` of them, or as many as go into three seconds."""
        began = time.perf_counter()
        while self.expected < self.count and (seconds := time.perf_counter() - began) < _SECONDS_OF_ONE_BY_ONE:
            await self.app.start(self._job, self.expected)
            self.expected += 1
            if self.expected % 100 == 0:
                progress(round(self.count * seconds / _SECONDS_OF_ONE_BY_ONE))
        seconds = time.perf_counter() - began
        progress(self.count)
        return Figure("start, one by one", self.expected / seconds)

    async def start_many(self, progress: Progress) -> Figure:
        """A thousand per transaction."""
        began, first = time.perf_counter(), self.expected
        for lowest in range(first, first + self.count, AT_ONCE):
            numbers = range(lowest, min(lowest + AT_ONCE, first + self.count))
            await self.app.start_many([self._job.with_input(number) for number in numbers])
            progress(numbers.stop - first)
        self.expected += self.count
        words = f"start, {min(AT_ONCE, self.count):,} at a time"
        return Figure(words, self.count / (time.perf_counter() - began))

    async def drain(self, progress: Progress) -> Figure:
        """Everything started so far, by one worker; until the last outcome is committed."""
        async with self._worker_app, asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(self._tell(progress))
            async with self._worker_app.worker(concurrency=self._concurrency):
                await self._all_started.wait()
            settled = time.perf_counter()  # a worker that has stopped has settled everything
            telling.cancel()
        progress(self.expected)
        seconds = settled - min(self._started_at.values())
        return Figure(f"run and settle, {self._concurrency} at a time", self.expected / seconds)

    async def _tell(self, progress: Progress) -> None:
        while True:
            await asyncio.sleep(0.1)
            progress(len(self._started_at))

    async def latency(self, progress: Progress) -> list[Figure]:
        """From the return of `start` to the first line of the handler, with a worker that has nothing else to do."""
        returned: dict[int, float] = {}
        self._all_started.clear()
        self._started_at.clear()
        self.expected = LATENCIES
        async with self._worker_app, self._worker_app.worker(concurrency=self._concurrency):
            for number in range(LATENCIES):
                await asyncio.sleep(_GAP)
                await self.app.start(self._job, number)
                returned[number] = time.perf_counter()
                progress(number + 1)
            await self._all_started.wait()
        # The handler may begin before the caller hears that its transaction has committed.
        waits = [max(0.0, self._started_at[number] - at) for number, at in returned.items()]
        hundredths = statistics.quantiles(waits, n=100, method="inclusive")
        return [Figure(f"from start to handler, p{p}", hundredths[p - 1] * 1e3, "ms") for p in (50, 99)]

"""`app.stats()` beside very many jobs: how long it takes, at first and again, and how far it counts in that time.

`python -m benchmarks.stats postgresql://… [--jobs 10000000] [--types 37] [--pending 2]`, or with `sqlite:///new.db`: of
every hundred jobs so many are pending, three are blocked, scheduled, running or failed, and the others are completed.
They are looked at as they were written, and vacuumed. On Postgres it works in a schema of its own, which it removes in
the end: best on a server without autovacuum, which would vacuum meanwhile.
"""

import argparse
import asyncio
import sqlite3
import statistics
import time
from collections.abc import Iterator
from typing import Any

import asyncpg

from onward import Onward
from onward.client.stats import MOST, WITHIN
from onward.state.command import Operation

SCHEMA = "onward_stats_bench"
AT_ONCE, RUNS = 500_000, 15
MADE = {
    "postgres": """
SELECT n, now() - ({jobs} - n) * interval '1 ms' AS at, now() + interval '1 day' AS later,
  (lpad(to_hex({now} - {jobs} + n), 12, '0') || '70008' || lpad(to_hex(n), 15, '0'))::uuid AS id
FROM generate_series({first}::bigint, {last}) AS n""",
    "sqlite": """
SELECT n, at, at + 86400000000 AS later,
  substr(time, 1, 8) || '-' || substr(time, 9) || printf('-7000-8000-%012x', n) AS id
FROM (SELECT n, ({now} - {jobs} + n) * 1000 AS at, printf('%012x', {now} - {jobs} + n) AS time
  FROM (WITH RECURSIVE s(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM s WHERE n < {last}) SELECT n FROM s))""",
}
LOAD = """
INSERT INTO {table} (id, chain_id, chain_index, type_name, payload_version, status, rank, deferred, input, created_at,
  scheduled_at, root_id, attempt, leased_by, leased_until, ended_at, chain_ended_at, failure_reason)
SELECT id, id, 0, 'type-' || (n % {types}), 1, CASE place WHEN 'scheduled' THEN 'pending' ELSE place END, n % 3,
  place = 'scheduled', '{{"note": "{note}"}}', at, CASE place WHEN 'scheduled' THEN later ELSE at END, id,
  CASE WHEN place IN ('running', 'completed', 'failed') THEN 1 ELSE 0 END,
  CASE place WHEN 'running' THEN 'worker-1' END, CASE place WHEN 'running' THEN later END,
  CASE WHEN place IN ('completed', 'failed') THEN at END,
  CASE WHEN place IN ('completed', 'failed') THEN at END, CASE place WHEN 'failed' THEN 'permanent' END
FROM (SELECT n, at, later, id,
    CASE WHEN n * 7919 % 1000 < {pending} * 10 THEN 'pending' WHEN n * 7919 % 1000 < 970 THEN 'completed'
      WHEN n / 1000 % 10 < 2 THEN 'blocked' WHEN n / 1000 % 10 < 4 THEN 'scheduled'
      WHEN n / 1000 % 10 < 5 THEN 'running' ELSE 'failed' END AS place
  FROM ({made}) AS made) AS placed
"""
FIGURES = """
INSERT INTO {table} (minute, type_name, writer, started, completed, failed, waits, runs)
SELECT {minute} - ago, 'type-' || (n % {types}), '', 100, 99, 1, times, times FROM (
  SELECT n, n / {types} AS ago,
    CASE WHEN n / {types} < 3 OR ({minute} - n / {types}) % 10 = 0 THEN '{histogram}' ELSE '{{}}' END AS times
  FROM ({made}) AS made) AS counted
"""
HISTOGRAM = "{" + ", ".join(f'"{bucket}": 5' for bucket in range(-40, -20)) + "}"


class Place:
    """Where the jobs are."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.dialect = options.url.partition(":")[0].replace("postgresql", "postgres")
        self.is_postgres = self.dialect == "postgres"
        place: dict[str, Any] = {"schema": SCHEMA, "migrate": True} if self.is_postgres else {}
        self.app = Onward(options.url, jobs=[], observers=[], **place)

    async def execute(self, *statements: str) -> None:
        """On a connection of its own."""
        if self.is_postgres:
            connection = await asyncpg.connect(self.options.url)
            for statement in statements:
                await connection.execute(statement, timeout=600)
            await connection.close()
            return
        with sqlite3.connect(self.options.url.removeprefix("sqlite:///"), isolation_level=None) as file:
            file.execute("PRAGMA synchronous = off")
            for statement in statements:
                file.execute(statement)

    def load(self) -> Iterator[str]:
        """The statements that store everything."""
        jobs, types = self.options.jobs, self.options.types
        place, now = f"{SCHEMA}." if self.is_postgres else "onward_", int(time.time() * 1000)

        def made(first: int, last: int) -> str:
            return MADE[self.dialect].format(first=first, last=last, jobs=jobs, now=now)

        if self.is_postgres:
            yield f"ALTER TABLE {place}job SET UNLOGGED"
        for first in range(1, jobs + 1, AT_ONCE):
            some = made(first, min(first + AT_ONCE - 1, jobs))
            yield LOAD.format(table=f"{place}job", made=some, types=types, pending=self.options.pending, note="x" * 100)
        yield FIGURES.format(
            table=f"{place}figure", made=made(0, 60 * types - 1), types=types, minute=now // 60_000, histogram=HISTOGRAM
        )

    async def timed(self, look: Operation[Any]) -> float:
        """Milliseconds."""
        async with self.app.driver.connection() as connection:
            began = time.perf_counter()
            await connection.run(look)
            return (time.perf_counter() - began) * 1000

    async def measure(self, what: str) -> None:
        """Of `app.stats()` and of what it consists of."""
        taken: list[float] = []
        for _ in range(RUNS):
            began = time.perf_counter()
            stats = await self.app.stats()
            taken.append((time.perf_counter() - began) * 1000)
        figures = self.app.state.figures
        survey = [await self.timed(figures.survey(most=MOST, within=WITHIN)) for _ in range(RUNS)]
        read = [await self.timed(figures.read(first=int(stats.at.timestamp() // 60) - 59)) for _ in range(RUNS)]
        print(
            f"{what}: first {taken[0]:.0f} ms, median {statistics.median(taken[1:]):.1f}, worst {max(taken[1:]):.1f}; "
            f"of which the survey {statistics.median(survey):.1f} and the figures {statistics.median(read):.1f}; "
            f"{len(stats.types)} types, counted up to {stats.more_than:,}, {stats.total.pending:,} or more pending",
            flush=True,
        )


async def main(options: argparse.Namespace) -> None:
    place = Place(options)
    async with place.app:
        try:
            began = time.monotonic()
            for statement in place.load():
                await place.execute(statement)
            print(f"{options.jobs:,} jobs in {time.monotonic() - began:.0f} s", flush=True)
            await place.measure("as written")
            await place.execute(*([f"VACUUM ANALYZE {SCHEMA}.job"] if place.is_postgres else ["ANALYZE"]))
            await place.measure("vacuumed" if place.is_postgres else "analysed")
        finally:
            if place.is_postgres:
                await place.execute(f"DROP SCHEMA {SCHEMA} CASCADE")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stats", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--jobs", type=int, default=10_000_000)
    parser.add_argument("--types", type=int, default=37)
    parser.add_argument("--pending", type=int, default=2, metavar="PERCENT")
    asyncio.run(main(parser.parse_args()))

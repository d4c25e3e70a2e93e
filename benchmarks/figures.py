"""What the figures of `app.stats()` cost: processor time of worker and database, with and without them.

`python -m benchmarks.figures`, on a private Postgres. One process drains the same number of jobs with figures, twice
without, and with them again: a pair of sums, of which neither comes first. Time is user and system time of this process
and of every process of the server. Figures are put out here alone: by workers that count nothing, and a chore that
never looks. Each drain writes them at its end, however short: it tells of more than a worker that goes on.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import psycopg
import uvloop

from benchmarks.observers import BATCH, CONCURRENCY, ROOT, SETTINGS, TABLE, WARM_UP, empty, write
from onward import Onward
from onward.worker.figures import Figures, TendFigures

TICKS = os.sysconf("SC_CLK_TCK")
"""In which /proc counts a second."""


class Used(NamedTuple):
    """Seconds of processor time."""

    worker: float
    database: float

    @property
    def both(self) -> float:
        return self.worker + self.database

    def plus(self, other: "Used") -> "Used":
        return Used(self.worker + other.worker, self.database + other.database)


def used(postmaster: int) -> Used:
    while True:
        try:
            return Used(time.process_time(), sum(_ticks(postmaster)) / TICKS)
        except FileNotFoundError:
            continue  # one has ended in between: the first has it by now


def _ticks(postmaster: int) -> Iterator[int]:
    """Of each process of a server; of its first also what those used that have ended."""
    yield sum(map(int, _stat(postmaster)[11:15]))
    for tasks in Path(f"/proc/{postmaster}/task").glob("*/children"):
        for child in map(int, tasks.read_text().split()):
            yield sum(map(int, _stat(child)[11:13]))


def _stat(pid: int) -> list[str]:
    """From the third field on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


@contextmanager
def without_figures() -> Iterator[None]:
    async def never(self: TendFigures, reserved: Any) -> float:
        return 3_600.0

    with patch.object(Figures, "count", lambda *_: None), patch.object(TendFigures, "look", never):
        yield


async def measure(url: str, work: str, pairs: int, count: int) -> list[tuple[Used, Used]]:
    step = {"empty": empty, "write": write}[work]
    app = Onward(url, jobs=[step], migrate=True, observers=[])
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLE)
        postmaster = int(_stat(connection.info.backend_pid)[1])

        async def drain(count: int) -> Used:
            for lowest in range(0, count, BATCH):
                await app.start_many([step.with_input(n) for n in range(lowest, min(count, lowest + BATCH))])
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")
            before = used(postmaster)
            await app.worker(concurrency=CONCURRENCY, burst=True).run()
            after = used(postmaster)
            return Used(after.worker - before.worker, after.database - before.database)

        async def plain(count: int) -> Used:
            with without_figures():
                return await drain(count)

        found: list[tuple[Used, Used]] = []
        async with app:
            await drain(WARM_UP)
            for number in range(pairs):
                on, off, off_again = await drain(count), await plain(count), await plain(count)
                found.append((on.plus(await drain(count)), off.plus(off_again)))
                told = " ".join(f"{name} {ratio:.3f}" for name, ratio in _ratios(*found[-1]).items())
                print(f"pair {number + 1}: {told}", file=sys.stderr, flush=True)
    return found


def _ratios(on: Used, off: Used) -> dict[str, float]:
    return {name: getattr(on, name) / getattr(off, name) for name in ("worker", "database", "both")}


def show(work: str, found: list[tuple[Used, Used]], count: int) -> None:
    print(f"{work}: with figures ÷ without, {len(found)} pairs of twice {count} jobs")
    print(f"{'':10}{'µs a job':>9} {'median':>7} {'quartiles':>14} {'least–most':>14} {'of the sums':>12}")
    for name in ("worker", "database", "both"):
        ratios = sorted(_ratios(*pair)[name] for pair in found)
        low, _, high = statistics.quantiles(ratios, n=4)
        ons, offs = (sum(getattr(pair[side], name) for pair in found) for side in (0, 1))
        print(
            f"{name:10}{offs / len(found) / 2 / count * 1e6:9.1f} {statistics.median(ratios):7.3f}"
            f" {low:7.3f}–{high:.3f} {ratios[0]:7.3f}–{ratios[-1]:.3f} {ons / offs:12.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__)
    parser.add_argument("--work", choices=("empty", "write"), default="empty")
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--jobs", type=int, default=8_000)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    import servers  # type: ignore[import-not-found,unused-ignore]

    with servers.private_postgres(**SETTINGS, autovacuum="off") as postgres:
        found = uvloop.run(measure(postgres.dsn, options.work, options.pairs, options.jobs))
    show(options.work, found, options.jobs)


if __name__ == "__main__":
    main()

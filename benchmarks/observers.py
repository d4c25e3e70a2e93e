"""What observers cost: how fast jobs are drained with each of them, and the worker's processor time, beside none.

`python -m benchmarks.observers`, on a private Postgres: every round has each case once, in a process of its own, in
every other round backwards. Jobs do nothing, or write a row in the phase's transaction; or there are none, and
observers are told of attempts all the same (`--work none`): look at that on a busy machine. Each carries a trace of its
own. The log goes to a file as the command line writes it, spans through the SDK's batches to an exporter that drops
them, figures to a reader that asks every second. `--against` measures another checkout in between.
"""

import argparse
import json
import logging
import os
import random
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import uvloop
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from onward import Attempt, LogObserver, Onward, job
from onward.cli.console import set_up_logging
from onward.observe import events
from onward.observe.logs import LINE
from onward.observe.observer import Observers
from onward.observe.otel import OpenTelemetryObserver
from onward.observe.prometheus import PrometheusObserver

ROOT = Path(__file__).parent.parent
SAMPLED = {"unsampled": 0.0, "spans-1%": 0.01, "spans-10%": 0.1, "all-1%": 0.01, "all-10%": 0.1, "lean": 0.01}
"""The share of traces that are, where it is not all of them; decided where chains are started, as samplers do."""
BARE = ("bare-log", "bare-spans", "bare-figures", "bare-all")
CASES = ("off", "log", "json", "prometheus", "spans", "figures", "otel", "all", *SAMPLED, *BARE)
"""`json` is the log in that format, `otel` both spans and figures; `all` is log, prometheus and otel; `lean` is the log
of warnings, prometheus, and spans of which one in a hundred is sampled. What is bare is the least that anybody could do
for a job that ends: one line that says nothing, one span without attributes, two values of histograms; `bare-all` is
these three."""
WORK = ("empty", "write", "none")
CONCURRENCY, BATCH, WARM_UP = 100, 1_000, 1_000
TABLE = "CREATE TABLE IF NOT EXISTS written (n bigint NOT NULL)"
SETTINGS = {"fsync": "on"}
LABELS = {"type": "empty"}


# -- one case, in a process of its own

RAN: list[float] = []
"""When each job ran: to begin and to end, a worker takes about as long as for thousands of them."""


@job("empty")
async def empty(attempt: Attempt[int]) -> None:
    RAN.append(time.perf_counter())


@job("write")
async def write(attempt: Attempt[int]) -> None:
    async with attempt.complete() as tx:
        await tx.execute("INSERT INTO written VALUES (:n)", n=attempt.input)
    RAN.append(time.perf_counter())


class NoSpans(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


class NoFigures(MetricExporter):
    def export(self, metrics_data: Any, timeout_millis: float = 10_000, **_: Any) -> MetricExportResult:
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        return None


class Bare:
    """What others' libraries take of any observer that uses them."""

    def __init__(self, *, tracer: Any = None, histograms: Sequence[Any] = (), logger: Any = None) -> None:
        self._tracer, self._histograms, self._logger = tracer, histograms, logger

    def wants(self, kind: type[events.Event]) -> bool:
        return kind is events.AttemptEnded

    def observe(self, event: Any) -> None:
        if self._tracer is not None:
            self._tracer.start_span("process").end()
        for histogram in self._histograms:
            histogram.record(event.ran, LABELS)
        if self._logger is not None:
            self._logger.info("ended")


def bare(part: str) -> Iterable[Any]:
    tracers, meters = providers(1.0)
    if part in ("log", "all"):
        logging.basicConfig(level=logging.INFO, format=LINE)
        yield Bare(logger=logging.getLogger("onward"))
    if part in ("spans", "all"):
        yield Bare(tracer=tracers.get_tracer("bare"))
    if part in ("figures", "all"):
        meter = meters.get_meter("bare")
        yield Bare(histograms=[meter.create_histogram(name, "s") for name in ("wait", "run")])


def providers(share: float) -> tuple[TracerProvider, MeterProvider]:
    tracers = TracerProvider(sampler=ParentBased(TraceIdRatioBased(share)))
    tracers.add_span_processor(BatchSpanProcessor(NoSpans()))
    return tracers, MeterProvider([PeriodicExportingMetricReader(NoFigures(), export_interval_millis=1_000)])


def observers(case: str) -> Iterable[Any]:
    if case in BARE:
        yield from bare(case.removeprefix("bare-"))
        return
    case, share = "spans" if case == "unsampled" else case.partition("-")[0], SAMPLED.get(case, 1.0)
    if case in ("log", "json", "all", "lean"):
        set_up_logging("warning" if case == "lean" else "info", format="json" if case == "json" else "text")
        yield LogObserver()
    if case in ("prometheus", "all", "lean"):
        yield PrometheusObserver(registry=None)
    if case in ("spans", "figures", "otel", "all", "lean"):
        tracers, meters = providers(share)
        yield OpenTelemetryObserver(
            tracer_provider=None if case == "figures" else tracers,
            meter_provider=None if case in ("spans", "lean") else meters,
        )


async def measure(case: str, work: str, url: str, count: int) -> dict[str, float]:
    step, sampled = {"empty": empty, "write": write}[work], SAMPLED.get(case, 1.0)
    app = Onward(url, jobs=[step], migrate=True, observers=[*observers(case)])
    loader = Onward(url, jobs=[step], migrate=False, observers=[])

    async def drain(count: int) -> tuple[float, float]:
        for lowest in range(0, count, BATCH):
            chains = [step.with_input(n, meta=trace(sampled)) for n in range(lowest, min(count, lowest + BATCH))]
            await loader.start_many(chains)
        RAN.clear()
        used = time.process_time()
        await app.worker(concurrency=CONCURRENCY, burst=True).run()
        return RAN[-1] - RAN[0], time.process_time() - used

    async with app, loader:
        await drain(WARM_UP)
        seconds, used = await drain(count)
    return {"rate": count / seconds, "cpu": used / count * 1e6}


def told(case: str, count: int) -> dict[str, float]:
    """What observers take of attempts that begin and end, a hundred at a time, each in a context of its own."""
    watching, ids = Observers(observers(case)), [uuid4() for _ in range(count)]
    watching.wants(events.AttemptEnded)
    metas = [trace(SAMPLED.get(case, 1.0)) for _ in range(count)]

    def tell(event: type[Any], number: int, **more: Any) -> None:
        if event in watching.wanted:
            job_id = ids[number]
            said = {"job_id": job_id, "chain_id": job_id, "type_name": "empty", "attempt": 1, "worker": "worker-1"}
            watching.emit(event(**said, **more))

    def run() -> None:
        for first in range(0, count, CONCURRENCY):
            some = range(first, min(first + CONCURRENCY, count))
            for number in some:
                copy_context().run(tell, events.AttemptStarted, number, meta=metas[number])
            for number in some:
                tell(events.AttemptEnded, number, outcome="completed", waited=0.0123, ran=0.00004)

    run()
    used = time.process_time()
    run()
    used = time.process_time() - used
    return {"rate": count / used, "cpu": used / count * 1e6}


def trace(sampled: float) -> dict[str, str]:
    flags = "01" if random.random() < sampled else "00"
    return {"traceparent": f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-{flags}"}


# -- all of them, in turns


class Case(NamedTuple):
    checkout: Path
    work: str
    name: str

    def label(self, checkouts: Sequence[Path]) -> str:
        return f"{self.work} {self.name}" + (" (against)" if self.checkout != checkouts[0] else "")


def run(case: Case, url: str, count: int, folder: Path) -> dict[str, float]:
    import psycopg  # not in the processes that are measured

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS onward CASCADE")
        connection.execute("DROP TABLE IF EXISTS written")
        connection.execute(TABLE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(case.checkout / "src"), str(ROOT)])}
    command = [sys.executable, "-m", "benchmarks.observers", "--one", case.name, case.work, url, str(count)]
    with (folder / "log").open("w") as log:
        ended = subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=log, check=False)
    if ended.returncode != 0:
        sys.exit((folder / "log").read_text()[-2_000:])
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def main() -> None:
    options = parse()
    if options.one:
        case, work, url, count = options.one
        measured = told(case, int(count)) if work == "none" else uvloop.run(measure(case, work, url, int(count)))
        print(json.dumps(measured))
        return
    sys.path.insert(0, str(ROOT / "tests"))
    import servers  # type: ignore[import-not-found,unused-ignore]

    checkouts = [ROOT, *([options.against.resolve()] if options.against else [])]
    cases = [Case(place, work, name) for work in options.work for name in options.cases for place in checkouts]
    found: dict[Case, list[dict[str, float]]] = {case: [] for case in cases}
    with servers.private_postgres(**SETTINGS) as postgres, tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for case in cases[:: -1 if number % 2 else 1]:
                count = options.jobs // 4 if case.work == "write" else options.jobs
                figures = run(case, postgres.dsn, count, Path(folder))
                found[case].append(figures)
                line = f"{case.label(checkouts):28}{figures['rate']:8.0f}/s {figures['cpu']:8.1f} µs"
                print(f"round {number + 1}: {line}", file=sys.stderr, flush=True)
    show(found, checkouts)


def show(found: dict[Case, list[dict[str, float]]], checkouts: Sequence[Path]) -> None:
    """Medians of the ratios within rounds, so that what slows the machine for a while slows both sides."""
    print(f"{'':28}{'jobs/s':>8} {'of off':>7} {'CPU µs':>8} {'more':>7} {'of off':>7}")
    for case, rounds in found.items():
        beside = found.get(case._replace(name="off"), rounds)
        pairs = list(zip(rounds, beside, strict=True))
        rate, cpu = (statistics.median(each[name] for each in rounds) for name in ("rate", "cpu"))
        kept = statistics.median(one["rate"] / other["rate"] for one, other in pairs)
        more = statistics.median(one["cpu"] - other["cpu"] for one, other in pairs)
        spent = statistics.median(other["cpu"] / one["cpu"] for one, other in pairs)
        print(f"{case.label(checkouts):28}{rate:8.0f} {kept:7.2f} {cpu:8.1f} {more:7.1f} {spent:7.2f}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.observers", description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)} (default: all of them)")
    parser.add_argument("--work", nargs="+", choices=WORK, default=WORK[:2], help="what jobs do (default: both)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=10_000, help="that do nothing; a quarter as many that write")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="measure that one, too")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"no case named {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    options.cases = options.cases or list(CASES)
    return options


if __name__ == "__main__":
    main()

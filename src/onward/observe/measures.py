"""What events add up to: the figures of both exporters, OpenTelemetry's and Prometheus's."""

import threading
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, TypeAlias

from onward.observe import events
from onward.observe.events import Event

Labels: TypeAlias = tuple[str, ...]
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One figure, by its labels."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    """With dots; the unit of a histogram is not part of it."""
    words: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    buckets: tuple[float, ...] = ()


STARTED = Metric("counter", "onward.chains.started", "Chains started by this process.", ("type",))
ENDED = Metric(
    "counter", "onward.jobs.ended", "Jobs that workers completed, and that failed for good.", ("type", "status")
)
ATTEMPTS = Metric("counter", "onward.attempts.ended", "Attempts that ended, by outcome.", ("type", "outcome"))
RETRIES = Metric("counter", "onward.retries", "Attempts that failed and are followed by another.", ("type",))
REAPED = Metric("counter", "onward.jobs.reaped", "Jobs taken back from a holder that was gone.", ("type",))
RUNNING = Metric("gauge", "onward.attempts.running", "Attempts that run in this process.", ("type",))
WAIT = Metric(
    "histogram", "onward.job.wait", "From when a job was due until it was taken.", ("type",), "seconds", _SECONDS
)
RUN = Metric("histogram", "onward.job.run", "Time in the handler.", ("type",), "seconds", _SECONDS)
RENEWED = Metric("counter", "onward.leases.renewed", "Leases that were renewed.")
LOST = Metric("counter", "onward.leases.lost", "Attempts that lost their job.", ("type", "reason"))
HINTS = Metric("counter", "onward.hints", "Hints to and from others.", ("direction",))
POOL = Metric("histogram", "onward.pool.wait", "Until a phase had its connection.", ("type",), "seconds", _SECONDS)
BATCHES = Metric("histogram", "onward.settle.batch", "Outcomes in one commit.", (), "size", _SIZES)
ERRORS = Metric("counter", "onward.errors", "Troubles of the database and of hints.", ("of", "doing"))
METRICS = (
    STARTED, ENDED, ATTEMPTS, RETRIES, REAPED, RUNNING, WAIT, RUN, RENEWED, LOST, HINTS, POOL, BATCHES, ERRORS,
)  # fmt: skip


class Spread:
    """How values are spread over buckets."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def cumulated(self) -> list[int]:
        return list(accumulate(self.counts))


Record: TypeAlias = Callable[[Metric, Labels, float], None]
"""Takes a value of a histogram elsewhere."""


class _OfType:
    """What each attempt of a type changes."""

    def __init__(self) -> None:
        self.running = 0
        self.outcomes: dict[str, int] = {}


class Measures:
    """Adds events up. For any thread; a reader copies."""

    def __init__(self, record: Record | None = None) -> None:
        self._lock = threading.Lock()
        self._types: dict[str, _OfType] = {}
        self._totals: dict[Metric, dict[Labels, float]] = {
            metric: {} if metric.labels else {(): 0} for metric in METRICS if metric.kind != "histogram"
        }
        self._spreads: dict[Metric, dict[Labels, Spread]] = {
            metric: {} for metric in METRICS if metric.kind == "histogram"
        }
        self._record = record or self._keep

    def wants(self, kind: type[Event]) -> bool:
        return kind in _MEASURED

    def observe(self, event: Event) -> None:
        with self._lock:
            _MEASURED[type(event)](self, event)

    def totals(self, metric: Metric) -> dict[Labels, float]:
        """Of a counter or a gauge."""
        with self._lock:
            totals = dict(self._totals[metric])
            for name, of_type in self._types.items():
                for labels, count in _of_attempts(metric, name, of_type):
                    totals[labels] = totals.get(labels, 0) + count
            return totals

    def spreads(self, metric: Metric) -> dict[Labels, tuple[list[int], float]]:
        """Of a histogram: the counts up to each bound, and the sum."""
        with self._lock:
            return {labels: (spread.cumulated(), spread.sum) for labels, spread in self._spreads[metric].items()}

    # -- within the lock

    def _keep(self, metric: Metric, labels: Labels, value: float) -> None:
        spread = self._spreads[metric].get(labels)
        if spread is None:
            spread = self._spreads[metric][labels] = Spread(metric.buckets)
        spread.counts[bisect_left(spread.bounds, value)] += 1
        spread.sum += value

    def _add(self, metric: Metric, *labels: str, count: float = 1) -> None:
        totals = self._totals[metric]
        totals[labels] = totals.get(labels, 0) + count

    def _taken(self, event: events.JobsTaken) -> None:
        for name, count in event.counts.items():
            self._types.setdefault(name, _OfType()).running += count

    def _ended(self, event: events.AttemptEnded) -> None:
        name, outcome = event.type_name, event.outcome
        of_type = self._types.get(name) or self._types.setdefault(name, _OfType())
        of_type.running -= 1
        of_type.outcomes[outcome] = of_type.outcomes.get(outcome, 0) + 1
        labels = (name,)
        self._record(WAIT, labels, event.waited)
        self._record(RUN, labels, event.ran)

    def _sized(self, event: events.BatchSettled) -> None:
        self._record(BATCHES, (), event.size)

    def _waited(self, event: events.PoolWaited) -> None:
        self._record(POOL, (event.type_name,), event.seconds)


def _of_attempts(metric: Metric, name: str, of_type: _OfType) -> list[tuple[Labels, int]]:
    """What the attempts of a type add to a figure."""
    outcomes = of_type.outcomes
    if metric is RUNNING:
        return [((name,), of_type.running)]
    if metric is ATTEMPTS:
        return [((name, outcome), count) for outcome, count in outcomes.items()]
    if metric is RETRIES:
        return [((name,), outcomes["retrying"])] if "retrying" in outcomes else []
    if metric is ENDED:
        # Asked of attempts: to be told of every job that completed as well would cost as much again.
        completed = sum(outcomes.get(outcome, 0) for outcome in ("completed", "continued"))
        return [((name, "completed"), completed)] if completed else []
    return []


_MEASURED: dict[type[Any], Callable[[Measures, Any], None]] = {
    events.ChainStarted: lambda to, event: to._add(STARTED, event.type_name),
    events.JobFailed: lambda to, event: to._add(ENDED, event.type_name, "failed"),
    events.JobReaped: lambda to, event: to._add(REAPED, event.type_name),
    events.JobsTaken: Measures._taken,
    events.AttemptEnded: Measures._ended,
    events.LeaseRenewed: lambda to, event: to._add(RENEWED, count=event.count),
    events.LeaseLost: lambda to, event: to._add(LOST, event.type_name, event.reason.value),
    events.HintsSent: lambda to, event: to._add(HINTS, "sent", count=event.count),
    events.HintsReceived: lambda to, event: to._add(HINTS, "received", count=event.count),
    events.PoolWaited: Measures._waited,
    events.BatchSettled: Measures._sized,
    events.StateError: lambda to, event: to._add(ERRORS, "database", event.doing),
    events.NotifyError: lambda to, event: to._add(ERRORS, "hints", event.doing),
}

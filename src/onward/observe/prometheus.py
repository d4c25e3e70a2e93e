"""Figures for Prometheus (extra `prometheus`)."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from onward.observe import measures
from onward.observe.measures import METRICS, Measures


class PrometheusObserver(Measures, Collector):
    """Counts what an app does, for a registry of prometheus_client's; pass it in `observers=`.

    >>> from onward import LogObserver, Onward
    >>> app = Onward("memory://", jobs=[], observers=[LogObserver(), PrometheusObserver()])
    """

    def __init__(self, registry: CollectorRegistry | None = REGISTRY) -> None:
        """`registry`: None leaves it to you to register it."""
        super().__init__()
        if registry is not None:
            registry.register(self)

    def collect(self) -> Iterator[Metric]:
        return map(self._family, METRICS)

    def describe(self) -> Iterable[Metric]:
        return [_empty(metric) for metric in METRICS]

    def _family(self, metric: measures.Metric) -> Metric:
        family = _empty(metric)
        if isinstance(family, HistogramMetricFamily):
            bounds = [*map(str, map(float, metric.buckets)), "+Inf"]
            for labels, (counts, total) in self.spreads(metric).items():
                family.add_metric(labels, buckets=list(zip(bounds, counts, strict=True)), sum_value=total)
        else:
            for labels, value in self.totals(metric).items():
                family.add_metric(labels, value)
        return family


def _empty(metric: measures.Metric) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
    kind = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}[metric.kind]
    name = "_".join(filter(None, [metric.name.replace(".", "_"), metric.unit]))
    made: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily = kind(
        name, metric.words, labels=metric.labels
    )
    return made


class JobCounts(Protocol):
    """What `app.depths()` says of a type."""

    @property
    def oldest(self) -> float: ...


class PrometheusDepths(Collector):
    """Gauges of what is in the database, by type: jobs by status, and for how long the oldest has been due.

    They are as of the last `set`: ask the database when it suits you, every few seconds or when you are scraped.

    >>> from onward import Onward
    >>> app = Onward("memory://", jobs=[])
    >>> depths = PrometheusDepths()
    >>> async def scraped():
    ...     depths.set(await app.depths())
    """

    def __init__(self, registry: CollectorRegistry | None = REGISTRY) -> None:
        self._depths: Mapping[str, JobCounts] = {}
        if registry is not None:
            registry.register(self)

    def set(self, depths: Mapping[str, JobCounts]) -> None:
        """What `app.depths()` has just said."""
        self._depths = depths

    def collect(self) -> Iterator[Metric]:
        jobs = GaugeMetricFamily("onward_jobs", "Jobs in the database, by status.", labels=("type", "status"))
        oldest = GaugeMetricFamily(
            "onward_oldest_due_seconds", "For how long the oldest job that waits has been due.", labels=("type",)
        )
        for name, depths in sorted(self._depths.items()):
            for status in ("pending", "scheduled", "running", "failed"):
                jobs.add_metric((name, status), getattr(depths, status))
            oldest.add_metric((name,), depths.oldest)
        yield jobs
        yield oldest

    def describe(self) -> Iterable[Metric]:
        return [*self.collect()]

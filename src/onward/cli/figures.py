"""The figures of a worker, or of several, as a page for Prometheus. Needs the extra `prometheus`."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from onward.client.app import Onward
from onward.observe.prometheus import PrometheusDepths, PrometheusObserver

_AT_MOST_EVERY = 1.0
_AT_MOST_FOR = 0.1
"""Of the time: where counting takes long, it is done less often."""


class Figures:
    """What the app's own observer has counted, or else one that is added to it; what the application exports itself;
    and, if wanted, what is in the database.
    """

    def __init__(self, app: Onward) -> None:
        self._app, observers = app, app.store.observers
        found = next((each for each in observers if isinstance(each, PrometheusObserver)), None)
        if found is None:
            found = PrometheusObserver(registry=None)
            observers.set((*observers, found))
        self._observer, self._depths = found, PrometheusDepths(registry=None)
        self._turn, self._look_again_at = asyncio.Lock(), 0.0

    async def look(self, *, within: float) -> None:
        """Count what is in the database, on the app's event loop. What cannot be counted is not shown, nor what was."""
        async with self._turn:
            began = time.monotonic()
            if began < self._look_again_at:
                return
            self._depths.set({})
            with suppress(Exception):  # whoever works with the database tells of it
                async with asyncio.timeout(within):
                    self._depths.set(await self._app.depths())
            ended = time.monotonic()
            self._look_again_at = ended + max(_AT_MOST_EVERY, (ended - began) / _AT_MOST_FOR)

    def page(self, *, depths: bool) -> str:
        """For any thread."""
        collectors = [self._observer, *([self._depths] if depths else []), REGISTRY]
        families: dict[str, Metric] = {}
        for collector in collectors:
            for family in collector.collect():
                families.setdefault(family.name, family)  # the app's observer may be in prometheus_client's registry
        return _rendered(families.values())


def merged(pages: Mapping[int, str]) -> str:
    """One page of those of several processes: figures have the number of theirs, but for those of the database."""
    families: dict[str, Metric] = {}
    shared = {family.name for family in PrometheusDepths(registry=None).collect()}
    for number, page in pages.items():
        for family in text_string_to_metric_families(page):
            into = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            into.samples += family.samples if family.name in shared else [_of(number, s) for s in family.samples]
    return _rendered(families.values())


def _of(number: int, sample: Sample) -> Sample:
    labels = {f"exported_{name}" if name == "process" else name: value for name, value in sample.labels.items()}
    return sample._replace(labels={"process": str(number), **labels})


class _Found(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def _rendered(families: Iterable[Metric]) -> str:
    registry = CollectorRegistry()
    registry.register(_Found(list(families)))
    return generate_latest(registry).decode()

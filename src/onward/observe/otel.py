"""Spans and figures for OpenTelemetry (extra `otel`): of the API alone; what comes of them is up to your SDK."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, Literal

from opentelemetry import context, metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Histogram, MeterProvider, Observation
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from onward.model import JobId
from onward.observe import events
from onward.observe.events import Event
from onward.observe.measures import METRICS, Labels, Measures, Metric
from onward.observe.observer import Observers, Starting, ToStart

_SPANS = (events.AttemptStarted, events.AttemptFailed, events.AttemptEnded)
_CARRIED = ("traceparent", "tracestate")
_NOWHERE = Context()
"""No trace: an attempt does not belong to the one in which its worker happened to be started."""


class OpenTelemetryObserver:
    """A span where chains start and one for each attempt, joined to one trace across processes, and figures.

    Where chains are started, a span of kind producer begins; it is ended after the commit, and never if there is none.
    Its context travels with the jobs, in `meta`; the spans of all attempts of the chain, of kind consumer, are its
    children. They end once the outcome is committed. What a handler does belongs to the span of its attempt.

    Without arguments it uses the providers that are set up globally; `None` for one of them does without.

    >>> from onward import LogObserver, Onward
    >>> app = Onward("memory://", jobs=[], observers=[LogObserver(), OpenTelemetryObserver()])
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | Literal["global"] | None = "global",
        meter_provider: MeterProvider | Literal["global"] | None = "global",
    ) -> None:
        if tracer_provider == "global":
            tracer_provider = trace.get_tracer_provider()
        if meter_provider == "global":
            meter_provider = metrics.get_meter_provider()
        self._tracer = None if tracer_provider is None else tracer_provider.get_tracer("onward")
        self._propagator = TraceContextTextMapPropagator()
        self._spans: dict[tuple[JobId, int], Span] = {}
        self._last_carried: tuple[object, object] = (None, None)
        self._last_place = (_NOWHERE, True)
        self._measures: Measures | None = None
        if meter_provider is not None:
            self._measures = _measured(meter_provider)
        self.is_enabled = True

    def wants(self, kind: type[Event]) -> bool:
        if not self.is_enabled:
            return False
        return (self._tracer is not None and kind in _SPANS) or (
            self._measures is not None and self._measures.wants(kind)
        )

    def observe(self, event: Event) -> None:
        if not self.is_enabled:
            return
        if self._tracer is not None and isinstance(event, _SPANS):
            self._trace(event)
        if self._measures is not None and self._measures.wants(type(event)):
            self._measures.observe(event)

    # -- spans

    def starting(self, jobs: Sequence[ToStart]) -> Starting | None:
        """Begin the span of a start; what is to be stored with the jobs says where they belong."""
        if self._tracer is None or not self.is_enabled:
            return None
        name = jobs[0].type_name if len({job.type_name for job in jobs}) == 1 else ""
        attributes = _attributes("start", "send", name)
        if len(jobs) == 1:
            attributes["messaging.message.id"] = attributes["messaging.message.conversation_id"] = str(jobs[0].id)
        else:
            attributes["messaging.batch.message_count"] = len(jobs)
        span = self._tracer.start_span(f"start {name}".rstrip(), kind=SpanKind.PRODUCER, attributes=attributes)
        carried: dict[str, str] = {}
        self._propagator.inject(carried, trace.set_span_in_context(span))
        return Starting(carried, span.end) if carried else None

    def _trace(self, event: events.AttemptStarted | events.AttemptFailed | events.AttemptEnded) -> None:
        if isinstance(event, events.AttemptStarted):
            # In the task of the attempt, which ends with it: what the handler does is found there.
            context.attach(self._begun(event))
        elif self._spans and (span := self._spans.get((event.job_id, event.attempt))) is not None:
            if isinstance(event, events.AttemptFailed):
                _tell_failure(span, event)
            else:
                del self._spans[event.job_id, event.attempt]
                _end(span, event)

    def _begun(self, event: events.AttemptStarted) -> Context:
        """Where the handler belongs: to a span of its own, unless the trace was not sampled where it began."""
        assert self._tracer is not None
        place, is_sampled = self._place_of(event.meta) if event.meta else (_NOWHERE, True)
        if not is_sampled:
            return place
        attributes = _attributes("process", "process", event.type_name)
        attributes["messaging.message.id"] = str(event.job_id)
        attributes["messaging.message.conversation_id"] = str(event.chain_id)
        attributes["messaging.client.id"] = event.worker
        attributes["onward.attempt"] = event.attempt
        span = self._tracer.start_span(f"process {event.type_name}", place, SpanKind.CONSUMER, attributes)
        self._spans[event.job_id, event.attempt] = span
        return trace.set_span_in_context(span, place)

    def _place_of(self, meta: Mapping[str, Any]) -> tuple[Context, bool]:
        """Where a trace goes on, and whether it is sampled. Those that were started together do so in one place."""
        carried = (meta.get("traceparent"), meta.get("tracestate"))
        if carried != self._last_carried:
            known = {name: text for name, text in zip(_CARRIED, carried, strict=True) if isinstance(text, str)}
            place = self._propagator.extract(known, _NOWHERE)
            above = trace.get_current_span(place).get_span_context()
            self._last_carried, self._last_place = carried, (place, above.trace_flags.sampled or not above.is_valid)
        return self._last_place


def _attributes(operation: str, kind: str, destination: str) -> dict[str, Any]:
    """By the semantic conventions for messaging."""
    attributes: dict[str, Any] = {
        "messaging.system": "onward",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }
    if destination:
        attributes["messaging.destination.name"] = destination
    return attributes


def _tell_failure(span: Span, event: events.AttemptFailed) -> None:
    error = event.error
    span.add_event(
        "exception",
        {
            "exception.type": error.type,
            "exception.message": error.message,
            "exception.stacktrace": error.traceback,
        },
    )
    span.set_attribute("error.type", error.type)
    span.set_status(Status(StatusCode.ERROR, error.message))


def _end(span: Span, event: events.AttemptEnded) -> None:
    if span.is_recording():
        span.set_attribute("onward.outcome", event.outcome)
        if event.outcome == "lost":
            span.set_status(StatusCode.ERROR)
    span.end()


# -- figures


def _measured(provider: MeterProvider) -> Measures:
    """Figures that are read when the SDK asks for them; the values of histograms it is given at once."""
    meter = provider.get_meter("onward")
    histograms: dict[Metric, Histogram] = {}
    attributes: dict[tuple[Metric, Labels], dict[str, str]] = {}

    def record(metric: Metric, labels: Labels, value: float) -> None:
        known = attributes.get((metric, labels))
        if known is None:
            known = attributes[metric, labels] = dict(zip(metric.labels, labels, strict=True))
        histograms[metric].record(value, known)

    measures = Measures(record)
    for metric in METRICS:
        callbacks = [partial(_observations, measures, metric)]
        if metric.kind == "histogram":
            unit = "s" if metric.unit == "seconds" else "{outcome}"
            histograms[metric] = meter.create_histogram(
                metric.name, unit, metric.words, explicit_bucket_boundaries_advisory=metric.buckets
            )
        elif metric.kind == "counter":
            meter.create_observable_counter(metric.name, callbacks, description=metric.words)
        else:
            meter.create_observable_up_down_counter(metric.name, callbacks, description=metric.words)
    return measures


def _observations(measures: Measures, metric: Metric, options: CallbackOptions) -> Iterable[Observation]:
    for labels, value in measures.totals(metric).items():
        yield Observation(value, dict(zip(metric.labels, labels, strict=True)))


# -- without a change of the application


class OnwardInstrumentor:
    """Has every app that is made from now on observed: what `opentelemetry-instrument onward worker shop:app` finds.

    >>> OnwardInstrumentor().instrument()
    >>> OnwardInstrumentor().uninstrument()
    """

    def instrumentation_dependencies(self) -> Sequence[str]:
        return ()

    def instrument(self, **options: Any) -> None:
        """Options: `tracer_provider`, `meter_provider`; those of others are for others."""
        if getattr(Observers.__init__, "observer", None) is not None:
            return
        ours = {name: options[name] for name in ("tracer_provider", "meter_provider") if options.get(name)}
        Observers.__init__ = _observing(Observers.__init__, OpenTelemetryObserver(**ours))  # type: ignore[method-assign]

    def uninstrument(self, **options: Any) -> None:
        """No app is observed any longer."""
        found: Any = Observers.__init__
        if getattr(found, "observer", None) is not None:
            found.observer.is_enabled = False
            Observers.__init__ = found.__wrapped__  # type: ignore[method-assign]


def _observing(original: Callable[..., None], observer: OpenTelemetryObserver) -> Any:
    @wraps(original)
    def make(self: Observers, observers: Iterable[Any] = ()) -> None:
        given = tuple(observers)
        has_one = any(isinstance(each, OpenTelemetryObserver) for each in given)
        original(self, given if has_one else (*given, observer))

    vars(make)["observer"] = observer
    return make

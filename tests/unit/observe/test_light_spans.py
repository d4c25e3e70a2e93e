"""Spans that are made in full only when somebody asks: nobody can tell them from the SDK's."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Decision, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from onward.observe import light_spans as module
from onward.observe.light_spans import LightSpan, light_spans

GIVEN = {"messaging.system": "onward", "onward.attempt": 1}
END = {"onward.outcome": "completed"}
OTHER = SpanContext(7, 8, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
PARENT = SpanContext(
    0xA, 0xB, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED), trace_state=TraceState([("shop", "7")])
)
BELOW = trace.set_span_in_context(NonRecordingSpan(PARENT), Context())
RANDOM = trace.set_span_in_context(NonRecordingSpan(SpanContext(1, 2, True, TraceFlags(3))), Context())
ROOT = Context()


class Ids(IdGenerator):
    """The same in every run."""

    def __init__(self) -> None:
        self._next = 0

    def generate_span_id(self) -> int:
        self._next += 1
        return self._next

    generate_trace_id = generate_span_id

    def is_trace_id_random(self) -> bool:
        return True


class Namer(Sampler):
    """Has something of its own to say."""

    def should_sample(self, parent_context: Any, trace_id: int, name: str, *others: Any, **more: Any) -> SamplingResult:
        return SamplingResult(Decision.RECORD_AND_SAMPLE, {"sampled.by": "namer"}, TraceState([("by", "namer")]))

    def get_description(self) -> str:
        return "Namer"


class Noting(SpanProcessor):
    """Adds to spans that begin, and notes whatever it is told."""

    def __init__(self, *, adds: bool) -> None:
        self.adds, self.told = adds, list[str]()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        assert isinstance(span, Span)
        self.told.append(f"start {span.name} {span.parent and span.parent.span_id} {parent_context == BELOW}")
        if self.adds:
            span.set_attribute("added", True)

    def _on_ending(self, span: Span) -> None:
        self.told.append(f"ending {dict(span.attributes or {})} {span.is_recording()}")

    def on_end(self, span: ReadableSpan) -> None:
        self.told.append(f"end {dict(span.attributes or {})} {span.dropped_attributes} {span.dropped_events}")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still, so that what two ways of making spans come to can be compared."""
    for place in (module, __import__("opentelemetry.sdk.trace").sdk.trace):
        monkeypatch.setattr(place, "time_ns", lambda: 1_700_000_000_000_000_000)


def nothing(span: trace.Span) -> None:
    pass


def add_attributes(span: trace.Span) -> None:
    span.set_attribute("order", 7)
    span.set_attributes({"onward.attempt": 2, "more": [1, 2]})


def add_the_rest(span: trace.Span) -> None:
    span.add_event("paid", {"total": 40})
    span.record_exception(ValueError("odd"))
    span.add_link(OTHER, {"why": "so"})
    span.update_name("another")
    span.set_status(Status(StatusCode.ERROR, "no"))


def add_too_much(span: trace.Span) -> None:
    for number in range(5):
        span.add_event("again", {"n": number, "m": number})


def end_it(span: trace.Span) -> None:
    span.set_attribute("early", 1)
    span.end()


def looked_at(span: trace.Span) -> None:
    assert isinstance(span, ReadableSpan)
    assert GIVEN.items() <= dict(span.attributes or {}).items()
    assert (span.events, span.links, span.status.status_code) == ((), (), StatusCode.UNSET)
    assert span.resource.attributes["service.name"] == "shop"
    assert span.kind is SpanKind.CONSUMER


def told_of(
    make: Callable[[Any, Context], trace.Span], do: Callable[[trace.Span], None], place: Context, **options: Any
) -> Any:
    """Everything that comes of a span: what was exported, what processors were told, the context of its children."""
    adds = options.pop("adds", False)
    provider = TracerProvider(
        resource=Resource({"service.name": "shop"}), id_generator=Ids(), shutdown_on_exit=False, **options
    )
    kept, noting = InMemorySpanExporter(), Noting(adds=adds)
    provider.add_span_processor(noting)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    span = make(provider.get_tracer("onward"), place)
    do(span)
    end_with = getattr(span, "end_with", None)
    if end_with is None or not end_with(END):
        if span.is_recording():
            span.set_attributes(END)
        span.end()
    exported = [
        (json.loads(each.to_json()), each.instrumentation_scope, each.dropped_attributes, each.dropped_events)
        for each in kept.get_finished_spans()
    ]
    return exported, noting.told, span.get_span_context(), span.is_recording()


def by_the_tracer(tracer: Any, place: Context) -> trace.Span:
    made: trace.Span = tracer.start_span("process x", place, SpanKind.CONSUMER, dict(GIVEN))
    return made


def by_us(tracer: Any, place: Context) -> trace.Span:
    light = light_spans(tracer, SpanKind.CONSUMER)
    assert light is not None
    return light.start("process x", place, dict(GIVEN))


@pytest.mark.parametrize("do", [nothing, add_attributes, add_the_rest, add_too_much, end_it, looked_at])
@pytest.mark.parametrize("place", [BELOW, RANDOM, ROOT])
@pytest.mark.parametrize("adds", [False, True])
def test_it_is_what_the_tracer_would_have_made(do: Callable[[trace.Span], None], place: Context, adds: bool) -> None:
    options = {"adds": adds, "span_limits": SpanLimits(max_events=3, max_event_attributes=1)}

    assert told_of(by_us, do, place, **options) == told_of(by_the_tracer, do, place, **options)


class RecordOnly(Namer):
    def should_sample(self, parent_context: Any, trace_id: int, name: str, *others: Any, **more: Any) -> SamplingResult:
        return SamplingResult(Decision.RECORD_ONLY, others[1])


@pytest.mark.parametrize("sampler", [ALWAYS_ON, ALWAYS_OFF, ParentBased(ALWAYS_OFF), Namer(), RecordOnly()])
@pytest.mark.parametrize("place", [BELOW, ROOT])
def test_the_sampler_decides(sampler: Sampler, place: Context) -> None:
    ours, theirs = (told_of(make, nothing, place, sampler=sampler) for make in (by_us, by_the_tracer))

    assert ours == theirs


def test_nothing_is_made_in_full_that_nobody_touches() -> None:
    span = by_us(TracerProvider(shutdown_on_exit=False).get_tracer("onward"), BELOW)
    assert isinstance(span, LightSpan)

    with trace.use_span(span):
        assert trace.get_current_span().get_span_context().span_id == span.get_span_context().span_id
    assert (span.name, span.is_recording(), span.is_complete) == ("process x", True, False)

    span.set_attribute("order", 7)
    assert span.is_complete
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        span.nonsense  # noqa: B018


def test_whoever_comes_too_late_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    span = by_us(TracerProvider(shutdown_on_exit=False).get_tracer("onward"), BELOW)
    assert isinstance(span, LightSpan)
    assert span.end_with(END)

    span.set_attribute("late", 7)

    assert "ended span" in caplog.text
    assert dict(span.attributes or {}) == {**GIVEN, **END}


def test_whoever_finds_it_made_in_full_meanwhile_leaves_it_so() -> None:
    span = by_us(TracerProvider(shutdown_on_exit=False).get_tracer("onward"), BELOW)
    assert isinstance(span, LightSpan)
    span.set_attribute("order", 7)

    span.complete()  # as a thread does that had to wait for another one

    assert dict(span.attributes or {}) == {**GIVEN, "order": 7}


class Ours(TracerProvider):
    def get_tracer(self, *arguments: Any, **options: Any) -> trace.Tracer:
        return trace.NoOpTracer()


@pytest.mark.parametrize(
    "provider",
    [
        Ours(shutdown_on_exit=False),
        TracerProvider(shutdown_on_exit=False, span_limits=SpanLimits(max_span_attributes=3)),
        TracerProvider(shutdown_on_exit=False, span_limits=SpanLimits(max_attribute_length=10)),
    ],
)
def test_what_is_not_as_we_know_it_is_left_to_the_tracer(provider: TracerProvider) -> None:
    assert light_spans(provider.get_tracer("onward"), SpanKind.CONSUMER) is None


def test_spans_that_the_sdk_counts_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "true")
    tracer: Any = TracerProvider(shutdown_on_exit=False).get_tracer("onward")
    if not hasattr(tracer, "_tracer_metrics"):
        pytest.skip("this version does not count")

    assert light_spans(tracer, SpanKind.CONSUMER) is None

"""Spans of OpenTelemetry's SDK that are made in full only if somebody adds to them, or looks inside.

Few do: as a rule an attempt's span is begun, is the parent of others, and ends. It is then handed on as what the SDK
itself hands on, at a third of the cost.
"""

import threading
from collections.abc import Callable, Mapping
from time import time_ns
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, Tracer
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags

_AT_MOST = 16
"""Attributes of ours."""
_completing = threading.RLock()  # what is logged meanwhile may come back to the span


class LightSpans:
    """Begins spans as the tracer would: by its sampler, with its ids, for its processors."""

    def __init__(self, tracer: Tracer, kind: SpanKind) -> None:
        self.tracer, self.kind = tracer, kind
        self.limits: SpanLimits = tracer._span_limits
        self.scope = tracer._instrumentation_scope
        self.is_enabled: Callable[[], bool] = getattr(tracer, "_is_enabled", lambda: True)
        probe = LightSpan(self, "probe", trace.INVALID_SPAN_CONTEXT, None, {})
        probe.complete()
        self.fields = frozenset(vars(probe))
        """What a span of the SDK's has."""

    def start(self, name: str, place: Context, attributes: dict[str, Any]) -> trace.Span:
        tracer = self.tracer
        if not self.is_enabled():
            return tracer.start_span(name, place, self.kind, attributes)
        parent: SpanContext | None = trace.get_current_span(place).get_span_context()
        if parent is None or not parent.is_valid:
            parent, ids = None, tracer.id_generator
            trace_id, is_random = ids.generate_trace_id(), getattr(ids, "is_trace_id_random", bool)()
        else:
            trace_id, is_random = parent.trace_id, getattr(parent.trace_flags, "random_trace_id", False)
        answer = tracer.sampler.should_sample(place, trace_id, name, self.kind, attributes, ())
        flags = _FLAGS[answer.decision is Decision.RECORD_AND_SAMPLE, is_random]
        own = SpanContext(trace_id, tracer.id_generator.generate_span_id(), False, flags, answer.trace_state)
        if answer.decision is Decision.DROP:
            return NonRecordingSpan(own)
        span = LightSpan(self, name, own, parent, attributes)
        if answer.attributes != attributes:  # the sampler's own, of which nothing is known
            span.given = dict(answer.attributes)
            span.complete()
        tracer.span_processor.on_start(span, parent_context=place)
        return span


def _flags(*, is_sampled: bool, is_random: bool) -> TraceFlags:
    random = getattr(TraceFlags, "RANDOM_TRACE_ID", 0) if is_random else 0
    return TraceFlags((TraceFlags.SAMPLED if is_sampled else TraceFlags.DEFAULT) | random)


_FLAGS = {
    (is_sampled, is_random): _flags(is_sampled=is_sampled, is_random=is_random)
    for is_sampled in (False, True)
    for is_random in (False, True)
}


class LightSpan(Span):
    """One of the SDK's, which is not initialized before something is asked of it that needs it to be."""

    _context: SpanContext
    _end_time: int | None = None

    def __init__(
        self,
        of: LightSpans,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        given: dict[str, Any],
    ) -> None:
        # Without the SDK's, on purpose: see __getattr__.
        self.of, self.given, self.is_complete = of, given, False
        self._name, self._context, self._parent, self._start_time = name, context, parent, time_ns()

    def __getattr__(self, name: str) -> Any:
        """For whatever the SDK's methods miss."""
        if name not in vars(self)["of"].fields:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        self.complete()
        return vars(self)[name]

    def complete(self) -> None:
        """Make it what the tracer would have made of it in the first place; from any thread."""
        with _completing:
            if self.is_complete:
                return
            of, tracer, times = self.of, self.of.tracer, (self._start_time, self._end_time)
            super().__init__(
                name=self._name,
                context=self._context,
                parent=self._parent,
                sampler=tracer.sampler,
                resource=tracer.resource,
                attributes=self.given,
                kind=of.kind,
                span_processor=tracer.span_processor,
                instrumentation_info=tracer.instrumentation_info,
                limits=of.limits,
                instrumentation_scope=of.scope,
            )
            self._start_time, self._end_time = times
            self.is_complete = True

    def end_with(self, attributes: Mapping[str, Any]) -> bool:
        """End it here and now, if nobody has touched it; else say so."""
        with _completing:
            if self.is_complete:
                return False
            self.given |= attributes
            self._end_time = time_ns()
        processor = self.of.tracer.span_processor
        if hasattr(processor, "_on_ending"):
            processor._on_ending(self)
        processor.on_end(self._readable_span())
        return True

    def _readable_span(self) -> ReadableSpan:
        if self.is_complete:
            return super()._readable_span()
        of, tracer = self.of, self.of.tracer
        return ReadableSpan(
            name=self._name,
            context=self._context,
            parent=self._parent,
            resource=tracer.resource,
            attributes=self.given,
            kind=of.kind,
            instrumentation_info=tracer.instrumentation_info,
            start_time=self._start_time,
            end_time=self._end_time,
            instrumentation_scope=of.scope,
        )


def light_spans(tracer: trace.Tracer, kind: SpanKind) -> LightSpans | None:
    """For a tracer of the SDK's very own class that is as we know it, has no limits that would concern us, and does
    not count spans itself."""
    if type(tracer) is not Tracer:
        return None
    try:
        limits, counting = tracer._span_limits, type(getattr(tracer, "_tracer_metrics", None)).__name__
        most, length = limits.max_span_attributes, limits.max_span_attribute_length
        if length is not None or (most is not None and most < _AT_MOST):
            return None
        return LightSpans(tracer, kind) if counting in ("NoneType", "NoOpTracerMetrics") else None
    except (AttributeError, TypeError):  # another version's
        return None

"""OpenTelemetry: one trace from the start through every attempt, nothing of what was rolled back, and figures."""

import asyncio
import json
import secrets
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from onward import Attempt, Deduplication, Next, Onward, Permanent, job
from onward.observe import events
from onward.observe.otel import OnwardInstrumentor, OpenTelemetryObserver
from programs import traced
from support import SOON, Recorder


class Spans:
    """A tracer provider that keeps what it is told."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.observer = OpenTelemetryObserver(tracer_provider=self.provider, meter_provider=None)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._kept.get_finished_spans() if span.name == name]

    def all(self) -> list[str]:
        return [span.name for span in self._kept.get_finished_spans()]


@pytest.fixture
def spans() -> Spans:
    return Spans()


@job("leaf")
async def leaf(attempt: Attempt[int]) -> int:
    if attempt.input < 0:
        raise Permanent("negative")
    return attempt.input


@job("last", internal=True, blocked_by=[leaf])
async def last(attempt: Attempt[int]) -> int:
    return sum(attempt.outputs_of(leaf))


@job("root", continues_to=[last])
async def root(attempt: Attempt[int]) -> Next[int]:
    child = await attempt.start(leaf, 3)
    return attempt.continue_with(last, 1, blockers=[child, leaf.with_input(4)])


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


async def test_attempts_are_children_of_where_their_chain_was_started(
    running: Any, spans: Spans, recorder: Recorder
) -> None:
    app: Onward = await running(root, last, leaf, observers=[spans.observer, recorder])

    with spans.provider.get_tracer("shop").start_as_current_span("request") as request:
        chain = await app.start(root, 1, meta={"request": "r-7"})
    assert await chain.wait(timeout=SOON) == 7
    await recorder.next(events.AttemptEnded, count=4)

    (start,) = spans.named("start root")
    (process,) = spans.named("process root")
    (inner,) = spans.named("start leaf")
    (end,) = spans.named("process last")
    leaves = spans.named("process leaf")
    every = [start, process, inner, end, *leaves]
    assert {span.context.trace_id for span in every} == {request.get_span_context().trace_id}
    assert parent_of(start) == request.get_span_context().span_id
    assert parent_of(process) == parent_of(end) == start.context.span_id
    assert parent_of(inner) == process.context.span_id
    assert {parent_of(span) for span in leaves} == {inner.context.span_id, start.context.span_id}
    assert (start.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert dict(process.attributes or {}) == {
        "messaging.system": "onward",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "root",
        "messaging.message.id": str(chain.id),
        "messaging.message.conversation_id": str(chain.id),
        "messaging.client.id": recorder.of(events.AttemptStarted)[0].worker,
        "onward.attempt": 1,
        "onward.outcome": "continued",
    }
    assert (await app.jobs(chains=[chain.id])).items[0].meta["request"] == "r-7"


async def test_what_is_rolled_back_has_left_no_span(opened: Any, spans: Spans) -> None:
    app: Onward = await opened(leaf, observers=[spans.observer])

    with pytest.raises(ZeroDivisionError):
        async with app.transaction() as tx:
            await app.start(leaf, 1, tx=tx)
            raise ZeroDivisionError
    assert spans.all() == []

    async with app.transaction() as tx:
        await app.start(leaf, 1, tx=tx)
        assert spans.all() == []
    assert spans.all() == ["start leaf"]


async def test_a_duplicate_is_no_start(opened: Any, spans: Spans) -> None:
    app: Onward = await opened(leaf, observers=[spans.observer])

    for _ in range(2):
        await app.start(leaf, 1, deduplication=Deduplication("once"))

    assert spans.all() == ["start leaf"]


async def test_several_started_at_once_are_one_span(running: Any, spans: Spans, recorder: Recorder) -> None:
    app: Onward = await running(leaf, observers=[spans.observer, recorder])

    await app.start_many([leaf.with_input(n) for n in range(5)])
    await recorder.next(events.AttemptEnded, count=5)

    (start,) = spans.named("start leaf")
    assert (start.attributes or {})["messaging.batch.message_count"] == 5
    assert {parent_of(span) for span in spans.named("process leaf")} == {start.context.span_id}


async def test_a_failure_is_told_with_its_span(running: Any, spans: Spans, recorder: Recorder) -> None:
    app: Onward = await running(leaf, observers=[spans.observer, recorder])

    await app.start(leaf, -1)
    await recorder.next(events.AttemptEnded)

    (failed,) = spans.named("process leaf")
    assert failed.status.status_code is StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "Permanent"
    assert (failed.attributes or {})["onward.outcome"] == "failed"
    assert (failed.events[0].attributes or {})["exception.message"] == "negative"
    assert not spans.observer._spans


async def test_a_handler_adds_to_the_span_of_its_attempt(running: Any, spans: Spans, recorder: Recorder) -> None:
    @job("adding")
    async def adding(attempt: Attempt[int]) -> int:
        span = trace.get_current_span()
        span.set_attribute("order", attempt.input)
        span.add_event("paid", {"total": 40})
        with spans.provider.get_tracer("shop").start_as_current_span("inside"):
            return 1

    app: Onward = await running(adding, observers=[spans.observer, recorder])
    await app.start(adding, 7)
    await recorder.next(events.AttemptEnded)

    ((process,), (inside,)) = spans.named("process adding"), spans.named("inside")
    assert parent_of(inside) == process.context.span_id
    told = process.attributes or {}
    assert (told["order"], told["onward.attempt"], told["onward.outcome"]) == (7, 1, "completed")
    assert [(event.name, dict(event.attributes or {})) for event in process.events] == [("paid", {"total": 40})]


async def test_a_worker_belongs_to_no_trace_of_its_own(running: Any, opened: Any, spans: Spans) -> None:
    recorder = Recorder()
    client: Onward = await opened(leaf, observers=[])
    await client.start(leaf, 1, meta={"traceparent": 7, "tracestate": "odd"})
    await client.start(leaf, 2)

    with spans.provider.get_tracer("shop").start_as_current_span("main"):
        await running(leaf, observers=[spans.observer, recorder])
        await recorder.next(events.AttemptEnded, count=2)

    assert [parent_of(span) for span in spans.named("process leaf")] == [None, None]


async def test_what_was_not_sampled_where_it_began_is_not_sampled_further_on(running: Any) -> None:
    seen: list[Any] = []

    @job("looking")
    async def looking(attempt: Attempt[int]) -> int:
        seen.append(trace.get_current_span().get_span_context())
        return 1

    kept, provider = InMemorySpanExporter(), TracerProvider(sampler=ALWAYS_OFF)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    app: Onward = await running(
        looking, observers=[OpenTelemetryObserver(tracer_provider=provider, meter_provider=None)]
    )

    chain = await app.start(looking, 1)
    await chain.wait(timeout=SOON)

    (found,) = (await app.jobs()).items
    assert kept.get_finished_spans() == ()
    assert seen[0].trace_id == int(found.meta["traceparent"].split("-")[1], 16)
    assert not seen[0].trace_flags.sampled


def test_starting_without_an_event_loop_is_a_span_too(spans: Spans) -> None:
    with Onward("memory://", jobs=[leaf], observers=[spans.observer]).sync as client:
        client.start(leaf, 1)

    assert spans.all() == ["start leaf"]


# -- across processes


@pytest.fixture
def schema(postgres_dsn: str) -> Iterator[str]:
    name = f"traced_{secrets.token_hex(4)}"
    yield name
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())


async def test_three_steps_over_two_worker_processes_are_one_trace(
    postgres_dsn: str, schema: str, spans: Spans, tmp_path: Path
) -> None:
    program, files = traced.__file__, [tmp_path / "a", tmp_path / "b"]
    jobs = [traced.first, traced.second, traced.third]
    async with Onward(postgres_dsn, jobs=jobs, schema=schema, migrate=True, observers=[spans.observer]) as app:
        commands = [
            [sys.executable, program, postgres_dsn, schema, str(file), *names]
            for file, names in zip(files, (["first", "third"], ["second"]), strict=True)
        ]
        workers = [await asyncio.create_subprocess_exec(*command) for command in commands]
        try:
            chain = await app.start(traced.first, 7)
            assert await chain.wait(timeout=timedelta(seconds=60)) == 7
            for worker in workers:
                worker.terminate()
                assert await asyncio.wait_for(worker.wait(), 20) == 0
        finally:
            for worker in workers:
                with suppress(ProcessLookupError):
                    worker.kill()

    (start,) = spans.named("start first")
    one, two = ([json.loads(line) for line in file.read_text().splitlines()] for file in files)
    assert [span["name"] for span in one] == ["process first", "inside", "process third"]
    assert [(span["name"], span["attributes"]["onward.outcome"]) for span in two] == [
        ("process second", "retrying"),
        ("process second", "continued"),
    ]
    trace_id = f"0x{trace.format_trace_id(start.context.trace_id)}"
    assert {span["context"]["trace_id"] for span in (*one, *two)} == {trace_id}
    attempts = {span["parent_id"] for span in (*one, *two) if span["name"] != "inside"}
    assert attempts == {f"0x{trace.format_span_id(start.context.span_id)}"}
    inside = next(span for span in one if span["name"] == "inside")
    assert inside["parent_id"] == next(s for s in one if s["name"] == "process third")["context"]["span_id"]


# -- figures


async def test_figures_are_what_happened(running: Any, recorder: Recorder) -> None:
    reader = InMemoryMetricReader()
    observer = OpenTelemetryObserver(tracer_provider=None, meter_provider=MeterProvider([reader]))
    app: Onward = await running(leaf, observers=[observer, recorder])

    await app.start_many([leaf.with_input(n) for n in (-1, 1, 2)])
    await recorder.next(events.AttemptEnded, count=3)

    data = reader.get_metrics_data()
    assert data is not None
    told = {
        (metric.name, *sorted(dict(point.attributes).values())): getattr(point, "value", None) or point.count
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        for point in metric.data.data_points
        if getattr(point, "value", 1)
    }
    assert told["onward.chains.started", "leaf"] == 3
    assert told["onward.attempts.ended", "completed", "leaf"] == 2
    assert told["onward.attempts.ended", "failed", "leaf"] == 1
    assert told["onward.jobs.ended", "failed", "leaf"] == 1
    assert told["onward.job.run", "leaf"] == told["onward.job.wait", "leaf"] == 3
    assert ("onward.attempts.running", "leaf") not in told


# -- without a change of the application


async def test_apps_are_instrumented_from_outside(running: Any, spans: Spans) -> None:
    recorder = Recorder()
    OnwardInstrumentor().instrument(tracer_provider=spans.provider, skip_dep_check=True)
    try:
        OnwardInstrumentor().instrument()
        app: Onward = await running(leaf, observers=[recorder])
        await app.start(leaf, 1)
        await recorder.next(events.AttemptEnded)
        assert spans.all() == ["start leaf", "process leaf"]
    finally:
        OnwardInstrumentor().uninstrument()

    await app.start(leaf, 2)
    await recorder.next(events.AttemptEnded, count=2)
    assert spans.all() == ["start leaf", "process leaf"]
    assert not any(isinstance(each, OpenTelemetryObserver) for each in Onward("memory://", jobs=[])._observers)


def test_the_entry_point_names_it() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["opentelemetry_instrumentor"] == {
        "onward": f"{OnwardInstrumentor.__module__}:{OnwardInstrumentor.__qualname__}"
    }

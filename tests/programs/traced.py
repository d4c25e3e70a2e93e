"""A worker that takes some of three steps and writes its spans to a file, a line each: URL, schema, file, types."""

import asyncio
import signal
import sys
from typing import IO

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from onward import Attempt, Next, Onward, job
from onward.observe.otel import OpenTelemetryObserver


@job("third", internal=True)
def third(attempt: Attempt[int]) -> int:
    with trace.get_tracer("shop").start_as_current_span("inside"):
        return attempt.input


@job("second", internal=True, continues_to=[third])
async def second(attempt: Attempt[int]) -> Next[int]:
    if attempt.number == 1:
        raise ValueError("once more")
    async with attempt.complete():
        return attempt.continue_with(third, attempt.input)


@job("first", continues_to=[second])
async def first(attempt: Attempt[int]) -> Next[int]:
    return attempt.continue_with(second, attempt.input)


def on_one_line(span: ReadableSpan) -> str:
    return f"{span.to_json(indent=None)}\n"


def provider_for(file: IO[str]) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=file, formatter=on_one_line)))
    return provider


async def work(app: Onward, names: list[str]) -> None:
    worker = app.worker(jobs=[step for step in (first, second, third) if step.name in names])
    async with app:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()


if __name__ == "__main__":
    url, schema, path, *names = sys.argv[1:]
    with open(path, "w", encoding="utf-8") as file:
        trace.set_tracer_provider(provider_for(file))
        observer = OpenTelemetryObserver()
        asyncio.run(work(Onward(url, jobs=[first, second, third], schema=schema, observers=[observer]), names))

"""Figures for Prometheus: they are read by its own parser, and agree with the tables."""

import asyncio
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from onward import Attempt, Backoff, Next, Onward, Permanent, job
from onward.observe import events, measures
from onward.observe.measures import METRICS
from onward.observe.prometheus import PrometheusDepths, PrometheusObserver
from support import Recorder, scraped


@job("ship", internal=True)
def ship(attempt: Attempt[int]) -> int:
    return attempt.input


@job("charge", continues_to=[ship])
async def charge(attempt: Attempt[int]) -> Next[int]:
    if attempt.input % 10 == 0 and attempt.number == 1:
        raise ValueError("once more")
    if attempt.input % 15 == 0:
        raise Permanent("never")
    async with attempt.complete():
        return attempt.continue_with(ship, attempt.input)


async def test_the_figures_agree_with_the_tables(running: Any, recorder: Recorder, scale: Callable[[int], int]) -> None:
    registry, count = CollectorRegistry(), scale(10_000)
    observer = PrometheusObserver(registry)
    app: Onward = await running(
        charge, ship, observers=[observer, recorder], worker={"backoff": Backoff(timedelta(0)), "concurrency": 50}
    )

    await app.start_many([charge.with_input(n) for n in range(count)])
    failed = len(range(0, count, 15))
    retried = len(range(0, count, 10))
    async with asyncio.timeout(300):
        while len(recorder.of(events.AttemptEnded)) < count + retried + count - failed:
            await asyncio.sleep(0.05)

    told = scraped(registry)
    stored: dict[tuple[str, str], int] = {}
    async for found in app.jobs(limit=1000):
        key = found.type_name, found.status.value
        stored[key] = stored.get(key, 0) + 1
    completed = count - failed
    assert stored == {
        ("charge", "completed"): completed,
        ("charge", "failed"): failed,
        ("ship", "completed"): completed,
    }
    assert {key: told["onward_jobs_ended_total", *key] for key in stored} == stored
    assert told["onward_chains_started_total", "charge"] == count
    assert told["onward_attempts_ended_total", "charge", "continued"] == count - failed
    assert (
        told["onward_attempts_ended_total", "charge", "retrying"] == told["onward_retries_total", "charge"] == retried
    )
    assert told["onward_attempts_running", "charge"] == told["onward_attempts_running", "ship"] == 0
    for name in ("onward_job_wait_seconds", "onward_job_run_seconds"):
        assert told[f"{name}_count", "charge"] == told[f"{name}_bucket", "charge", "+Inf"] == count + retried
        assert told[f"{name}_sum", "charge"] > 0
    assert told["onward_pool_wait_seconds_count", "charge"] >= count - failed
    assert told["onward_settle_batch_size_sum",] == retried + failed + count - failed
    assert told["onward_hints_total", "sent"] > 0


async def test_depths_are_those_of_the_database(opened: Any) -> None:
    app: Onward = await opened(charge, ship)
    await app.start_many([charge.with_input(1), charge.with_input(2)])
    await app.start(charge, 3, delay=timedelta(hours=1))
    registry = CollectorRegistry()
    depths = PrometheusDepths(registry)

    depths.set(await app.depths())

    told = scraped(registry)
    assert told["onward_jobs", "charge", "pending"] == 2
    assert told["onward_jobs", "charge", "scheduled"] == 1
    assert told["onward_jobs", "ship", "pending"] == 0
    assert 0 < told["onward_oldest_due_seconds", "charge"] < 60
    assert told["onward_oldest_due_seconds", "ship"] == 0


async def test_what_was_rolled_back_is_not_counted(opened: Any) -> None:
    registry = CollectorRegistry()
    app: Onward = await opened(charge, ship, observers=[PrometheusObserver(registry)])

    with pytest.raises(ZeroDivisionError):
        async with app.transaction() as tx:
            await app.start(charge, 1, tx=tx)
            raise ZeroDivisionError

    assert ("onward_chains_started_total", "charge") not in scraped(registry)


def test_depths_without_an_event_loop() -> None:
    with Onward("memory://", jobs=[charge, ship]).sync as client:
        client.start(charge, 1)

        assert client.depths()["charge"].pending == 1


def test_every_figure_has_a_source() -> None:
    """Of each metric there is an event that changes it."""
    source = inspect.getsource(measures).partition("class Measures:")[2]
    names = {id(value): name for name, value in vars(measures).items()}
    assert [metric.name for metric in METRICS if names[id(metric)] not in source] == []

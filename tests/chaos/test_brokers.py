"""A broker that stops answering: callers do not notice, every job runs, and hints come back by themselves."""

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import servers
from onward import Onward
from onward.observe.events import NotifyRecovered
from programs.fleet import look, make_app
from support import SOON, Recorder, fleet

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]
STOPPED = 30
"""Seconds."""
PER_SECOND = 50


@pytest.fixture(params=["postgres-redis", "postgres-nats", "sqlite-redis"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Any]:
    """A database, and how to start a broker that may be stopped."""
    database, broker = request.param.split("-")
    target = request.getfixturevalue("postgres_dsn") if database == "postgres" else f"sqlite:///{tmp_path}/onward.db"
    return target, servers.private_redis if broker == "redis" else servers.private_nats


async def started(app: Onward, seconds: float) -> tuple[int, float]:
    """Start chains at a steady rate; how many, and how long `start` took but for the slowest hundredth."""
    took: list[float] = []
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        await app.start(look, len(took))
        took.append(time.monotonic() - began)
        await asyncio.sleep(max(1 / PER_SECOND - took[-1], 0))
    return len(took), sorted(took)[int(len(took) * 0.99)]


async def all_ended(app: Onward) -> None:
    async with asyncio.timeout(60):
        while (await app.chains(status=["pending", "running"], limit=1)).items:
            await asyncio.sleep(0.05)


async def completed(app: Onward) -> int:
    page = await app.chains(status="completed", limit=1000)
    count = len(page.items)
    while page.next is not None:
        page = await app.chains(status="completed", limit=1000, after=page.next)
        count += len(page.items)
    return count


async def test_a_broker_that_is_stopped_under_load_slows_nobody(
    pair: tuple[str, Any], say: Callable[[str], None]
) -> None:
    (target, private), schema, recorder = pair, f"t_{secrets.token_hex(6)}", Recorder()
    with private() as broker:
        async with (
            make_app(target, schema, broker.dsn, observers=[recorder]) as app,
            fleet(1, target, schema, 2, 10, broker.dsn),
        ):
            before, usual = await started(app, 10)
            os.kill(broker.pid, signal.SIGSTOP)
            during, slowed = await started(app, STOPPED)
            await all_ended(app)
            os.kill(broker.pid, signal.SIGCONT)
            resumed = time.monotonic()
            await recorder.next(NotifyRecovered)
            back_after = time.monotonic() - resumed
            await asyncio.sleep(2)  # the workers look once more when hints are back, and then only when told
            asked = time.monotonic()
            await (await app.start(look, 0)).wait(timeout=SOON)
            again = time.monotonic() - asked
            done = await completed(app)

    say(
        f"start at the 99th percentile: {usual * 1000:.1f} ms, with the broker stopped {slowed * 1000:.1f} ms; "
        f"back after {back_after:.1f} s, then {again * 1000:.0f} ms"
    )
    assert slowed - usual < 0.05
    assert again < 0.5
    assert done == before + during + 1

"""Workers whose clocks are an hour off: time is the database's, so nothing begins or is taken back early."""

import asyncio
import glob
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import servers
from chaos.conftest import Launch, Scene, trace
from onward import Onward
from programs.under_chaos import began, began_there, hold

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]
SOON = timedelta(seconds=30)
AN_HOUR_OFF = pytest.mark.parametrize("offset", [3600, -3600], ids=["ahead", "behind"])


@pytest.fixture
def faketime() -> str:
    """The library that lies about the time."""
    pattern = "/usr/lib/*/faketime/libfaketimeMT.so.1"
    if not glob.glob(pattern):
        servers.install("faketime")
    return glob.glob(pattern)[0]


def off_by(offset: int, library: str) -> dict[str, str]:
    # Elapsed time is true on a machine whose clock is wrong.
    true_elapsed = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}
    return {"LD_PRELOAD": library, "FAKETIME": f"{offset:+d}s", **true_elapsed}


@AN_HOUR_OFF
async def test_a_scheduled_job_begins_when_it_is_due_and_not_before(
    scene: Scene, launch: Launch, open_app: Any, faketime: str, offset: int
) -> None:
    client: Onward = await open_app(scene.home)
    launch(scene.address, **off_by(offset, faketime))
    said = await (await client.start(began, None)).wait(timeout=SOON)

    delay, due = timedelta(seconds=2), datetime.now(UTC) + timedelta(seconds=2)
    chains = [await client.start(began_there, None, delay=delay), await client.start(began_there, None, at=due)]
    moments = [await chain.wait(timeout=SOON) - due.timestamp() for chain in chains]

    assert abs(said - time.time() - offset) < 60
    assert all(-0.001 <= late < 2 for late in moments), moments


@AN_HOUR_OFF
@pytest.mark.parametrize("liar", ["holder", "reaper"])
async def test_a_job_held_by_a_live_worker_is_not_taken_back(
    scene: Scene, launch: Launch, open_app: Any, faketime: str, offset: int, liar: str
) -> None:
    wrong = off_by(offset, faketime)
    client: Onward = await open_app(scene.home)
    launch(scene.address, **(wrong if liar == "holder" else {}))
    chain = await client.start(hold, 6.0)
    async with asyncio.timeout(SOON.total_seconds()):
        while not await trace(client):
            await asyncio.sleep(0.05)

    launch(scene.address, **(wrong if liar == "reaper" else {}))

    assert await chain.wait(timeout=SOON) == 1
    assert dict(await trace(client)) == {(str(chain.id), 1): 1}

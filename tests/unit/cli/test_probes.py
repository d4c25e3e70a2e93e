"""What is answered where there is nobody to ask, and nothing to count with."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from onward.cli import probes as health
from onward.cli.probes import FleetHealth, WorkerHealth


async def test_without_the_extra_there_are_words_instead_of_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(health, "find_spec", lambda name: None)
    loop = asyncio.get_running_loop()
    worker = WorkerHealth(cast(Any, None), asyncio.Event(), loop, health._figures_of(cast(Any, None)))

    for routes in (worker.routes, FleetHealth(tmp_path, 2).routes):
        answer = await routes["/metrics"]()
        assert (answer.status, "pip install 'onward[prometheus]'" in answer.text) == (404, True)


async def test_a_worker_that_has_not_begun_or_has_ended_is_not_ready() -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.new_event_loop()
    ended.close()

    starting = await WorkerHealth(cast(Any, None), asyncio.Event(), loop, None).routes["/readyz"]()
    over = await WorkerHealth(cast(Any, None), asyncio.Event(), ended, None).routes["/healthz"]()

    assert (starting.status, starting.text) == (503, "it is starting\n")
    assert over.status == 503


async def test_processes_that_are_about_to_start_live_and_are_not_ready(tmp_path: Path) -> None:
    fleet = FleetHealth(tmp_path, 2)

    assert (await fleet.routes["/healthz"]()).status == 200
    ready = await fleet.routes["/readyz"]()
    assert (ready.status, ready.text) == (503, "worker 1: it is starting\nworker 2: it is starting\n")
    assert (await fleet.routes["/metrics"]()).text == ""

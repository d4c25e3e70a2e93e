"""`onward worker --health-port`: asked over HTTP like a probe or a scraper would, in good times and in bad."""

import asyncio
import re
import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from command import Command, both_hold, until
from onward import JobStatus, JobType, SyncOnward
from proxy import proxied
from support import SOON

Launch = Callable[..., Command]
hold = JobType("hold", input=str, output=int)
hold_loop = JobType("hold_loop", input=str, output=int)
one = JobType("one", input=int, output=int)


def place_of(command: Command) -> str:
    """Where it says that it answers."""
    command.says("/metrics.")
    found = re.search(r"http://[\d.]+:\d+", command.said)
    assert found is not None
    return found[0]


def asked(place: str, path: str) -> tuple[int, str]:
    answer = httpx.get(f"{place}{path}", timeout=SOON.total_seconds(), trust_env=False)
    return answer.status_code, answer.text


def figures(place: str) -> dict[tuple[str, ...], float]:
    status, page = asked(place, "/metrics")
    assert status == 200
    return {
        (sample.name, *(sample.labels[name] for name in ("type", "status", "process") if name in sample.labels)):
            sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }  # fmt: skip


def becomes(place: str, path: str, status: int, words: str) -> None:
    """Wait for an answer."""
    answer: tuple[int, str] = (0, "")

    def is_so() -> bool:
        nonlocal answer
        try:
            answer = asked(place, path)
        except httpx.TransportError as error:
            answer = 0, str(error)
        return answer[0] == status and words in answer[1]

    until(is_so, or_else=lambda: str(answer))


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_it_is_ready_while_the_database_is_there_and_it_does_not_stop(
    work: Launch, client: SyncOnward, target: str, tmp_path: Path
) -> None:
    async with proxied(target) as (proxy, address):
        worker = work("--health-port", "0", "--concurrency", "2", DATABASE=address)
        place = await asyncio.to_thread(place_of, worker)
        await asyncio.to_thread(becomes, place, "/readyz", 200, "ok")
        client.start(one, 1, delay=SOON * 100)
        await asyncio.to_thread(until, lambda: ("onward_jobs", "one", "scheduled") in figures(place))
        client.start(hold, str(tmp_path))
        await asyncio.to_thread(until, lambda: figures(place).get(("onward_attempts_running", "hold")) == 1)

        proxy.cut()
        await asyncio.to_thread(becomes, place, "/readyz", 503, "the database does not answer")
        assert await asyncio.to_thread(asked, place, "/healthz") == (200, "ok\n")
        await asyncio.to_thread(until, lambda: ("onward_jobs", "one", "scheduled") not in figures(place))
        proxy.mend()
        await asyncio.to_thread(becomes, place, "/readyz", 200, "ok")

        worker.signal(signal.SIGTERM)
        await asyncio.to_thread(becomes, place, "/readyz", 503, "the worker is stopping")
        (tmp_path / "go").touch()
        assert await asyncio.to_thread(lambda: worker.exit_code) == 0


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_a_blocked_event_loop_and_a_port_that_is_taken_are_told(
    work: Launch, client: SyncOnward, tmp_path: Path
) -> None:
    worker = work(ONWARD_HEALTH_PORT="0", ONWARD_HEALTH_HOST="0.0.0.0")
    place = place_of(worker).replace("0.0.0.0", "127.0.0.1")
    assert "Anyone who reaches this address may read them." in worker.said
    becomes(place, "/healthz", 200, "ok")
    other = work("--health-port", place.rpartition(":")[2])
    assert other.exit_code == 1
    assert "onward: --health-port: cannot listen on 127.0.0.1:" in other.said
    assert "Traceback" not in other.said

    client.start(hold_loop, str(tmp_path))

    becomes(place, "/healthz", 503, "the event loop does not turn")
    becomes(place, "/readyz", 503, "the event loop does not turn")
    assert figures(place)["onward_attempts_running", "hold_loop"] == 1


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_one_port_answers_for_several_processes(work: Launch, client: SyncOnward, tmp_path: Path) -> None:
    supervisor = work("--processes", "2", ONWARD_HEALTH_PORT="0")
    place = place_of(supervisor)
    becomes(place, "/readyz", 200, "ok")
    statuses = both_hold(client, tmp_path / "held")

    found = figures(place)
    for process in ("1", "2"):
        assert found["onward_attempts_running", "hold", process] == 1
        assert ("process_start_time_seconds", process) in found
    assert ("onward_jobs", "hold", "running") in found
    assert ("onward_jobs", "hold", "running", "1") not in found
    assert supervisor.said.count("/metrics.") == 1

    supervisor.signal(signal.SIGTERM)
    becomes(place, "/readyz", 503, "the workers are stopping")
    assert asked(place, "/healthz") == (200, "ok\n")
    (tmp_path / "held" / "go").touch()
    assert supervisor.exit_code == 0
    assert statuses() == {JobStatus.COMPLETED}

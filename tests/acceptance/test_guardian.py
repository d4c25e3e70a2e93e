"""Workers that are killed, or stuck, as real processes: who gets their jobs, and when."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from onward import Onward
from programs.guarded import busy, hang, hang_briefly, make_app, patient, say, writer
from support import SOON

Launch = Callable[..., subprocess.Popen[bytes]]
LONGER = SOON * 3


class Run(NamedTuple):
    """One attempt, as its handler noted it."""

    attempt: int
    pid: int
    began: float


def runs_in(file: Path) -> list[Run]:
    if not file.exists():
        return []
    fields = [line.split() for line in file.read_text().splitlines()]
    return [Run(int(attempt), int(pid), float(began)) for attempt, pid, began in fields]


async def begun(file: Path, count: int) -> list[Run]:
    """The runs, when there are that many."""
    async with asyncio.timeout(LONGER.total_seconds()):
        while len(runs := runs_in(file)) < count:
            await asyncio.sleep(0.005)
    return runs


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children_of(pid: int) -> list[int]:
    """The living processes that a process has started."""
    found: list[int] = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and is_alive(int(place.name)):
            parent = (place / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == pid:
                found.append(int(place.name))
    return found


@pytest.fixture
async def app(target: str, schema: str) -> AsyncIterator[Onward]:
    async with make_app(target, schema) as app:
        yield app


@pytest.fixture
def ready(launch: Launch) -> Callable[..., Any]:
    """Starts a worker and waits until it can be given jobs; the process and what else it printed."""

    async def start(*arguments: str, **options: Any) -> tuple[subprocess.Popen[bytes], list[str]]:
        worker = launch("guarded", *arguments, stdout=subprocess.PIPE, **options)
        printed: list[str] = []
        assert worker.stdout is not None
        while (line := (await asyncio.to_thread(worker.stdout.readline)).decode().strip()) != "ready":
            assert line, "the worker ended before it was ready"
            printed.append(line)
        worker.stdout.close()
        return worker, printed

    return start


async def test_the_jobs_of_a_killed_worker_start_elsewhere_long_before_their_leases_would_run_out(
    app: Onward, ready: Any, scale: Any, tmp_path: Path
) -> None:
    workers = {worker.pid: worker for worker in [(await ready("process"))[0] for _ in range(2)]}
    delays: list[float] = []

    for n in range(scale(50)):
        file = tmp_path / str(n)
        chain = await app.start(hang, str(file))
        holder = workers.pop((await begun(file, 1))[0].pid)
        killed_at = time.time()
        holder.kill()
        delays.append((await begun(file, 2))[1].began - killed_at)
        assert await chain.wait(timeout=LONGER) == 2
        replacement = (await ready("process"))[0]
        workers[replacement.pid] = replacement

    delays.sort()
    half, most = delays[len(delays) // 2], delays[int(len(delays) * 0.99)]
    say(f"{app.state.dialect}: {len(delays)} kills, p50 {half * 1000:.0f} ms, p99 {most * 1000:.0f} ms")
    assert most < LONGER.total_seconds()
    failures = [job.failures for job in (await app.jobs(types=[hang])).items]
    assert set(failures) == {1}


async def test_when_the_guardian_dies_with_its_worker_the_lease_runs_out(
    app: Onward, ready: Any, tmp_path: Path
) -> None:
    file = tmp_path / "runs"
    workers = {worker.pid: worker for worker in [(await ready("process"))[0] for _ in range(2)]}
    chain = await app.start(hang_briefly, str(file))
    holder = workers[(await begun(file, 1))[0].pid]

    guardians = children_of(holder.pid)
    assert len(guardians) == 1
    killed_at = time.time()
    os.kill(guardians[0], 9)
    holder.kill()

    delay = (await begun(file, 2))[1].began - killed_at
    say(f"{app.state.dialect}: both killed, lease 2 s, started elsewhere after {delay:.2f} s")
    assert await chain.wait(timeout=LONGER) == 2


@pytest.mark.parametrize("how", ["sleep", "loop", "regular expression"])
async def test_a_handler_that_blocks_for_many_leases_runs_once(
    app: Onward, ready: Any, tmp_path: Path, how: str
) -> None:
    file, log = tmp_path / "runs", tmp_path / "log"
    with log.open("wb") as stderr:
        await ready("process", stderr=stderr)
    chain = await app.start(busy, (how, str(file)))
    await begun(file, 1)
    await ready("process")

    assert await chain.wait(timeout=LONGER) == 1

    assert len(runs_in(file)) == 1
    if how != "regular expression":  # nothing of this process runs meanwhile, so nothing can look at the stack
        said = log.read_text()
        assert said.count("the event loop has not turned") == 1
        assert f"kept by busy (job {chain.id})" in said
        assert "in busy" in said


@contextmanager
def locked(target: str) -> Iterator[None]:
    """Nobody else can write meanwhile."""
    with closing(sqlite3.connect(target.removeprefix("sqlite:///"), isolation_level=None, timeout=60)) as raw:
        raw.execute("BEGIN IMMEDIATE")
        yield
        raw.execute("ROLLBACK")


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
@pytest.mark.parametrize("guardian", ["thread", "process"])
async def test_jobs_run_once_although_a_program_keeps_the_file_locked_for_many_leases(
    app: Onward, ready: Any, target: str, tmp_path: Path, guardian: str
) -> None:
    for _ in range(2):
        await ready(guardian)
    files = [tmp_path / str(n) for n in range(4)]  # every slot of both
    chains = [await app.start(patient, (6.0, str(file))) for file in files]
    for file in files:
        await begun(file, 1)

    for _ in range(3):
        with locked(target):
            await asyncio.sleep(1.6)
        await asyncio.sleep(0.005)  # reapers and guardians find the gap at the same time

    assert [await chain.wait(timeout=LONGER) for chain in chains] == [1] * 4
    assert [len(runs_in(file)) for file in files] == [1] * 4
    assert [job.failures for job in (await app.jobs(types=[patient])).items] == [0] * 4


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_process_that_is_stopped_with_the_lock_costs_nobody_a_lease(
    app: Onward, ready: Any, tmp_path: Path, goes_on: bool
) -> None:
    """Its own job is another's only if it does not go on."""
    workers = {worker.pid: worker for worker in [(await ready("process"))[0] for _ in range(2)]}
    files = [tmp_path / str(n) for n in range(3)]
    others = [await app.start(patient, (5.0, str(file))) for file in files]
    holders = {(await begun(file, 1))[0].pid for file in files}
    written = tmp_path / "written"
    chain = await app.start(writer, (1.0, str(written)))
    stopped = workers[(await begun(written, 1))[0].pid]

    stopped.send_signal(signal.SIGSTOP)
    await asyncio.sleep(3.0)
    stopped.send_signal(signal.SIGCONT if goes_on else signal.SIGKILL)

    assert holders == set(workers)
    assert await chain.wait(timeout=LONGER) == (1 if goes_on else 2)
    lived = [n for n, file in enumerate(files) if goes_on or runs_in(file)[0].pid != stopped.pid]
    assert lived
    for n in lived:
        assert await others[n].wait(timeout=LONGER) == 1


async def test_processes_of_a_killed_worker_are_killed_too(ready: Any) -> None:
    worker, (sleeper,) = await ready("process", "sleeper")
    assert is_alive(int(sleeper))

    worker.kill()

    async with asyncio.timeout(SOON.total_seconds()):
        while is_alive(int(sleeper)):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("end", ["terminate", "kill"])
async def test_no_guardian_is_left_behind(ready: Any, tmp_path: Path, end: str) -> None:
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        worker, _ = await ready("process", stderr=stderr)
    guardians = children_of(worker.pid)
    assert len(guardians) == 1

    getattr(worker, end)()

    async with asyncio.timeout(SOON.total_seconds()):
        while is_alive(guardians[0]):
            await asyncio.sleep(0.01)
    assert ("died; leases given back: 0" in log.read_text()) == (end == "kill")

"""Lost answers, stopped processes, full disks: nothing is lost, nothing is doubled, and no job is blamed for it."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

import servers
from chaos.conftest import PROGRAM, Launch, Scene, _unix, all_ended, trace
from chaos.cutting import cut_after_commit
from onward import Onward
from programs.under_chaos import INSERT, LEASE, one

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]


async def start_all(app: Onward, ids: list[UUID]) -> list[UUID]:
    """Start chains with a row of the application's own each; those that were acknowledged."""
    begun: list[UUID] = []
    for id in ids:
        with suppress(Exception):  # an application that gives up: then neither row may be there
            async with asyncio.timeout(10), app.transaction() as tx:
                await tx.execute(INSERT, chain=str(id), step=0)
                await app.start(one, 0, tx=tx, id=id)
            begun.append(id)
    return begun


async def blamed(app: Onward, schema: str) -> Counter[str]:
    """The errors that were counted against jobs, by type."""
    async with app.transaction() as tx:
        rows = await tx.fetch(
            f"SELECT e.value->>'type' FROM \"{schema}\".job, json_array_elements(errors) AS e WHERE failures > 0"
        )
    return Counter(row[0] for row in rows)


async def once_each(app: Onward, acknowledged: list[UUID]) -> None:
    """Every chain that is there left each of its four rows once, and every one acknowledged is there."""
    found = await trace(app)
    chains = {chain for chain, _ in found}
    assert {str(id) for id in acknowledged} <= chains
    assert found == Counter({(chain, step): 1 for chain in chains for step in range(4)})


@pytest.mark.parametrize("library", ["asyncpg", "psycopg"])
async def test_an_answer_to_commit_that_is_lost_neither_loses_nor_doubles_anything(
    scene: Scene,
    launch: Launch,
    open_app: Any,
    schema: str,
    scale: Callable[[int], int],
    say: Callable[[str], None],
    library: str,
) -> None:
    count = scale(3000)
    client: Onward = await open_app(scene.home)
    async with cut_after_commit(scene.address, share=0.05, seed=count) as (cutter, address):
        address = address.replace("postgresql://", f"postgresql+{library}://")
        workers = [launch(address) for _ in range(2)]
        hurt: Onward = await open_app(address)
        begun = await start_all(hurt, [uuid4() for _ in range(count)])
        await all_ended(client, within=180)
        await hurt.close()

        say(f"{library}: {cutter.cuts} answers to COMMIT were cut, {len(begun)} of {count} starts acknowledged")
        await once_each(client, begun)
        assert cutter.cuts > count / 40
        assert await blamed(client, schema) == Counter()
        assert [worker.poll() for worker in workers] == [None, None]


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in family(int(child)))]


async def test_processes_that_are_stopped_for_three_leases_are_crashes_and_nothing_else(
    scene: Scene, launch: Launch, open_app: Any, schema: str, scale: Callable[[int], int], say: Callable[[str], None]
) -> None:
    stops = max(scale(8), 3)
    client: Onward = await open_app(scene.home)
    workers = [launch(scene.address, GUARDIAN_PROCESS="yes", SLEEP="0.5") for _ in range(2)]
    await asyncio.sleep(2)
    begun: list[UUID] = []

    for number in range(stops):
        begun += await start_all(client, [uuid4() for _ in range(150)])
        stopped = family(workers[number % 2].pid)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        begun += await start_all(client, [uuid4() for _ in range(50)])
        await asyncio.sleep(3 * LEASE.total_seconds())
        for pid in reversed(stopped):
            os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(1)
    await all_ended(client, within=120)

    counted = await blamed(client, schema)
    say(f"{stops} stops, {len(begun)} chains; counted: {dict(counted)}")
    await once_each(client, begun)
    assert set(counted) <= {"WorkerCrashed"}
    assert [worker.poll() for worker in workers] == [None, None]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that is soon full."""
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("a small file system can be mounted only by root, on Linux")
    place = Path(tempfile.mkdtemp(prefix="onward-small-"))
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m,mode=755", "tmpfs", place], capture_output=True)
    if made.returncode:
        place.rmdir()
        pytest.skip(f"no small file system can be mounted here: {made.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)
        place.rmdir()


@pytest.fixture
def small_scene(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """A private server whose disk is soon full."""
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    with servers.private_postgres(max_wal_size="48MB", min_wal_size="48MB") as instance:
        yield Scene(instance, instance.dsn, _unix(instance))


def fill(disk: Path) -> Path:
    """Leave no room."""
    ballast = disk / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"0" * 65536)
    return ballast


async def suffer(app: Onward, disk: Path, count: int) -> list[UUID]:
    """Start chains before, while and after the disk is full; those acknowledged."""
    async with asyncio.TaskGroup() as tasks:
        busy = tasks.create_task(start_all(app, [uuid4() for _ in range(count)]))
        await asyncio.sleep(0.3)
        ballast = await asyncio.to_thread(fill, disk)
    begun = busy.result()
    for _ in range(10):
        begun += await start_all(app, [uuid4() for _ in range(count // 10)])
        await asyncio.sleep(0.5)
    ballast.unlink()
    return begun + await start_all(app, [uuid4() for _ in range(count)])


@contextmanager
def working(address: str, schema: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that writes to a file."""
    command = [sys.executable, str(PROGRAM), address, schema, "10"]
    with log.open("wb") as out, subprocess.Popen(command, stderr=out, stdout=out) as worker:
        try:
            yield worker
        finally:
            worker.kill()


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines()


async def test_a_full_disk_is_no_jobs_fault(
    small_scene: Scene,
    small_disk: Path,
    open_app: Any,
    schema: str,
    scale: Callable[[int], int],
    say: Callable[[str], None],
    tmp_path: Path,
) -> None:
    client: Onward = await open_app(small_scene.address)
    log = tmp_path / "log"
    with working(small_scene.address, schema, log) as worker:
        begun = await suffer(client, small_disk, scale(300))
        await all_ended_again(client, within=90)
        alive = worker.poll() is None

    counted = await blamed(client, schema)
    say(f"{len(begun)} chains; counted: {dict(counted)}; the worker wrote {len(lines(log))} lines")
    await once_each(client, begun)
    assert counted == Counter()
    assert alive
    assert len(lines(log)) < 30, log.read_text()[:3000]


async def test_a_full_disk_under_a_file_is_no_jobs_fault(
    small_disk: Path, scale: Callable[[int], int], say: Callable[[str], None]
) -> None:
    from programs.under_chaos import make_app

    address = f"sqlite:///{small_disk}/jobs.db"
    async with make_app(address, "unused") as client:
        async with client.transaction() as tx:
            await tx.execute("CREATE TABLE trace (chain text, step int)")
            await tx.execute("CREATE INDEX trace_chain ON trace (chain)")
        async with client.worker(concurrency=5):
            begun = await suffer(client, small_disk, scale(300))
            await all_ended_again(client, within=90)
        jobs = (await client.jobs(limit=1000)).items

        say(f"{len(begun)} chains")
        await once_each(client, begun)
        assert sum(job.failures for job in jobs) == 0


async def all_ended_again(app: Onward, *, within: float) -> None:
    """As `all_ended`, on a database that may still be coming back."""
    async with asyncio.timeout(within):
        while True:
            try:
                return await all_ended(app, within=within)
            except Exception as error:
                if app.driver.fault(error) is None:
                    raise
                await asyncio.sleep(0.2)

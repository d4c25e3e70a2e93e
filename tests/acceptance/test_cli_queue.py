"""`onward queue-worker`, as real processes with real signals."""

import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as native

import servers
from command import Command
from onward import Onward
from onward.conformance.queue.session import until
from onward.queue import Queue, QueueJobStatus
from onward.queue.providers.database import Database
from onward.queue.providers.redis import Redis

MODULE = """
import asyncio, os, time
from datetime import timedelta
from pathlib import Path
from onward import Onward
from onward.queue import QueueWorker
from onward.queue.providers.database import Database

async def run(data, job):
    print(f"begun {data}", flush=True)
    while data == "hold" and not Path("go").exists():
        await asyncio.sleep(0.01)
    if data == "die":
        os._exit(7)

def block(data, job):
    print(f"begun {data}", flush=True)
    while True:
        time.sleep(0.01)

app = Onward(os.environ["DATABASE"], jobs=[], schema=os.environ["SCHEMA"], migrate=True)
worker = QueueWorker("emails", run, provider=Database(app, lease=timedelta(seconds=1)))
stuck = QueueWorker("emails", block, provider=Database(app))
nowhere = QueueWorker("emails", run, provider=Database(Onward("postgresql://onward:secret@127.0.0.1:1/shop", jobs=[])))
here = QueueWorker("emails", run)
if "REDIS" in os.environ:
    from onward.queue.providers.redis import Redis
    later = QueueWorker("emails", run, provider=Redis(os.environ["REDIS"]))
number = 7

def make_worker():
    return worker
"""


@pytest.fixture
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a SQLite file, or of Postgres where a test asks for it."""
    if getattr(request, "param", "sqlite") == "postgres":
        dsn: str = request.getfixturevalue("postgres_dsn")
        return dsn
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.fixture
def schema() -> str:
    return f"cli_{secrets.token_hex(4)}"


@pytest.fixture
def onward(target: str, schema: str, tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts `onward queue-worker` in a folder that has the module `shop`, and ends what still runs with the test."""
    (tmp_path / "shop.py").write_text(MODULE)
    own = {key: value for key, value in os.environ.items() if not key.startswith("ONWARD_")}
    environment = {**own, "DATABASE": target, "SCHEMA": schema}
    commands: list[Command] = []

    def start(*arguments: str, **variables: str) -> Command:
        command = Command(
            "queue-worker", *arguments, folder=tmp_path, output=tmp_path, environment={**environment, **variables}
        )
        commands.append(command)
        return command

    yield start
    for command in commands:
        command.process.kill()
        command.process.wait()


@pytest.fixture
async def queue(target: str, schema: str) -> AsyncIterator[Queue[Any]]:
    async with Queue[Any]("emails", provider=Database(Onward(target, jobs=[], schema=schema, migrate=True))) as queue:
        yield queue


async def status(queue: Queue[Any], job_id: str) -> QueueJobStatus | None:
    found = await queue.get_job(job_id)
    return None if found is None else found.status


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_the_first_signal_lets_running_jobs_finish(
    onward: Callable[..., Command], queue: Queue[Any], tmp_path: Path, number: signal.Signals
) -> None:
    worker = onward("shop:worker", "--name", "red")
    worker.says("worker red-")
    worker.says("takes jobs, one at a time: emails (database)")
    running = await queue.add("one", "hold")
    worker.says("begun hold")

    worker.signal(number)
    worker.says(f"{number.name}: no more jobs are taken")
    later = await queue.add("two", "later")
    (tmp_path / "go").touch()

    assert worker.exit_code == 0
    assert "has stopped" in worker.said
    assert await status(queue, running.id) is QueueJobStatus.COMPLETED
    assert await status(queue, later.id) is QueueJobStatus.WAITING


@pytest.mark.parametrize("target", ["postgres", "sqlite"], indirect=True)
async def test_the_second_signal_gives_running_jobs_back(onward: Callable[..., Command], queue: Queue[Any]) -> None:
    jobs = [await queue.add("one", "hold", attempts=1) for _ in range(2)]
    worker = onward("shop:make_worker", "--concurrency", "2")
    worker.says("2 at a time")
    worker.says("begun hold", times=2)

    worker.signal()
    worker.says("no more jobs are taken")
    worker.signal()

    assert worker.exit_code == 0
    assert "given back" in worker.said
    for job in jobs:
        found = await queue.get_job(job.id)
        assert found is not None
        assert (found.status, found.attempts) == (QueueJobStatus.WAITING, 0)


async def test_after_the_grace_period_running_jobs_are_given_back(
    onward: Callable[..., Command], queue: Queue[Any]
) -> None:
    job = await queue.add("one", "hold")
    worker = onward(ONWARD_QUEUE_WORKER="shop:worker", ONWARD_GRACE="0.1")
    worker.says("begun hold")

    worker.signal()

    assert worker.exit_code == 0
    assert "Shutdown timeout exceeded after 0.1 s. 1 jobs still active." in worker.said
    assert await status(queue, job.id) is QueueJobStatus.WAITING


async def test_a_handler_that_never_stops_does_not_keep_its_worker(
    onward: Callable[..., Command], queue: Queue[Any]
) -> None:
    job = await queue.add("one", "for ever", attempts=2)
    worker = onward("shop:stuck", "--grace", "0.1")
    worker.says("begun for ever")

    worker.signal()

    assert worker.exit_code == 3
    assert "a handler does not stop (one)" in worker.said
    assert await status(queue, job.id) is QueueJobStatus.ACTIVE  # until its lease is over


async def test_the_third_signal_ends_it_at_once(onward: Callable[..., Command], queue: Queue[Any]) -> None:
    await queue.add("one", "for ever")
    worker = onward("shop:stuck")
    worker.says("begun for ever")

    worker.signal()
    worker.says("no more jobs are taken")
    worker.signal()
    worker.says("given back")
    worker.signal()

    assert worker.exit_code == 130


async def test_several_processes_and_one_that_dies(
    onward: Callable[..., Command], queue: Queue[Any], tmp_path: Path
) -> None:
    jobs = [await queue.add("one", "hold", attempts=2) for _ in range(2)]
    supervisor = onward("shop:worker", "--processes", "2", "--name", "red")
    supervisor.says("begun hold", times=2)
    supervisor.says("[2] worker red-2-")
    (tmp_path / "go").touch()
    last = await queue.add("two", "die", attempts=1)
    supervisor.says("ended with exit code 7; another starts")

    async def all_ended() -> bool:
        ended = [await status(queue, job.id) is QueueJobStatus.COMPLETED for job in jobs]
        return all(ended) and await status(queue, last.id) is QueueJobStatus.FAILED

    await until(all_ended)
    supervisor.signal()

    assert supervisor.exit_code == 0
    assert "all worker processes have ended" in supervisor.said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere:worker"], "no module named 'nowhere'"),
        (["shop:app"], "shop:app is a onward.client.app.Onward, not a QueueWorker"),
        (["shop:number"], "shop:number is a builtins.int, not a QueueWorker"),
        (["shop:nothing"], "module 'shop' has no 'nothing'; it has shop:worker, shop:stuck, shop:nowhere, shop:here"),
        (["redis://localhost"], "does not name a QueueWorker: write module:worker"),
        (["shop:nowhere"], "cannot connect to database"),
    ],
)
def test_errors_are_one_line_and_exit_code_1(onward: Callable[..., Command], arguments: list[str], words: str) -> None:
    command = onward(*arguments)

    assert command.exit_code == 1
    assert words in command.said
    assert len(command.said.splitlines()) == 1
    assert "secret" not in command.said


def test_a_queue_in_memory_is_told_that_nobody_else_can_add_to_it(onward: Callable[..., Command]) -> None:
    worker = onward("shop:here")
    worker.says("the queue 'emails' is in memory")
    worker.says("takes jobs, one at a time: emails (memory)")
    worker.signal()

    assert worker.exit_code == 0


async def test_it_waits_for_a_server_that_is_not_there_yet(onward: Callable[..., Command]) -> None:
    with servers.private_redis() as server:
        server.stop("fast")
        worker = onward("shop:later", "--wait", REDIS=server.dsn)
        worker.says("cannot connect to redis")
        worker.says("Trying again")
        server.start()
        worker.says("takes jobs")
        async with Queue[Any]("emails", provider=Redis(server.dsn)) as queue:
            await queue.add("one", "late")
            worker.says("begun late")
        worker.signal(signal.SIGTERM)
        assert worker.exits(within=20) == 0


async def test_it_stops_while_it_waits_and_does_not_wait_for_what_never_comes(onward: Callable[..., Command]) -> None:
    with servers.private_redis() as server:
        server.stop("fast")
        worker = onward("shop:later", "--wait", REDIS=server.dsn)
        worker.says("Trying again")
        worker.signal(signal.SIGTERM)
        assert worker.exits(within=20) == 0
        server.start()
        async with native.Redis.from_url(server.dsn) as client:
            await client.config_set("requirepass", "secret")

        refused = onward("shop:later", "--wait", REDIS=server.dsn)
        refused.says("password is wrong")
        assert refused.exits(within=20) == 1

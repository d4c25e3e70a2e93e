"""The `onward` command, as real processes with real signals, on both databases."""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from command import Command, until
from onward import CompletedJob, JobStatus, JobType, Onward, RunningJob, SyncOnward
from support import SOON

MODULE = """
import asyncio, os, time
from pathlib import Path
from onward import Attempt, Onward, job

@job("greet")
async def greet(attempt: Attempt[str]) -> str:
    return f"hello {attempt.input}"

@job("hold")
async def hold(attempt: Attempt[str]) -> str:
    while not Path(attempt.input).exists():
        await asyncio.sleep(0.01)
    return "let go"

@job("stuck")
def stuck(attempt: Attempt[None]) -> None:
    while True:
        time.sleep(0.01)

app = Onward(os.environ["DATABASE"], jobs=[greet, hold, stuck], schema=os.environ["SCHEMA"], migrate=True)
strict = Onward(os.environ["DATABASE"], jobs=[greet], schema="onward_nowhere", migrate=False)
number = 7

def make_app():
    return app

def with_argument(name):
    return app
"""

greet = JobType("greet", input=str, output=str)
hold = JobType("hold", input=str, output=str)
stuck = JobType("stuck", input=type(None), output=type(None))


@pytest.fixture(params=["postgres", "sqlite"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        dsn: str = request.getfixturevalue("postgres_dsn")
        return dsn
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.fixture
def schema() -> str:
    return f"cli_{secrets.token_hex(4)}"


@pytest.fixture
def environment(target: str, schema: str, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "shop.py").write_text(MODULE)
    own = {key: value for key, value in os.environ.items() if not key.startswith("ONWARD_")}
    return {**own, "DATABASE": target, "SCHEMA": schema}


@pytest.fixture
def onward(tmp_path: Path, environment: dict[str, str]) -> Iterator[Callable[..., Command]]:
    """Starts commands in a folder that has the module `shop`, and ends what still runs with the test."""
    commands: list[Command] = []

    def start(*arguments: str, **variables: str) -> Command:
        commands.append(Command(*arguments, folder=tmp_path, output=tmp_path, environment={**environment, **variables}))
        return commands[-1]

    yield start
    for command in commands:
        command.process.kill()
        command.process.wait()


@pytest.fixture
def client(target: str, schema: str) -> Iterator[SyncOnward]:
    with Onward(target, jobs=[greet, hold, stuck], schema=schema, migrate=True).sync as client:
        yield client


# -- the worker


def test_a_worker_process_runs_what_another_process_starts(onward: Callable[..., Command], client: SyncOnward) -> None:
    worker = onward("worker", "shop:app", "--concurrency", "2", "--name", "red")
    worker.says("takes jobs, 2 at a time: greet, hold, stuck")

    chain = client.start(greet, "world")

    assert chain.wait(timeout=SOON) == "hello world"
    job = chain.get().current
    assert isinstance(job, CompletedJob)
    assert (job.completed_by or "").startswith("red-")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_running_jobs_finish(
    onward: Callable[..., Command], client: SyncOnward, tmp_path: Path, number: signal.Signals
) -> None:
    running = client.start(hold, str(tmp_path / "go"))
    worker = onward("worker", "shop:app", "--log-level", "debug")
    worker.says("AttemptStarted")

    worker.signal(number)
    worker.says(f"{number.name}: no more jobs are taken")
    later = client.start(greet, "nobody")
    (tmp_path / "go").touch()

    assert worker.exit_code == 0
    assert "has stopped" in worker.said
    assert running.get().status is JobStatus.COMPLETED
    assert later.get().status is JobStatus.PENDING


def test_the_second_signal_gives_running_jobs_back(onward: Callable[..., Command], client: SyncOnward) -> None:
    chain = client.start(hold, "never")
    worker = onward("worker", "shop:app", "--log-level", "debug")
    worker.says("AttemptStarted")

    worker.signal()
    worker.says("no more jobs are taken")
    worker.signal()

    assert worker.exit_code == 0
    assert "given back" in worker.said
    job = chain.get().current
    assert (job.status, job.failures, job.attempt) == (JobStatus.PENDING, 0, 1)


def test_after_the_grace_period_running_jobs_are_given_back(onward: Callable[..., Command], client: SyncOnward) -> None:
    chain = client.start(hold, "never")
    worker = onward("worker", "shop:app", "--grace", "0.1", "--log-level", "debug")
    worker.says("AttemptStarted")

    worker.signal()

    assert worker.exit_code == 0
    assert chain.get().status is JobStatus.PENDING


def test_the_third_signal_ends_a_worker_that_cannot_stop(onward: Callable[..., Command], client: SyncOnward) -> None:
    client.start(stuck, None)
    worker = onward("worker", "shop:app", "--log-level", "debug")
    worker.says("AttemptStarted")

    worker.signal()
    worker.says("no more jobs are taken")
    worker.signal()
    worker.says("given back")
    worker.signal()

    assert worker.exit_code == 130
    assert "ended at once" in worker.said


def test_a_handler_that_never_stops_does_not_keep_its_worker(
    onward: Callable[..., Command], client: SyncOnward
) -> None:
    chain = client.start(stuck, None)
    worker = onward("worker", "shop:app", "--grace", "0.1", "--log-level", "debug")
    worker.says("AttemptStarted")

    worker.signal()

    assert worker.exit_code == 3
    assert "a handler does not stop (stuck)" in worker.said
    assert chain.get().status is JobStatus.PENDING


def test_a_worker_takes_only_the_jobs_it_is_told_to(onward: Callable[..., Command], client: SyncOnward) -> None:
    held = client.start(hold, "never")
    greeted = client.start(greet, "world")
    worker = onward("worker", "shop:app", "--jobs", "greet,stuck")

    assert greeted.wait(timeout=SOON) == "hello world"
    worker.says("one at a time: greet, stuck")
    assert held.get().status is JobStatus.PENDING


def test_every_option_is_also_an_environment_variable(onward: Callable[..., Command], client: SyncOnward) -> None:
    chain = client.start(hold, "never")
    variables = {
        "ONWARD_APP": "shop:make_app",
        "ONWARD_CONCURRENCY": "3",
        "ONWARD_JOBS": "hold",
        "ONWARD_NAME": "blue",
        "ONWARD_GRACE": "0",
        "ONWARD_POLL": "5",
        "ONWARD_LOG_LEVEL": "debug",
    }
    worker = onward("worker", **variables)
    until(lambda: chain.get().status is JobStatus.RUNNING, or_else=lambda: worker.said)
    job = chain.get().current
    assert isinstance(job, RunningJob)
    assert job.leased_by.startswith("blue-")
    worker.says("takes jobs, 3 at a time: hold")
    worker.says("DEBUG onward: AttemptStarted")  # told a moment after the job is seen to run

    worker.signal()

    assert worker.exit_code == 0


# -- migrate


def test_migrating_says_what_it_applied_and_then_that_nothing_is_left(onward: Callable[..., Command]) -> None:
    first = onward("migrate", "shop:app")
    assert first.exit_code == 0
    second = onward("migrate", "shop:app")

    assert second.exit_code == 0
    assert "applied 0001_chains" in first.said
    assert second.said.startswith("nothing to do")


def test_programs_are_told_what_was_applied(onward: Callable[..., Command]) -> None:
    first = onward("migrate", "shop:app", "--json")
    assert first.exit_code == 0, first.said
    second = onward("migrate", "shop:app", "--json")
    assert second.exit_code == 0, second.said

    told = json.loads(first.said)
    assert told["applied"][0] == "0001_chains"
    assert json.loads(second.said) == {"applied": [], "version": told["version"]}


def test_tables_that_are_newer_than_this_code_are_said_to_be(
    onward: Callable[..., Command], target: str, schema: str, client: SyncOnward
) -> None:
    table = f"{schema}.migration" if "postgres" in target else "onward_migration"
    with client.transaction() as tx:
        tx.execute(f"UPDATE {table} SET version = 99 WHERE version = 1")

    command = onward("migrate", "shop:app")

    assert command.exit_code == 0
    assert command.said.startswith("nothing to do: the tables are at version 99, newer than this code knows (")


def test_migrating_by_address_makes_the_tables_an_app_needs(
    onward: Callable[..., Command], target: str, schema: str
) -> None:
    command = onward("migrate", target, "--schema", schema, "--prefix", "shop_")
    assert command.exit_code == 0, command.said

    with Onward(target, jobs=[greet], schema=schema, prefix="shop_", migrate=False).sync as client:
        assert client.start(greet, "world").get().status is JobStatus.PENDING


def test_the_printed_sql_makes_the_tables_an_app_needs(
    onward: Callable[..., Command], postgres_dsn: str, schema: str
) -> None:
    command = onward("migrate", postgres_dsn, "--sql", ONWARD_SCHEMA=schema)
    assert command.exit_code == 0, command.said
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(command.said)

    with Onward(postgres_dsn, jobs=[greet], schema=schema, migrate=False).sync as client:
        assert client.start(greet, "world").get().status is JobStatus.PENDING


# -- what can go wrong


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["worker", "nowhere:app"], "no module named 'nowhere'"),
        (["worker", "shop.deep:app"], "no module named 'shop.deep'"),
        (["worker", "shop:nothing"], "module 'shop' has no 'nothing'; it has shop:app, shop:strict"),
        (["worker", "shop:number"], "shop:number is a builtins.int, not an Onward app"),
        (["worker", "shop:with_argument"], "cannot be called to make one"),
        (["worker", "postgresql://localhost/shop"], "write module:app"),
        (["worker", "broken:app"], "cannot import 'broken': ZeroDivisionError: division by zero"),
        (["worker", "incomplete:app"], "cannot import 'incomplete': ModuleNotFoundError"),
        (["worker", "shop:app", "--jobs", "greet,gret"], "no job type named gret; this app has greet, hold, stuck"),
        (["migrate", "mysql://localhost/shop"], "cannot tell the database from mysql://localhost/shop"),
        (
            ["migrate", "sqlite:////no/such/folder/shop.db"],
            "the directory /no/such/folder does not exist: make it",
        ),
        (["migrate", "postgresql://onward:secret@127.0.0.1:1/shop"], "cannot use the database at 127.0.0.1:1/shop: "),
        (["migrate", "postgresql://localhost:port/shop"], "the address (postgresql://…) cannot be read: "),
        (["migrate", "shop:app", "--schema", "other"], "--schema and --prefix go with an address"),
        (["migrate", "memory://", "--prefix", "a b"], "prefix='a b': use letters"),
    ],
)
@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_errors_are_one_line_and_exit_code_1(
    onward: Callable[..., Command], tmp_path: Path, arguments: list[str], words: str
) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "incomplete.py").write_text("import surely_not_installed")

    command = onward(*arguments)

    assert command.exit_code == 1
    assert words in command.said
    assert len(command.said.splitlines()) == 1
    assert "secret" not in command.said


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
def test_missing_tables_are_one_line_that_names_the_command(onward: Callable[..., Command]) -> None:
    command = onward("worker", "shop:strict")

    assert command.exit_code == 1
    assert "run `onward migrate`" in command.said
    assert len(command.said.splitlines()) == 1


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_debug_shows_the_traceback(onward: Callable[..., Command]) -> None:
    command = onward("migrate", "postgresql://127.0.0.1:1/shop", "--debug")

    assert command.exit_code == 1
    assert "Traceback" in command.said


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_help_and_version(onward: Callable[..., Command]) -> None:
    helped, versioned, unknown = onward("worker", "--help"), onward("--version"), onward("worker", "--nonsense")

    assert helped.exit_code == 0
    running = ("APP", "CONCURRENCY", "PROCESSES", "JOBS", "POLL", "GRACE", "NAME", "GUARDIAN", "BURST", "RELOAD")
    for variable in (*running, "RELOAD_DIR", "HEALTH_PORT", "HEALTH_HOST", "LOG_LEVEL", "DEBUG"):
        assert f"ONWARD_{variable}" in helped.said
    assert versioned.exit_code == 0
    assert versioned.said.startswith("onward ")
    assert unknown.exit_code == 2


def test_without_its_extra_the_command_says_what_to_install() -> None:
    without = "import sys; sys.modules['typer'] = None; from onward.cli.main import main; main()"
    command = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, check=False)

    assert command.returncode == 2
    assert command.stderr == "onward: the command line needs typer: pip install 'onward[cli]'\n"

"""`onward workers`, and what `onward worker` warns of when it starts."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from command import Command, until
from onward import JobType, Onward, SyncOnward
from onward.client.untaken import in_words, untaken
from onward.operating import WorkerInfo
from onward.state.facts import DueType
from orders import charge

MODULE = """
@job("mail", version=2)
async def mail(attempt: Attempt[str]) -> None: ...

@mail.upcast(1)
def _(value): return value

jobs = [mail, JobType("approve", input=int, output=bool), JobType("orders.charge", input=dict, output=dict)]
"""


@pytest.mark.parametrize("target", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)], indirect=True)
def test_a_worker_warns_of_what_nobody_takes_and_is_listed_until_it_is_dead(
    onward: Any, at: Any, client: SyncOnward, module: Any, target: str, schema: str, tmp_path: Path
) -> None:
    newer = JobType("mail", input=str, output=type(None), version=3)
    other = JobType("parcel", input=int, output=int)
    with Onward(target, jobs=[newer, other], schema=schema, observers=[]).sync as starting:
        starting.start(newer, "a")
        starting.start(other, 1)
    client.start(charge, {"id": 1})  # whose type the worker knows, without a handler: somebody else completes it
    assert onward("workers", *at).words == "there are no workers\n"

    environment = {**os.environ, "ONWARD_CODE_VERSION": "7f3a"}
    words = module(MODULE)
    command = Command("worker", *words, "--name", "red", folder=tmp_path, output=tmp_path, environment=environment)
    try:
        command.says("jobs wait that no worker takes")
        assert command.said.count("WARNING") == 1
        assert (
            "takes: mail of payload version 3 (workers read 1 and 2: newer code started it), parcel\n" in command.said
        )
        (worker,) = onward("workers", *at, "--json").json["workers"]
        assert (worker["state"], worker["pid"], worker["version"]) == ("alive", command.process.pid, "7f3a")
        header, row = onward("workers", *at, "--alive").out.splitlines()
        assert header.split()[:4] == ["worker", "state", "seen", "started"]
        assert row.split()[:2] == [worker["id"], "alive"]
        assert "0 of 1" in row
        assert row.rstrip().endswith("mail v1/2")
        assert onward("workers", *at, "--dead").words == "no worker is dead\n"
    finally:
        command.signal(signal.SIGKILL)
        command.process.wait()

    until(lambda: onward("workers", *at, "--dead", "--json").json["workers"] != [])
    assert onward("workers", *at).out.splitlines()[1].split()[:2] == [worker["id"], "dead"]
    assert onward("workers", *at, "--alive", "--json").json == {"workers": []}


def test_a_worker_without_a_row_is_listed_too(onward: Any, at: Any, client: SyncOnward) -> None:
    client.start(charge, {"id": 1})
    with client.transaction() as tx:
        name = "leased_by = 'old-1', status = 'running', leased_until"
        moment = "now() + interval '1 hour'" if "postgres" in at[1] else "9000000000000000"
        table = f"{at[-1]}.job" if "postgres" in at[1] else "onward_job"
        tx.execute(f"UPDATE {table} SET {name} = {moment}")

    _, row = onward("workers", *at).out.splitlines()
    assert row.split()[:2] == ["old-1", "alive"]
    assert "of an older version" in row


def worker(state: str = "alive", **types: tuple[int, ...]) -> WorkerInfo:
    facts: Any = {"host": "", "pid": 1, "version": None, "onward_version": "", "concurrency": 1, "state": state}
    return WorkerInfo(id="w", types=types, started_at=None, seen_at=None, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        ([], "a, b"),
        ([worker(a=(1,)), worker(b=(2, 1))], ""),
        ([worker(a=(1,)), worker("stopping", b=(2,)), worker("dead", b=(2,))], "b"),
        ([worker(a=(2,), b=(1,))], "a of payload version 1 (workers read 2: an upcast is missing), "
         "b of payload version 2 (workers read 1: newer code started it)"),
    ],
)  # fmt: skip
def test_what_nobody_takes_is_named_with_what_is_missing(workers: list[WorkerInfo], words: str) -> None:
    waiting = [DueType(name, version, 0.0, False) for name, version in (("a", 1), ("b", 2), ("by hand", 1))]

    assert in_words(untaken(waiting, workers, without_handler=["by hand"])) == words

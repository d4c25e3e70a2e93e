"""`onward worker --log-format json`: one object a line, whoever writes it, and handlers' lines carry their job."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from command import Command, until
from onward import JobType, Onward

MODULE = """
import logging, os
from onward import Attempt, Onward, job

logger = logging.getLogger("shop")

@job("loop")
async def loop(attempt: Attempt[int]) -> int:
    logger.info("on the loop\\nin two lines", extra={"total": 40})
    return attempt.input

@job("thread")
def thread(attempt: Attempt[int]) -> int:
    logger.info("in a thread")
    return attempt.input

@job("process", executor="process")
def process(attempt: Attempt[int]) -> int:
    logger.info("in a process")
    return os.getpid()

@job("bad", max_attempts=1)
async def bad(attempt: Attempt[int]) -> int:
    print("printed", file=__import__("sys").stderr)
    raise ValueError("bad")

app = Onward(os.environ["DATABASE"], jobs=[loop, thread, process, bad], migrate=True)
"""
NAMES = ("loop", "thread", "process", "bad")
TYPES = [JobType(name, input=int, output=int) for name in NAMES]


@pytest.mark.parametrize("processes", [1, 2])
def test_every_line_is_an_object(tmp_path: Path, processes: int) -> None:
    (tmp_path / "shop.py").write_text(MODULE)
    database = f"sqlite:///{tmp_path}/shop.db"
    own = {key: value for key, value in os.environ.items() if not key.startswith("ONWARD_")}
    arguments = ["worker", "shop:app", "--log-format", "json", "--processes", str(processes)]
    with Onward(database, jobs=TYPES, migrate=True).sync as client:
        worker = Command(*arguments, folder=tmp_path, output=tmp_path, environment={**own, "DATABASE": database})
        try:
            worker.says("takes jobs")
            chains = {kind.name: client.start(kind, 1) for kind in TYPES}
            for chain in chains.values():
                until(lambda chain=chain: has_ended(chain))  # type: ignore[misc]
            worker.signal()
            assert worker.exit_code == 0
        finally:
            worker.process.kill()
            worker.process.wait()

    lines = [json.loads(line) for line in worker.said.splitlines()]
    by_message = {line["message"]: line for line in lines if line["logger"] == "shop"}
    for words, name in [("on the loop\nin two lines", "loop"), ("in a thread", "thread"), ("in a process", "process")]:
        line = by_message[words]
        assert (line["type_name"], line["chain_id"], line["attempt"]) == (name, str(chains[name].id), 1)
        assert line["worker"]
        assert ("process" in line) == (processes > 1)
    assert by_message["on the loop\nin two lines"]["total"] == 40
    ended = {line["type_name"]: line["outcome"] for line in lines if line.get("event") == "AttemptEnded"}
    assert ended == {"loop": "completed", "thread": "completed", "process": "completed", "bad": "failed"}
    (failed,) = [line for line in lines if line.get("event") == "AttemptFailed"]
    assert failed["error"]["type"] == "ValueError"
    assert "shop.py" in failed["error"]["traceback"].splitlines()[1]
    assert any(line["message"] == "printed" for line in lines)


def has_ended(chain: Any) -> bool:
    return chain.get().status in ("completed", "failed")

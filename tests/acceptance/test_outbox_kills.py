"""Killed at every point between the transaction and the broker: what was committed is published, once."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onward import Onward
from onward.conformance.queue.session import arrived, until
from onward.queue.providers.database import Database

Launch = Callable[..., "subprocess.Popen[bytes]"]


async def test_nothing_is_lost_or_doubled_wherever_a_process_is_killed(
    launch: Launch, target: str, schema: str, tmp_path: Path, scale: Callable[[int], int]
) -> None:
    broker = f"sqlite:///{tmp_path}/broker.db"
    rounds = scale(20)

    def run(role: str, point: str, number: object = "") -> subprocess.Popen[bytes]:
        return launch("outbox", broker, role, point, number)

    for number in range(rounds):
        _killed(run("add", "before", f"{number}00"))  # before its commit
        _killed(run("add", "after", number))  # after it, before anything is published
        _killed(run("relay", "before"))
        _killed(run("relay", "after"))  # published, but not settled
    run("relay", "never")

    provider = Database(Onward(broker, jobs=[])).for_queue("emails")
    await provider.connect()
    jobs = await arrived(provider, rounds)
    assert sorted(job.id for job in jobs) == sorted(f"n{number}" for number in range(rounds))
    assert list(await provider.fetch(1)) == []
    await provider.disconnect()
    async with Onward(target, jobs=[], schema=schema) as app:
        await until(lambda: _all_settled(app, rounds))


async def _all_settled(app: Onward, count: int) -> bool:
    return len((await app.chains(types=["onward.relay:emails"], status="completed")).items) == count


def _killed(process: Any) -> None:
    assert process.wait(60) == -signal.SIGKILL

"""`onward status`."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from command import Command
from onward import SyncOnward
from onward.operating import Stats
from orders import charge
from proxy import proxied


def test_one_screen_says_what_waits_and_who_works(onward: Any, at: Any, client: SyncOnward) -> None:
    for n in range(3):
        client.start(charge, {"id": n})
    client.pause(charge)

    said = onward("status", *at)
    told = onward("status", *at, "--json").json

    lines = said.out.splitlines()
    assert lines[1] == "no workers"
    assert lines[3].split()[:7] == ["type", "blocked", "pending", "scheduled", "running", "failed", "oldest"]
    assert lines[4].split()[:7] == ["in", "all", "0", "3", "0", "0", "0"]
    (row,) = (line for line in lines if line.startswith("orders.charge"))
    assert row.split()[:6] == ["orders.charge", "0", "3", "0", "0", "0"]
    assert row.endswith("paused")
    stats = msgspec.convert(told["stats"], Stats)
    assert stats.types["orders.charge"].pending == 3
    assert told["workers"] == []


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_it_goes_on_until_interrupted(at: Any, client: SyncOnward, tmp_path: Any) -> None:
    client.start(charge, {"id": 1})
    command = Command(
        "status",
        *at,
        "--watch",
        "--every",
        "50ms",
        "--json",
        folder=tmp_path,
        output=tmp_path,
        environment={**os.environ},
    )
    try:
        command.says('"stats"')
        command.signal()

        assert command.exit_code == 130
    finally:
        command.process.kill()
        command.process.wait()
    told = [json.loads(line) for line in command.said.splitlines()]
    assert told[0]["stats"]["total"]["pending"] == 1


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_a_database_that_stands_still_is_told(
    target: str, schema: str, client: SyncOnward, onward: Any, tmp_path: Path
) -> None:
    async with proxied(target) as (proxy, dsn):
        place = ("--database", dsn, "--schema", schema)
        given = ("status", *place, "--watch", "--every", "50ms")
        command = Command(*given, folder=tmp_path, output=tmp_path, environment={**os.environ})
        try:
            await asyncio.to_thread(command.says, "no workers")
            proxy.freeze()
            await asyncio.to_thread(command.says, "onward: the database has not answered since")
            assert "; this was read at " in command.said
            proxy.thaw()
            told = command.said.count("no workers")
            while command.said.count("no workers") == told:
                await asyncio.sleep(0.05)
        finally:
            command.process.kill()
            command.process.wait()

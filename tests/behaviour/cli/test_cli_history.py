"""`onward history`."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from onward import SyncOnward
from orders import charge, ship

SHOP = """
from datetime import timedelta
year = Retention(completed=timedelta(), failed=timedelta(), history=timedelta(days=365))
charge = JobType("orders.charge", input=dict[str, int], output=dict[str, str], retention=year)
jobs = [charge]
"""


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
def test_moved_chains_are_listed_and_shown(onward: Any, at: Any, module: Any, client: SyncOnward) -> None:
    *path, app = module(SHOP)
    good, bad = client.start(charge, {"id": 1}), client.start(charge, {"id": 2})
    with client.complete(good.id) as completion:
        completion.continue_with(ship, "parcel-1")
    with client.complete(good.id) as completion:
        completion.done({"tracking": "parcel-1"})
    client.cancel(bad)
    before = onward("chains", "show", *at, good.id, "--json", "--payloads").json
    assert "no chains found" in onward("history", "list", *at).words

    assert onward("prune", "--app", app, *path, "--yes", "--json").json == {"pruned": 2}

    def listed(*options: object) -> list[str]:
        return [one["id"] for one in onward("history", "list", *at, "--json", *options).json["chains"]]

    assert [line.split()[0] for line in onward("history", "list", *at).out.splitlines()] == [
        "chain",
        str(bad.id),
        str(good.id),
    ]
    assert listed("--status", "failed") == listed("--limit", 1) == [str(bad.id)]
    assert listed("--after", bad.id) == listed("--status", "completed", "--type", "orders.charge") == [str(good.id)]
    assert listed("--type", "nothing") == listed("--older-than", "1h") == []
    assert len(listed("--newer-than", "1h")) == 2
    assert f"there may be more: --after {bad.id}" in onward("history", "list", *at, "--limit", 1).words

    shown = onward("history", "show", *at, good.id, "--json", "--payloads").json
    assert (shown["chain"], shown["steps"]) == (before["chain"], before["steps"])
    assert "step" in onward("history", "show", *at, good.id).out
    assert "parcel-1" not in onward("history", "show", *at, good.id).out
    assert "there is no chain" in onward("history", "show", *at, uuid4(), code=1).words
    assert "there is no chain or job" in onward("chains", "show", *at, good.id, code=1).words


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_a_file_has_none(onward: Any, at: Any, client: SyncOnward) -> None:
    assert "a SQLite file has none" in onward("history", "list", *at, code=1).words
    assert client.prune("orders.charge", older_than=timedelta()) == 0

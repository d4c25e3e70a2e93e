"""`onward prune`."""

from datetime import timedelta
from typing import Any

import pytest

from onward import SyncOnward
from onward.cli import changing
from orders import charge, report

SHOP = """
from datetime import timedelta
charge = JobType("orders.charge", input=dict[str, int], output=dict[str, str], retention=Retention(completed=None))
report = JobType("report", input=int, output=int, blocked_by=[charge], retention=Retention(failed=timedelta()))
jobs = [charge, report]
"""


def left(client: SyncOnward) -> list[str]:
    return [f"{chain.type_name} {chain.status}" for chain in client.all_chains()][::-1]


@pytest.fixture
def ended(client: SyncOnward) -> None:
    """Two that completed, of which something waits for one; two that failed."""
    one, two = client.start_many([charge.with_input({"id": n}) for n in range(2)])
    client.start(report, 1, blockers=[one, charge.with_input({"id": 3})])
    for chain in (one, two):
        with client.complete(chain) as completion:
            completion.done({})
    client.cancel(client.start(charge, {"id": 4}), client.start(report, 5))


def test_it_counts_asks_and_prunes_by_type_and_age(onward: Any, at: Any, client: SyncOnward, ended: None) -> None:
    everything = left(client)
    types = [*at, "orders.charge", "report"]

    assert onward("prune", *types, "--older-than", "1h", "--dry-run", "--json").json == {"would": 0}
    assert "pruned 0 chains" in onward("prune", *types, "--older-than", "1h").words
    assert "would prune 3 chains" in onward("prune", *types, "--older-than", "0s", "--dry-run").words
    assert client.prune(charge, older_than=timedelta(), dry_run=True, limit=1) == 1
    assert "say --yes" in onward("prune", *types, "--older-than", "0s", code=1).words
    assert left(client) == everything

    status = ["--status", "completed"]
    assert onward("prune", *types, "--older-than", "0s", "--yes", "--json", *status).json == {"pruned": 1}
    assert "pruned 1 chain" in onward("prune", *at, "report", "--older-than", "0s", "--yes").words
    assert onward("prune", *types, "--older-than", "0s", "--yes", "--limit", 5, "--json").json == {"pruned": 1}
    assert left(client) == ["orders.charge completed", "report blocked", "orders.charge pending"]


def test_an_app_knows_how_long_its_chains_are_kept(onward: Any, module: Any, client: SyncOnward, ended: None) -> None:
    *path, app = module(SHOP)

    assert "would prune 1 chain" in onward("prune", "--app", app, *path, "--dry-run").words
    assert onward("prune", "--app", app, *path, "--yes", "--json").json == {"pruned": 1}
    assert "report failed" not in left(client)


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_what_is_missing_is_said(onward: Any, at: Any, client: SyncOnward) -> None:
    assert "say which types, and --older-than" in onward("prune", *at, code=1).words
    assert "say which types" in onward("prune", *at, "report", code=1).words
    running = ["--older-than", "0s", "--status", "running", "--yes"]
    assert "only completed and failed" in onward("prune", *at, "report", *running, code=1).words


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_whoever_is_asked_may_say_no(
    onward: Any, at: Any, client: SyncOnward, ended: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    answers = [False, True]

    def confirm(words: str, **_: Any) -> bool:
        asked.append(words)
        return answers.pop(0)

    monkeypatch.setattr(changing.typer, "confirm", confirm)
    monkeypatch.setattr(changing, "sys", type("Terminal", (), {"stdin": type("In", (), {"isatty": lambda: True})}))
    command = ["prune", *at, "orders.charge", "--older-than", "0s"]

    assert "nothing was changed" in onward(*command, code=1).words
    assert "pruned 2 chains" in onward(*command).words
    assert asked == ["prune 2 chains?"] * 2

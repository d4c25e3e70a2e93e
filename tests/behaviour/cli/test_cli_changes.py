"""Commands that change chains, one by one and in bulk."""

import asyncio
import signal
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from onward import JobStatus, Onward, SyncOnward
from onward.cli.loading import load_app
from onward.client import bulk
from onward.errors import DatabaseError, DatabaseUnavailable
from orders import charge, report
from support import SOON

SHOP = """
@dataclass
class Order:
    id: int
@job("ship", internal=True)
async def ship(attempt: Attempt[int]) -> int:
    return 1
@job("charge", continues_to=[ship])
async def charge(attempt: Attempt[Order]) -> Outcome[int]:
    return Done(1)
jobs = [charge, ship]
"""


def statuses(client: SyncOnward) -> list[str]:
    return [str(chain.status) for chain in client.all_chains()][::-1]


def test_a_chain_is_started_with_an_input_that_is_checked(onward: Any, module: Any, client: SyncOnward) -> None:
    *path, app = module(SHOP)

    chain = onward("start", "charge", '{"id": 7}', "--app", app, *path).out.strip()
    told = onward("start", "charge", "-", "--app", app, "--json", "--delay", "1h", "--priority", 3, input='{"id": 8}')

    first, second = client.find_job(UUID(chain)), client.find_job(UUID(told.json["chain"]))
    assert first is not None
    assert second is not None
    assert (first.input, first.status, first.priority) == ({"id": 7}, "pending", 0)
    assert (second.input, second.priority) == ({"id": 8}, 3)
    assert second.scheduled_at > first.scheduled_at


@pytest.mark.parametrize(
    ("type", "input", "words"),
    [
        ("charge", '{"id": "seven"}', "id"),
        ("charge", "{id: 7}", "the input is no JSON"),
        ("charge", "NaN", "the input is no JSON"),
        ("charge", "[" * 100_000, "nested too deeply"),
        ("charg", "1", "charge"),
        ("ship", "1", "internal"),
    ],
)
def test_what_cannot_be_started_is_said(
    onward: Any, module: Any, client: SyncOnward, type: str, input: str, words: str
) -> None:
    *path, app = module(SHOP)

    assert words in onward("start", type, input, "--app", app, *path, code=1).words
    piped = onward("start", "charge", "-", "--app", app, *path, input=b"\xb8\xff", code=1)
    assert "the input is no JSON" in piped.words
    assert statuses(client) == []


def test_chains_are_changed_by_id(onward: Any, at: Any, client: SyncOnward) -> None:
    one, two, three = client.start_many([charge.with_input({"id": n}) for n in range(3)])

    assert "cancelled 2 chains" in onward("cancel", *at, one.id, two.id).words
    assert statuses(client) == ["failed", "failed", "pending"]
    assert onward("retry", *at, one.id, "--json").json == {"retried": 1, "refused": []}
    assert "would delete 1 chain" in onward("delete", *at, two.id, "--dry-run").words
    assert "deleted 1 chain" in onward("delete", *at, two.id).words
    assert statuses(client) == ["pending", "pending"]
    assert "triggered 1 chain" in onward("trigger", *at, three.id).words
    for command in ("cancel", "retry", "delete", "trigger"):
        assert "there is no chain" in onward(command, *at, uuid4(), code=1).words
    assert "which chains?" in onward("delete", *at, code=1).words
    assert "not both" in onward("delete", *at, one.id, "--type", "x", code=1).words


def test_chains_are_changed_by_filter_once_confirmed(
    onward: Any, at: Any, client: SyncOnward, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH", 3)
    client.start_many([charge.with_input({"id": n}) for n in range(10)])
    client.start(report, 1)

    look = onward("cancel", *at, "--type", "orders.charge", "--dry-run", "--json").json
    assert (look["would"], len(look["chains"])) == (10, 10)
    assert "would cancel 10 chains: say --yes" in onward("cancel", *at, "--type", "orders.charge", code=1).words
    assert statuses(client) == ["pending"] * 11
    assert "cancelled 10 chains" in onward("cancel", *at, "--type", "orders.charge", "--yes").words
    assert statuses(client) == ["failed"] * 10 + ["pending"]
    assert "cancelled 0 chains" in onward("cancel", *at, "--type", "orders.charge", "--yes").words
    assert "is for chains that are failed" in onward("retry", *at, "--status", "pending", "--yes", code=1).words
    assert onward("retry", *at, "--reason", "cancelled", "--yes", "--json").json["retried"] == 10
    assert onward("delete", *at, "--all", "--yes", "--json").json["deleted"] == 11
    assert statuses(client) == []


@pytest.mark.parametrize(
    ("blow", "code", "words"),
    [
        (KeyboardInterrupt, 130, "cancelled 6 chains; whether 3 more were is not known; 1 were not tried"),
        (DatabaseUnavailable, 1, "cancelled 6 chains; whether 3 more were is not known; 1 were not tried"),
        (DatabaseError, 1, "cancelled 6 chains; 4 were not tried"),
    ],
)
def test_a_change_that_is_interrupted_says_how_far_it_came(
    onward: Any, at: Any, client: SyncOnward, monkeypatch: pytest.MonkeyPatch, blow: Any, code: int, words: str
) -> None:
    cancel, calls = Onward.cancel, list[int]()

    async def cut_short(app: Onward, *chains: Any, **options: Any) -> int:
        calls.append(len(chains))
        if len(calls) < 3:
            return await cancel(app, *chains, **options)
        if blow is KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(SOON.total_seconds())
        raise blow("the database has refused", doing="cancel", fault=None)

    monkeypatch.setattr(bulk, "BATCH", 3)
    monkeypatch.setattr(Onward, "cancel", cut_short)
    client.start_many([charge.with_input({"id": n}) for n in range(10)])

    assert words in onward("cancel", *at, "--type", "orders.charge", "--yes", code=code).words
    assert sorted(statuses(client)) == ["failed"] * 6 + ["pending"] * 4
    calls.clear()
    told = onward("cancel", *at, "--type", "orders.charge", "--yes", "--json")
    assert told.json == {"cancelled": 4, "refused": []}


@pytest.mark.parametrize("batch", [1, 10])
def test_what_failed_through_another_comes_back_with_it(
    onward: Any, at: Any, client: SyncOnward, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(bulk, "BATCH", batch)
    first = client.start(charge, {"id": 1})
    client.start(report, 1, blockers=[first])
    client.cancel(first)
    assert statuses(client) == ["failed", "failed"]

    assert onward("retry", *at, "--all", "--yes", "--json").json == {"retried": 2, "refused": []}
    assert statuses(client) == ["pending", "blocked"]


def test_scheduled_jobs_are_triggered_by_filter(onward: Any, at: Any, client: SyncOnward) -> None:
    client.start(charge, {"id": 1}, delay=timedelta(hours=1))

    assert "triggered 1 chain" in onward("trigger", *at, "--type", "orders.charge", "--yes").words


def test_a_refusal_keeps_no_other_from_being_changed(onward: Any, at: Any, client: SyncOnward) -> None:
    chains = client.start_many([charge.with_input({"id": n}) for n in range(6)])
    client.start(report, 1, blockers=[chains[2]])

    said = onward("delete", *at, "--type", "orders.charge", "--yes", code=1)

    assert "deleted 5 chains" in said.words
    assert f"not {chains[2].id}:" in said.words
    assert statuses(client) == ["pending", "blocked"]
    refused = onward("delete", *at, chains[2].id, "--json", code=1).json["refused"]
    assert [one["chain"] for one in refused] == [str(chains[2].id)]


def test_types_are_paused_and_resumed(onward: Any, at: Any, module: Any, client: SyncOnward) -> None:
    assert "paused orders.charge, report" in onward("pause", *at, "orders.charge", "report").words
    assert onward("paused", *at).out.split() == ["orders.charge", "report"]
    assert onward("resume", *at, "report", "--json").json == {"paused": ["orders.charge"]}
    assert "resumed orders.charge" in onward("resume", *at, "orders.charge").words
    assert onward("paused", *at, "--json").json == {"paused": []}
    *path, app = module(SHOP)
    assert "charge" in onward("pause", "chareg", "--app", app, *path, code=1).words
    assert client.paused() == []


def test_what_failed_is_grouped_by_cause_and_retried_by_group(onward: Any, module: Any, client: SyncOnward) -> None:
    *path, app = module(
        "@job('work', max_attempts=1)\nasync def work(attempt: Attempt[int]) -> int:\n"
        "    if attempt.input % 3 == 0:\n        raise ValueError(f'order {attempt.input}')\n"
        "    raise KeyError(attempt.input)\njobs = [work]\n"
    )
    for number in range(5):
        onward("start", "work", number, "--app", app, *path)
    run_to_the_end(app, 5)

    groups = onward("failed", "list", "--app", app, "--json").json["groups"]
    assert [(one["error"], one["count"]) for one in groups] == [("KeyError", 3), ("ValueError", 2)]
    assert groups[0]["place"].endswith(" in work")
    assert groups[0]["place"].split(":")[0].endswith(".py")
    people = onward("failed", "list", "--app", app).out
    assert f"{groups[1]['group']}  2 × work" in people
    assert "ValueError: order " in people
    assert "among the newest 2 failed jobs" in onward("failed", "list", "--app", app, "--among", 2).words
    only = onward("failed", "list", "--app", app, "--json", "--error", "order 3").json["groups"]
    assert [one["count"] for one in only] == [1]
    newest = onward("failed", "list", "--app", app, "--json", "--error", "order 0", "--among", 4).json
    assert (newest["groups"], newest["complete"]) == ([], False)  # it is the oldest of five, and is not looked at

    few = onward("failed", "retry", groups[0]["group"], "--app", app, "--dry-run", "--among", 2)
    assert "among the newest 2 failed jobs" in few.words
    assert "among" not in onward("failed", "retry", groups[0]["group"], "--app", app, "--dry-run").words
    assert "would retry 2 chains" in onward("failed", "retry", groups[1]["group"], "--app", app, "--dry-run").words
    assert "say --yes" in onward("failed", "retry", groups[1]["group"], "--app", app, code=1).words
    assert "retried 2 chains" in onward("failed", "retry", groups[1]["group"], "--app", app, "--yes").words
    assert sorted(statuses(client)) == ["failed"] * 3 + ["pending"] * 2
    assert "no failed jobs of group" in onward("failed", "retry", "00000000", "--app", app, code=1).words
    for command in (["list"], ["retry", groups[1]["group"]]):
        assert "none that are pending" in onward("failed", *command, "--app", app, "--status", "pending", code=1).words


def run_to_the_end(target: str, count: int) -> None:
    async def work() -> None:
        app = load_app(target)
        async with app, app.worker(concurrency=5), asyncio.timeout(SOON.total_seconds()):
            while len(await app.jobs(status=[JobStatus.FAILED, JobStatus.COMPLETED])) < count:
                await asyncio.sleep(0.02)

    asyncio.run(work())

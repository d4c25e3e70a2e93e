"""`onward check`: it finds what a deploy would strand, and nothing else."""

import importlib
import sys
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

import orders
from onward import SyncOnward

BEFORE = """
@dataclass
class Order:
    id: int
@dataclass
class Fetched:
    pages: int
@job("ship", internal=True)
async def ship(attempt: Attempt[int]) -> int:
    return 1
@job("charge", continues_to=[ship])
async def charge(attempt: Attempt[Order]) -> Outcome[int]:
    return Done(1)
fetch = JobType("fetch", input=str, output=Fetched)
report = JobType("report", input=int, output=int, blocked_by=[fetch])
jobs = [charge, ship, fetch, report]
"""
_UPCAST = '@job("charge", continues_to=[ship], version=2)'


@pytest.fixture
def stored(module: Any, target: str, schema: str, onward: Any) -> Callable[..., Any]:
    """A chain at its first step, one at its second, one that waits for an output that is there, and one for none."""
    *path, name = module(BEFORE)
    sys.path.insert(0, path[-1])
    old: Any = importlib.import_module(name.partition(":")[0])
    with old.app.sync as client:
        waiting = client.start(old.charge, old.Order(7))
        further = client.start(old.charge, old.Order(8))
        with client.complete(further) as completion:
            completion.continue_with(old.ship, 1)
        fetched, unfinished = client.start(old.fetch, "a"), client.start(old.fetch, "b")
        client.start(old.report, 1, blockers=[fetched, unfinished])
        with client.complete(fetched) as done:
            done.done(old.Fetched(3))
        assert client.find_job(waiting.id) is not None

    def check(*changes: tuple[str, str], options: tuple[object, ...] = (), code: int = 0) -> Any:
        source = BEFORE
        for before, after in changes:
            assert before in source
            source = source.replace(before, after)
        *path, app = module(source)
        return onward("check", app, *path, "--json", *options, code=code).json

    return check


def problems(verdict: Any) -> list[tuple[str, str, int]]:
    return [(one["type_name"], one["part"], one["count"]) for one in verdict["stranded"]]


def test_it_passes_where_nothing_is_wrong(stored: Any) -> None:
    nothing = {"stranded": [], "stranded_schedules": []}
    assert stored() == {"checked": 4, "skipped": 0, "schedules": 0, **nothing}
    added = ("    id: int\n", "    id: int\n    note: str = ''\n")
    assert stored(added)["stranded"] == []


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        pytest.param([('"charge"', '"orders.charge"')], [("charge", "type", 1)], id="renamed type"),
        pytest.param([("    id: int\n", "    id: str\n")], [("charge", "input", 1)], id="changed field"),
        pytest.param([("    id: int\n", "    number: int\n")], [("charge", "input", 1)], id="renamed field"),
        pytest.param([('@job("charge", continues_to=[ship])', _UPCAST)], [("charge", "input", 1)], id="missing upcast"),
        pytest.param(
            [
                ('@job("ship", internal=True)\nasync def ship(attempt: Attempt[int]) -> int:\n    return 1\n', ""),
                ('@job("charge", continues_to=[ship])', '@job("charge")'),
                ("Outcome[int]:\n    return Done(1)", "int:\n    return 1"),
                ("[charge, ship,", "[charge,"),
            ],
            [("ship", "type", 1)],
            id="removed step that waits",
        ),
        pytest.param([("    pages: int\n", "    pages: str\n")], [("report", "blocker", 1)], id="changed output"),
        pytest.param(
            [("    pages: int\n", "    count: int\n"), ("output=Fetched)", "output=Fetched, version=2)")],
            [("fetch", "input", 1), ("report", "blocker", 1)],
            id="old output",
        ),
        pytest.param([(", blocked_by=[fetch]", "")], [("report", "blocker", 1)], id="blocker not declared"),
    ],
)
@pytest.mark.parametrize("target", ["sqlite"], indirect=True)  # payloads are the same everywhere
def test_it_finds_what_would_be_stranded(
    stored: Any, changes: list[tuple[str, str]], found: list[tuple[str, str, int]]
) -> None:
    verdict = stored(*changes, code=3)

    assert problems(verdict) == found
    assert all(UUID(id) for one in verdict["stranded"] for id in one["examples"])


def test_upcasts_are_part_of_this_code(stored: Any) -> None:
    version = ('@job("charge", continues_to=[ship])', _UPCAST)
    field = ("    id: int\n", "    number: int\n")
    good = ("jobs = [", "@charge.upcast(1)\ndef up(plain):\n    return {'number': plain['id']}\njobs = [")
    bad = ("jobs = [", "@charge.upcast(1)\ndef up(plain):\n    return {'number': plain['nr']}\njobs = [")

    assert stored(version, field, good)["stranded"] == []
    (stranded,) = stored(version, field, bad, code=3)["stranded"]
    assert stranded["problem"] == "KeyError: 'nr'"


def test_newer_payloads_strand_older_code(stored: Any, client: SyncOnward, module: Any, onward: Any) -> None:
    *path, newer = module("later = JobType('fetch', input=str, output=str, version=2)\njobs = [later]\n")
    onward("start", "fetch", '"x"', "--app", newer, *path)

    (stranded,) = stored(code=3)["stranded"]
    assert (stranded["version"], stranded["problem"]) == (2, "it is of version 2, this code is at 1")


def test_it_is_said_in_words_what_was_left_out_and_where_it_looked(
    stored: Any, onward: Any, module: Any, at: Any, client: SyncOnward
) -> None:
    for _ in range(3):
        client.start(orders.charge, {"id": 1})
    *path, app = module("jobs = []")

    said = onward("check", app, *path, *at, "--limit", 1, code=3)

    assert "orders.charge, version 1: type: there is no such job type" in said.out
    assert "this code would strand 5 of 5 jobs; 2 more were left out (--limit 1)" in said.words
    assert "no module named" in onward("check", "nowhere:app", code=1).words


SCHEDULED = """
from datetime import timedelta
@dataclass
class Day:
    number: int
@job("close", schedule=Schedule(input=Day(1), every=timedelta(hours=1)))
async def close(attempt: Attempt[Day]) -> int:
    return 1
@job("tidy", schedule=Schedule(every=timedelta(hours=1)))
async def tidy(attempt: Attempt[None]) -> int:
    return 1
jobs = [close, tidy]
"""
_CLOSE = SCHEDULED[SCHEDULED.index('@job("close"') : SCHEDULED.index('@job("tidy"')]
_MADE = "Schedule(input=lambda tick: Day(tick.day), "


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        pytest.param([], [], id="nothing is wrong"),
        pytest.param([("Day(1)", "Day(2)")], [], id="another input"),
        pytest.param(
            [("    number: int\n", "    number: str\n"), ("Day(1)", "Day('1')")],
            [("close", "input")],
            id="changed field",
        ),
        pytest.param(
            [("    number: int\n", "    nr: int\n"), ('"close", ', '"close", version=2, ')],
            [("close", "input")],
            id="missing upcast",
        ),
        pytest.param([('"close"', '"shut"')], [("close", "declaration"), ("close", "type")], id="renamed type"),
        pytest.param(
            [("schedule=Schedule(input=Day(1), every=timedelta(hours=1))", "")],
            [("close", "declaration")],
            id="removed",
        ),
        pytest.param(
            [(_CLOSE, ""), ("[close, tidy]", "[tidy]")], [("close", "declaration"), ("close", "type")], id="all gone"
        ),
    ],
)
@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_schedules_that_a_deploy_would_strand_are_found(
    module: Any, onward: Any, client: SyncOnward, changes: list[tuple[str, str]], found: list[tuple[str, str]]
) -> None:
    source = SCHEDULED
    for before, after in changes:
        assert before in source
        source = source.replace(before, after)
    store_schedules(module, SCHEDULED)
    *path, app = module(source)

    verdict = onward("check", app, *path, "--json", code=3 if found else 0).json

    assert verdict["schedules"] == 2
    assert [(one["name"], one["part"]) for one in verdict["stranded_schedules"]] == found


def test_schedules_are_told_of_in_words_unless_they_are_paused_or_made_by_code(
    module: Any, onward: Any, client: SyncOnward
) -> None:
    store_schedules(module, SCHEDULED.replace("Schedule(input=Day(1), ", _MADE))
    *path, app = module(SCHEDULED.replace('"tidy"', '"clean"'))

    said = onward("check", app, *path, code=3)
    client.schedules.pause("tidy")
    passed = onward("check", app, *path)

    assert "schedule tidy (tidy): declaration: this code does not declare it" in said.out
    assert "schedule tidy (tidy): type: there is no such job type" in said.out
    assert "it would strand 1 of 2 schedules" in said.words
    assert "it can go on with 1 schedule" in passed.words


def store_schedules(module: Any, source: str) -> None:
    """As a worker with this code does."""
    *path, name = module(source)
    sys.path.insert(0, path[-1])
    code: Any = importlib.import_module(name.partition(":")[0])
    with code.app.sync as client:
        for schedule in code.app.declared_schedules:
            client.schedules.resume(schedule)


@pytest.mark.parametrize("command", ["check", "graph"])
def test_where_the_tables_of_another_database_are_is_not_said_of_the_apps_own(
    module: Any, onward: Any, command: str
) -> None:
    *path, app = module(BEFORE)

    refused = onward(command, app, *path, "--schema", "elsewhere", code=1)

    assert "--schema and --prefix go with --database" in refused.words

"""What is thought of what was seen: health of a pulse, the doctor's findings of a case."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onward.client.doctor.case import Case
from onward.client.doctor.judge import judge as diagnose
from onward.client.health import HealthOptions, Pulse, judge
from onward.client.reaching import Unreached
from onward.model import StoredSchedule, new_id
from onward.operating import RunningJob, WorkerInfo
from onward.state.facts import (
    Diagnosis,
    Drift,
    DueType,
    FileFacts,
    Holder,
    IndexFacts,
    Lock,
    ServerFacts,
    Stray,
    TableFacts,
    differences,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
GB = 1 << 30


def worker(id: str = "w", *, holds: int = 0, **said: Any) -> WorkerInfo:
    running = [
        RunningJob(job_id=new_id(), chain_id=new_id(), type_name="mail", attempt=1, leased_until=NOW)
        for _ in range(holds)
    ]
    usual = {"host": "h", "pid": 1, "version": None, "onward_version": "1", "types": {"mail": (2, 1)}, "concurrency": 1}
    times = {"started_at": NOW, "seen_at": NOW}
    return WorkerInfo(**{"id": id, "state": "alive", "running": running, **usual, **times, **said})


def levels(found: Any) -> dict[str, str]:
    """By name: the worst of each."""
    told: dict[str, str] = {}
    for finding in found:
        if finding.level != "ok" or finding.name not in told:
            told[finding.name] = "error" if "error" in (finding.level, told.get(finding.name)) else finding.level
        assert finding.level == "ok" or finding.advice, finding
    return told


def due(name: str = "mail", version: int = 1, oldest: float = 5.0, *, paused: bool = False) -> DueType:
    return DueType(name, version, oldest, paused)


HEALTH: list[tuple[dict[str, Any], HealthOptions, dict[str, str]]] = [
    ({}, {}, {}),
    ({"unreached": Unreached("gone")}, {}, {"database": "error"}),
    ({"version": 5}, {}, {"schema": "error"}),
    ({"version": 0}, {}, {"schema": "error"}),
    ({"version": 7}, {}, {"schema": "warning"}),
    ({"version": 7, "is_open": False}, {}, {"schema": "error"}),
    ({"hints": "down"}, {}, {"hints": "warning"}),
    ({"hints": "local"}, {}, {}),
    ({"workers": []}, {}, {"workers": "warning"}),
    ({"workers": [], "waiting": [due()]}, {}, {"workers": "error"}),
    ({"workers": [worker(state="dead")], "waiting": [due()]}, {}, {"workers": "error"}),
    ({"workers": [worker(state="stopping")], "waiting": [due()]}, {}, {"workers": "error"}),
    ({"workers": [], "waiting": [due(paused=True)]}, {}, {"workers": "warning"}),
    ({"workers": [], "waiting": [due("approve")], "by_hand": frozenset({"approve"})}, {}, {"workers": "warning"}),
    ({"workers": [worker(), worker("x", state="dead", holds=2)]}, {}, {"dead_workers": "warning"}),
    ({"workers": [worker("x", state="dead", holds=2)]}, {}, {"workers": "error", "dead_workers": "warning"}),
    (
        {"workers": [worker("x", state="dead", holds=2)], "waiting": [due(paused=True)]},
        {},
        {"workers": "warning", "dead_workers": "warning"},
    ),
    ({"workers": [worker(), worker("x", state="dead")]}, {}, {}),
    ({"workers": [worker(blocked_since=NOW)]}, {}, {"blocked_workers": "warning"}),
    ({"waiting": [due(version=2), due(version=3)]}, {}, {"types": "error"}),
    ({"waiting": [due("call")]}, {}, {"types": "error"}),
    ({"waiting": [due("call")], "workers": [worker(), worker("old", is_known=False)]}, {}, {"types": "warning"}),
    ({"waiting": [due(oldest=61)]}, {"max_age": timedelta(minutes=1)}, {"age": "error"}),
    ({"waiting": [due(oldest=61)]}, {"max_ages": {"mail": timedelta(minutes=2)}, "max_age": timedelta(0)}, {}),
    ({"waiting": [due(oldest=61, paused=True)]}, {"max_age": timedelta(minutes=1)}, {}),
    ({"waiting": [due("approve", oldest=61)], "by_hand": frozenset({"approve"})}, {"max_age": timedelta(0)}, {}),
]


@pytest.mark.parametrize(("seen", "options", "expected"), HEALTH)
def test_health_is_what_the_pulse_says(seen: dict[str, Any], options: HealthOptions, expected: dict[str, str]) -> None:
    usual = {"at": NOW, "took": 0.01, "version": 6, "newest": 6, "hints": "up", "workers": [worker()]}

    health = judge(Pulse(**{**usual, **seen}), options)

    assert {name: level for name, level in levels(health.findings).items() if level != "ok"} == expected
    assert health.healthy == ("error" not in expected.values())


def server(**said: Any) -> ServerFacts:
    usual = {"version": 150004, "is_standby": False, "user": "u", "sees_others": True, "connections": 9}
    limits = {"role_limit": None, "database_limit": None, "transaction_age": 5, "multixact_age": 5, "is_pooled": False}
    return ServerFacts(**{**usual, **limits, **said})


def table(**said: Any) -> TableFacts:
    usual = {"name": "job", "bytes": 8192, "rows": 10.0, "dead": 0, "width": 100.0, "autovacuum_off": False}
    rest = {"threshold": None, "scale": None, "vacuumed": 5.0, "transaction_age": 5}
    return TableFacts(**{**usual, **rest, **said})


def index(**said: Any) -> IndexFacts:
    usual = {"name": "job_pending", "table": "job", "is_usable": True, "bytes": 8192, "rows": 10.0, "width": 40.0}
    return IndexFacts(**{**usual, **said})


def file(**said: Any) -> FileFacts:
    usual = {"path": "/x.db", "journal_mode": "wal", "synchronous": 1, "bytes": GB, "free": 0, "wal": 0, "damage": None}
    place = {"filesystem": "ext4", "is_writable": True, "readable_by_others": False}
    return FileFacts(**{**usual, **place, "disk_free": 50 * GB, "disk_total": 100 * GB, **said})


def schedule(**said: Any) -> StoredSchedule:
    nothing = ("cron", "every", "start", "end", "input", "next_at", "last_tick", "last_chain_id", "paused_at", "error")
    usual = {"name": "nightly", "type_name": "mail", "tz": "UTC", "is_changed": False, "missed": "skip", "skipped": 0}
    rest = {"overlap": "skip", "jitter": timedelta(0), "priority": 0, "is_declared": True, "declared_at": NOW}
    return StoredSchedule(**{**dict.fromkeys(nothing), **usual, **rest, **said})


POSTGRES: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({}, {}),
    ({"version": 5}, {"schema": "error"}),
    ({"version": 7}, {"schema": "error"}),
    ({"server": server(version=120009)}, {"server": "warning"}),
    ({"server": server(is_standby=True)}, {"server": "error"}),
    ({"server": server(sees_others=False)}, {"unseen": "warning"}),
    ({"server": server(connections=90)}, {"connections": "warning"}),
    ({"server": server(role_limit=5)}, {"connections": "warning"}),
    ({"server": server(transaction_age=600_000_000)}, {"transaction_ids": "warning"}),
    ({"server": server(multixact_age=1_600_000_000)}, {"transaction_ids": "error"}),
    ({"server": server(is_pooled=True)}, {"pooler": "warning"}),
    ({"clock_ahead": -3.0}, {"clock": "warning"}),
    ({"clock_ahead": 100.0}, {"clock": "error"}),
    ({"settings": {"autovacuum": "off"}}, {"autovacuum": "error"}),
    ({"settings": {"track_counts": "off"}}, {"autovacuum": "error"}),
    ({"settings": {"fsync": "off"}}, {"settings": "error"}),
    ({"settings": {"full_page_writes": "off"}}, {"settings": "warning"}),
    ({"settings": {"synchronous_commit": "off"}}, {"settings": "warning"}),
    ({"settings": {"default_transaction_read_only": "on"}}, {"settings": "error"}),
    ({"settings": {"default_transaction_isolation": "serializable"}}, {"settings": "warning"}),
    ({"settings": {"statement_timeout": "500"}}, {"settings": "warning"}),
    ({"settings": {"idle_in_transaction_session_timeout": "600000"}}, {}),
    ({"tables": [table(autovacuum_off=True)]}, {"autovacuum": "error"}),
    ({"tables": [table(dead=3_000_000, rows=1e6)]}, {"autovacuum": "warning"}),
    ({"tables": [table(dead=3_000_000, rows=1e8)]}, {}),
    ({"tables": [table(dead=3_000_000, rows=1e6, scale=0.9)]}, {}),
    ({"tables": [table(bytes=GB, rows=1e6)]}, {"bloat": "warning"}),
    ({"tables": [table(bytes=GB, rows=1e7)]}, {}),
    ({"tables": [table(bytes=GB, rows=-1.0, width=None)]}, {}),
    ({"indexes": [index(bytes=GB, rows=0.0, width=None)]}, {"bloat": "warning"}),
    ({"indexes": [index(bytes=GB, rows=1e7)]}, {}),
    ({"indexes": [index(is_usable=False)]}, {"indexes": "error"}),
    ({"holders": [Holder("session", "17 (me)", 1000.0, 3, None)]}, {"snapshots": "warning"}),
    ({"holders": [Holder("session", "17 (me)", None, 2_000_000, None)]}, {"snapshots": "warning"}),
    ({"holders": [Holder("session", "17 (me)", 10.0, 3, None)]}, {}),
    ({"holders": [Holder("prepared transaction", "x", 1000.0, 3, None)]}, {"snapshots": "warning"}),
    ({"holders": [Holder("unused replication slot", "x", None, None, 20.0 * GB)]}, {"snapshots": "warning"}),
    ({"locks": [Lock("17 (me)", "job", "ShareLock", 1.0, 0)]}, {}),
    ({"locks": [Lock("17 (me)", "job", "ShareLock", 9.0, 0)]}, {"locks": "error"}),
    ({"locks": [Lock("17 (me)", "job", "AccessShareLock", 1.0, 2)]}, {"locks": "error"}),
    ({"lacking": [("INSERT", "table job")]}, {"privileges": "warning"}),
    ({"drift": [Drift("index", "job", "job_pending", "missing", "CREATE INDEX …")]}, {"indexes": "error"}),
    ({"drift": [Drift("index", "job", "job_pending", "different", "a", "b")]}, {"indexes": "warning"}),
    ({"drift": [Drift("column", "job", "meta", "missing", "json")]}, {"drift": "error"}),
    ({"drift": [Drift("function", "", "start(json)", "different", "a", "b")]}, {"drift": "error"}),
    ({"drift": [Drift("column", "job", "own", "extra", None, "text")]}, {"drift": "warning"}),
    ({"unseen": {"schema drift": "permission denied"}}, {"unseen": "warning"}),
    ({"strays": [Stray("job without chain", "1", "mail", None)]}, {"orphans": "error"}),
    ({"strays": [Stray("chain without end", "1", "mail", None)]}, {"orphans": "error"}),
    ({"strays": [Stray("blocked by nothing", "1", "mail", None)]}, {"orphans": "error"}),
    ({"strays": [Stray("blocked by what is gone", "1", "mail", None)]}, {"orphans": "error"}),
    ({"strays": [Stray("blocker of nothing", "1", None, None)]}, {"orphans": "warning"}),
    ({"strays": [Stray("expired lease", "1", "mail", 900.0)]}, {"leases": "error"}),
    ({"strays": [Stray("stuck limit", "some/a", "mail", 900.0)]}, {"limits": "error"}),
]
SQLITE: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({}, {}),
    ({"journal_mode": "delete"}, {"file": "error"}),
    ({"filesystem": "nfs4"}, {"file": "error"}),
    ({"is_writable": False}, {"file": "error"}),
    ({"readable_by_others": True}, {"file": "warning"}),
    ({"synchronous": 0}, {"file": "warning"}),
    ({"wal": GB}, {"file": "warning"}),
    ({"free": 700 << 20}, {"file": "warning"}),
    ({"disk_free": 1 << 20}, {"disk": "error"}),
    ({"damage": ["row 1 missing from index"]}, {"file": "error"}),
    ({"damage": []}, {}),
]
WORK: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"waiting": [due("call")]}, {"types": "error"}),
    ({"waiting": [due(paused=True)]}, {"paused": "warning"}),
    ({"workers": [worker(), worker("x", state="dead", holds=1)]}, {"dead_workers": "warning"}),
    ({"schedules": [schedule(is_declared=False)]}, {"schedules": "warning"}),
    ({"schedules": [schedule(error="no such type")]}, {"schedules": "error"}),
    ({"schedules": [schedule()]}, {}),
]


def check(case: Case | Unreached, expected: dict[str, str]) -> None:
    assert {name: level for name, level in levels(diagnose(case)).items() if level != "ok"} == expected


@pytest.mark.parametrize(("seen", "expected"), POSTGRES)
def test_the_doctor_judges_a_server(seen: dict[str, Any], expected: dict[str, str]) -> None:
    usual = {"version": 6, "newest": 6, "clock_ahead": 0.0, "server": server(), "most": 10_000}
    settings = {"max_connections": "100", "autovacuum": "on", **seen.pop("settings", {})}

    check(Case(diagnosis=Diagnosis(**{**usual, "settings": settings, **seen}), workers=[worker()]), expected)


@pytest.mark.parametrize(("seen", "expected"), SQLITE)
def test_the_doctor_judges_a_file(seen: dict[str, Any], expected: dict[str, str]) -> None:
    check(Case(diagnosis=Diagnosis(version=6, newest=6, file=file(**seen)), workers=[worker()]), expected)


@pytest.mark.parametrize(("seen", "expected"), WORK)
def test_the_doctor_judges_who_works(seen: dict[str, Any], expected: dict[str, str]) -> None:
    check(Case(**{"diagnosis": Diagnosis(version=6, newest=6), "workers": [worker()], **seen}), expected)


def test_a_database_that_cannot_be_looked_at_is_a_finding() -> None:
    check(Unreached("connection refused"), {"database": "error"})


def test_one_that_is_there_and_does_not_answer_is_not_called_out_of_reach() -> None:
    [finding] = diagnose(Unreached("no answer within 5 s", is_silent=True))

    assert "cannot be reached" not in finding.message
    assert "lock" in (finding.advice or "")


def test_what_could_not_be_looked_at_is_not_called_in_order() -> None:
    unseen: dict[str, str] = dict.fromkeys(
        ("catalogue", "leases", "jobs", "holders"), "canceling statement due to lock timeout"
    )

    case = Case(diagnosis=Diagnosis(version=6, newest=6, server=server(), unseen=unseen), workers=[worker()])

    told = levels(diagnose(case))
    assert not {"drift", "indexes", "leases", "orphans", "snapshots"} & told.keys()
    assert {told["limits"], told["bloat"], told["locks"]} == {"ok"}


def test_of_a_table_that_is_missing_the_parts_are_not_told_and_what_others_added_elsewhere_neither() -> None:
    wanted = {("table", "job", "job"): "", ("column", "job", "id"): "uuid", ("function", "", "start()"): "1"}
    rest = {("table", "own", "own"): "", ("column", "own", "id"): "uuid", ("function", "", "own()"): "2"}

    found = differences({**wanted, ("table", "k", "k"): "", ("index", "k", "k_x"): ""}, {**wanted, **rest})

    assert [(one.kind, one.name, one.problem) for one in found] == [("table", "k", "missing")]

"""`onward health` and `onward doctor`: what they say of databases to which something was done."""

import os
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from onward import SyncOnward
from onward.state.postgres import diagnosis
from orders import charge, report

TELL = Callable[[str], None]


@pytest.fixture
def by_hand(target: str, schema: str) -> Iterator[TELL]:
    """Runs SQL in which a table is called {job}, and so on."""
    before = f"{schema}." if "postgres" in target else "onward_"
    names = {name: f"{before}{name}" for name in ("job", "schedule", "migration")}
    if "postgres" in target:
        with psycopg.connect(target, autocommit=True) as postgres:
            yield lambda sql: postgres.execute(sql.format(schema=schema, **names).encode()) and None
    else:
        with closing(sqlite3.connect(target.removeprefix("sqlite:///"), isolation_level=None)) as sqlite:
            yield lambda sql: sqlite.execute(sql.format(schema="", **names)) and None


def findings(told: Any) -> dict[str, str]:
    """By name, all that is wrong with it."""
    wrong = [one for one in told.json["findings"] if one["level"] != "ok"]
    assert all(one["advice"] for one in wrong)
    return {one["name"]: "\n".join(o["message"] for o in wrong if o["name"] == one["name"]) for one in wrong}


OURS = {"autovacuum:": "autovacuum is off", "settings:": "synchronous_commit is off", "workers:": "no worker is alive"}
"""What may be so on the server of the tests."""


def test_health_ends_with_0_or_1_and_says_why(onward: Any, at: Any, client: SyncOnward) -> None:
    told = onward("health", *at)
    assert "warning workers: no worker is alive; nothing waits" in told.out
    client.start(charge, {"id": 1})

    told = onward("health", *at, "--max-age", "1h", "--max-age", "orders.charge=0s", "--json", code=1).json

    assert not told["healthy"]
    assert [one["name"] for one in told["findings"] if one["level"] == "error"] == ["workers", "age"]
    late = onward("health", *at, "--max-age", "0s", code=1).out
    assert re.search(r"orders.charge for \d+ s \(allowed: 0 s\)", late)
    onward("health", *at, "--max-age", "=5m", code=2)
    away = onward("health", "--database", "postgresql://127.0.0.1:1/x", "--timeout", "2s", "--json", code=1).json
    assert [one["name"] for one in away["findings"]] == ["database"]


@pytest.mark.parametrize("command", ["health", "doctor"])
def test_a_timeout_that_leaves_no_time_is_refused(onward: Any, at: Any, client: SyncOnward, command: str) -> None:
    for nothing in ("0s", "0ms", "0.0h"):
        told = onward(command, *at, "--timeout", nothing, code=2)

        assert "--timeout" in told.words
        assert f"'{nothing}' leaves no time" in " ".join(re.sub("[│╭╰╮╯─]", " ", told.words).split())


def test_the_doctor_finds_nothing_wrong_with_a_new_database(onward: Any, at: Any, client: SyncOnward) -> None:
    told = onward("doctor", *at, "--deep", code=_code(at)).out.splitlines()

    assert "warning workers: no worker is alive; nothing waits" in told
    wrong = [line.split(None, 2)[1:] for line in told if line.startswith(("warning", "error"))]
    assert [one for one in wrong if not one[1].startswith(OURS.get(one[0], "-"))] == []
    assert told[-1].startswith("in order: schema, ")


def _code(at: Any) -> int:
    """Of a database on which nobody works; on that of the tests autovacuum may be off."""
    if "postgres" not in at[1]:
        return 1
    with psycopg.connect(at[1]) as connection:
        row = connection.execute("SHOW autovacuum").fetchone()
    return 2 if row == ("off",) else 1


def test_the_doctor_finds_what_was_done_to_tables_and_rows(
    onward: Any, at: Any, client: SyncOnward, by_hand: TELL
) -> None:
    chains = client.start_many([charge.with_input({"id": n}) for n in range(6)])
    waiting = [client.start(report, 1, blockers=[chain]) for chain in chains[:3]]
    client.pause("orders.charge")
    ids = [str(chain.id) for chain in chains]
    old = "'2000-01-01'" if "postgres" in at[1] else "946684800000000"
    for sql in (
        "DROP INDEX {schema}.job_failed" if "postgres" in at[1] else "DROP INDEX onward_job_failed",
        "ALTER TABLE {job} ADD COLUMN own text",
        f"UPDATE {{job}} SET chain_ended_at = {old}, status = 'completed', ended_at = {old} WHERE id = '{ids[0]}'",
        f"DELETE FROM {{job}} WHERE id = '{ids[1]}'",
        f"DELETE FROM {{job}} WHERE id = '{waiting[2].id}'",
        f"UPDATE {{job}} SET status = 'running', leased_by = 'w', leased_until = {old} WHERE id = '{ids[3]}'",
        f"UPDATE {{job}} SET status = 'completed', ended_at = {old} WHERE id = '{ids[4]}'",
        f"UPDATE {{job}} SET chain_id = '{secrets.token_hex(4)}-0000-7000-8000-000000000000', chain_index = 1 "
        f"WHERE id = '{ids[5]}'",
        "INSERT INTO {schedule} (name, type_name, definition, fingerprint, superseded, declared_at) "
        f"VALUES ('nightly', 'report', '{{{{}}}}', 'f', '[]', {old})",
    ):
        by_hand(sql)

    told = onward("doctor", *at, "--json", code=2)
    found = findings(told)

    assert "job_failed" in found["indexes"]
    assert "is missing" in found["indexes"]
    if "sqlite" in at[1]:
        advice = next(one["advice"] for one in told.json["findings"] if one["name"] == "indexes")
        by_hand(advice.partition(": ")[2])
        assert "indexes" not in findings(onward("doctor", *at, "--json", code=2))
    assert "column own of" in found["drift"]
    assert f"blocked, though all that it waited for has ended: 1 job ({waiting[0].id})" in found["orphans"]
    assert f"blocked by a chain that is gone: 1 job ({waiting[1].id})" in found["orphans"]
    assert f"still written down: 1 job ({waiting[2].id})" in found["orphans"]
    assert f"though nothing of it runs or waits: 1 job ({ids[4]})" in found["orphans"]
    assert f"whose first job is gone: 1 job ({ids[5]})" in found["orphans"]
    assert ids[3] in found["leases"]
    assert "orders.charge (the oldest for" in found["paused"]
    assert "no live worker declares these schedules: nightly" in found["schedules"]


def test_the_doctor_tells_of_tables_that_are_too_old(onward: Any, at: Any, client: SyncOnward, by_hand: TELL) -> None:
    by_hand("DELETE FROM {migration}")

    assert "no Onward tables" in findings(onward("doctor", *at, "--json", code=2))["schema"]
    assert "no Onward tables" in findings(onward("health", *at, "--json", code=1))["schema"]


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
def test_the_doctor_sees_what_was_done_to_a_server(
    onward: Any, at: Any, client: SyncOnward, by_hand: TELL, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand("ALTER TABLE {job} SET (autovacuum_enabled = false)")
    by_hand(
        "CREATE OR REPLACE FUNCTION {schema}.readable(moment timestamptz) RETURNS timestamptz "
        "LANGUAGE sql AS 'SELECT moment'"
    )
    by_hand("CREATE FUNCTION {schema}.own() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'")
    by_hand("CREATE TRIGGER own AFTER INSERT ON {job} FOR EACH ROW EXECUTE FUNCTION {schema}.own()")
    monkeypatch.setattr("onward.client.doctor.upkeep._LONG", -1)
    with psycopg.connect(target, options="-c application_name=reports") as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT txid_current()")
        found = findings(onward("doctor", *at, "--json", code=2))

    assert "autovacuum is off for table job" in found["autovacuum"]
    assert "function readable(" in found["drift"]
    assert "trigger own of job is not of Onward's migrations" in found["drift"]
    assert "reports, idle in transaction) holds back vacuum" in found["snapshots"]


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
def test_who_has_locked_a_table_is_named(
    onward: Any, at: Any, client: SyncOnward, target: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "_BOUNDS", diagnosis._BOUNDS.replace("'2s'", "'50ms'"))
    with psycopg.connect(target, options="-c application_name=nightly") as other:
        other.execute(f"LOCK TABLE {schema}.worker IN ACCESS EXCLUSIVE MODE".encode())
        silent = findings(onward("health", *at, "--timeout", "2s", "--json", code=1))["database"]
        left = other.execute(
            f"SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '{schema}.worker'::regclass".encode()
        ).fetchone()
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(client.workers)
            _until_somebody_waits(other)
            found = findings(onward("doctor", *at, "--json", code=2))
            other.rollback()
            waiting.result()

    assert "lets us in" in silent
    assert left == (0,), "a probe that has given up still waits at the server"
    assert "nightly, idle in transaction) has locked worker (AccessExclusiveLock)" in found["locks"]
    assert " for it" in found["locks"]
    assert not {"drift", "workers"} & found.keys()


def _until_somebody_waits(connection: psycopg.Connection[Any]) -> None:
    while not connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()[0]:  # type: ignore[index]
        time.sleep(0.02)


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
def test_a_role_that_may_little_is_told_what_it_may_not(
    onward: Any, at: Any, client: SyncOnward, by_hand: TELL, target: str, schema: str
) -> None:
    role = f"starter_{secrets.token_hex(4)}"
    url = urlsplit(target)
    place = url.netloc.rpartition("@")[2]
    by_hand(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    try:
        by_hand(f"ALTER ROLE {role} SET statement_timeout = '20s'")
        by_hand(
            f"GRANT USAGE ON SCHEMA {{schema}} TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA {{schema}} TO {role}"
        )
        theirs = url._replace(netloc=f"{role}:secret@{place}").geturl()
        found = findings(onward("doctor", "--database", theirs, "--schema", schema, "--json", code=_code(at)))
    finally:
        by_hand(f"DROP OWNED BY {role}; DROP ROLE {role}")

    assert f"role {role} may not do all that a worker does: DELETE on table blocker" in found["privileges"]
    assert "could not look at schema drift: permission denied for database" in found["unseen"]
    assert "sessions of other roles" in found["unseen"]
    assert "statement_timeout is 20,000 ms" in found["settings"]


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_the_doctor_sees_what_was_done_to_a_file(
    onward: Any, at: Any, client: SyncOnward, target: str, tmp_path: Path
) -> None:
    os.chmod(tmp_path / "onward.db", 0o644)

    assert "everybody on this machine may read the file" in findings(onward("doctor", *at, "--json", code=1))["file"]

"""The hot statements read what they need and no more, with a million finished rows behind them."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest

from onward.state.postgres.adapter import PostgresState
from onward.state.postgres.settings import session_settings
from onward.state.statement import spell
from onward.state.survey import KINDS

STATE = PostgresState(schema="plans")
FINISHED, PENDING, DEFERRED, RUNNING, TYPES, RANKS = 1_000_000, 100_000, 10_000, 1_000, 10, 3
BATCH = FIRST = 100
LATER = datetime(2030, 1, 1, tzinfo=UTC)

LOAD = """
ALTER TABLE plans.job SET UNLOGGED;
INSERT INTO plans.job (id, chain_id, chain_index, type_name, payload_version, status, rank, deferred, input, created_at,
  scheduled_at, root_id, attempt, leased_by, leased_until, ended_at, chain_ended_at)
SELECT made.id, made.id, 0, 'type-' || n % {types}, 1, status, (n / {types}) % 3, status = 'pending' AND n < {deferred},
  '{{}}', now(), now() - (n % 1000) * interval '1 s', made.id, (status <> 'pending')::integer,
  CASE status WHEN 'running' THEN 'worker-' || n % 5 END, CASE status WHEN 'running' THEN now() + interval '1 min' END,
  CASE status WHEN 'completed' THEN now() END, CASE status WHEN 'completed' THEN now() END
FROM generate_series(1, {count}) n,
  LATERAL (SELECT CASE WHEN n <= {live} THEN CASE WHEN n <= {running} THEN 'running' ELSE 'pending' END
                  ELSE 'completed' END AS status) as life,
  LATERAL (SELECT lpad(to_hex(n), 32, '0')::uuid AS id) AS made;
"""


@pytest.fixture(scope="module")
def loaded(postgres_dsn: str) -> Iterator[str]:
    """The DSN of a database with a long past, a backlog, jobs for later and jobs that run."""
    live = RUNNING + PENDING + DEFERRED
    load = LOAD.format(types=TYPES, count=FINISHED + live, live=live, running=RUNNING, deferred=RUNNING + DEFERRED)
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(STATE.migration_sql().encode())
        connection.execute(load.encode())
        connection.execute("VACUUM (ANALYZE) plans.job")
        yield postgres_dsn
        connection.execute("DROP SCHEMA plans CASCADE")


@pytest.fixture(params=["as-workers-connect", "as-others-connect"])
def connection(request: pytest.FixtureRequest, loaded: str) -> Iterator[psycopg.Connection]:
    """A connection whose every change is undone."""
    with psycopg.connect(loaded, cursor_factory=psycopg.ClientCursor) as connection:
        if request.param == "as-workers-connect":
            for name, value in session_settings().items():
                connection.execute("SELECT set_config(%s, %s, false)", [name, value])
        yield connection
        connection.rollback()


@pytest.mark.parametrize("types", [1, 3, 10])
def test_taking_reads_about_as_many_rows_as_it_takes(connection: psycopg.Connection, types: int) -> None:
    places = 1 << (types - 1).bit_length()
    names = [f"type-{n}" for n in range(types)] + [None] * (places - types)

    plan = explained(
        connection,
        STATE.sql("take", repeat=places),
        type_names=names,
        versions=[1 if name else None for name in names],
        leases=[60.0 if name else None for name in names],
        lease=None,
        worker="worker-1",
        limit=BATCH,
        now=None,
    )

    branches = [node for node in plan if node.get("Index Name") == "job_pending"]
    assert plan[0]["Actual Rows"] == BATCH
    assert types <= len(branches) <= places  # a planner that knows the values leaves the padding out
    assert max(read(node) for node in branches) <= BATCH + 1
    assert sum(read(node) for node in branches) <= BATCH + places + 1
    assert_no_backlog_is_sorted(plan, at_most=places)
    assert_the_table_is_not_scanned(plan)


def test_taking_where_nothing_waits_reads_nothing(connection: psycopg.Connection) -> None:
    plan = explained(
        connection,
        STATE.sql("take", repeat=2),
        type_names=["quiet", "type-1"],
        versions=[1, 9],
        leases=[],
        lease=60.0,
        worker="worker-1",
        limit=BATCH,
        now=None,
    )

    assert [read(node) for node in plan if node.get("Index Name") == "job_pending"] == [0, 0]
    assert_the_table_is_not_scanned(plan)


def test_taking_onward_seeks_past_what_was_taken(connection: psycopg.Connection) -> None:
    """Also where somebody's snapshot keeps the entries of what was taken: they are not even looked at."""
    found = connection.execute(
        "SELECT rank, scheduled_at FROM plans.job WHERE type_name = 'type-1' AND status = 'pending' AND NOT deferred "
        "ORDER BY rank, scheduled_at OFFSET 5000 LIMIT 1"
    ).fetchone()
    assert found is not None

    plan = explained(
        connection,
        STATE.sql("take_after"),
        type_names=["type-1"],
        versions=[1],
        leases=[60.0],
        lease=None,
        from_ranks=[found[0]],
        from_times=[found[1]],
        worker="worker-1",
        limit=BATCH,
        now=None,
    )

    better, further = [node for node in plan if node.get("Index Name") == "job_pending"]
    assert "rank <" in better["Index Cond"]
    assert "ROW(rank, scheduled_at) >=" in further["Index Cond"]
    assert read(better) + read(further) <= BATCH + 2
    assert_no_backlog_is_sorted(plan, at_most=2)
    assert_the_table_is_not_scanned(plan)


def test_taking_of_many_types_reads_a_few_rows_of_each(connection: psycopg.Connection) -> None:
    names = [f"type-{n}" for n in range(37)]  # ten of them have work

    plan = explained(connection, STATE.sql("take_many"), **many(names))

    branches = [node for node in plan if node.get("Index Name") == "job_pending"]
    assert plan[0]["Actual Rows"] == BATCH + 1  # the last says whether there are more
    assert len(branches) == 2
    assert all("ROW(rank, scheduled_at) >=" in n["Index Cond"] or "rank <" in n["Index Cond"] for n in branches)
    assert sum(read(node) for node in branches) <= TYPES * FIRST + len(names)
    assert_no_backlog_is_sorted(plan, at_most=TYPES * FIRST)
    assert_the_table_is_not_scanned(plan)


def test_taking_onward_of_many_types_seeks_past_what_was_taken(connection: psycopg.Connection) -> None:
    found = connection.execute(
        "SELECT rank, scheduled_at FROM plans.job WHERE type_name = 'type-1' AND status = 'pending' AND NOT deferred "
        "ORDER BY rank, scheduled_at OFFSET 5000 LIMIT 1"
    ).fetchone()
    assert found is not None
    names = [f"type-{n}" for n in range(37)]

    plan = explained(
        connection,
        STATE.sql("take_many"),
        **{**many(names), "from_ranks": [found[0]] * 37, "from_times": [found[1]] * 37},
    )

    branches = [node for node in plan if node.get("Index Name") == "job_pending"]
    assert sum(read(node) for node in branches) <= 2 * TYPES * FIRST + len(names)
    assert all(node.get("Rows Removed by Filter", 0) == 0 for node in branches)
    assert_the_table_is_not_scanned(plan)


def test_taking_what_was_seen_in_line_looks_those_up_and_asks_each_type_once(connection: psycopg.Connection) -> None:
    found = connection.execute(
        "SELECT id, scheduled_at FROM plans.job WHERE status = 'pending' AND NOT deferred AND rank = 1 "
        "ORDER BY scheduled_at, id LIMIT %s",
        [2 * BATCH],
    ).fetchall()
    connection.execute("UPDATE plans.job SET type_name = 'other' WHERE status = 'pending' AND rank = 0")
    names = [f"type-{n}" for n in range(37)]
    claims = {name: value for name, value in many(names).items() if not name.startswith(("from", "firsts", "ahead"))}

    seen = {"ids": [id for id, _ in found], "rank": 1, "until": found[-1][1]}
    plan = explained(connection, STATE.sql("take_seen"), **claims, **seen)

    better = [node for node in plan if node.get("Index Name") == "job_pending"]
    lookups = [node for node in plan if node.get("Index Name") == "job_pkey"]
    assert plan[0]["Actual Rows"] == BATCH
    assert len(better) == 1
    assert "rank <" in better[0]["Index Cond"]
    assert better[0]["Actual Loops"] == len(names)
    assert read(better[0]) <= len(names)
    assert sum(read(node) for node in lookups) <= 2 * len(found)
    assert_no_backlog_is_sorted(plan, at_most=len(found))
    assert_the_table_is_not_scanned(plan)


def test_taking_with_ageing_reads_a_few_rows_of_each_priority(connection: psycopg.Connection) -> None:
    names, ranks = [f"type-{n}" for n in range(TYPES)], 3

    plan = explained(connection, STATE.sql("take_aged"), **many(names), ageing=60.0)

    hops = [node for node in plan if node.get("Index Name") == "job_pending"]
    assert plan[0]["Actual Rows"] == BATCH + 1
    assert sum(read(node) for node in hops) <= TYPES * ranks * (FIRST + 2)
    assert_no_backlog_is_sorted(plan, at_most=TYPES * ranks * FIRST)
    assert_the_table_is_not_scanned(plan)


def many(names: list[str]) -> dict[str, Any]:
    count = len(names)
    return {
        "type_names": names,
        "versions": [1] * count,
        "leases": [60.0] * count,
        "lease": None,
        "from_ranks": [None] * count,
        "from_times": [datetime(1, 1, 1, tzinfo=UTC)] * count,
        "firsts": [FIRST] * count,
        "ahead": True,
        "worker": "worker-1",
        "limit": BATCH,
        "now": None,
    }


def test_settling_looks_every_job_up_by_its_id(connection: psycopg.Connection) -> None:
    ids = [UUID(int=n) for n in range(1, BATCH + 1)]
    each = {
        "attempts": 1,
        "kinds": "complete",
        "outputs": "null",
        "delays": 0.0,
        "failures": 0,
        "transients": 0,
        "crashes": 0,
    }
    statement = STATE.sql("settle")
    columns = {name: [each.get(name)] * BATCH for name in spell(statement, "dollar").names}
    columns |= {"ids": ids, "holders": [f"worker-{id.int % 5}" for id in ids]}

    plan = explained(connection, statement, **{**columns, "now": None, "impatient": True})

    lookups = [node for node in plan if node.get("Index Name") == "job_pkey"]
    assert sum(read(node) for node in lookups) == BATCH
    assert not [node for node in plan if node.get("Index Name") == "job_running"]
    assert_the_table_is_not_scanned(plan)


def test_renewing_looks_every_job_up_by_its_id(connection: psycopg.Connection) -> None:
    ids = [UUID(int=n) for n in range(1, BATCH + 1)]

    plan = explained(
        connection,
        STATE.sql("renew"),
        ids=ids,
        attempts=[1] * BATCH,
        leases=[60.0] * BATCH,
        worker="worker-1",
        now=None,
    )

    assert [node for node in plan if node.get("Index Name") == "job_pkey"]
    assert_the_table_is_not_scanned(plan)


def test_reaping_reads_only_what_runs(connection: psycopg.Connection) -> None:
    plan = explained(
        connection,
        STATE.sql("reap"),
        worker="worker-9",
        type_names=["type-1", "type-2"],
        held_here=[],
        limit=BATCH,
        lease=60.0,
        now=LATER,
    )

    running = [node for node in plan if node.get("Index Name") == "job_running"]
    assert running
    assert max(read(node) for node in running) <= RUNNING
    assert_the_table_is_not_scanned(plan)


def test_expiring_reads_only_what_runs(connection: psycopg.Connection) -> None:
    plan = explained(connection, STATE.sql("expire"), worker="worker-1", now=None)

    running = [node for node in plan if node.get("Index Name") == "job_running"]
    assert running
    assert max(read(node) for node in running) <= 2 * RUNNING  # rows of undone updates are read too
    assert_the_table_is_not_scanned(plan)


def test_promoting_reads_only_what_is_deferred(connection: psycopg.Connection) -> None:
    plan = explained(connection, STATE.sql("promote"), type_names=["type-1", "type-2"], limit=BATCH, now=LATER)

    deferred = [node for node in plan if node.get("Index Name") == "job_deferred"]
    assert deferred
    assert max(read(node) for node in deferred) <= 2 * DEFERRED // TYPES + TYPES
    assert_the_table_is_not_scanned(plan)


@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize("name", ["due_schedules", "find_schedules"])
def test_schedules_look_their_last_chains_up_by_id(connection: psycopg.Connection, name: str, analyzed: bool) -> None:
    connection.execute("""
        INSERT INTO plans.schedule
          (name, type_name, definition, fingerprint, superseded, next_at, last_chain_id, declared_at)
        SELECT 'schedule ' || n, 'type-1', '{}', 'f', '[]', now() + (n - 500) * interval '1 s',
          lpad(to_hex(n * 1000), 32, '0')::uuid, now()
        FROM generate_series(1, 1000) n""")
    if analyzed:
        connection.execute("ANALYZE plans.schedule")
    known = json.dumps([{"name": f"schedule {n}", "fingerprint": "f"} for n in range(1, 1001)])
    asked = {"known": known, "limit": BATCH} if name == "due_schedules" else {"wanted": None}

    plan = explained(connection, STATE.sql(name), **asked, now=None)

    assert "job_pkey" in {node.get("Index Name") for node in plan}
    assert_the_table_is_not_scanned(plan)


def test_counting_reads_index_entries_of_live_jobs_only(connection: psycopg.Connection) -> None:
    plan = explained(connection, STATE.sql("count_jobs"), type_names=["type-1", "type-2"])

    counted = [node for node in plan if node.get("Index Name")]
    indexes = {"job_pending", "job_held", "job_deferred", "job_running", "job_failed"}
    assert {node["Index Name"] for node in counted} == indexes
    assert sum(read(node) for node in counted) <= 2 * 2 * (PENDING + DEFERRED + RUNNING) // TYPES
    assert_the_table_is_not_scanned(plan)


def test_whether_work_is_left_is_one_seek_for_each_type(connection: psycopg.Connection) -> None:
    names = ["nobody", "neither", "type-1"]
    plan = explained(connection, STATE.sql("work_left"), type_names=names, versions=[1, 1, 1], now=None)

    sought = [node for node in plan if node.get("Index Name")]
    assert sum(read(node) for node in sought) <= len(names) * 4
    assert_the_table_is_not_scanned(plan)


def test_the_oldest_are_found_with_one_seek_for_each_version_and_rank(connection: psycopg.Connection) -> None:
    plan = explained(connection, STATE.sql("oldest_due"), type_names=["type-1", "type-2"], now=None)

    sought = [node for node in plan if node.get("Index Name")]
    assert {node["Index Name"] for node in sought} == {"job_pending", "job_held"}
    assert sum(read(node) for node in sought) <= 2 * 4 * 2
    assert_the_table_is_not_scanned(plan)


@pytest.mark.parametrize("ageing", [None, 60.0])
def test_those_before_a_job_in_line_are_counted_no_further_than_asked(
    connection: psycopg.Connection, ageing: float | None
) -> None:
    types = [f"type-{n}" for n in range(TYPES)]
    last = connection.execute(
        "SELECT id FROM plans.job WHERE status = 'pending' AND NOT deferred ORDER BY rank DESC, scheduled_at DESC "
        "LIMIT 1"
    ).fetchone()
    assert last is not None

    plan = explained(
        connection,
        STATE.sql("line_of"),
        id=last[0],
        type_names=types,
        versions=[1] * TYPES,
        ageing=ageing,
        most=BATCH,
        now=None,
    )

    sought = [node for node in plan if node.get("Index Name")]
    assert {node["Index Name"] for node in sought} >= {"job_pkey", "job_pending"}
    assert sum(read(node) for node in sought) <= 2 * BATCH + 10 * TYPES
    assert_the_table_is_not_scanned(plan)


def test_what_is_due_is_found_with_a_seek_for_each_version_and_rank(connection: psycopg.Connection) -> None:
    plan = explained(connection, STATE.sql("due_types"), most=1000, now=None)

    sought = [node for node in plan if node.get("Index Name")]
    assert plan[0]["Actual Rows"] == TYPES
    assert {node["Index Name"] for node in sought} >= {"job_pending", "job_held"}
    assert sum(read(node) for node in sought if node["Index Name"] == "job_pending") <= TYPES * (1 + 4) + TYPES
    assert_the_table_is_not_scanned(plan)


def test_the_types_that_there_are_are_found_with_a_seek_for_each_and_for_its_ranks(
    connection: psycopg.Connection,
) -> None:
    connection.execute("UPDATE pg_class SET relallvisible = 0 WHERE relname = 'job'")
    connection.execute(STATE.sql("by_index").encode())

    plan = explained(connection, STATE.sql("survey"), now=None)

    sought = [node for node in plan if node.get("Index Name")]
    assert plan[0]["Actual Rows"] == 1 + 3 * TYPES
    # Pending, again to begin with its first rank, scheduled and running; and a last seek of each that finds nothing.
    assert sum(read(node) for node in sought) <= TYPES * (RANKS + 4) + 3
    assert_the_table_is_not_scanned(plan)


def test_of_very_many_ranks_each_is_one_seek(connection: psycopg.Connection) -> None:
    connection.execute(
        "UPDATE plans.job SET rank = scheduled.n FROM (SELECT id, row_number() OVER () AS n FROM plans.job "
        "WHERE type_name = 'type-1' AND status = 'pending' AND NOT deferred LIMIT 1000) AS scheduled "
        "WHERE scheduled.id = job.id"
    )
    connection.execute(STATE.sql("by_index").encode())

    plan = explained(connection, STATE.sql("survey"), now=None)

    sought = [node for node in plan if node.get("Index Name") == "job_pending"]
    assert sum(read(node) for node in sought) <= TYPES * (RANKS + 2) + 1000


def test_counting_ends_where_it_was_told_also_where_nothing_was_vacuumed(connection: psycopg.Connection) -> None:
    connection.execute("UPDATE pg_class SET relallvisible = 0 WHERE relname = 'job'")
    connection.execute(STATE.sql("by_index").encode())
    names = [f"type-{n}" for n in range(TYPES)]
    kinds: dict[str, Any] = dict.fromkeys(KINDS, names)

    plan = explained(connection, STATE.sql("survey_counts"), **kinds, most=BATCH, now=None)

    sought = [node for node in plan if node.get("Index Name")]
    assert {node["Index Name"] for node in sought} == {
        "job_blocked", "job_pending", "job_deferred", "job_running", "job_failed", "job_held"
    }  # fmt: skip
    assert {node["Actual Loops"] for node in sought} == {TYPES}
    assert max(read(node) for node in sought) <= BATCH * TYPES
    assert_no_backlog_is_sorted(plan, at_most=BATCH)
    assert_the_table_is_not_scanned(plan)


@pytest.mark.parametrize("name", ["jobs", "steps", "blockers", "leases", "keys"])
def test_the_doctor_looks_through_no_more_rows_than_asked(connection: psycopg.Connection, name: str) -> None:
    for method in ("seqscan", "hashjoin", "mergejoin"):
        connection.execute(f"SET LOCAL enable_{method} = off")
    connection.execute(
        "INSERT INTO plans.blocker (job_id, position, blocked_by_chain_id) SELECT id, 1, id FROM plans.job LIMIT %s",
        [10 * BATCH],  # undone, they make the table no larger for other tests
    )
    asked = dict.fromkeys(spell(STATE.sql(f"diagnose_{name}"), "dollar").names)

    plan = explained(
        connection,
        STATE.sql(f"diagnose_{name}"),
        **{key: value for key, value in {"most": BATCH, "now": None, "late": 600.0}.items() if key in asked},
    )

    assert sum(read(node) for node in plan if node.get("Index Name") == "job_pkey") <= 4 * BATCH
    assert_the_table_is_not_scanned(plan)


def test_workers_are_told_with_what_runs_by_the_index_of_that(connection: psycopg.Connection) -> None:
    plan = explained(connection, STATE.sql("list_workers"), ahead=60.0, now=None)

    assert {node["Index Name"] for node in plan if node.get("Index Name")} == {"job_running"}
    assert_the_table_is_not_scanned(plan)


def test_the_last_to_fail_are_found_without_reading_what_completed(connection: psycopg.Connection) -> None:
    plan = explained(connection, STATE.sql("list_failed"), type_name="type-1", limit=BATCH)

    assert [node["Index Name"] for node in plan if node.get("Index Name")] == ["job_failed"]
    assert not [node for node in plan if "Sort" in node["Node Type"]]
    assert_the_table_is_not_scanned(plan)


@pytest.mark.parametrize("name", ["list_indexed_jobs", "list_indexed_chains"])
@pytest.mark.parametrize(
    "asked",
    [
        {"statuses": ["failed"]},
        {"statuses": ["failed"], "reasons": ["cancelled"], "type_names": ["type-1"]},
        {"statuses": ["failed"], "failed_from": LATER, "error_types": ["ValueError"]},
    ],
    ids=["status", "reason", "time"],
)
def test_what_failed_is_listed_without_reading_what_completed(
    connection: psycopg.Connection, name: str, asked: dict[str, Any]
) -> None:
    connection.execute(
        "UPDATE plans.job SET status = 'failed', failure_reason = 'cancelled', ended_at = now() "
        "WHERE id IN (SELECT id FROM plans.job WHERE status = 'running' LIMIT 200)"
    )
    statement = STATE.sql(name)
    parameters = {**dict.fromkeys(spell(statement, "dollar").names), "limit": BATCH, **asked}

    plan = explained(connection, statement, **parameters)

    found = [node for node in plan if node.get("Index Name") == "job_failed"]
    assert found
    assert sum(read(node) for node in found) <= 2 * 200
    assert sum(read(node) for node in plan if node.get("Index Name") == "job_pkey") <= 2 * 200
    assert_the_table_is_not_scanned(plan)


@pytest.mark.parametrize("name", ["list_jobs", "list_chains"])
def test_a_page_is_a_range_of_the_primary_key(connection: psycopg.Connection, name: str) -> None:
    """Also where nothing matches: then what lies between two ids is read, and no more."""
    statement = STATE.sql(name)
    bounds = {"after": UUID(int=FINISHED), "down_to": UUID(int=FINISHED - BATCH)}
    parameters = {**dict.fromkeys(spell(statement, "dollar").names), "limit": BATCH, **bounds}

    plan = explained(connection, statement, **{**parameters, "type_names": ["nothing"]})

    assert sum(read(node) for node in plan if node.get("Index Name") == "job_pkey") <= 2 * BATCH
    assert not [node for node in plan if "Sort" in node["Node Type"]]
    assert_the_table_is_not_scanned(plan)


def test_how_far_a_page_may_look_is_read_from_the_primary_key(connection: psycopg.Connection) -> None:
    plan = explained(connection, STATE.sql("place_below"), after=UUID(int=FINISHED), jobs=BATCH)

    assert sum(read(node) for node in plan if node.get("Index Name") == "job_pkey") <= 2 * BATCH
    assert_the_table_is_not_scanned(plan)


def test_what_belongs_to_chains_is_looked_up(connection: psycopg.Connection) -> None:
    statement = STATE.sql("list_indexed_jobs")
    parameters = {**dict.fromkeys(spell(statement, "dollar").names), "limit": BATCH}

    plan = explained(connection, statement, **{**parameters, "chain_ids": [UUID(int=1), UUID(int=FINISHED)]})

    assert plan[0]["Actual Rows"] == 2
    assert sum(read(node) for node in plan if node.get("Index Name")) <= 4
    assert_the_table_is_not_scanned(plan)


def test_whether_few_wait_is_counted_no_further_than_asked(connection: psycopg.Connection) -> None:
    statement = STATE.sql("count_indexed")
    parameters = {**dict.fromkeys(spell(statement, "dollar").names), "limit": BATCH, "statuses": ["pending", "failed"]}

    plan = explained(connection, statement, **parameters)

    assert sum(read(node) for node in plan if node.get("Index Name")) <= BATCH
    assert_the_table_is_not_scanned(plan)


def test_what_blockers_put_out_is_looked_up_one_by_one(connection: psycopg.Connection) -> None:
    ids = [UUID(int=n) for n in range(1, BATCH + 1)]
    connection.execute(
        "INSERT INTO plans.blocker (job_id, position, blocked_by_chain_id) "
        "SELECT id, 1, id FROM unnest(%s::uuid[]) AS id",
        [ids],
    )

    plan = explained(connection, STATE.sql("blockers_of"), job_ids=ids)

    assert plan[0]["Actual Rows"] == BATCH
    assert_the_table_is_not_scanned(plan)


@pytest.mark.parametrize(("kept", "history"), [(False, None), (True, None), (False, [3e9] * TYPES)])
def test_pruning_reads_about_as_many_rows_as_it_deletes(
    connection: psycopg.Connection, kept: bool, history: list[float] | None
) -> None:
    """Or, where it finds nothing, ten times as many, and goes on behind them with the next batch."""
    live, rows = RUNNING + PENDING + DEFERRED, 500
    statement = spell(STATE.sql("prune"), "percent")
    parameters = {
        "type_names": [f"type-{n}" for n in range(TYPES)],
        "keep_completed": [None if kept else 0.0] * TYPES,
        "keep_failed": [0.0] * TYPES,
        "keep_history": history,
        "place": UUID(int=live + 1),
        "before": None,
        "most_chains": rows,
        "most_rows": rows,
        "now": LATER,
    }

    completed, failed, jobs, reached, is_end, *_ = (
        connection.execute(statement.sql.encode(), parameters).fetchone() or ()
    )

    passed = rows * 10 if kept else rows
    assert (completed, failed, jobs, is_end) == (0 if kept else rows, 0, 0 if kept else rows, False)
    assert UUID(reached) == UUID(int=live + 1 + passed)
    found = connection.execute(
        "SELECT seq_tup_read, idx_tup_fetch, n_tup_del FROM pg_stat_xact_user_tables WHERE schemaname = 'plans' "
        "AND relname = 'job'"
    ).fetchone()
    entries = connection.execute(
        "SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid)) FROM pg_index WHERE indrelid = 'plans.job'::regclass"
    ).fetchone()
    assert found is not None
    assert entries is not None
    assert (found[0], found[2]) == (0, jobs)
    # Found, locked, looked at for what waited, deleted; and a cursor reads some in advance. Of what is moved: whether
    # it is, of what month, and copied.
    times = 3 if history is None else 6
    assert max(found[1], entries[0]) <= passed + times * jobs + 100


def test_what_waits_for_chains_that_end_is_looked_up(connection: psycopg.Connection) -> None:
    """Whatever else is blocked, and however little the statistics know of it."""
    waiting = 20 * BATCH
    connection.execute(
        "INSERT INTO plans.job (id, chain_id, chain_index, type_name, payload_version, status, rank, deferred, input, "
        "created_at, scheduled_at, root_id, blockers, open_blockers) "
        "SELECT id, id, 0, 'type-1', 1, 'blocked', 0, false, '1', now(), now(), id, 1, 1 "
        "FROM (SELECT ('f' || lpad(to_hex(n), 31, '0'))::uuid FROM generate_series(1, %s) n) made(id)",
        [waiting],
    )
    connection.execute(
        "INSERT INTO plans.blocker (job_id, position, blocked_by_chain_id) "
        "SELECT ('f' || lpad(to_hex(n), 31, '0'))::uuid, 1, lpad(to_hex(n %% %s + 1), 32, '0')::uuid "
        "FROM generate_series(1, %s) n",
        [RUNNING, waiting],
    )
    ended = [UUID(int=n) for n in range(1, 11)]
    before = jobs_read(connection)

    changes = connection.execute("SELECT change FROM plans.chains_ended(%s, now())", [ended]).fetchall()

    assert changes == [("unblocked",)] * (waiting // RUNNING * len(ended))
    # Locked; looked at, with its chain; and changed.
    assert jobs_read(connection) - before <= 5 * len(changes)


def test_who_looks_after_all_limits_leaves_jobs_without_one_alone(connection: psycopg.Connection) -> None:
    before = jobs_read(connection)

    connection.execute("SELECT * FROM plans.admit(%s, 0, true, NULL)", [BATCH])

    assert jobs_read(connection) == before


def jobs_read(connection: psycopg.Connection) -> int:
    """Rows of jobs that this transaction has read so far, or entries of their indexes."""
    row = connection.execute(
        "SELECT seq_tup_read, idx_tup_fetch, (SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid)) FROM pg_index "
        "WHERE indrelid = relid) FROM pg_stat_xact_user_tables WHERE schemaname = 'plans' AND relname = 'job'"
    ).fetchone()
    assert row is not None
    return int(row[0] + max(row[1], row[2]))


def explained(connection: psycopg.Connection, sql: str, **parameters: Any) -> list[dict[str, Any]]:
    """Run a statement as a prepared one; every node of its plan, the root first."""
    spelled = spell(sql, "dollar")
    connection.execute(f"PREPARE hot AS {spelled.sql}".encode())
    places = f"({', '.join(['%s'] * len(spelled.names))})" if spelled.names else ""
    row = connection.execute(
        f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE hot{places}".encode(), spelled.positional(parameters)
    ).fetchone()
    assert row is not None
    nodes, todo = [], [row[0][0]["Plan"]]
    while todo:
        node = todo.pop(0)
        nodes.append(node)
        todo.extend(node.get("Plans", []))
    return nodes


def read(node: dict[str, Any]) -> float:
    """How many rows a node gave, and how many it read in vain."""
    given = node["Actual Rows"] * node["Actual Loops"]
    return float(given + node.get("Rows Removed by Filter", 0) * node["Actual Loops"])


def assert_the_table_is_not_scanned(plan: list[dict[str, Any]]) -> None:
    scans = [node for node in plan if node["Node Type"] == "Seq Scan" and node.get("Relation Name") == "job"]
    assert scans == []


def assert_no_backlog_is_sorted(plan: list[dict[str, Any]], *, at_most: int) -> None:
    sorts = [node for node in plan if "Sort" in node["Node Type"]]
    assert [node for node in sorts if read(node) > at_most] == []


def test_whether_an_attempt_is_held_is_asked_once(connection: psycopg.Connection) -> None:
    """Not for each row: where there is none left, nobody would ask."""
    held = connection.execute("SELECT id, leased_by FROM plans.job WHERE status = 'running' LIMIT 1").fetchone()
    assert held is not None

    plan = explained(
        connection, STATE.sql("complete_attempt"), id=held[0], attempt=1, holder=held[1], output="null", now=None
    )

    assert [node["One-Time Filter"] for node in plan if "One-Time Filter" in node]
    assert {node["Index Name"] for node in plan if "Index Name" in node} == {"job_pkey"}
    assert_the_table_is_not_scanned(plan)


HISTORY = """
INSERT INTO plans.history_part (starts_at, kept_until) SELECT starts_at, 'infinity'
FROM generate_series('2026-01-01 00:00+00'::timestamptz, '2026-04-01 00:00+00', '1 month') starts_at;
SELECT plans.make_history_parts();
INSERT INTO plans.history (id, chain_id, chain_index, type_name, payload_version, status, rank, deferred, input,
  created_at, scheduled_at, root_id, attempt, failures, transients, crashes, blockers, open_blockers, runs_anyway,
  chain_ended_at, chain_failed, has_dependents)
SELECT id, id, 0, 'type-' || n % {types}, 1, 'completed', 0, false, '1', at, at, id, 1, 0, 0, 0, 0, 0, false, at,
  n % 100 = 3, false
FROM generate_series(1, {count}) n,
  LATERAL (SELECT '2026-01-01 00:00+00'::timestamptz + n * interval '100 days' / {count} AS at) ended,
  LATERAL (SELECT lpad(to_hex(n), 32, '0')::uuid AS id) made;
"""


@pytest.mark.parametrize("statistics", [True, False])
def test_of_the_history_is_read_what_is_shown(connection: psycopg.Connection, statistics: bool) -> None:
    """A chain by its id, and a page of a type, or of all types, in any part."""
    connection.execute(HISTORY.format(types=TYPES, count=50_000).encode())
    if statistics:
        connection.execute("ANALYZE plans.history")
    chain = UUID(int=20_000)
    wanted: dict[str, Any] = {"type_names": ["type-3"], "failed": [False, True], "limit": BATCH, "now": None}
    wanted |= {"ended_from": None, "ended_before": None, "after": None}

    jobs = _of_history(connection, "history_jobs", chain_id=chain)
    found = _of_history(connection, "find_history", chain_ids=[chain], **{**wanted, "type_names": None})
    page = _of_history(connection, "list_history", **wanted)
    late = _of_history(connection, "list_history", **{**wanted, "after": UUID(int=1_003), "failed": [True]})
    of_all = _of_history(connection, "list_history", **{**wanted, "type_names": None})

    looks = (jobs, found, page, late, of_all)
    assert [rows for rows, _ in looks] == [1, 1, BATCH, 10, BATCH]
    most = [20, 20, 5 * BATCH, 100, 2 * BATCH * TYPES]
    assert [read for (_, read), bound in zip(looks, most, strict=True) if read > bound] == []


def _of_history(connection: psycopg.Connection, statement: str, **parameters: Any) -> tuple[float, float]:
    """How many rows it gives, and how many it read of all parts."""
    plan = explained(connection, STATE.sql(statement), **parameters)
    connection.execute("DEALLOCATE hot")
    scans = [node for node in plan if node.get("Relation Name", "").startswith("history_2")]
    assert "Seq Scan" not in {node["Node Type"] for node in scans}
    return float(plan[0]["Actual Rows"]), sum(read(node) for node in scans)

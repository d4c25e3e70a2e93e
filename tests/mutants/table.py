"""Defects to plant: each is of a kind that really happens, and one of the suites must find it."""

from dataclasses import dataclass

STATEFUL, CONFORMANCE, CLIENT, WORKER, BEHAVIOUR = "stateful", "conformance", "client", "worker", "behaviour"
_FUNCTIONS = "state/postgres/functions/*.sql"


@dataclass(frozen=True)
class Mutant:
    """A defect."""

    name: str
    files: str
    """Where, below src/onward; the first file that has the text is changed."""
    old: str | tuple[str, ...]
    """The text, or the spellings it may have."""
    new: str
    expected: str
    """The suite that should find it, and is therefore asked first."""


MUTANTS = [
    # -- Postgres
    Mutant(
        "pruning does not look who waits",
        "state/postgres/functions/pruning.sql",
        "AND w.status NOT IN ('completed', 'failed')",
        "AND w.status = 'blocked'",
        CONFORMANCE,
    ),
    Mutant(
        "pruning leaves the later jobs of a chain",
        "state/postgres/functions/pruning.sql",
        "DELETE FROM /*schema*/job j WHERE j.chain_id = ANY(doomed) AND j.chain_index > 0;",
        "",
        CONFORMANCE,
    ),
    Mutant(
        "moving to the history leaves the later jobs of a chain",
        "state/postgres/functions/moving.sql",
        "WHERE chain_id = ANY(moved) AND chain_index > 0",
        "WHERE chain_id = ANY(moved) AND chain_index > 1",
        CONFORMANCE,
    ),
    Mutant(
        "a part of the history is kept for as long as the first who needed it said",
        "state/postgres/functions/moving.sql",
        "p.starts_at = part.starts_at AND p.kept_until >= part.kept_until AND",
        "p.starts_at = part.starts_at AND",
        CONFORMANCE,
    ),
    Mutant(
        "settling completed jobs does not look at the attempt",
        "state/postgres/sql/settle_completed.sql",
        "AND job.attempt = o.attempt AND job.leased_by = :holder::text",
        "AND job.leased_by = :holder::text",
        STATEFUL,
    ),
    Mutant(
        "settling does not look at the holder",
        "state/postgres/sql/settle.sql",
        "AND job.leased_by IS NOT DISTINCT FROM o.holder",
        "",
        STATEFUL,
    ),
    Mutant(
        "settling changes jobs that have ended",
        "state/postgres/sql/settle.sql",
        "AND job.ended_at IS NULL  --",
        "--",
        STATEFUL,
    ),
    Mutant(
        "take does not raise the attempt",
        "state/postgres/fragments/claim.sql",
        ("attempt = job.attempt + 1,", "attempt = least(job.attempt, 2147483646) + 1,"),
        "attempt = greatest(job.attempt, 1),",
        STATEFUL,
    ),
    Mutant(
        "takes of what was seen in line do not ask whether there is a better job",
        "state/postgres/sql/take_seen.sql",
        " WHERE NOT EXISTS (SELECT FROM better)",
        "",
        CONFORMANCE,
    ),
    Mutant(
        "what went to the end of the line is taken where it was seen",
        "state/postgres/sql/take_seen.sql",
        "job.scheduled_at <= :until::timestamptz",
        ":until::timestamptz IS NOT NULL",
        CONFORMANCE,
    ),
    Mutant(
        "a start with a delay is due at once",
        "state/postgres/fragments/new_job_values.sql",
        "> wanted.at,",
        "< wanted.at,",
        STATEFUL,
    ),
    Mutant(
        "take ignores that a type is paused",
        "state/postgres/fragments/claimable.sql",
        "CASE WHEN paused.type_name IS NULL THEN asked.name END",
        "asked.name",
        STATEFUL,
    ),
    Mutant(
        "renew renews the leases of others",
        "state/postgres/sql/renew.sql",
        "WHERE job.leased_by = :worker::text\n",
        "WHERE job.leased_by IS NOT NULL\n",
        STATEFUL,
    ),
    Mutant(
        "the reaper takes what runs here",
        "state/postgres/sql/reap.sql",
        "AND NOT id = ANY(:held_here::uuid[])",
        "AND (true OR id = ANY(:held_here::uuid[]))",
        STATEFUL,
    ),
    Mutant(
        "scheduled jobs are due at the wrong time",
        "state/postgres/sql/promote.sql",
        "AND scheduled_at <= coalesce(",
        "AND scheduled_at >= coalesce(",
        STATEFUL,
    ),
    Mutant(
        "the last blocker does not unblock",
        _FUNCTIONS,
        "WHEN j.open_blockers <= v.ended THEN 'pending'",
        "WHEN j.open_blockers < v.ended THEN 'pending'",
        STATEFUL,
    ),
    Mutant(
        "a blocker does not know that somebody waits for it",
        _FUNCTIONS,
        "UPDATE /*schema*/job h SET has_dependents = true WHERE h.id = ANY(edges)\n",
        "UPDATE /*schema*/job h SET has_dependents = true WHERE false\n",
        STATEFUL,
    ),
    Mutant(
        "starting does not lock the blockers",
        _FUNCTIONS,
        "PERFORM 1 FROM /*schema*/job h WHERE h.id = ANY(edges) AND h.chain_index = 0 ORDER BY h.id FOR NO KEY UPDATE;",
        "",
        CONFORMANCE,
    ),
    Mutant(
        "two starts with one key do not wait for each other",
        _FUNCTIONS,
        "PERFORM pg_advisory_xact_lock(k.lock) FROM (\n      SELECT DISTINCT /*schema*/key_lock(w.type_name, w.key)",
        "PERFORM 1 FROM (\n      SELECT DISTINCT /*schema*/key_lock(w.type_name, w.key)",
        CONFORMANCE,
    ),
    Mutant(
        "the scope of a deduplication is ignored",
        _FUNCTIONS,
        "(wanted.deduplication_scope = 'any' OR j.chain_ended_at IS NULL)",
        "(wanted.deduplication_scope IS NOT NULL)",
        STATEFUL,
    ),
    Mutant(
        "the end of a stale attempt is not refused",
        _FUNCTIONS,
        "IF held IS NULL THEN",
        "IF held IS NOT NULL AND NOT held THEN",
        BEHAVIOUR,
    ),
    Mutant(
        "holding an attempt does not lock its row",
        "state/postgres/sql/lock_attempt.sql",
        ("FOR NO KEY UPDATE", "FOR UPDATE"),
        "",
        CONFORMANCE,
    ),
    # -- SQLite
    Mutant(
        "settling does not look at the attempt",
        "state/sqlite/sql/settle.sql",
        "AND job.attempt = o.attempt AND job.leased_by IS o.holder",
        "AND job.leased_by IS o.holder",
        STATEFUL,
    ),
    Mutant(
        "several blockers that end together count as one",
        "state/sqlite/sql/unblock.sql",
        "open_blockers = job.open_blockers - v.ended",
        "open_blockers = job.open_blockers - 1",
        CONFORMANCE,
    ),
    Mutant(
        "a window of deduplication looks the wrong way",
        "state/sqlite/sql/start_winners.sql",
        "job.created_at > json_extract(asked.value, '$[4]')",
        "job.created_at < json_extract(asked.value, '$[4]')",
        STATEFUL,
    ),
    Mutant(
        "a rollback does not let others in",
        "state/sqlite/connection.py",
        'self._raw.execute("ROLLBACK")\n        finally:\n            self._leave()',
        'self._raw.execute("ROLLBACK")\n        finally:\n            pass',
        CLIENT,
    ),
    # -- what is above the adapters
    Mutant(
        "the client does not try again",
        "lifecycle/store.py",
        "_TRIES = 6",
        "_TRIES = 1",
        CLIENT,
    ),
    Mutant(
        "a start of unknown outcome is not looked up",
        "lifecycle/start.py",
        "again=lambda _: Steps(partial(_start_again, store, jobs)),",
        "again=None,",
        BEHAVIOUR,
    ),
    Mutant(
        "an error while settling is swallowed",
        "worker/settler.py",
        "            return error\n",
        "            return None\n",
        WORKER,
    ),
    Mutant(
        "jobs whose take was not answered are forgotten",
        "worker/source.py",
        "self._is_unsure = True",
        "self._is_unsure = False",
        WORKER,
    ),
    Mutant(
        "a phase does not give its connection back",
        "worker/phases.py",
        "await lending.__aexit__(None, None, None)",
        'await lending.__aexit__(None, None, None) if self.stage == "settled" else None',
        WORKER,
    ),
    Mutant(
        "a COMMIT that the server has turned into a ROLLBACK counts as done",
        "state/postgres/asyncpg*.py",
        'if answer == "ROLLBACK":',
        'if answer == "NEVER":',
        BEHAVIOUR,
    ),
    Mutant(
        "hints do not leave after the commit",
        "lifecycle/store.py",
        "            self._announcer.post(effects.hints)",
        "            return",
        BEHAVIOUR,
    ),
]

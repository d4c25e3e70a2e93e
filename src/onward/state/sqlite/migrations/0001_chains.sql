-- Jobs, what they wait for, and the types that are paused.
--
-- Ids are UUIDs as lower-case text, which sorts like the UUIDs; times are microseconds since 1970 in UTC; booleans 0 or 1.

CREATE TABLE /*schema*/job (
  id                TEXT NOT NULL PRIMARY KEY,
  chain_id          TEXT NOT NULL,
  chain_index       INTEGER NOT NULL,
  type_name         TEXT NOT NULL,
  payload_version   INTEGER NOT NULL,
  status            TEXT NOT NULL CHECK (status IN ('blocked', 'pending', 'running', 'completed', 'failed')),
  -- -priority: an ascending index can be bounded from below, a mixed one cannot.
  rank              INTEGER NOT NULL,
  -- Pending, but not yet due: kept out of the index that workers take from.
  deferred          INTEGER NOT NULL,
  limit_key         TEXT,
  input             TEXT NOT NULL,
  output            TEXT,
  created_at        INTEGER NOT NULL,
  scheduled_at      INTEGER NOT NULL,
  origin_id         TEXT,
  root_id           TEXT NOT NULL,
  attempt           INTEGER NOT NULL DEFAULT 0,
  failures          INTEGER NOT NULL DEFAULT 0,
  -- Database errors and crashes in a row; an attempt that ends otherwise resets them.
  transients        INTEGER NOT NULL DEFAULT 0,
  crashes           INTEGER NOT NULL DEFAULT 0,
  leased_by         TEXT,
  leased_until      INTEGER,
  cancel_requested_at INTEGER,
  -- Of the last attempts that failed, newest last.
  errors            TEXT,
  progress          REAL,
  progress_note     TEXT,
  failure_reason    TEXT,
  ended_at          INTEGER,
  completed_by      TEXT,
  blockers          INTEGER NOT NULL DEFAULT 0,
  open_blockers     INTEGER NOT NULL DEFAULT 0,
  runs_anyway       INTEGER NOT NULL DEFAULT 0,
  deduplication_key TEXT,
  -- The first job of a chain is its header: what others ask about a chain is one primary key look-up.
  chain_ended_at    INTEGER,
  chain_failed      INTEGER NOT NULL DEFAULT 0,
  has_dependents    INTEGER NOT NULL DEFAULT 0
);

-- With status and deferred the index covers the search for candidates: without them SQLite reads each row as well.
CREATE INDEX /*schema*/job_pending
  ON /*schema*/job (type_name, payload_version, rank, scheduled_at, id, status, deferred)
  WHERE status = 'pending' AND deferred = 0;
CREATE INDEX /*schema*/job_deferred ON /*schema*/job (type_name, scheduled_at)
  WHERE status = 'pending' AND deferred = 1;
CREATE INDEX /*schema*/job_running ON /*schema*/job (type_name) WHERE status = 'running';
-- The last to fail at the end: counted and listed without reading what completed.
CREATE INDEX /*schema*/job_failed ON /*schema*/job (type_name, ended_at, id) WHERE status = 'failed';
CREATE UNIQUE INDEX /*schema*/job_chain ON /*schema*/job (chain_id, chain_index) WHERE chain_index > 0;
CREATE INDEX /*schema*/job_deduplication ON /*schema*/job (deduplication_key, type_name)
  WHERE deduplication_key IS NOT NULL AND chain_index = 0;

CREATE TABLE /*schema*/blocker (
  job_id              TEXT NOT NULL,
  position            INTEGER NOT NULL,
  blocked_by_chain_id TEXT NOT NULL,
  PRIMARY KEY (job_id, position)
) WITHOUT ROWID;
CREATE INDEX /*schema*/blocker_chain ON /*schema*/blocker (blocked_by_chain_id);

CREATE TABLE /*schema*/paused_type (
  type_name TEXT NOT NULL PRIMARY KEY,
  paused_at INTEGER NOT NULL
);

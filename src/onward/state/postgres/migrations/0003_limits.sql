-- Limits by admission: a job with a limit_key is taken only while it has a place, which it is given for one attempt.
--
-- Whether a job has a place, or is held until there is one, follows from its row alone:
--   it has a place    while it runs, or is pending and due with admitted_after = attempt;
--   it is held        while it is pending and due with any other admitted_after.
-- So no statement that ends an attempt, or brings a job back, needs to know of limits, and no place can get lost.
--
-- A job with several limits comes by a place of each, one after the other: `limit_key` is where it waits, limit_place has
-- where it has been. When it has the last one it is admitted; when its attempt ends it begins anew.
--
-- Locks: wakes (never waited for), then keys in order, then jobs (never waited for).

ALTER TABLE /*schema*/job ADD COLUMN admitted_after integer;
-- Of a job with several limits: all its keys, in the order in which it comes by them.
ALTER TABLE /*schema*/job ADD COLUMN limit_keys text[];
-- One order for all databases, in which the keys of a limit come together.
ALTER TABLE /*schema*/job ALTER COLUMN limit_key TYPE text COLLATE "C";

DROP INDEX /*schema*/job_pending;
CREATE INDEX job_pending ON /*schema*/job (type_name, payload_version, rank, scheduled_at, id)
  WHERE status = 'pending' AND NOT deferred AND (limit_key IS NULL OR admitted_after = attempt);
CREATE INDEX job_held ON /*schema*/job (limit_key, rank, scheduled_at, id) INCLUDE (type_name)
  WHERE status = 'pending' AND NOT deferred AND limit_key IS NOT NULL AND admitted_after IS DISTINCT FROM attempt;
CREATE INDEX job_admitted ON /*schema*/job (limit_key)
  WHERE limit_key IS NOT NULL AND (status = 'running' OR status = 'pending' AND NOT deferred AND admitted_after = attempt);

CREATE TABLE /*schema*/limit_rule (
  name        text COLLATE "C" PRIMARY KEY,
  -- So many of a key may run at a time; NULL: any number.
  places      integer,
  -- One of a key may start each so many seconds, and `burst` at once after a pause; NULL: at any rate.
  every       double precision,
  burst       integer NOT NULL,
  -- What the code says, what it said before that, and since when.
  declared    text,
  previous    text,
  declared_at timestamptz,
  -- When it was changed at run time; NULL: it is as declared.
  changed_at  timestamptz
);

-- The keys of limits that have been asked for: whoever admits jobs of one locks its row.
CREATE TABLE /*schema*/limit_key (
  key     text COLLATE "C" PRIMARY KEY,
  name    text COLLATE "C" NOT NULL,
  -- When the jobs that have started would have, at the rate (GCRA's theoretical arrival time).
  tat     timestamptz,
  -- The next slot of the rate, while jobs are held for it.
  wake_at timestamptz,
  -- While jobs have slots of the rate and have not started: before this no slot has come again that they could have used.
  stale_at timestamptz
) WITH (fillfactor = 50);
CREATE INDEX limit_key_stale ON /*schema*/limit_key (stale_at) WHERE stale_at IS NOT NULL;
CREATE INDEX limit_key_wake ON /*schema*/limit_key (wake_at) WHERE wake_at IS NOT NULL;

-- Keys to look at, written by triggers. Unlogged: after a crash of the server the sweep finds what they would have told.
CREATE UNLOGGED TABLE /*schema*/limit_wake (
  id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  key       text COLLATE "C" NOT NULL,
  -- All keys from this one on, up to `until` if there is one.
  is_range  boolean NOT NULL DEFAULT false,
  until     text COLLATE "C"
);

-- The places of jobs with several limits that wait for the next, or have the last.
CREATE TABLE /*schema*/limit_place (
  key    text COLLATE "C" NOT NULL,
  job_id uuid NOT NULL,
  PRIMARY KEY (key, job_id)
);
CREATE INDEX limit_place_job ON /*schema*/limit_place (job_id);

-- One row: when all keys were looked at.
CREATE TABLE /*schema*/limit_sweep (swept_at timestamptz NOT NULL);
INSERT INTO /*schema*/limit_sweep VALUES ('-infinity');

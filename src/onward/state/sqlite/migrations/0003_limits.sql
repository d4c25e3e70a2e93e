-- Limits by admission: a job with a limit_key is taken only while it has a place, which it is given for one attempt.
--
-- Whether a job has a place, or is held until there is one, follows from its row alone:
--   it has a place    while it runs, or is pending and due with admitted_after = attempt;
--   it is held        while it is pending and due with any other admitted_after.
-- So no statement that ends an attempt, or brings a job back, needs to know of limits, and no place can get lost.
--
-- A job with several limits comes by a place of each, one after the other: `limit_key` is where it waits, limit_place has
-- where it has been. When it has the last one it is admitted; when its attempt ends it begins anew.

ALTER TABLE /*schema*/job ADD COLUMN admitted_after INTEGER;
-- Of a job with several limits: all its keys, in the order in which it comes by them, as JSON.
ALTER TABLE /*schema*/job ADD COLUMN limit_keys TEXT;

DROP INDEX /*schema*/job_pending;
CREATE INDEX /*schema*/job_pending
  ON /*schema*/job (type_name, payload_version, rank, scheduled_at, id, status, deferred, limit_key, admitted_after, attempt)
  WHERE status = 'pending' AND deferred = 0 AND (limit_key IS NULL OR admitted_after = attempt);
CREATE INDEX /*schema*/job_held ON /*schema*/job (limit_key, rank, scheduled_at, id, type_name)
  WHERE status = 'pending' AND deferred = 0 AND limit_key IS NOT NULL AND admitted_after IS NOT attempt;
CREATE INDEX /*schema*/job_admitted ON /*schema*/job (limit_key)
  WHERE limit_key IS NOT NULL AND (status = 'running' OR status = 'pending' AND deferred = 0 AND admitted_after = attempt);

CREATE TABLE /*schema*/limit_rule (
  name        TEXT NOT NULL PRIMARY KEY,
  -- So many of a key may run at a time; NULL: any number.
  places      INTEGER,
  -- One of a key may start each so many seconds, and `burst` at once after a pause; NULL: at any rate.
  every       REAL,
  burst       INTEGER NOT NULL,
  -- What the code says, what it said before that, and since when.
  declared    TEXT,
  previous    TEXT,
  declared_at INTEGER,
  -- When it was changed at run time; NULL: it is as declared.
  changed_at  INTEGER
);

-- The keys of limits with a rate.
CREATE TABLE /*schema*/limit_key (
  key     TEXT NOT NULL PRIMARY KEY,
  -- When the jobs that have started would have, at the rate (GCRA's theoretical arrival time).
  tat     INTEGER NOT NULL,
  -- The next slot of the rate, while jobs are held for it.
  wake_at INTEGER,
  -- While jobs have slots of the rate and have not started: before this no slot has come again that they could have used.
  stale_at INTEGER
);
CREATE INDEX /*schema*/limit_key_stale ON /*schema*/limit_key (stale_at) WHERE stale_at IS NOT NULL;
CREATE INDEX /*schema*/limit_key_wake ON /*schema*/limit_key (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX /*schema*/limit_key_idle ON /*schema*/limit_key (tat) WHERE wake_at IS NULL;

-- The places of jobs with several limits that wait for the next, or have the last.
CREATE TABLE /*schema*/limit_place (
  key    TEXT NOT NULL,
  job_id TEXT NOT NULL,
  PRIMARY KEY (key, job_id)
) WITHOUT ROWID;
CREATE INDEX /*schema*/limit_place_job ON /*schema*/limit_place (job_id);

-- Keys to look at, written by triggers.
-- A key may be there twice: no row may be so odd that what changes it fails.
CREATE TABLE /*schema*/limit_wake (key TEXT NOT NULL);
CREATE INDEX /*schema*/limit_wake_key ON /*schema*/limit_wake (key);

-- The keys of a job with several limits come as one text.
CREATE TRIGGER /*schema*/job_limits AFTER INSERT ON /*schema*/job WHEN substr(NEW.limit_key, 1, 1) = char(31)
BEGIN
  UPDATE /*schema*/job SET limit_keys = substr(limit_key, 2), limit_key = json_extract(substr(limit_key, 2), '$[0]')
    WHERE id = NEW.id;
  INSERT INTO /*schema*/limit_wake
    SELECT limit_key FROM /*schema*/job
    WHERE id = NEW.id AND limit_key NOT IN (SELECT key FROM /*schema*/limit_wake);
END;
CREATE TRIGGER /*schema*/job_held_new AFTER INSERT ON /*schema*/job
  WHEN NEW.limit_key IS NOT NULL AND NEW.status = 'pending' AND NEW.deferred = 0
    AND substr(NEW.limit_key, 1, 1) <> char(31)
BEGIN
  INSERT INTO /*schema*/limit_wake
    SELECT NEW.limit_key WHERE NOT EXISTS (SELECT 1 FROM /*schema*/limit_wake WHERE key = NEW.limit_key);
END;
CREATE TRIGGER /*schema*/job_place_gone AFTER DELETE ON /*schema*/job
  WHEN OLD.limit_key IS NOT NULL AND (
    OLD.status = 'running' OR OLD.status = 'pending' AND OLD.deferred = 0 AND OLD.admitted_after = OLD.attempt)
BEGIN
  INSERT INTO /*schema*/limit_wake
    SELECT OLD.limit_key WHERE NOT EXISTS (SELECT 1 FROM /*schema*/limit_wake WHERE key = OLD.limit_key);
END;
CREATE TRIGGER /*schema*/job_places_gone AFTER DELETE ON /*schema*/job WHEN OLD.limit_keys IS NOT NULL
BEGIN
  DELETE FROM /*schema*/limit_place WHERE job_id = OLD.id;
  INSERT INTO /*schema*/limit_wake
    SELECT CAST(value AS TEXT) FROM json_each(CASE WHEN json_valid(OLD.limit_keys) THEN OLD.limit_keys ELSE '[]' END)
    WHERE value IS NOT NULL AND CAST(value AS TEXT) NOT IN (SELECT key FROM /*schema*/limit_wake);
END;

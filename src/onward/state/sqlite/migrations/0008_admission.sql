-- Admission for less: who gives a place changes none of the columns that these triggers look at, and who takes one away names
-- one of them.
DROP TRIGGER IF EXISTS /*schema*/job_held_again;
DROP TRIGGER IF EXISTS /*schema*/job_begins_anew;
CREATE TRIGGER /*schema*/job_held_again AFTER UPDATE OF status, deferred, attempt ON /*schema*/job
  WHEN NEW.limit_key IS NOT NULL AND (
    -- It comes to be held,
    NEW.status = 'pending' AND NEW.deferred = 0 AND NEW.admitted_after IS NOT NEW.attempt
      AND NOT (OLD.status = 'pending' AND OLD.deferred = 0 AND OLD.admitted_after IS NOT OLD.attempt)
    -- or loses its place.
    OR (OLD.status = 'running' OR OLD.status = 'pending' AND OLD.deferred = 0 AND OLD.admitted_after = OLD.attempt)
      AND NEW.status IN ('blocked', 'completed', 'failed')
    OR OLD.status = 'pending' AND OLD.deferred = 0 AND OLD.admitted_after = OLD.attempt AND NEW.deferred = 1
    OR OLD.status = 'running' AND NEW.status = 'pending' AND NEW.deferred = 1)
BEGIN
  INSERT INTO /*schema*/limit_wake
    SELECT NEW.limit_key WHERE NOT EXISTS (SELECT 1 FROM /*schema*/limit_wake WHERE key = NEW.limit_key);
END;
CREATE TRIGGER /*schema*/job_begins_anew AFTER UPDATE OF status, deferred, attempt ON /*schema*/job
  WHEN NEW.limit_keys IS NOT NULL AND OLD.limit_keys IS NOT NULL AND NEW.status <> 'running' AND (
    NEW.status <> OLD.status OR NEW.deferred <> OLD.deferred
    OR OLD.admitted_after IS OLD.attempt AND NEW.admitted_after IS NOT NEW.attempt)
BEGIN
  DELETE FROM /*schema*/limit_place WHERE job_id = NEW.id;
  INSERT INTO /*schema*/limit_wake
    SELECT CAST(value AS TEXT) FROM json_each(CASE WHEN json_valid(NEW.limit_keys) THEN NEW.limit_keys ELSE '[]' END)
    WHERE value IS NOT NULL AND CAST(value AS TEXT) NOT IN (SELECT key FROM /*schema*/limit_wake);
  UPDATE /*schema*/job SET limit_key = json_extract(limit_keys, '$[0]')
    WHERE id = NEW.id AND status = 'pending' AND json_valid(limit_keys);
END;

-- Forget keys whose slots are all to be had again.
DELETE FROM /*schema*/limit_key WHERE rowid IN (
  SELECT rowid FROM /*schema*/limit_key WHERE wake_at IS NULL AND stale_at IS NULL AND tat < :now LIMIT 100)

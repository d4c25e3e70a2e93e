-- Every worker that has a row, then every job that runs, with whoever holds it: by the index of those, whatever else there
-- is. A worker seen in the future is one that a wrong clock has made up: whoever lives soon gives another sign. One whose
-- promise ran out lately may have been kept from writing, by whoever has the lock: NULL.
SELECT id, host, pid, version, onward_version, types, concurrency, started_at, seen_at,
  CASE
    WHEN seen_at > :now + CAST(:ahead * 1000000 AS INTEGER) THEN 0
    WHEN alive_until >= :now THEN 1
    WHEN alive_until < :now - CAST(:lately * 1000000 AS INTEGER) THEN 0 END,
  is_stopping, blocked_since,
  NULL, NULL, NULL, NULL, NULL, NULL
FROM /*schema*/worker
UNION ALL
SELECT leased_by, NULL, NULL, NULL, NULL, NULL, NULL, NULL, min(leased_until, :now), leased_until >= :now, NULL, NULL,
  id, chain_id, type_name, payload_version, attempt, leased_until
FROM /*schema*/job INDEXED BY /*schema*/job_running WHERE status = 'running' AND leased_by IS NOT NULL

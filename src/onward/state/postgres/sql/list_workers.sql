-- Every worker that has a row, then every job that runs, with whoever holds it: by the index of those, whatever else there
-- is. A worker seen in the future is one that a wrong clock has made up: whoever lives soon gives another sign.
WITH time AS (
  SELECT coalesce(:now::timestamptz, statement_timestamp()) AS now
)
SELECT worker.id, host, pid, version, onward_version, types::text AS types, concurrency, /*schema*/readable(started_at) AS started_at,
  /*schema*/readable(seen_at) AS seen_at,
  alive_until >= time.now AND seen_at <= time.now + make_interval(secs => :ahead::double precision) AS is_alive,
  is_stopping, /*schema*/readable(blocked_since) AS blocked_since,
  NULL::uuid AS job_id, NULL::uuid AS chain_id, NULL::text AS type_name, NULL::integer AS payload_version,
  NULL::integer AS attempt, NULL::timestamptz AS leased_until
FROM /*schema*/worker worker, time
UNION ALL
SELECT leased_by, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
  CASE WHEN leased_until >= time.now THEN time.now ELSE /*schema*/readable(leased_until) END,
  leased_until >= time.now, NULL, NULL,
  job.id, chain_id, type_name, payload_version, attempt, /*schema*/readable(leased_until)
FROM /*schema*/job job, time WHERE status = 'running' AND leased_by IS NOT NULL

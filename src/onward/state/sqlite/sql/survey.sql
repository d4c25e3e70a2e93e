-- Which types have jobs that are blocked, pending, scheduled, running or failed, and which limits hold some; for how many
-- seconds the oldest that is pending has been due. From one type to the next is one seek of a partial index, and so is from
-- one version and rank to the next: of each type the first is looked at, then ten thousand of all.
WITH RECURSIVE blocked_type(name) AS (
  SELECT (SELECT type_name FROM /*schema*/job INDEXED BY /*schema*/job_blocked WHERE status = 'blocked' ORDER BY type_name LIMIT 1)
  UNION ALL
  SELECT (
    SELECT type_name FROM /*schema*/job INDEXED BY /*schema*/job_blocked
    WHERE status = 'blocked' AND type_name > blocked_type.name
    ORDER BY type_name LIMIT 1)
  FROM blocked_type WHERE name IS NOT NULL
), pending_type(name) AS (
  SELECT (SELECT type_name FROM /*schema*/job INDEXED BY /*schema*/job_pending WHERE status = 'pending' AND deferred = 0 AND (limit_key IS NULL OR admitted_after = attempt) ORDER BY type_name LIMIT 1)
  UNION ALL
  SELECT (
    SELECT type_name FROM /*schema*/job INDEXED BY /*schema*/job_pending
    WHERE status = 'pending' AND deferred = 0 AND (limit_key IS NULL OR admitted_after = attempt) AND type_name > pending_type.name
    ORDER BY type_name LIMIT 1)
  FROM pending_type WHERE name IS NOT NULL
), scheduled_type(name) AS (
  SELECT (SELECT type_name FROM /*schema*/job INDEXED BY /*schema*/job_deferred WHERE status = 'pending' AND deferred = 1 ORDER BY type_name LIMIT 1)
  UNION ALL
  SELECT (
    SELECT type_name FROM /*schema*/job INDEXED BY /*schema*/job_deferred
    WHERE status = 'pending' AND deferred = 1 AND type_name > scheduled_type.name
    ORDER BY type_name LIMIT 1)
  FROM scheduled_type WHERE name IS NOT NULL
), running_type(name) AS (
  SELECT (SELECT type_name FROM /*schema*/job INDEXED BY /*schema*/job_running WHERE status = 'running' ORDER BY type_name LIMIT 1)
  UNION ALL
  SELECT (
    SELECT type_name FROM /*schema*/job INDEXED BY /*schema*/job_running
    WHERE status = 'running' AND type_name > running_type.name
    ORDER BY type_name LIMIT 1)
  FROM running_type WHERE name IS NOT NULL
), failed_type(name) AS (
  SELECT (SELECT type_name FROM /*schema*/job INDEXED BY /*schema*/job_failed WHERE status = 'failed' ORDER BY type_name LIMIT 1)
  UNION ALL
  SELECT (
    SELECT type_name FROM /*schema*/job INDEXED BY /*schema*/job_failed
    WHERE status = 'failed' AND type_name > failed_type.name
    ORDER BY type_name LIMIT 1)
  FROM failed_type WHERE name IS NOT NULL
), held_limit(name) AS (
  -- A key that a hand has written may name no limit: it is passed by, lest it be met again and again.
  SELECT (SELECT substr(limit_key, 1, instr(limit_key, '/') - 1) FROM /*schema*/job INDEXED BY /*schema*/job_held
    WHERE /*include fragments/held_job*/ AND typeof(limit_key) = 'text' AND instr(limit_key, '/') > 1
    ORDER BY limit_key LIMIT 1)
  UNION ALL
  SELECT (
    SELECT substr(limit_key, 1, instr(limit_key, '/') - 1) FROM /*schema*/job INDEXED BY /*schema*/job_held
    WHERE /*include fragments/held_job*/ AND typeof(limit_key) = 'text' AND instr(limit_key, '/') > 1
      AND limit_key >= held_limit.name || '0'
    ORDER BY limit_key LIMIT 1)
  FROM held_limit WHERE name IS NOT NULL
), head(name, place) AS (
  SELECT name, (
    SELECT rowid FROM /*schema*/job INDEXED BY /*schema*/job_pending
    WHERE type_name = pending_type.name AND status = 'pending' AND deferred = 0 AND (limit_key IS NULL OR admitted_after = attempt)
    ORDER BY payload_version, rank, scheduled_at, id LIMIT 1)
  FROM pending_type WHERE name IS NOT NULL
  UNION ALL
  -- Apart: a comparison of both at once would go through all jobs of the same version.
  SELECT head.name, coalesce((
    SELECT next.rowid FROM /*schema*/job AS next INDEXED BY /*schema*/job_pending
    WHERE next.type_name = head.name AND next.status = 'pending' AND next.deferred = 0
      AND (next.limit_key IS NULL OR next.admitted_after = next.attempt)
      AND next.payload_version = here.payload_version AND next.rank > here.rank
    ORDER BY next.rank, next.scheduled_at, next.id LIMIT 1
  ), (
    SELECT next.rowid FROM /*schema*/job AS next INDEXED BY /*schema*/job_pending
    WHERE next.type_name = head.name AND next.status = 'pending' AND next.deferred = 0
      AND (next.limit_key IS NULL OR next.admitted_after = next.attempt)
      AND next.payload_version > here.payload_version
    ORDER BY next.payload_version, next.rank, next.scheduled_at, next.id LIMIT 1
  ))
  FROM head JOIN /*schema*/job AS here ON here.rowid = head.place
  LIMIT (SELECT count(*) FROM pending_type) + 10000
)
SELECT 'now' AS kind, NULL AS name, :now / 1000000.0 AS seconds
UNION ALL
SELECT 'blocked', name, NULL FROM blocked_type WHERE name IS NOT NULL
UNION ALL
SELECT 'scheduled', name, NULL FROM scheduled_type WHERE name IS NOT NULL
UNION ALL
SELECT 'running', name, NULL FROM running_type WHERE name IS NOT NULL
UNION ALL
SELECT 'failed', name, NULL FROM failed_type WHERE name IS NOT NULL
UNION ALL
SELECT 'held', name, NULL FROM held_limit WHERE name IS NOT NULL
UNION ALL
SELECT 'pending', head.name, (:now - min(job.scheduled_at)) / 1000000.0
FROM head JOIN /*schema*/job AS job ON job.rowid = head.place
GROUP BY head.name

-- How many jobs of each type are where, counted up to :most, and for how many seconds the oldest that is pending has been due;
-- also of types that nobody here knows. From one type to the next is one seek of a partial index, and so is from one
-- version and rank to the next.
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
), held(name, jobs, due) AS MATERIALIZED (
  SELECT found.key, sum(json_extract(found.value, '$[0]')), min(json_extract(found.value, '$[1]'))
  FROM held_limit, json_each((
    SELECT json_group_object(type_name, json_array(jobs, due)) FROM (
      SELECT type_name, count(*) AS jobs, min(scheduled_at) AS due FROM (
        SELECT type_name, scheduled_at FROM /*schema*/job INDEXED BY /*schema*/job_held
        WHERE /*include fragments/held_job*/ AND limit_key >= held_limit.name || '/' AND limit_key < held_limit.name || '0'
        LIMIT :most)
      GROUP BY type_name))) AS found
  WHERE held_limit.name IS NOT NULL
  GROUP BY found.key
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
)
SELECT 'now' AS kind, NULL AS name, 0 AS jobs, :now / 1000000.0 AS seconds
UNION ALL
SELECT 'blocked', name, (
  SELECT count(*) FROM (
    SELECT 1 FROM /*schema*/job INDEXED BY /*schema*/job_blocked
    WHERE status = 'blocked' AND type_name = blocked_type.name
    LIMIT :most)), NULL
FROM blocked_type WHERE name IS NOT NULL
UNION ALL
SELECT 'pending', name, (
  SELECT count(*) FROM (
    SELECT 1 FROM /*schema*/job INDEXED BY /*schema*/job_pending
    WHERE status = 'pending' AND deferred = 0 AND (limit_key IS NULL OR admitted_after = attempt) AND type_name = pending_type.name
    LIMIT :most)), NULL
FROM pending_type WHERE name IS NOT NULL
UNION ALL
SELECT 'scheduled', name, (
  SELECT count(*) FROM (
    SELECT 1 FROM /*schema*/job INDEXED BY /*schema*/job_deferred
    WHERE status = 'pending' AND deferred = 1 AND type_name = scheduled_type.name
    LIMIT :most)), NULL
FROM scheduled_type WHERE name IS NOT NULL
UNION ALL
SELECT 'running', name, (
  SELECT count(*) FROM (
    SELECT 1 FROM /*schema*/job INDEXED BY /*schema*/job_running
    WHERE status = 'running' AND type_name = running_type.name
    LIMIT :most)), NULL
FROM running_type WHERE name IS NOT NULL
UNION ALL
SELECT 'failed', name, (
  SELECT count(*) FROM (
    SELECT 1 FROM /*schema*/job INDEXED BY /*schema*/job_failed
    WHERE status = 'failed' AND type_name = failed_type.name
    LIMIT :most)), NULL
FROM failed_type WHERE name IS NOT NULL
UNION ALL
SELECT 'held', name, jobs, NULL FROM held
UNION ALL
SELECT 'oldest', due.name, 0, (:now - min(due.at)) / 1000000.0
FROM (
  SELECT head.name AS name, job.scheduled_at AS at FROM head JOIN /*schema*/job AS job ON job.rowid = head.place
  UNION ALL
  SELECT name, due FROM held
) AS due
GROUP BY due.name

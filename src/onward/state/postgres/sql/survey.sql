-- How many jobs of each type are where, counted up to :most, and for how many seconds the oldest that is pending has been due;
-- also of types that nobody here knows. From one type to the next is one seek of a partial index, and so is from one
-- version and rank to the next. ORDER BY has it use that index, whatever is known of the table.
WITH RECURSIVE moment AS (
  SELECT coalesce(:now::timestamptz, statement_timestamp()) AS now
), blocked_type AS (
  (SELECT type_name AS name FROM /*schema*/job WHERE status = 'blocked' ORDER BY type_name LIMIT 1)
  UNION ALL
  SELECT following.name FROM blocked_type CROSS JOIN LATERAL (
    SELECT type_name AS name FROM /*schema*/job
    WHERE status = 'blocked' AND type_name > blocked_type.name
    ORDER BY type_name LIMIT 1
  ) following
), pending_type AS (
  (SELECT type_name AS name FROM /*schema*/job WHERE status = 'pending' AND NOT deferred AND (limit_key IS NULL OR admitted_after = attempt) ORDER BY type_name LIMIT 1)
  UNION ALL
  SELECT following.name FROM pending_type CROSS JOIN LATERAL (
    SELECT type_name AS name FROM /*schema*/job
    WHERE status = 'pending' AND NOT deferred AND (limit_key IS NULL OR admitted_after = attempt) AND type_name > pending_type.name
    ORDER BY type_name LIMIT 1
  ) following
), scheduled_type AS (
  (SELECT type_name AS name FROM /*schema*/job WHERE status = 'pending' AND deferred ORDER BY type_name LIMIT 1)
  UNION ALL
  SELECT following.name FROM scheduled_type CROSS JOIN LATERAL (
    SELECT type_name AS name FROM /*schema*/job
    WHERE status = 'pending' AND deferred AND type_name > scheduled_type.name
    ORDER BY type_name LIMIT 1
  ) following
), running_type AS (
  (SELECT type_name AS name FROM /*schema*/job WHERE status = 'running' ORDER BY type_name LIMIT 1)
  UNION ALL
  SELECT following.name FROM running_type CROSS JOIN LATERAL (
    SELECT type_name AS name FROM /*schema*/job
    WHERE status = 'running' AND type_name > running_type.name
    ORDER BY type_name LIMIT 1
  ) following
), failed_type AS (
  (SELECT type_name AS name FROM /*schema*/job WHERE status = 'failed' ORDER BY type_name LIMIT 1)
  UNION ALL
  SELECT following.name FROM failed_type CROSS JOIN LATERAL (
    SELECT type_name AS name FROM /*schema*/job
    WHERE status = 'failed' AND type_name > failed_type.name
    ORDER BY type_name LIMIT 1
  ) following
), held_limit AS (
  (SELECT split_part(limit_key, '/', 1) AS name FROM /*schema*/job
   WHERE /*include fragments/held*/ ORDER BY limit_key LIMIT 1)
  UNION ALL
  SELECT split_part(following.key, '/', 1) FROM held_limit CROSS JOIN LATERAL (
    SELECT limit_key AS key FROM /*schema*/job
    WHERE /*include fragments/held*/ AND limit_key >= held_limit.name || '0'
    ORDER BY limit_key LIMIT 1
  ) following
), held AS MATERIALIZED (
  SELECT found.type_name AS name, count(*) AS jobs, min(found.scheduled_at) AS due
  FROM held_limit CROSS JOIN LATERAL (
    SELECT type_name, scheduled_at FROM /*schema*/job
    WHERE /*include fragments/held*/ AND limit_key >= held_limit.name || '/' AND limit_key < held_limit.name || '0'
    ORDER BY limit_key, rank, scheduled_at, id LIMIT :most
  ) found
  GROUP BY found.type_name
), head AS (
  SELECT first.* FROM pending_type CROSS JOIN LATERAL (
    SELECT type_name, payload_version, rank, scheduled_at FROM /*schema*/job
    WHERE type_name = pending_type.name AND status = 'pending' AND NOT deferred AND (limit_key IS NULL OR admitted_after = attempt)
    ORDER BY payload_version, rank, scheduled_at LIMIT 1
  ) first
  UNION ALL
  SELECT following.* FROM head CROSS JOIN LATERAL (
    SELECT type_name, payload_version, rank, scheduled_at FROM /*schema*/job
    WHERE type_name = head.type_name AND status = 'pending' AND NOT deferred AND (limit_key IS NULL OR admitted_after = attempt)
      AND (payload_version, rank) > (head.payload_version, head.rank)
    ORDER BY payload_version, rank, scheduled_at LIMIT 1
  ) following
)
SELECT 'now' AS kind, NULL AS name, 0 AS jobs, extract(epoch FROM moment.now)::double precision AS seconds FROM moment
UNION ALL
SELECT 'blocked', name, (
  SELECT count(*) FROM (
    SELECT 1 FROM /*schema*/job
    WHERE status = 'blocked' AND type_name BETWEEN blocked_type.name AND blocked_type.name
    ORDER BY type_name LIMIT :most
  ) found), NULL
FROM blocked_type
UNION ALL
SELECT 'pending', name, (
  SELECT count(*) FROM (
    SELECT 1 FROM /*schema*/job
    WHERE status = 'pending' AND NOT deferred AND (limit_key IS NULL OR admitted_after = attempt) AND type_name = pending_type.name
    ORDER BY payload_version, rank, scheduled_at, id LIMIT :most
  ) found), NULL
FROM pending_type
UNION ALL
SELECT 'scheduled', name, (
  SELECT count(*) FROM (
    SELECT 1 FROM /*schema*/job
    WHERE status = 'pending' AND deferred AND type_name = scheduled_type.name
    ORDER BY scheduled_at LIMIT :most
  ) found), NULL
FROM scheduled_type
UNION ALL
SELECT 'running', name, (
  SELECT count(*) FROM (
    SELECT 1 FROM /*schema*/job
    WHERE status = 'running' AND type_name BETWEEN running_type.name AND running_type.name
    ORDER BY type_name LIMIT :most
  ) found), NULL
FROM running_type
UNION ALL
SELECT 'failed', name, (
  SELECT count(*) FROM (
    SELECT 1 FROM /*schema*/job
    WHERE status = 'failed' AND type_name = failed_type.name
    ORDER BY ended_at, id LIMIT :most
  ) found), NULL
FROM failed_type
UNION ALL
SELECT 'held', name, jobs, NULL FROM held
UNION ALL
SELECT 'oldest', due.name, 0, extract(epoch FROM moment.now - /*schema*/readable(min(due.at)))::double precision
FROM moment, (
  SELECT type_name AS name, scheduled_at AS at FROM head
  UNION ALL
  SELECT name, due FROM held
) due
GROUP BY due.name, moment.now

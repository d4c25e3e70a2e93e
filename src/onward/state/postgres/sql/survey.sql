-- Which types have jobs that are blocked, pending, scheduled, running or failed, and which limits hold some; for how many
-- seconds the oldest that is pending has been due. From one type to the next is one seek of a partial index, and so is from
-- one version and rank to the next: as many are looked at as five of each type, and ten thousand more. ORDER BY has it use
-- that index, whatever is known of the table.
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
), pending_type AS (
  (SELECT type_name AS name FROM /*schema*/job
   WHERE status = 'pending' AND NOT deferred AND (limit_key IS NULL OR admitted_after = attempt)
   ORDER BY type_name, payload_version, rank, scheduled_at LIMIT 1)
  UNION ALL
  SELECT following.name FROM pending_type CROSS JOIN LATERAL (
    SELECT type_name AS name FROM /*schema*/job
    WHERE status = 'pending' AND NOT deferred AND (limit_key IS NULL OR admitted_after = attempt)
      AND type_name > pending_type.name
    ORDER BY type_name, payload_version, rank, scheduled_at LIMIT 1
  ) following
), head AS (
  -- All types go on to their next rank together, and only as long as somebody reads on.
  SELECT first.* FROM pending_type CROSS JOIN LATERAL (
    SELECT type_name, payload_version, rank, scheduled_at FROM /*schema*/job
    WHERE status = 'pending' AND NOT deferred AND (limit_key IS NULL OR admitted_after = attempt)
      AND type_name = pending_type.name
    ORDER BY type_name, payload_version, rank, scheduled_at LIMIT 1
  ) first
  UNION ALL
  SELECT following.* FROM head CROSS JOIN LATERAL (
    SELECT type_name, payload_version, rank, scheduled_at FROM /*schema*/job
    WHERE status = 'pending' AND NOT deferred AND (limit_key IS NULL OR admitted_after = attempt)
      AND type_name = head.type_name AND (payload_version, rank) > (head.payload_version, head.rank)
    ORDER BY type_name, payload_version, rank, scheduled_at LIMIT 1
  ) following
), looked AS (
  SELECT type_name, scheduled_at FROM head LIMIT (SELECT 5 * count(*) FROM pending_type) + 10000
)
SELECT 'now' AS kind, NULL AS name, extract(epoch FROM now)::double precision AS seconds FROM moment
UNION ALL
SELECT 'blocked', name, NULL FROM blocked_type
UNION ALL
SELECT 'scheduled', name, NULL FROM scheduled_type
UNION ALL
SELECT 'running', name, NULL FROM running_type
UNION ALL
SELECT 'failed', name, NULL FROM failed_type
UNION ALL
SELECT 'held', name, NULL FROM held_limit
UNION ALL
SELECT 'pending', looked.type_name, extract(epoch FROM moment.now - /*schema*/readable(min(looked.scheduled_at)))::double precision
FROM moment, looked
GROUP BY looked.type_name, moment.now

-- Where a job is in its line. One that is held for a place of a limit: how many are held before it there, how many have a
-- place, and the next slot of the rate. One that waits for a worker: how many of these types and versions come before it.
-- Each priority in use is a range of the index, as in take_aged.sql; nothing is counted beyond :most.
WITH RECURSIVE /*include fragments/unpaused*/, asked AS MATERIALIZED (
  SELECT id, status, rank, scheduled_at, limit_key, (/*include fragments/held_job*/) AS is_held
  FROM /*schema*/job WHERE id = :id
), line AS (
  SELECT claim.type_name, claim.payload_version, (
    SELECT min(job.rank) FROM /*schema*/job job INDEXED BY /*schema*/job_pending
    WHERE job.type_name = claim.type_name AND job.payload_version = claim.payload_version
      AND job.status = 'pending' AND job.deferred = 0
      AND (job.limit_key IS NULL OR job.admitted_after = job.attempt)
  ) AS rank, 1 AS hops
  FROM claim
  UNION ALL
  SELECT line.type_name, line.payload_version, (
    SELECT min(job.rank) FROM /*schema*/job job INDEXED BY /*schema*/job_pending
    WHERE job.type_name = line.type_name AND job.payload_version = line.payload_version AND job.rank > line.rank
      AND job.status = 'pending' AND job.deferred = 0
      AND (job.limit_key IS NULL OR job.admitted_after = job.attempt)
  ), line.hops + 1
  FROM line
  WHERE line.rank IS NOT NULL AND line.hops < :most
    AND (:ageing IS NOT NULL OR line.rank < (SELECT rank FROM asked))
), until AS (
  -- Up to when those of a rank have come before it.
  SELECT line.type_name, line.payload_version, line.rank, asked.id, CASE
    WHEN line.rank = asked.rank THEN asked.scheduled_at
    WHEN :ageing IS NULL THEN iif(line.rank < asked.rank, 9223372036854775807, -9223372036854775807)
    ELSE asked.scheduled_at + (asked.rank - line.rank) * :ageing END AS moment
  FROM line CROSS JOIN asked WHERE line.rank IS NOT NULL
)
SELECT coalesce(asked.is_held, 0),
  (SELECT count(*) FROM (
    SELECT 1 FROM /*schema*/job INDEXED BY /*schema*/job_admitted
    WHERE /*include fragments/placed_job*/ AND limit_key = asked.limit_key
    UNION ALL
    SELECT 1 FROM /*schema*/limit_place place WHERE place.key = asked.limit_key
    LIMIT :most)),
  (SELECT wake_at FROM /*schema*/limit_key paced WHERE paced.key = asked.limit_key),
  CASE
    WHEN asked.is_held THEN (SELECT count(*) FROM (
      SELECT 1 FROM /*schema*/job INDEXED BY /*schema*/job_held
      WHERE /*include fragments/held_job*/ AND limit_key = asked.limit_key
        AND (rank, scheduled_at, id) < (asked.rank, asked.scheduled_at, asked.id)
      LIMIT :most))
    WHEN asked.status = 'pending' THEN (SELECT count(*) FROM (
      SELECT 1 FROM until CROSS JOIN /*schema*/job waiting INDEXED BY /*schema*/job_pending
      WHERE waiting.type_name = until.type_name AND waiting.payload_version = until.payload_version
        AND waiting.rank = until.rank AND (waiting.scheduled_at, waiting.id) < (until.moment, until.id)
        AND waiting.status = 'pending' AND waiting.deferred = 0
        AND (waiting.limit_key IS NULL OR waiting.admitted_after = waiting.attempt)
      LIMIT :most))
    ELSE 0 END
FROM (SELECT 1) AS answer LEFT JOIN asked

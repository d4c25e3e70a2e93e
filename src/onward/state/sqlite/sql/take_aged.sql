-- Claim as take.sql does, but those first that have waited longest, where one rank counts for :ageing microseconds.
-- The ranks in use are few: each is a range of the index in the order of time, and found by a hop over the one before.
WITH RECURSIVE /*include fragments/unpaused*/, line AS (
  SELECT claim.*, (
    SELECT min(job.rank) FROM /*schema*/job job INDEXED BY /*schema*/job_pending
    WHERE job.type_name = claim.type_name AND job.payload_version = claim.payload_version
      AND job.status = 'pending' AND job.deferred = 0
      AND (job.limit_key IS NULL OR job.admitted_after = job.attempt)
  ) AS rank
  FROM claim
  UNION ALL
  SELECT line.type_name, line.payload_version, line.lease, (
    SELECT min(job.rank) FROM /*schema*/job job INDEXED BY /*schema*/job_pending
    WHERE job.type_name = line.type_name AND job.payload_version = line.payload_version AND job.rank > line.rank
      AND job.status = 'pending' AND job.deferred = 0
      AND (job.limit_key IS NULL OR job.admitted_after = job.attempt)
  )
  FROM line WHERE line.rank IS NOT NULL
)
/*include fragments/claim*/
FROM (
  SELECT pending.rowid AS place, line.lease
  FROM line CROSS JOIN /*schema*/job pending
  WHERE pending.rowid IN (
    SELECT job.rowid FROM /*schema*/job job INDEXED BY /*schema*/job_pending
    WHERE job.type_name = line.type_name AND job.payload_version = line.payload_version AND job.rank = line.rank
      AND job.status = 'pending' AND job.deferred = 0
      AND (job.limit_key IS NULL OR job.admitted_after = job.attempt)
    ORDER BY job.scheduled_at, job.id LIMIT :limit
  )
  ORDER BY pending.scheduled_at + pending.rank * :ageing, pending.scheduled_at, pending.id
  LIMIT :limit
) AS best
WHERE job.rowid = best.place
RETURNING
  /*include fragments/taken_columns*/

-- Renew the leases of running attempts. A row that is locked is being completed and so alive: SKIP LOCKED.
-- Says of every attempt what has become of it.
WITH held AS (
  SELECT * FROM unnest(:ids::uuid[], :attempts::integer[], :leases::double precision[]) AS h(id, attempt, lease)
), alive AS (
  SELECT job.id, job.attempt, held.lease FROM /*schema*/job job JOIN held ON job.id = held.id AND job.attempt = held.attempt
  WHERE job.leased_by = :worker::text
  ORDER BY job.id
  FOR NO KEY UPDATE OF job SKIP LOCKED
), renewed AS (
  UPDATE /*schema*/job job
  SET leased_until = coalesce(:now::timestamptz, statement_timestamp()) + make_interval(secs => alive.lease)
  FROM alive WHERE job.id = alive.id
  RETURNING job.id, job.attempt, job.cancel_requested_at
)
SELECT held.id, held.attempt,
  CASE
    WHEN renewed.cancel_requested_at IS NOT NULL THEN 'cancelled'
    WHEN renewed.id IS NOT NULL THEN 'renewed'
    WHEN job.id IS NULL THEN 'not_found'
    WHEN job.attempt = held.attempt AND job.leased_by = :worker::text THEN 'locked'
    WHEN job.status IN ('completed', 'failed') THEN 'already_completed'
    ELSE 'taken_by_another_worker' END
FROM held
  LEFT JOIN renewed ON renewed.id = held.id AND renewed.attempt = held.attempt
  LEFT JOIN /*schema*/job job ON job.id = held.id

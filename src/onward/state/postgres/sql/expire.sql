-- Let the leases of a worker that has died run out now, so that the next reaper takes its jobs back as crashes.
-- SKIP LOCKED: a transaction of the dead worker's may still be ending. Says how many ran out, and how many there were.
WITH held AS (
  SELECT id FROM /*schema*/job
  WHERE status = 'running' AND leased_by = :worker::text
    AND leased_until >= coalesce(:now::timestamptz, statement_timestamp())
), free AS (
  SELECT id FROM /*schema*/job
  WHERE status = 'running' AND leased_by = :worker::text
    AND leased_until >= coalesce(:now::timestamptz, statement_timestamp())
  ORDER BY id
  FOR NO KEY UPDATE SKIP LOCKED
), expired AS (
  UPDATE /*schema*/job job
  SET leased_until = coalesce(:now::timestamptz, statement_timestamp()) - interval '1 millisecond'
  FROM free WHERE job.id = free.id
  RETURNING job.id
)
SELECT (SELECT count(*) FROM expired), (SELECT count(*) FROM held)

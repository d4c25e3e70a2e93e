-- Give back the jobs of a worker that was ended through no fault of theirs: they count nothing and keep their place.
-- Not those that were let go of, or are to be cancelled: these are a reaper's. SKIP LOCKED: a transaction of the worker's
-- may still be ending. Says how many were given back, and how many there were.
WITH held AS (
  SELECT id FROM /*schema*/job
  WHERE status = 'running' AND leased_by = :worker::text AND leased_until > to_timestamp(0)
    AND cancel_requested_at IS NULL
), free AS (
  SELECT id FROM /*schema*/job
  WHERE status = 'running' AND leased_by = :worker::text AND leased_until > to_timestamp(0)
    AND cancel_requested_at IS NULL
  ORDER BY id
  FOR NO KEY UPDATE SKIP LOCKED
), given AS (
  UPDATE /*schema*/job job SET status = 'pending', deferred = false, leased_by = NULL, leased_until = NULL
  FROM free WHERE job.id = free.id
  RETURNING job.id
)
SELECT (SELECT count(*) FROM given), (SELECT count(*) FROM held)

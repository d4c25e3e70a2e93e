-- Take over expired leases of the types given, oldest first, to settle them as crashes.
-- SKIP LOCKED: a row that its holder is completing at this moment is alive. Also says how long until the next expiry.
WITH expired AS (
  SELECT id FROM /*schema*/job
  WHERE status = 'running' AND type_name = ANY(:type_names::text[])
    AND leased_until < coalesce(:now::timestamptz, statement_timestamp()) AND NOT id = ANY(:held_here::uuid[])
  ORDER BY leased_until, id
  LIMIT :limit
  FOR NO KEY UPDATE SKIP LOCKED
), reaped AS (
  UPDATE /*schema*/job job SET
    leased_by = :worker::text,
    leased_until = coalesce(:now::timestamptz, statement_timestamp()) + make_interval(secs => :lease::double precision)
  FROM expired WHERE job.id = expired.id
  RETURNING job.id, job.chain_id, job.chain_index, job.type_name, job.payload_version, job.input::text, job.attempt,
    job.failures, job.transients, job.crashes, job.rank, job.root_id, job.errors::text, job.blockers,
    job.scheduled_at, job.created_at
)
SELECT reaped.*, NULL::double precision AS next_in FROM reaped
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
  extract(epoch FROM min(leased_until) - coalesce(:now::timestamptz, statement_timestamp()))::double precision
FROM /*schema*/job
WHERE status = 'running' AND type_name = ANY(:type_names::text[]) AND leased_by <> :worker::text
  AND NOT id IN (SELECT id FROM expired)

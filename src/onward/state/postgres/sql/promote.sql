-- Scheduled jobs whose time has come may be taken; also says how long until the next one is due. That is in the past if
-- somebody has locked it: nobody will tell when the lock ends.
WITH due AS (
  SELECT id FROM /*schema*/job
  WHERE status = 'pending' AND deferred AND type_name = ANY(:type_names::text[])
    AND scheduled_at <= coalesce(:now::timestamptz, statement_timestamp())
  ORDER BY scheduled_at
  LIMIT :limit
  FOR NO KEY UPDATE SKIP LOCKED
), promoted AS (
  UPDATE /*schema*/job job SET deferred = false FROM due WHERE job.id = due.id RETURNING job.id
)
SELECT
  (SELECT count(*) FROM promoted),
  (SELECT extract(epoch FROM /*schema*/readable(min(next.scheduled_at)) - coalesce(:now::timestamptz, statement_timestamp()))::double precision
   FROM unnest(:type_names::text[]) AS asked(name),
     LATERAL (SELECT scheduled_at FROM /*schema*/job
              WHERE status = 'pending' AND deferred AND type_name = asked.name AND NOT id IN (SELECT id FROM due)
              ORDER BY scheduled_at LIMIT 1) next)

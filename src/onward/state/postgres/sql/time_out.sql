-- Let go of attempts that did not end in time because their worker is stuck, and note why: the next reaper counts that.
-- SKIP LOCKED: a transaction of the attempt's own may be open.
WITH overdue AS (
  SELECT * FROM unnest(:ids::uuid[], :attempts::integer[], :errors::text[]) AS o(id, attempt, error)
), free AS (
  SELECT job.id FROM /*schema*/job job JOIN overdue ON overdue.id = job.id AND overdue.attempt = job.attempt
  WHERE job.leased_by = :worker::text AND job.status = 'running' AND job.leased_until > to_timestamp(0)
  ORDER BY job.id
  FOR NO KEY UPDATE OF job SKIP LOCKED
)
UPDATE /*schema*/job job SET
  leased_until = to_timestamp(0),
  errors = (coalesce(job.errors::jsonb, '[]'::jsonb) || jsonb_build_array(overdue.error::jsonb))::json
FROM overdue JOIN free ON free.id = overdue.id
WHERE job.id = overdue.id
RETURNING job.id

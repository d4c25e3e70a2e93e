-- Run scheduled jobs now.
UPDATE /*schema*/job job
SET scheduled_at = coalesce(:now::timestamptz, statement_timestamp()), deferred = false
WHERE job.status = 'pending'
  AND ((job.id = ANY(:chain_ids::uuid[]) AND job.chain_index = 0) OR (job.chain_id = ANY(:chain_ids::uuid[]) AND job.chain_index > 0))
RETURNING job.id, job.chain_id, job.type_name, 'triggered'

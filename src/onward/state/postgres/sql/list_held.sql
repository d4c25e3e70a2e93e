-- The jobs that are held for a place of a key, the next one first.
SELECT /*include fragments/job_columns*/
FROM /*schema*/job job
WHERE job.status = 'pending' AND NOT job.deferred AND job.limit_key IS NOT NULL
  AND job.admitted_after IS DISTINCT FROM job.attempt AND job.limit_key = :key::text
ORDER BY job.rank, job.scheduled_at, job.id
LIMIT :limit

-- The jobs that are held for a place of a key, the next one first.
SELECT /*include fragments/job_columns*/
FROM /*schema*/job job INDEXED BY /*schema*/job_held
WHERE /*include fragments/held_job*/ AND limit_key = :key
ORDER BY job.rank, job.scheduled_at, job.id
LIMIT :limit

-- The jobs that have a place of a key.
SELECT /*include fragments/job_columns*/
FROM /*schema*/job job INDEXED BY /*schema*/job_admitted
WHERE /*include fragments/placed_job*/ AND limit_key = :key
ORDER BY job.id
LIMIT :limit

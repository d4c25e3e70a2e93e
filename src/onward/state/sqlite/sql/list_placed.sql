-- The jobs that have a place of a key.
SELECT /*include fragments/job_columns*/
FROM /*schema*/job job
WHERE job.id IN (
  SELECT id FROM /*schema*/job INDEXED BY /*schema*/job_admitted WHERE /*include fragments/placed_job*/ AND limit_key = :key
  UNION ALL
  SELECT place.job_id FROM /*schema*/limit_place place WHERE place.key = :key)
ORDER BY job.id
LIMIT :limit
